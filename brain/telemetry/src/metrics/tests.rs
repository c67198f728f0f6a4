use std::time::Duration;

use http::HeaderMap;
use tonic::Code;

use super::Metrics;

/// The names and types in `/metrics` of etcd 3.6.16, without those of Go's memory, raft, bbolt and writes of the v2 store, of pauses for
/// compactions and of snapshots between members.
const ETCD: &str = "\
    etcd_cluster_version gauge \n\
    etcd_debugging_auth_revision gauge \n\
    etcd_debugging_lease_granted_total counter \n\
    etcd_debugging_lease_renewed_total counter \n\
    etcd_debugging_lease_revoked_total counter \n\
    etcd_debugging_lease_ttl_total histogram \n\
    etcd_debugging_mvcc_compact_revision gauge \n\
    etcd_debugging_mvcc_current_revision gauge \n\
    etcd_debugging_mvcc_db_compaction_keys_total counter \n\
    etcd_debugging_mvcc_db_compaction_last gauge \n\
    etcd_debugging_mvcc_db_compaction_total_duration_milliseconds histogram \n\
    etcd_debugging_mvcc_events_total counter \n\
    etcd_debugging_mvcc_keys_total gauge \n\
    etcd_debugging_mvcc_pending_events_total gauge \n\
    etcd_debugging_mvcc_slow_watcher_total gauge \n\
    etcd_debugging_mvcc_total_put_size_in_bytes gauge \n\
    etcd_debugging_mvcc_watch_stream_total gauge \n\
    etcd_debugging_mvcc_watcher_total gauge \n\
    etcd_debugging_server_lease_expired_total counter \n\
    etcd_debugging_server_alarms gauge \n\
    etcd_debugging_store_expires_total counter \n\
    etcd_debugging_store_watch_requests_total counter \n\
    etcd_debugging_store_watchers gauge \n\
    etcd_disk_backend_commit_duration_seconds histogram \n\
    etcd_disk_backend_defrag_duration_seconds histogram \n\
    etcd_disk_backend_snapshot_duration_seconds histogram \n\
    etcd_disk_defrag_inflight gauge \n\
    etcd_disk_wal_fsync_duration_seconds histogram \n\
    etcd_disk_wal_write_bytes_total gauge \n\
    etcd_disk_wal_write_duration_seconds histogram \n\
    etcd_mvcc_db_open_read_transactions gauge \n\
    etcd_mvcc_db_total_size_in_bytes gauge \n\
    etcd_mvcc_db_total_size_in_use_in_bytes gauge \n\
    etcd_mvcc_delete_total counter \n\
    etcd_mvcc_hash_duration_seconds histogram \n\
    etcd_mvcc_hash_rev_duration_seconds histogram \n\
    etcd_mvcc_put_total counter \n\
    etcd_mvcc_range_total counter \n\
    etcd_mvcc_txn_total counter \n\
    etcd_network_active_peers gauge \n\
    etcd_network_client_grpc_received_bytes_total counter \n\
    etcd_network_client_grpc_sent_bytes_total counter \n\
    etcd_network_disconnected_peers_total counter \n\
    etcd_network_known_peers gauge \n\
    etcd_network_peer_received_bytes_total counter \n\
    etcd_network_peer_received_failures_total counter \n\
    etcd_network_peer_round_trip_time_seconds histogram \n\
    etcd_network_peer_sent_bytes_total counter \n\
    etcd_network_peer_sent_failures_total counter \n\
    etcd_server_apply_duration_seconds histogram \n\
    etcd_server_client_requests_total counter \n\
    etcd_server_feature_enabled gauge \n\
    etcd_server_has_leader gauge \n\
    etcd_server_health_failures counter \n\
    etcd_server_health_success counter \n\
    etcd_server_healthcheck gauge \n\
    etcd_server_healthchecks_total counter \n\
    etcd_server_heartbeat_send_failures_total counter \n\
    etcd_server_id gauge \n\
    etcd_server_is_leader gauge \n\
    etcd_server_is_learner gauge \n\
    etcd_server_leader_changes_seen_total counter \n\
    etcd_server_proposals_applied_total gauge \n\
    etcd_server_proposals_committed_total gauge \n\
    etcd_server_proposals_failed_total counter \n\
    etcd_server_proposals_pending gauge \n\
    etcd_server_quota_backend_bytes gauge \n\
    etcd_server_range_duration_seconds histogram \n\
    etcd_server_read_indexes_failed_total counter \n\
    etcd_server_slow_apply_total counter \n\
    etcd_server_slow_read_indexes_total counter \n\
    etcd_server_snapshot_apply_in_progress_total gauge \n\
    etcd_server_version gauge \n\
    go_goroutines gauge \n\
    go_threads gauge \n\
    grpc_server_handled_total counter \n\
    grpc_server_msg_received_total counter \n\
    grpc_server_msg_sent_total counter \n\
    grpc_server_started_total counter \n\
    os_fd_limit gauge \n\
    os_fd_used gauge \n\
    process_cpu_seconds_total counter \n\
    process_max_fds gauge \n\
    process_network_receive_bytes_total counter \n\
    process_network_transmit_bytes_total counter \n\
    process_open_fds gauge \n\
    process_resident_memory_bytes gauge \n\
    process_start_time_seconds gauge \n\
    process_virtual_memory_bytes gauge \n\
    process_virtual_memory_max_bytes gauge \n\
    promhttp_metric_handler_requests_in_flight gauge \n\
    promhttp_metric_handler_requests_total counter \n\
";

