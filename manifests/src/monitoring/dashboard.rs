//! The Grafana dashboard of brains.

use serde_json::{Value, json};

/// Panels per row, which divide the 24 columns of a dashboard.
const COLUMNS: usize = 3;
const WIDTH: usize = 24 / COLUMNS;
const HEIGHT: usize = 7;

/// A graph: its title, the unit of its axis as Grafana names it, and expressions with the text of their legends.
struct Panel(&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// Titles of rows, with the panels in each. Every expression selects the cluster of the variable `job`.
const ROWS: &[(&str, &[Panel])] = &[
    (
        "Cluster",
        &[
            Panel(
                "Leader known",
                "short",
                &[(r#"etcd_server_has_leader{job="$job"}"#, "{{instance}}")],
            ),
            Panel(
                "Leads",
                "short",
                &[(r#"etcd_server_is_leader{job="$job"}"#, "{{instance}}")],
            ),
            Panel(
                "Changes of leader in an hour",
                "short",
                &[(
                    r#"increase(etcd_server_leader_changes_seen_total{job="$job"}[1h])"#,
                    "{{instance}}",
                )],
            ),
            Panel(
                "Alarms",
                "short",
                &[(
                    r#"max by (alarm) (kubebrain_server_alarm_raised{job="$job"})"#,
                    "{{alarm}}",
                )],
            ),
            Panel(
                "Records that a follower has not applied yet",
                "short",
                &[(r#"kubebrain_server_follower_lag_slots{job="$job"}"#, "{{instance}}")],
            ),
            Panel(
                "Revisions: current, compacted",
                "short",
                &[
                    (
                        r#"max by (job) (etcd_debugging_mvcc_current_revision{job="$job"})"#,
                        "current",
                    ),
                    (
                        r#"max by (job) (etcd_debugging_mvcc_compact_revision{job="$job"})"#,
                        "compacted",
                    ),
                ],
            ),
        ],
    ),
    (
        "Requests",
        &[
            Panel(
                "Requests",
                "reqps",
                &[(
                    r#"sum by (grpc_method) (rate(grpc_server_started_total{job="$job"}[$__rate_interval]))"#,
                    "{{grpc_method}}",
                )],
            ),
            Panel(
                "Failed requests",
                "reqps",
                &[(
                    r#"sum by (grpc_method, grpc_code) (rate(grpc_server_handled_total{job="$job", grpc_code!~"OK|Canceled"}[$__rate_interval])) > 0"#,
                    "{{grpc_method}} {{grpc_code}}",
                )],
            ),
            Panel(
                "p99 of unary requests (--metrics extensive)",
                "s",
                &[(
                    r#"histogram_quantile(0.99, sum by (grpc_method, le) (rate(grpc_server_handling_seconds_bucket{job="$job", grpc_type="unary"}[$__rate_interval])))"#,
                    "{{grpc_method}}",
                )],
            ),
            Panel(
                "Proposals: pending, failed",
                "short",
                &[
                    (r#"etcd_server_proposals_pending{job="$job"}"#, "{{instance}} waiting"),
                    (
                        r#"increase(etcd_server_proposals_failed_total{job="$job"}[$__rate_interval])"#,
                        "{{instance}} failed",
                    ),
                ],
            ),
            Panel(
                "Read indexes: slow, failed",
                "short",
                &[
                    (
                        r#"increase(etcd_server_slow_read_indexes_total{job="$job"}[$__rate_interval])"#,
                        "{{instance}} slow",
                    ),
                    (
                        r#"increase(etcd_server_read_indexes_failed_total{job="$job"}[$__rate_interval])"#,
                        "{{instance}} failed",
                    ),
                ],
            ),
            Panel(
                "Requests refused",
                "reqps",
                &[(
                    r#"sum by (reason) (rate(kubebrain_network_requests_refused_total{job="$job"}[$__rate_interval]))"#,
                    "{{reason}}",
                )],
            ),
        ],
    ),
    (
        "Storage",
        &[
            Panel(
                "p99 of appends to the log",
                "s",
                &[(
                    r#"histogram_quantile(0.99, sum by (instance, le) (rate(etcd_disk_wal_fsync_duration_seconds_bucket{job="$job"}[$__rate_interval])))"#,
                    "{{instance}}",
                )],
            ),
            Panel(
                "p99 of flushes of rows",
                "s",
                &[(
                    r#"histogram_quantile(0.99, sum by (instance, le) (rate(etcd_disk_backend_commit_duration_seconds_bucket{job="$job"}[$__rate_interval])))"#,
                    "{{instance}}",
                )],
            ),
            Panel(
                "Size of the store, quota",
                "bytes",
                &[
                    (r#"etcd_mvcc_db_total_size_in_bytes{job="$job"}"#, "{{instance}}"),
                    (
                        r#"etcd_mvcc_db_total_size_in_use_in_bytes{job="$job"}"#,
                        "{{instance}} in use",
                    ),
                    (
                        r#"kubebrain_disk_log_size_in_bytes{job="$job"} > 0"#,
                        "{{instance}} log",
                    ),
                    (
                        r#"max by (job) (etcd_server_quota_backend_bytes{job="$job"}) > 0"#,
                        "quota",
                    ),
                ],
            ),
            Panel(
                "Disk: free, capacity",
                "bytes",
                &[
                    (r#"kubebrain_disk_available_bytes{job="$job"}"#, "{{instance}} free"),
                    (r#"kubebrain_disk_capacity_bytes{job="$job"}"#, "{{instance}} capacity"),
                ],
            ),
            Panel(
                "p99 of requests to TiKV",
                "s",
                &[(
                    r#"histogram_quantile(0.99, sum by (op, le) (rate(kubebrain_tikv_request_duration_seconds_bucket{job="$job"}[$__rate_interval])))"#,
                    "{{op}}",
                )],
            ),
            Panel(
                "Failed requests to TiKV",
                "reqps",
                &[(
                    r#"sum by (op, reason) (rate(kubebrain_tikv_request_failures_total{job="$job"}[$__rate_interval]))"#,
                    "{{op}} {{reason}}",
                )],
            ),
        ],
    ),
    (
        "Watches and leases",
        &[
            Panel(
                "Watchers",
                "short",
                &[
                    (r#"etcd_debugging_mvcc_watcher_total{job="$job"}"#, "{{instance}}"),
                    (
                        r#"etcd_debugging_mvcc_slow_watcher_total{job="$job"}"#,
                        "{{instance}} fallen behind",
                    ),
                ],
            ),
            Panel(
                "Events sent",
                "short",
                &[(
                    r#"rate(etcd_debugging_mvcc_events_total{job="$job"}[$__rate_interval])"#,
                    "{{instance}}",
                )],
            ),
            Panel(
                "Leases: granted, revoked, expired",
                "short",
                &[
                    (
                        r#"sum by (job) (rate(etcd_debugging_lease_granted_total{job="$job"}[$__rate_interval]))"#,
                        "granted",
                    ),
                    (
                        r#"sum by (job) (rate(etcd_debugging_lease_revoked_total{job="$job"}[$__rate_interval]))"#,
                        "revoked",
                    ),
                    (
                        r#"sum by (job) (rate(etcd_debugging_server_lease_expired_total{job="$job"}[$__rate_interval]))"#,
                        "expired",
                    ),
                ],
            ),
        ],
    ),
    (
        "Process",
        &[
            Panel(
                "Processors",
                "short",
                &[(
                    r#"rate(process_cpu_seconds_total{job="$job"}[$__rate_interval])"#,
                    "{{instance}}",
                )],
            ),
            Panel(
                "Memory",
                "bytes",
                &[
                    (r#"process_resident_memory_bytes{job="$job"}"#, "{{instance}}"),
                    (r#"kubebrain_network_held_bytes{job="$job"}"#, "{{instance}} requests"),
                ],
            ),
            Panel(
                "Traffic of clients",
                "Bps",
                &[
                    (
                        r#"rate(etcd_network_client_grpc_received_bytes_total{job="$job"}[$__rate_interval])"#,
                        "{{instance}} received",
                    ),
                    (
                        r#"rate(etcd_network_client_grpc_sent_bytes_total{job="$job"}[$__rate_interval])"#,
                        "{{instance}} sent",
                    ),
                ],
            ),
            Panel(
                "Traffic between members",
                "Bps",
                &[
                    (
                        r#"sum by (instance) (rate(etcd_network_peer_received_bytes_total{job="$job"}[$__rate_interval]))"#,
                        "{{instance}} received",
                    ),
                    (
                        r#"sum by (instance) (rate(etcd_network_peer_sent_bytes_total{job="$job"}[$__rate_interval]))"#,
                        "{{instance}} sent",
                    ),
                ],
            ),
            Panel(
                "Round trips to the leader (99th percentile)",
                "s",
                &[(
                    r#"histogram_quantile(0.99, sum by (instance, To, le) (rate(etcd_network_peer_round_trip_time_seconds_bucket{job="$job"}[$__rate_interval])))"#,
                    "{{instance}} to {{To}}",
                )],
            ),
            Panel(
                "Connections",
                "short",
                &[(r#"kubebrain_network_connections{job="$job"}"#, "{{instance}}")],
            ),
            Panel(
                "File descriptors",
                "percentunit",
                &[(
                    r#"process_open_fds{job="$job"} / process_max_fds{job="$job"}"#,
                    "{{instance}}",
                )],
            ),
            Panel(
                "Time until the certificate expires",
                "s",
                &[(
                    r#"(kubebrain_tls_certificate_expiry_timestamp_seconds{job="$job"} > 0) - time()"#,
                    "{{instance}}",
                )],
            ),
            Panel(
                "Failing certificate reloads",
                "short",
                &[(r#"kubebrain_tls_reloads_failing{job="$job"}"#, "{{instance}}")],
            ),
            Panel(
                "Index of keys: memory, limit",
                "bytes",
                &[
                    (r#"kubebrain_mvcc_key_index_size_in_bytes{job="$job"}"#, "{{instance}}"),
                    (
                        r#"kubebrain_mvcc_key_index_limit_bytes{job="$job"} > 0"#,
                        "{{instance}} limit",
                    ),
                ],
            ),
        ],
    ),
];

/// Returns the dashboard, for Grafana's import and provisioning.
pub(super) fn dashboard() -> Value {
    let (mut panels, mut y) = (Vec::new(), 0);
    for (title, row) in ROWS {
        let id = panels.len() + 1;
        panels.push(json!({
            "id": id, "type": "row", "title": title, "collapsed": false, "panels": [],
            "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
        }));
        y += 1;
        for (at, panel) in row.iter().enumerate() {
            let place = (at % COLUMNS * WIDTH, y + at / COLUMNS * HEIGHT);
            panels.push(graph(panel, panels.len() + 1, place));
        }
        y += row.len().div_ceil(COLUMNS) * HEIGHT;
    }
    json!({
        "uid": "kubebrain-brains",
        "title": "KubeBrain",
        "description": "Clusters of brains: etcd's metrics and those of KubeBrain.",
        "tags": ["kubebrain", "etcd"],
        "schemaVersion": 39,
        "editable": true,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [
            {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
            {
                "name": "job", "label": "Cluster", "type": "query", "datasource": source(), "refresh": 2, "sort": 1,
                "query": {"query": "label_values(kubebrain_network_connections, job)", "refId": "job"},
            },
        ]},
        "panels": panels,
    })
}

fn graph(Panel(title, unit, expressions): &Panel, id: usize, (x, y): (usize, usize)) -> Value {
    let targets = expressions.iter().enumerate().map(|(at, (expression, legend))| {
        json!({"refId": format!("Q{at}"), "datasource": source(), "expr": expression, "legendFormat": legend})
    });
    let targets: Vec<Value> = targets.collect();
    json!({
        "id": id, "type": "timeseries", "title": title, "datasource": source(), "targets": targets,
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
    })
}

fn source() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}
