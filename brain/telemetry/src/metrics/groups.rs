//! The names, help texts and buckets of the groups.

use super::{
    ApplyMetrics, DiskMetrics, HealthMetrics, LeaseMetrics, MvccMetrics, NetworkMetrics, PeerMetrics, RELOAD_RESULTS,
    Registrar, ServerMetrics, TlsMetrics,
};

impl DiskMetrics {
    pub(super) fn register(r: &Registrar) -> Self {
        Self {
            wal_fsync: r.histogram(
                "etcd_disk_wal_fsync_duration_seconds",
                "Durations of syncs of the log.",
                0.001,
                14,
            ),
            wal_write: r.histogram(
                "etcd_disk_wal_write_duration_seconds",
                "Durations of writes to the log, without its syncs.",
                0.001,
                14,
            ),
            wal_write_bytes: r.gauge("etcd_disk_wal_write_bytes_total", "Bytes written to the log."),
            backend_commit: r.histogram(
                "etcd_disk_backend_commit_duration_seconds",
                "Durations of flushes of rows.",
                0.001,
                14,
            ),
            backend_snapshot: r.histogram(
                "etcd_disk_backend_snapshot_duration_seconds",
                "Durations of snapshots.",
                0.01,
                17,
            ),
            defrag: r.histogram(
                "etcd_disk_backend_defrag_duration_seconds",
                "Durations of defragmentations.",
                0.1,
                13,
            ),
            defrag_inflight: r.gauge("etcd_disk_defrag_inflight", "Defragmentations in progress."),
            log_size: r.gauge(
                "kubebrain_disk_log_size_in_bytes",
                "Bytes that the log of a data directory occupies.",
            ),
            capacity: r.gauge(
                "kubebrain_disk_capacity_bytes",
                "Bytes of the file system of a data directory; 0 without one.",
            ),
            available: r.gauge(
                "kubebrain_disk_available_bytes",
                "Free bytes of the file system of a data directory; 0 without one.",
            ),
        }
    }
}

impl MvccMetrics {
    pub(super) fn register(r: &Registrar) -> Self {
        Self {
            db_total_size: r.gauge("etcd_mvcc_db_total_size_in_bytes", "Bytes that the store occupies."),
            db_in_use: r.gauge(
                "etcd_mvcc_db_total_size_in_use_in_bytes",
                "Bytes of the store that hold data.",
            ),
            puts: r.counter("etcd_mvcc_put_total", "Puts carried out by this member."),
            ranges: r.counter("etcd_mvcc_range_total", "Ranges carried out by this member."),
            deletes: r.counter("etcd_mvcc_delete_total", "Deletes carried out by this member."),
            txns: r.counter("etcd_mvcc_txn_total", "Txns carried out by this member."),
            keys: r.gauge("etcd_debugging_mvcc_keys_total", "Keys that exist."),
            key_index_size: r.gauge(
                "kubebrain_mvcc_key_index_size_in_bytes",
                "Bytes of memory that the index of keys uses.",
            ),
            key_index_limit: r.gauge(
                "kubebrain_mvcc_key_index_limit_bytes",
                "Bytes of memory that the index of keys may take; 0 if there is none.",
            ),
            key_index_serves: r.gauge(
                "kubebrain_mvcc_key_index_serves",
                "1 if the index of keys is built and counts the keys of ranges.",
            ),
            events: r.counter("etcd_debugging_mvcc_events_total", "Events sent by this member."),
            watchers: r.gauge("etcd_debugging_mvcc_watcher_total", "Watchers."),
            slow_watchers: r.gauge(
                "etcd_debugging_mvcc_slow_watcher_total",
                "Watchers that have fallen behind.",
            ),
            pending_events: r.gauge("etcd_debugging_mvcc_pending_events_total", "Events not yet sent."),
            watch_streams: r.gauge("etcd_debugging_mvcc_watch_stream_total", "Watch streams."),
            current_revision: r.gauge("etcd_debugging_mvcc_current_revision", "The current revision."),
            compact_revision: r.gauge("etcd_debugging_mvcc_compact_revision", "The last compacted revision."),
            compaction_keys: r.counter(
                "etcd_debugging_mvcc_db_compaction_keys_total",
                "Versions removed by compaction.",
            ),
            compaction_last: r.gauge(
                "etcd_debugging_mvcc_db_compaction_last",
                "Unix time at which the last compaction ended.",
            ),
            compaction_total: r.histogram(
                "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds",
                "Durations of compactions.",
                100.0,
                14,
            ),
            put_size: r.gauge(
                "etcd_debugging_mvcc_total_put_size_in_bytes",
                "Bytes put, carried out by this member.",
            ),
            hash: r.histogram(
                "etcd_mvcc_hash_duration_seconds",
                "Durations of hashes of all data.",
                0.01,
                15,
            ),
            hash_rev: r.histogram(
                "etcd_mvcc_hash_rev_duration_seconds",
                "Durations of hashes up to a revision.",
                0.01,
                15,
            ),
        }
    }
}

