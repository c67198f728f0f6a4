//! Metrics with etcd's names, as handles that are passed to the modules that update them.
//!
//! Counters, gauges and histograms may be updated from anywhere at any time; nothing here blocks. Names, types, labels and buckets
//! are etcd's if etcd has the metric, so that dashboards and alerts keep working. This module leaves out etcd's metrics of pauses for
//! compactions and of snapshots between members, because a brain has neither.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Mutex, OnceLock, PoisonError};

use prometheus::core::Collector;
use prometheus::{
    Encoder as _, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder, exponential_buckets,
};

pub use apply::ApplyMetrics;
pub use archive::ArchiveMetrics;
pub use grpc::{GrpcMetrics, InFlight};
pub use grpc::{has_one_request, is_service, is_unary};
pub use import::ImportMetrics;
pub use peers::{ActivePeer, PeerBytes, PeerMetrics};
pub use process::ProcessMetrics;
pub use scrapes::ScrapeMetrics;

pub mod apply;
mod archive;
mod grpc;
mod import;
mod peers;
mod process;
mod process_registry;
mod scrapes;

/// The content type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

type ScrapeHook = Box<dyn Fn(&Metrics) + Send + Sync>;

/// All handles. Parts are cheap to clone and are passed to the modules that update them.
pub struct Metrics {
    registry: Registry,
    /// Update gauges before a scrape.
    observe: Mutex<Vec<ScrapeHook>>,
    /// Metrics that are read from the kernel at each scrape; one scrape at a time.
    process: Mutex<ProcessMetrics>,
    /// Requests for the metrics.
    pub scrapes: ScrapeMetrics,
    /// The log and the rows.
    pub disk: DiskMetrics,
    /// Keys, revisions and watchers.
    pub mvcc: MvccMetrics,
    /// Leases.
    pub lease: LeaseMetrics,
    /// Leadership and writes.
    pub server: ServerMetrics,
    /// Health checks.
    pub health: HealthMetrics,
    /// RPCs.
    pub grpc: GrpcMetrics,
    /// Connections.
    pub network: NetworkMetrics,
    /// Certificates.
    pub tls: TlsMetrics,
    open_snapshots: OnceLock<IntGauge>,
}

/// The log and the rows. Durations are in seconds.
#[derive(Debug, Clone)]
pub struct DiskMetrics {
    /// One fdatasync of the log; on TiKV one append to it, which is durable there when it is answered.
    pub wal_fsync: Histogram,
    /// One write to the log before its sync; on TiKV, the same append.
    pub wal_write: Histogram,
    /// Bytes written to the log.
    pub wal_write_bytes: IntGauge,
    /// One flush of rows.
    pub backend_commit: Histogram,
    /// One snapshot from its first byte until its last one is sent to the client, or the client has gone.
    pub backend_snapshot: Histogram,
    /// One defragmentation requested by a client.
    pub defrag: Histogram,
    /// Defragmentations in progress.
    pub defrag_inflight: IntGauge,
    /// Bytes that the log of a data directory occupies.
    pub log_size: IntGauge,
    /// Bytes of the file system of a data directory; 0 without one.
    pub capacity: IntGauge,
    /// Bytes of it that are free; 0 without a data directory.
    pub available: IntGauge,
}

/// Keys, revisions and watchers.
#[derive(Debug, Clone)]
pub struct MvccMetrics {
    /// Bytes the store occupies.
    pub db_total_size: IntGauge,
    /// Bytes of it that hold data.
    pub db_in_use: IntGauge,
    /// Puts, including each put of a txn.
    pub puts: IntCounter,
    /// Ranges and range streams.
    pub ranges: IntCounter,
    /// Deletes, including each delete of a txn.
    pub deletes: IntCounter,
    /// Txns.
    pub txns: IntCounter,
    /// Keys that exist; 0 unless the index of keys serves.
    pub keys: IntGauge,
    /// Bytes of memory that the index of keys uses.
    pub key_index_size: IntGauge,
    /// Bytes of memory that it may take; 0 if there is none.
    pub key_index_limit: IntGauge,
    /// 1 if the index of keys serves.
    pub key_index_serves: IntGauge,
    /// Events sent to watchers.
    pub events: IntCounter,
    /// Watchers.
    pub watchers: IntGauge,
    /// Watchers that have fallen behind.
    pub slow_watchers: IntGauge,
    /// Events not yet sent.
    pub pending_events: IntGauge,
    /// Watch streams.
    pub watch_streams: IntGauge,
    /// The current revision.
    pub current_revision: IntGauge,
    /// The revision below which history is gone.
    pub compact_revision: IntGauge,
    /// Versions removed by compaction.
    pub compaction_keys: IntCounter,
    /// When the last compaction ended, in seconds since 1970; 0 before.
    pub compaction_last: IntGauge,
    /// One compaction, in milliseconds, from the first version that it deletes to the last one.
    pub compaction_total: Histogram,
    /// Bytes put by this member as the leader.
    pub put_size: IntGauge,
    /// One hash of everything, in seconds.
    pub hash: Histogram,
    /// One hash up to a revision, in seconds.
    pub hash_rev: Histogram,
}

