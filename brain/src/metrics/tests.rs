use std::time::Duration;

use tonic::Code;

use super::Metrics;

/// The names and types in `/metrics` of etcd 3.6.16, without those of Go, raft, bbolt and the v2 store.
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
    etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds histogram \n\
    etcd_debugging_mvcc_db_compaction_total_duration_milliseconds histogram \n\
    etcd_debugging_mvcc_events_total counter \n\
    etcd_debugging_mvcc_keys_total gauge \n\
    etcd_debugging_mvcc_pending_events_total gauge \n\
    etcd_debugging_mvcc_slow_watcher_total gauge \n\
    etcd_debugging_mvcc_total_put_size_in_bytes gauge \n\
    etcd_debugging_mvcc_watch_stream_total gauge \n\
    etcd_debugging_mvcc_watcher_total gauge \n\
    etcd_debugging_server_lease_expired_total counter \n\
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
    etcd_network_peer_received_bytes_total counter \n\
    etcd_network_peer_received_failures_total counter \n\
    etcd_network_peer_round_trip_time_seconds histogram \n\
    etcd_network_peer_sent_bytes_total counter \n\
    etcd_network_peer_sent_failures_total counter \n\
    etcd_server_apply_duration_seconds histogram \n\
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
    grpc_server_handled_total counter \n\
    grpc_server_started_total counter \n\
    os_fd_limit gauge \n\
    os_fd_used gauge \n\
    process_cpu_seconds_total counter \n\
    process_max_fds gauge \n\
    process_open_fds gauge \n\
    process_resident_memory_bytes gauge \n\
    process_start_time_seconds gauge \n\
    process_virtual_memory_bytes gauge \n\
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
    metrics
        .server
        .apply
        .with_label_values(&["v3", "Put", "true"])
        .observe(0.1);
    metrics.server.range.with_label_values(&["true"]).observe(0.1);
    meet_a_peer(&metrics);
    let text = text(&metrics);
    for line in ETCD.lines() {
        let wanted = format!("# TYPE {}\n", line.trim());
        assert!(text.contains(&wanted), "no {wanted}");
    }
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
    metrics.grpc.start("/etcdserverpb.KV/Range").unwrap().end(Code::Ok);
    metrics
        .grpc
        .start("/etcdserverpb.KV/Range")
        .unwrap()
        .end(Code::OutOfRange);
    drop(metrics.grpc.start("/etcdserverpb.Watch/Watch").unwrap());
    assert!(metrics.grpc.start("/etcdserverpb.KV/NoSuch").is_none());
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
    ] {
        assert!((value(&text, &series) - wanted).abs() < f64::EPSILON, "{series}");
    }
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