impl LeaseMetrics {
    pub(super) fn register(r: &Registrar) -> Self {
        Self {
            granted: r.counter("etcd_debugging_lease_granted_total", "Leases granted."),
            revoked: r.counter("etcd_debugging_lease_revoked_total", "Leases revoked."),
            renewed: r.counter("etcd_debugging_lease_renewed_total", "Renewals seen by the leader."),
            expired: r.counter("etcd_debugging_server_lease_expired_total", "Leases expired."),
            ttl: r.histogram(
                "etcd_debugging_lease_ttl_total",
                "Granted times to live in seconds.",
                1.0,
                24,
            ),
        }
    }
}

impl ServerMetrics {
    pub(super) fn register(r: &Registrar) -> Self {
        Self {
            auth_revision: r.gauge(
                "etcd_debugging_auth_revision",
                "Revision of users and roles, starting at 1.",
            ),
            has_leader: r.gauge("etcd_server_has_leader", "1 while a leader is known, else 0."),
            is_leader: r.gauge("etcd_server_is_leader", "1 if this member leads, else 0."),
            is_learner: r.section("Always 0").gauge("etcd_server_is_learner", "1 if this member is a learner. Always 0: there are none."),
            leader_changes: r.counter("etcd_server_leader_changes_seen_total", "Changes of leader seen."),
            proposals_committed: r.gauge("etcd_server_proposals_committed_total", "Requests committed."),
            proposals_applied: r.gauge("etcd_server_proposals_applied_total", "Requests applied."),
            proposals_pending: r.gauge(
                "etcd_server_proposals_pending",
                "Requests of clients that the leader has not answered yet.",
            ),
            proposals_failed: r.counter(
                "etcd_server_proposals_failed_total",
                "Requests of clients that were not answered in time, or lost with their leader.",
            ),
            quota: r.gauge("etcd_server_quota_backend_bytes", "Maximum size of the store in bytes; -1 without a limit."),
            slow_apply: r.counter(
                "etcd_server_slow_apply_total",
                "Reads and changes that took longer than --warning-apply-duration.",
            ),
            slow_read_indexes: r.counter("etcd_server_slow_read_indexes_total", "Slow confirmations of reads."),
            read_indexes_failed: r.counter(
                "etcd_server_read_indexes_failed_total",
                "Failed confirmations of reads.",
            ),
            heartbeat_failures: r.counter(
                "etcd_server_heartbeat_send_failures_total",
                "Renewals of the leader's lock on TiKV that were not answered in time.",
            ),
            election_requests: r.histograms(
                "kubebrain_election_request_duration_seconds",
                "Durations of requests to the lock of the election; a write must be answered within the renew deadline.",
                &["op"],
                0.001,
                16,
            ),
            follower_lag: r.gauge(
                "kubebrain_server_follower_lag_slots",
                "Committed slots of the log that this member knows of and has not applied yet.",
            ),
            alarms: r.gauges(
                "kubebrain_server_alarm_raised",
                "1 if the alarm is raised, else 0.",
                &["alarm"],
            ),
            member_alarms: r.gauges(
                "etcd_debugging_server_alarms",
                "1 for each alarm of a member.",
                &["server_id", "alarm_type"],
            ),
            apply: ApplyMetrics::register(r),
            range: r.histograms(
                "etcd_server_range_duration_seconds",
                "Durations of ranges.",
                &["success"],
                0.0001,
                20,
            ),
            features: r.gauges(
                "etcd_server_feature_enabled",
                "1 if the feature of a feature gate is on, else 0.",
                &["name", "stage"],
            ),
            identity: r.gauges(
                "etcd_server_id",
                "1, with the id of this member as label.",
                &["server_id"],
            ),
            version: r.gauges(
                "etcd_server_version",
                "1, with the version as label.",
                &["server_version"],
            ),
            cluster_version: r.gauges(
                "etcd_cluster_version",
                "1, with the version of the cluster as label.",
                &["cluster_version"],
            ),
        }
    }
}