/// Leases.
#[derive(Debug, Clone)]
pub struct LeaseMetrics {
    /// Grants.
    pub granted: IntCounter,
    /// Revocations, expiry included.
    pub revoked: IntCounter,
    /// Renewals on the leader.
    pub renewed: IntCounter,
    /// Expired leases.
    pub expired: IntCounter,
    /// Granted times to live, in seconds.
    pub ttl: Histogram,
}

/// Leadership and writes.
#[derive(Debug, Clone)]
pub struct ServerMetrics {
    /// Changes of users and roles, starting at 1.
    pub auth_revision: IntGauge,
    /// 1 when this member knows a leader.
    pub has_leader: IntGauge,
    /// 1 when this member leads.
    pub is_leader: IntGauge,
    /// 1 when this member is a learner; always 0.
    pub is_learner: IntGauge,
    /// Changes of leader seen by this member, and each term of its own.
    pub leader_changes: IntCounter,
    /// Requests that were committed.
    pub proposals_committed: IntGauge,
    /// Requests that are visible.
    pub proposals_applied: IntGauge,
    /// Requests of this member's clients that the leader has not answered yet: changes, and others that only the leader can answer.
    pub proposals_pending: IntGauge,
    /// Such requests that were not answered in time, or were lost with their leader: their outcome may be unknown.
    pub proposals_failed: IntCounter,
    /// The quota in bytes.
    pub quota: IntGauge,
    /// Reads and changes that took longer than `--warning-apply-duration`.
    pub slow_apply: IntCounter,
    /// Linearizable reads that waited long until everything before them was known to this member.
    pub slow_read_indexes: IntCounter,
    /// Linearizable reads that failed because this could not be determined.
    pub read_indexes_failed: IntCounter,
    /// Renewals of the leader's lock that were not answered, or not in time: they take the place of a leader's heartbeats.
    pub heartbeat_failures: IntCounter,
    /// Requests to the election's lock, in seconds, by `op`: `read` and `write`.
    pub election_requests: HistogramVec,
    /// Committed slots that this member knows of but has not applied yet.
    pub follower_lag: IntGauge,
    /// 1 while the cluster has an alarm, else 0, by `alarm`.
    pub alarms: IntGaugeVec,
    /// 1 for each alarm of a member, by `server_id` and `alarm_type`.
    pub member_alarms: IntGaugeVec,
    /// Applied requests.
    pub apply: ApplyMetrics,
    /// Ranges, in seconds, by `success`.
    pub range: HistogramVec,
    features: IntGaugeVec,
    identity: IntGaugeVec,
    version: IntGaugeVec,
    cluster_version: IntGaugeVec,
}

/// Health checks.
#[derive(Debug, Clone)]
pub struct HealthMetrics {
    /// Successful requests to `/health`.
    pub success: IntCounter,
    /// Failed requests to `/health`.
    pub failures: IntCounter,
    /// Last result by `type` and `name`.
    pub check: IntGaugeVec,
    /// Results by `type`, `name` and `status`.
    pub checks: IntCounterVec,
}

