//! Alerts on the metrics of brains.
//!
//! An alert has the name of etcd's own alert if it means the same; thresholds and periods are those that users of etcd know. Metrics with
//! etcd's names count only if they come from a brain, so an etcd in the same Prometheus triggers no alert here.

use serde_json::Value;

use super::alert;

/// Selects the targets that are brains; an etcd does not have this metric.
const BRAIN: &str = "and on (job, instance) kubebrain_network_connections";

/// Selects the jobs that had a brain within the last day. If all brains of a job are down, the job has no other current series.
const BRAINS_LATELY: &str = "and on (job) max_over_time(kubebrain_network_connections[1d])";

/// Returns the alerts, in the order of their subjects: leader, requests, storage, index of keys, watchers, certificates, TiKV, process.
pub(super) fn alerts() -> Vec<Value> {
    [
        leaders(),
        requests(),
        storage(),
        key_index(),
        watchers(),
        certificates(),
        tikv(),
        process(),
    ]
    .concat()
}

fn leaders() -> Vec<Value> {
    vec![
        alert(
            "etcdNoLeader",
            &format!("etcd_server_has_leader == 0 {BRAIN}"),
            "1m",
            "critical",
            "Member {{ $labels.instance }} of {{ $labels.job }} knows no leader: it accepts no writes and no linearizable reads.",
        ),
        alert(
            "etcdMembersDown",
            &format!("count by (job) (up == 0 {BRAINS_LATELY}) > 0"),
            "10m",
            "critical",
            "Members of {{ $labels.job }} do not answer Prometheus.",
        ),
        alert(
            "etcdHighNumberOfLeaderChanges",
            &format!("max by (job) (increase(etcd_server_leader_changes_seen_total[15m]) {BRAIN}) >= 4"),
            "5m",
            "warning",
            "The leader of {{ $labels.job }} changed four times or more within 15 minutes: check CPU, disks and TiKV.",
        ),
        alert(
            "etcdMemberCommunicationSlow",
            &format!(
                "histogram_quantile(0.99, sum by (job, instance, To, le) \
                 (rate(etcd_network_peer_round_trip_time_seconds_bucket[5m]) {BRAIN})) > 0.15"
            ),
            "10m",
            "warning",
            "One in a hundred round trips from {{ $labels.instance }} of {{ $labels.job }} to member {{ $labels.To }} takes longer than 150 ms.",
        ),
        alert(
            "KubeBrainFollowerBehind",
            "kubebrain_server_follower_lag_slots > 1000",
            "2m",
            "warning",
            "Member {{ $labels.instance }} of {{ $labels.job }} lags by more than 1000 records: its clients read old data.",
        ),
    ]
}

fn requests() -> Vec<Value> {
    let failed =
        r#"grpc_code=~"Unknown|FailedPrecondition|ResourceExhausted|Internal|Unavailable|DataLoss|DeadlineExceeded""#;
    let by = "by (job, instance, grpc_service, grpc_method)";
    vec![
        alert(
            "etcdHighNumberOfFailedGRPCRequests",
            &format!(
                "100 * sum {by} (rate(grpc_server_handled_total{{{failed}}}[5m]) {BRAIN}) \
                 / sum {by} (rate(grpc_server_handled_total[5m])) > 5"
            ),
            "5m",
            "critical",
            "More than 5 % of the requests {{ $labels.grpc_service }}/{{ $labels.grpc_method }} to {{ $labels.instance }} of \
             {{ $labels.job }} fail.",
        ),
        alert(
            "etcdGRPCRequestsSlow",
            &format!(
                "histogram_quantile(0.99, sum by (job, instance, grpc_service, grpc_method, le) \
                 (rate(grpc_server_handling_seconds_bucket{{grpc_method!=\"Defragment\", grpc_type=\"unary\"}}[5m]) {BRAIN})) > 0.15"
            ),
            "10m",
            "critical",
            "One in a hundred requests {{ $labels.grpc_service }}/{{ $labels.grpc_method }} to {{ $labels.instance }} of \
             {{ $labels.job }} takes longer than 150 ms. Only members with --metrics extensive measure this.",
        ),
        alert(
            "etcdHighNumberOfFailedProposals",
            &format!("rate(etcd_server_proposals_failed_total[15m]) > 5 {BRAIN}"),
            "15m",
            "warning",
            "More than five changes per second through {{ $labels.instance }} of {{ $labels.job }} time out or are lost with their leader.",
        ),
        alert(
            "KubeBrainReadIndexesFail",
            &format!("rate(etcd_server_read_indexes_failed_total[5m]) > 0 {BRAIN}"),
            "10m",
            "warning",
            "Member {{ $labels.instance }} of {{ $labels.job }} keeps failing linearizable reads: it does not reach its leader.",
        ),
        alert(
            "KubeBrainRequestsRefused",
            "sum by (job, instance, reason) (rate(kubebrain_network_requests_refused_total[5m])) > 0",
            "10m",
            "warning",
            "Member {{ $labels.instance }} of {{ $labels.job }} keeps refusing requests: {{ $labels.reason }}.",
        ),
    ]
}