impl HealthMetrics {
    pub(super) fn register(r: &Registrar) -> Self {
        Self {
            success: r.counter("etcd_server_health_success", "Health checks that succeeded."),
            failures: r.counter("etcd_server_health_failures", "Health checks that failed."),
            check: r.gauges(
                "etcd_server_healthcheck",
                "The result of each health check.",
                &["type", "name"],
            ),
            checks: r.counters(
                "etcd_server_healthchecks_total",
                "Health checks run.",
                &["type", "name", "status"],
            ),
        }
    }
}

impl NetworkMetrics {
    pub(super) fn register(r: &Registrar) -> Self {
        Self {
            received: r.counter(
                "etcd_network_client_grpc_received_bytes_total",
                "Bytes received from clients.",
            ),
            sent: r.counter("etcd_network_client_grpc_sent_bytes_total", "Bytes sent to clients."),
            connections: r.gauge("kubebrain_network_connections", "Open connections of clients."),
            handshakes_failed: r.counter("kubebrain_network_handshakes_failed_total", "Handshakes that failed."),
            closed: r.counters(
                "kubebrain_network_connections_closed_total",
                "Connections that this member closed.",
                &["reason"],
            ),
            goaways: r.counters(
                "kubebrain_network_goaways_sent_total",
                "HTTP/2 GOAWAY frames that this member sent.",
                &["reason"],
            ),
            refused: r.counters(
                "kubebrain_network_requests_refused_total",
                "Requests refused or reset because of the memory that they or their connections held.",
                &["reason"],
            ),
            held: r.gauge(
                "kubebrain_network_held_bytes",
                "Bytes of memory that requests and answers of clients take.",
            ),
            held_for_probes: r.gauge(
                "kubebrain_network_probe_held_bytes",
                "Bytes of memory that requests and answers on URLs for metrics and probes take, which have their own budget.",
            ),
            held_for_peers: r.gauge(
                "kubebrain_network_peer_held_bytes",
                "Bytes of memory that requests and answers of other members take.",
            ),
            peers: PeerMetrics::register(&r.section("Members")),
        }
    }
}

impl TlsMetrics {
    pub(super) fn register(r: &Registrar) -> Self {
        let reloads = r.counters(
            "kubebrain_tls_reloads_total",
            "Reloads of changed certificates.",
            &["result"],
        );
        for result in RELOAD_RESULTS {
            reloads.with_label_values(&[result]).inc_by(0);
        }
        Self {
            reloads,
            reloads_failing: r.gauge(
                "kubebrain_tls_reloads_failing",
                "Groups of listeners whose changed certificates cannot be loaded; they use the old ones.",
            ),
            expiry: r.gauge(
                "kubebrain_tls_certificate_expiry_timestamp_seconds",
                "Unix time at which the certificate in use expires.",
            ),
            not_before: r.gauge(
                "kubebrain_tls_certificate_not_before_timestamp_seconds",
                "Unix time at which the certificate in use becomes valid.",
            ),
        }
    }
}