/// Connections.
#[derive(Debug, Clone)]
pub struct NetworkMetrics {
    /// Bytes received from clients.
    pub received: IntCounter,
    /// Bytes sent to clients.
    pub sent: IntCounter,
    /// Open connections.
    pub connections: IntGauge,
    /// Handshakes that failed or took too long.
    pub handshakes_failed: IntCounter,
    /// Connections that were closed by this side, by `reason`.
    pub closed: IntCounterVec,
    /// GOAWAY frames sent, by `reason`.
    pub goaways: IntCounterVec,
    /// Requests that were refused or reset by this side, by `reason`.
    pub refused: IntCounterVec,
    /// Bytes of memory that requests and answers of clients take.
    pub held: IntGauge,
    /// Bytes of memory that requests and answers of other members take.
    pub held_for_peers: IntGauge,
    /// Bytes that probes and scrapers take.
    pub held_for_probes: IntGauge,
    /// The traffic with other members.
    pub peers: PeerMetrics,
}

impl NetworkMetrics {
    /// Returns the same metrics, but with bytes counted as those of a member, not of clients.
    #[must_use]
    pub fn of_peer(&self, member: u64) -> Self {
        let PeerBytes { sent, received } = self.peers.bytes(member);
        Self {
            sent,
            received,
            ..self.clone()
        }
    }
}

/// The values of `result` of reloads of certificates. Both are exported from the beginning, or the first failure would be no increase.
const RELOAD_RESULTS: [&str; 2] = ["success", "failure"];

/// Certificates.
#[derive(Debug, Clone)]
pub struct TlsMetrics {
    /// Reloads by `result`: `success` and `failure`.
    pub reloads: IntCounterVec,
    /// Groups of listeners whose last reload failed: each follower counts itself, as listeners for clients and for members share this.
    pub reloads_failing: IntGauge,
    /// Expiry of the certificate in use, in seconds since 1970.
    pub expiry: IntGauge,
    /// The beginning of its validity, in seconds since 1970.
    pub not_before: IntGauge,
}

impl Metrics {
    /// Registers all metrics except those of a single storage engine; `extensive` adds a histogram for each RPC.
    #[must_use]
    pub fn new(extensive: bool) -> Metrics {
        Self::register(&Registrar::new(Registry::new()), extensive)
    }

    /// Returns every metric that this crate registers, for the reference of metrics.
    #[must_use]
    pub fn reference() -> Vec<Registered> {
        let r = Registrar::new(Registry::new());
        let metrics = Self::register(&r, true);
        let _ = metrics.open_snapshots.set(open_snapshots(&r));
        ArchiveMetrics::register(&r.section("Archive"));
        ImportMetrics::register(&r.section("Import"));
        r.registered.take()
    }

    fn register(r: &Registrar, extensive: bool) -> Metrics {
        scrapes::register_constants(&r.section("Always 0"));
        Metrics {
            process: Mutex::new(ProcessMetrics::register(&r.section("Process"))),
            scrapes: ScrapeMetrics::register(&r.section("Process")),
            disk: DiskMetrics::register(&r.section("Disk and log")),
            mvcc: MvccMetrics::register(&r.section("Store")),
            lease: LeaseMetrics::register(&r.section("Leases")),
            server: ServerMetrics::register(&r.section("Server and leader")),
            health: HealthMetrics::register(&r.section("Server and leader")),
            grpc: GrpcMetrics::register(&r.section("Clients and memory"), extensive),
            network: NetworkMetrics::register(&r.section("Clients and memory")),
            tls: TlsMetrics::register(&r.section("TLS")),
            open_snapshots: OnceLock::new(),
            observe: Mutex::default(),
            registry: r.registry.clone(),
        }
    }

    /// Returns the registry, for metrics of a storage engine.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns the gauge of snapshots of rows that are open, which is registered by the first call: only if they hold something.
    pub fn open_snapshots(&self) -> &IntGauge {
        self.open_snapshots
            .get_or_init(|| open_snapshots(&Registrar::new(self.registry.clone())))
    }