fn storage() -> Vec<Value> {
    let fsync = format!(
        "histogram_quantile(0.99, sum by (job, instance, le) (rate(etcd_disk_wal_fsync_duration_seconds_bucket[5m]) {BRAIN}))"
    );
    let mut alerts = vec![
        alert(
            "etcdHighFsyncDurations",
            &format!("{fsync} > 0.5"),
            "10m",
            "warning",
            "One in a hundred appends of {{ $labels.instance }} of {{ $labels.job }} to its log takes longer than half a second.",
        ),
        alert(
            "etcdHighFsyncDurations",
            &format!("{fsync} > 1"),
            "10m",
            "critical",
            "One in a hundred appends of {{ $labels.instance }} of {{ $labels.job }} to its log takes longer than a second.",
        ),
        alert(
            "KubeBrainFlushesSlow",
            &format!(
                "histogram_quantile(0.99, sum by (job, instance, le) \
                 (rate(etcd_disk_backend_commit_duration_seconds_bucket[10m]) {BRAIN})) > 4"
            ),
            "10m",
            "warning",
            "One in a hundred flushes of rows by {{ $labels.instance }} of {{ $labels.job }} takes longer than four seconds.",
        ),
    ];
    alerts.extend(space());
    alerts
}

fn space() -> Vec<Value> {
    vec![
        alert(
            "etcdDatabaseQuotaLowSpace",
            &format!("100 * etcd_mvcc_db_total_size_in_bytes / (etcd_server_quota_backend_bytes > 0) > 95 {BRAIN}"),
            "10m",
            "critical",
            "The store of {{ $labels.instance }} of {{ $labels.job }} uses 95 % of its quota: above the quota writes are refused.",
        ),
        alert(
            "etcdExcessiveDatabaseGrowth",
            &format!(
                "predict_linear(etcd_mvcc_db_total_size_in_bytes[4h], 4 * 3600) \
                 > (etcd_server_quota_backend_bytes > 0) {BRAIN}"
            ),
            "10m",
            "warning",
            "The store of {{ $labels.instance }} of {{ $labels.job }} will reach its quota within four hours at the present rate.",
        ),
        alert(
            "KubeBrainDiskNearlyFull",
            "100 * kubebrain_disk_available_bytes / (kubebrain_disk_capacity_bytes > 0) < 10",
            "5m",
            "warning",
            "Less than 10 % of the disk of {{ $labels.instance }} of {{ $labels.job }} is free.",
        ),
        alert(
            "KubeBrainAlarmRaised",
            "max by (job, alarm) (kubebrain_server_alarm_raised) == 1",
            "0m",
            "critical",
            "The alarm {{ $labels.alarm }} of {{ $labels.job }} is raised. NOSPACE: writes that need space are refused. CORRUPT: all changes are refused because storage rejects acknowledged writes; reads are served, and the log names the cause.",
        ),
        alert(
            "KubeBrainNotCompacted",
            &format!(
                "changes(etcd_debugging_mvcc_compact_revision[1h]) == 0 \
                 and delta(etcd_debugging_mvcc_current_revision[1h]) > 100000 {BRAIN}"
            ),
            "30m",
            "warning",
            "{{ $labels.job }} was not compacted during an hour of many writes: its history keeps growing.",
        ),
    ]
}

fn key_index() -> Vec<Value> {
    vec![alert(
        "KubeBrainKeyIndexNotServing",
        "kubebrain_mvcc_key_index_serves == 0 and on (job, instance) kubebrain_mvcc_key_index_limit_bytes > 0 \
         and on (job, instance) etcd_debugging_mvcc_current_revision > 1",
        "30m",
        "warning",
        "Member {{ $labels.instance }} of {{ $labels.job }} has no index of keys, so counts of large ranges are slow; its log says why. \
         Too much memory: raise --key-index-bytes and restart the member, or delete keys. Too many changes at once: slow the writers down. Rows cannot be read: check its disk or TiKV. --key-index-bytes=-1 disables the index and this alert.",
    )]
}

fn watchers() -> Vec<Value> {
    vec![alert(
        "KubeBrainWatchersSlow",
        &format!("etcd_debugging_mvcc_slow_watcher_total > 0 {BRAIN}"),
        "15m",
        "warning",
        "Watchers of {{ $labels.instance }} of {{ $labels.job }} do not catch up: their clients read too slowly.",
    )]
}

fn certificates() -> Vec<Value> {
    vec![
        alert(
            "KubeBrainServerCertificateExpires",
            "(kubebrain_tls_certificate_expiry_timestamp_seconds > 0) - time() < 7 * 24 * 3600",
            "1h",
            "warning",
            "The certificate in use by {{ $labels.instance }} of {{ $labels.job }} expires within a week.",
        ),
        alert(
            "KubeBrainCertificateReloadFails",
            "kubebrain_tls_reloads_failing > 0",
            "2m",
            "warning",
            "Member {{ $labels.instance }} of {{ $labels.job }} cannot load its certificates from their files and keeps using the previous ones. Its log names the file.",
        ),
    ]
}

fn tikv() -> Vec<Value> {
    vec![
        alert(
            "KubeBrainTikvRequestsFail",
            "sum by (job, instance, op) (rate(kubebrain_tikv_request_failures_total[5m])) \
             / sum by (job, instance, op) (rate(kubebrain_tikv_request_duration_seconds_count[5m])) > 0.05",
            "5m",
            "warning",
            "More than 5 % of the requests {{ $labels.op }} of {{ $labels.instance }} of {{ $labels.job }} to TiKV fail.",
        ),
        alert(
            "KubeBrainTikvRequestsSlow",
            "histogram_quantile(0.99, sum by (job, instance, op, le) \
             (rate(kubebrain_tikv_request_duration_seconds_bucket[5m]))) > 1",
            "10m",
            "warning",
            "One in a hundred requests {{ $labels.op }} of {{ $labels.instance }} of {{ $labels.job }} to TiKV takes longer than a second.",
        ),
    ]
}

fn process() -> Vec<Value> {
    vec![alert(
        "KubeBrainFileDescriptorsNearlyUsed",
        &format!("process_open_fds / process_max_fds > 0.8 {BRAIN}"),
        "10m",
        "warning",
        "Member {{ $labels.instance }} of {{ $labels.job }} uses more than 80 % of its file descriptors.",
    )]
}