fn text(metrics: &Metrics) -> String {
    String::from_utf8(metrics.render().unwrap()).unwrap()
}

fn value(text: &str, series: &str) -> f64 {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series}")).parse().unwrap()
}

#[test]
fn names_and_types_are_etcds() {
    let metrics = Metrics::new(false);
    metrics.server.set_identity(0xa1);
    metrics.health.record("livez", "serializable_read", true);
    metrics.server.set_member_alarms([("NOSPACE", 0xa1)].into_iter());
    metrics
        .server
        .set_features([("LeaseCheckpoint", "ALPHA", true)].into_iter());
    metrics.network.peers.set_known(0xa1, [0xa1].into_iter());
    metrics.open_snapshots().set(1);
    metrics
        .grpc
        .start("/etcdserverpb.KV/Range", &HeaderMap::new())
        .unwrap()
        .end(Code::Ok);
    metrics.server.range.with_label_values(&["true"]).observe(0.1);
    meet_a_peer(&metrics);
    let text = text(&metrics);
    for line in ETCD.lines() {
        let wanted = format!("# TYPE {}\n", line.trim());
        assert!(text.contains(&wanted), "no {wanted}");
    }
}

#[tokio::test]
async fn tasks_are_counted_as_goroutines() {
    let metrics = Metrics::new(false);
    let before = value(&text(&metrics), "go_goroutines");
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(std::future::pending::<()>());
    assert!(value(&text(&metrics), "go_goroutines") > before);
}