    /// Adds `observe` to what is called at the beginning of each scrape, for gauges that are not worth updating continuously.
    pub fn before_render(&self, observe: impl Fn(&Metrics) + Send + Sync + 'static) {
        let mut all = self.observe.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Box::new(observe));
    }

    /// Renders all metrics in the text format of Prometheus; see [`CONTENT_TYPE`]. Fails if the encoder does.
    pub fn render(&self) -> anyhow::Result<Vec<u8>> {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.refresh();
        let all = self.observe.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().for_each(|observe| observe(self));
        drop(all);
        let mut text = Vec::with_capacity(64 * 1024);
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl MvccMetrics {
    /// Counts the operations of one request. As in etcd it is a txn if it has more than one.
    pub fn count_request(&self, ranges: u64, puts: u64, deletes: u64) {
        self.ranges.inc_by(ranges);
        self.puts.inc_by(puts);
        self.deletes.inc_by(deletes);
        self.txns.inc_by((ranges + puts + deletes > 1).into());
    }
}

impl ServerMetrics {
    /// Sets the alarms of members: etcd's name of the kind, and the member's id.
    pub fn set_member_alarms<'a>(&self, alarms: impl Iterator<Item = (&'a str, u64)>) {
        self.member_alarms.reset();
        for (kind, member) in alarms {
            let member = format!("{member:x}");
            self.member_alarms.with_label_values(&[member.as_str(), kind]).set(1);
        }
    }

    /// Sets the features: name, stage, and whether it is on.
    pub fn set_features<'a>(&self, features: impl Iterator<Item = (&'a str, &'a str, bool)>) {
        for (name, stage, on) in features {
            self.features.with_label_values(&[name, stage]).set(on.into());
        }
    }

    /// Sets the metrics that identify this member: once, when its id is known.
    pub fn set_identity(&self, member_id: u64) {
        self.identity.with_label_values(&[&format!("{member_id:x}")]).set(1);
        self.version.with_label_values(&[etcd_types::version::ETCD]).set(1);
        let cluster = etcd_types::version::CLUSTER
            .rsplit_once('.')
            .map_or(etcd_types::version::CLUSTER, |(minor, _)| minor);
        self.cluster_version.with_label_values(&[cluster]).set(1);
    }
}

impl HealthMetrics {
    /// Records the result of one check.
    pub fn record(&self, kind: &str, name: &str, ok: bool) {
        self.check.with_label_values(&[kind, name]).set(ok.into());
        self.checks
            .with_label_values(&[kind, name, if ok { "success" } else { "error" }])
            .inc();
    }
}

fn open_snapshots(r: &Registrar) -> IntGauge {
    r.section("Store").gauge(
        "etcd_mvcc_db_open_read_transactions",
        "Open snapshots of rows: the current one, and those that reads hold.",
    )
}

/// A metric that was registered.
pub struct Registered {
    /// The heading of its group in the reference of metrics.
    pub section: &'static str,
    /// It has the name, type, labels and help of the metric.
    pub collector: Box<dyn Collector>,
}

/// Registers metrics. Each name is registered once, by the code below, so registration cannot fail.
#[derive(Clone)]
pub(crate) struct Registrar {
    registry: Registry,
    section: &'static str,
    registered: Rc<RefCell<Vec<Registered>>>,
}

impl Registrar {
    fn new(registry: Registry) -> Self {
        let registered = Rc::default();
        Self {
            registry,
            section: "",
            registered,
        }
    }

    /// Returns a register of metrics that belong under this heading.
    fn section(&self, section: &'static str) -> Self {
        Self {
            section,
            ..self.clone()
        }
    }

    fn add<C: Collector + Clone + 'static>(&self, made: prometheus::Result<C>) -> C {
        let made = made.expect("names, labels and buckets are well formed");
        self.registry
            .register(Box::new(made.clone()))
            .expect("each name is registered once");
        self.registered.borrow_mut().push(Registered {
            section: self.section,
            collector: Box::new(made.clone()),
        });
        made
    }

    fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.add(IntCounter::new(name, help))
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.add(IntCounterVec::new(Opts::new(name, help), labels))
    }

    fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.add(IntGauge::new(name, help))
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    /// Buckets double from `start`.
    fn histogram(&self, name: &str, help: &str, start: f64, buckets: usize) -> Histogram {
        let buckets = exponential_buckets(start, 2.0, buckets);
        self.add(buckets.and_then(|buckets| Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets))))
    }

    /// Buckets double from `start`.
    fn histograms(&self, name: &str, help: &str, labels: &[&str], start: f64, buckets: usize) -> HistogramVec {
        let buckets = exponential_buckets(start, 2.0, buckets);
        self.add(buckets.and_then(|buckets| HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), labels)))
    }
}

mod groups;

#[cfg(test)]
mod tests;