#[test]
fn series_read_as_prometheus_reads_them() {
    let metrics = Metrics::new(false);
    metrics.server.set_identity(0xa1);
    metrics.server.has_leader.set(1);
    metrics.mvcc.keys.set(7);
    metrics.health.success.inc();
    metrics.disk.wal_fsync.observe(0.003);
    let text = text(&metrics);
    assert!(value(&text, "process_resident_memory_bytes") > 1e6);
    assert!(value(&text, "process_virtual_memory_bytes") > 1e6);
    assert!(value(&text, "process_open_fds") > 2.0);
    assert!(value(&text, "process_start_time_seconds") > 1.7e9);
    assert!(value(&text, "process_cpu_seconds_total") >= 0.0);
    assert!(value(&text, "process_max_fds") > 2.0);
    assert!(value(&text, "go_threads") >= 1.0);
    assert!(value(&text, "process_virtual_memory_max_bytes") > 1e6);
    for (series, wanted) in [
        ("etcd_server_has_leader", 1.0),
        ("etcd_debugging_mvcc_keys_total", 7.0),
        ("etcd_server_health_success", 1.0),
        ("kubebrain_tls_reloads_total{result=\"failure\"}", 0.0),
        ("kubebrain_tls_reloads_total{result=\"success\"}", 0.0),
        ("etcd_server_id{server_id=\"a1\"}", 1.0),
        ("etcd_cluster_version{cluster_version=\"3.6\"}", 1.0),
        ("etcd_disk_wal_fsync_duration_seconds_bucket{le=\"0.002\"}", 0.0),
        ("etcd_disk_wal_fsync_duration_seconds_bucket{le=\"0.004\"}", 1.0),
        ("etcd_disk_wal_fsync_duration_seconds_bucket{le=\"8.192\"}", 1.0),
    ] {
        assert!((value(&text, series) - wanted).abs() < f64::EPSILON, "{series}");
    }
}

#[test]
fn rpcs_are_counted_by_method_and_code() {
    let metrics = Metrics::new(true);
    let start = |path| metrics.grpc.start(path, &HeaderMap::new());
    start("/etcdserverpb.KV/Range").unwrap().end(Code::Ok);
    start("/etcdserverpb.KV/Range").unwrap().end(Code::OutOfRange);
    drop(start("/etcdserverpb.Watch/Watch").unwrap());
    assert!(start("/etcdserverpb.KV/NoSuch").is_none());
    let text = text(&metrics);
    let range = "grpc_method=\"Range\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"}";
    let watch = "grpc_method=\"Watch\",grpc_service=\"etcdserverpb.Watch\",grpc_type=\"bidi_stream\"}";
    for (series, wanted) in [
        (format!("grpc_server_started_total{{{range}"), 2.0),
        (format!("grpc_server_handled_total{{grpc_code=\"OK\",{range}"), 1.0),
        (
            format!("grpc_server_handled_total{{grpc_code=\"OutOfRange\",{range}"),
            1.0,
        ),
        (
            format!("grpc_server_handled_total{{grpc_code=\"NotFound\",{range}"),
            0.0,
        ),
        (
            format!("grpc_server_handled_total{{grpc_code=\"Canceled\",{watch}"),
            1.0,
        ),
        (format!("grpc_server_handling_seconds_count{{{range}"), 2.0),
        (format!("grpc_server_msg_received_total{{{range}"), 2.0),
        (format!("grpc_server_msg_sent_total{{{range}"), 1.0),
        (format!("grpc_server_msg_received_total{{{watch}"), 0.0),
    ] {
        assert!((value(&text, &series) - wanted).abs() < f64::EPSILON, "{series}");
    }
}

#[test]
fn clients_are_counted_by_a_bounded_number_of_versions() {
    let metrics = Metrics::new(false);
    let start = |path, version: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("client-api-version", version.parse().unwrap());
        drop(metrics.grpc.start(path, &headers).unwrap());
    };
    start("/etcdserverpb.KV/Put", "3.6.0");
    start("/etcdserverpb.KV/Put", "3.6.0");
    start("/etcdserverpb.Watch/Watch", "3.6.0");
    start("/etcdserverpb.KV/Put", &"9".repeat(33));
    for version in 0..100 {
        start("/etcdserverpb.KV/Put", &version.to_string());
    }
    let text = text(&metrics);
    let series = |kind, version| {
        format!("etcd_server_client_requests_total{{client_api_version=\"{version}\",type=\"{kind}\"}}")
    };
    assert!((value(&text, &series("unary", "3.6.0")) - 2.0).abs() < f64::EPSILON);
    assert!((value(&text, &series("stream", "3.6.0")) - 1.0).abs() < f64::EPSILON);
    // 64 versions have counters of their own: this one, "unknown", and the first 62 numbers.
    assert!((value(&text, &series("unary", "unknown")) - 39.0).abs() < f64::EPSILON);
}

#[test]
fn changes_are_timed_by_kind_and_outcome() {
    let metrics = Metrics::new(false);
    for name in ["put", "put", "lease_grant"] {
        metrics.server.apply.observe(name, true, Duration::from_millis(3));
    }
    metrics.server.apply.observe("put", false, Duration::from_millis(3));
    let text = text(&metrics);
    for (op, success, wanted) in [("Put", "true", 2.0), ("Put", "false", 1.0), ("LeaseGrant", "true", 1.0)] {
        let series =
            format!("etcd_server_apply_duration_seconds_count{{op=\"{op}\",success=\"{success}\",version=\"v3\"}}");
        assert!((value(&text, &series) - wanted).abs() < f64::EPSILON, "{series}");
    }
}

#[test]
fn alarms_and_members_that_are_gone_leave_no_series() {
    let metrics = Metrics::new(false);
    let peers = &metrics.network.peers;
    metrics
        .server
        .set_member_alarms([("NOSPACE", 0xa1), ("CORRUPT", 0x2a)].into_iter());
    peers.set_known(0xa1, [0xa1, 0x2a].into_iter());
    let before = text(&metrics);
    metrics.server.set_member_alarms([("NOSPACE", 0xa1)].into_iter());
    peers.set_known(0xa1, [0xa1].into_iter());
    let after = text(&metrics);
    let alarm = "etcd_debugging_server_alarms{alarm_type=\"CORRUPT\",server_id=\"2a\"}";
    let peer = "etcd_network_known_peers{Local=\"a1\",Remote=\"2a\"}";
    assert!(before.contains(alarm) && before.contains(peer), "{before}");
    assert!(!after.contains(alarm) && !after.contains(peer), "{after}");
    assert!(after.contains("etcd_debugging_server_alarms{alarm_type=\"NOSPACE\",server_id=\"a1\"} 1"));
}

/// Talks to the member 2a and loses it.
fn meet_a_peer(metrics: &Metrics) {
    let peers = &metrics.network.peers;
    peers.bytes(0x2a).sent.inc_by(3);
    metrics.network.of_peer(0x2a).received.inc_by(5);
    peers.round_trip(0x2a, Duration::from_micros(150));
    peers.send_failed(0x2a);
    peers.receive_failed(0x2a);
    drop(peers.connect(0xa1, 0x2a));
}

#[test]
fn peers_are_told_apart_by_their_ids() {
    let metrics = Metrics::new(false);
    meet_a_peer(&metrics);
    let open = metrics.network.peers.connect(0xa1, 0x2b);
    let text = text(&metrics);
    let rounds = "etcd_network_peer_round_trip_time_seconds_bucket{To=\"2a\",le=";
    for (series, wanted) in [
        ("etcd_network_peer_sent_bytes_total{To=\"2a\"}", 3.0),
        ("etcd_network_peer_received_bytes_total{From=\"2a\"}", 5.0),
        ("etcd_network_client_grpc_received_bytes_total", 0.0),
        ("etcd_network_peer_sent_failures_total{To=\"2a\"}", 1.0),
        ("etcd_network_peer_received_failures_total{From=\"2a\"}", 1.0),
        (&format!("{rounds}\"0.0001\"}}"), 0.0),
        (&format!("{rounds}\"0.0002\"}}"), 1.0),
        (&format!("{rounds}\"3.2768\"}}"), 1.0),
        ("etcd_network_active_peers{Local=\"a1\",Remote=\"2a\"}", 0.0),
        ("etcd_network_disconnected_peers_total{Local=\"a1\",Remote=\"2a\"}", 1.0),
        ("etcd_network_active_peers{Local=\"a1\",Remote=\"2b\"}", 1.0),
        ("etcd_network_disconnected_peers_total{Local=\"a1\",Remote=\"2b\"}", 0.0),
    ] {
        assert!((value(&text, series) - wanted).abs() < f64::EPSILON, "{series}");
    }
    drop(open);
}
