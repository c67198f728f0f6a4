//! The configuration: the typed and checked values of the flags.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::bootstrap::Bootstrap;
use api::auth::AuthOptions;
use backup::import::SourceOptions;
use backup_repository::{BackupName, DestinationOptions};
use chrono::{DateTime, Utc};
use cluster::discovery::SrvDiscovery;
use etcd_types::url::Url;
use net::http::BrowserPolicy;
use net::listen::SocketOptions;
use net::serve::Keepalive;
use retention::Retention;
use store::flush::CompactionPace;
use telemetry::logs::LogOptions;
use telemetry::otel::TracingOptions;
use telemetry::slow_requests::SlowOptions;
use tls::{TlsOptions, TlsPolicy};

/// An action other than serving.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subcommand {
    /// `kubebrain wipe`: delete what is stored.
    Wipe,
    /// `kubebrain debug`: print what is stored.
    Dump(Dump),
    /// `kubebrain snapshot`: read a snapshot.
    Snapshot(SnapshotCommand),
    /// `kubebrain import`: copy another store.
    Import(Box<ImportCommand>),
    /// `kubebrain backup`: make, read and delete backups.
    Backup(Box<BackupCommand>),
}

/// The action of `kubebrain backup`, and where the backups are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupCommand {
    /// The object store or the directory.
    pub destination: DestinationOptions,
    /// The files of keys. The first one encrypts.
    pub key_files: Vec<PathBuf>,
    /// The action.
    pub action: BackupAction,
}

/// An action on backups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackupAction {
    /// Makes one of a running store.
    Create {
        /// The access to the store.
        source: Box<SourceOptions>,
        /// The request that it is made for: no second one is made for it.
        request_id: Option<String>,
        /// True if it is read again.
        verify: bool,
        /// The file of the result, in JSON.
        result_file: Option<PathBuf>,
    },
    /// Stores what a running store does from then on.
    Archive {
        /// The access to the store.
        source: Box<SourceOptions>,
        /// The time after which changes are stored.
        interval: Duration,
    },
    /// Lists all of them.
    List {
        /// True if the list is JSON.
        json: bool,
    },
    /// Reads one, and compares all of it.
    Verify {
        /// The backup.
        backup: BackupChoice,
        /// True if it is restored into a temporary directory.
        restores: bool,
    },
    /// Makes a new store of one.
    Restore {
        /// The backup.
        backup: BackupChoice,
        /// The point up to which archived changes are added.
        point: RestorePoint,
        /// As for a snapshot.
        bump_revision: u64,
        /// How it is repeated.
        attempts: AttemptOptions,
    },
    /// Writes the snapshot of one to a file.
    Export {
        /// The backup.
        backup: BackupChoice,
        /// The file, which must not exist.
        file: PathBuf,
    },
    /// Deletes one.
    Delete {
        /// The backup.
        backup: DeletedBackup,
        /// True if the segments of archives that no backup needs any more are deleted, too.
        prune_archive: bool,
    },
    /// Deletes parts that no manifest names.
    DeleteOrphans,
    /// Deletes those that a retention does not keep.
    Prune {
        /// Those that are kept.
        retention: Retention,
        /// True if nothing is deleted.
        dry_run: bool,
    },
}

/// The backup that is deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeletedBackup {
    /// The one with this name.
    Named(BackupName),
    /// The one that was made for this request, if there is one.
    OfRequest(String),
}

/// The backup that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackupChoice {
    /// The newest one.
    Latest,
    /// The one with this name.
    Named(BackupName),
}

/// The point that a store is restored to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestorePoint {
    /// That of the backup.
    Backup,
    /// A revision.
    Revision(i64),
    /// A time.
    Time(DateTime<Utc>),
    /// The end of the archive.
    End,
}

/// The action of `kubebrain snapshot`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotCommand {
    /// The snapshot.
    pub file: PathBuf,
    /// True if the file is taken without its checksum.
    pub skip_hash_check: bool,
    /// The number by which the newest revision is raised, all before which counts as compacted; 0 changes nothing.
    pub bump_revision: u64,
    /// True if a new store is made of it; otherwise its status is printed.
    pub restores: bool,
    /// How a restore is repeated.
    pub attempts: AttemptOptions,
}

/// The action of `kubebrain import`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportCommand {
    /// The access to the store that is copied.
    pub source: SourceOptions,
    /// Follow the source until SIGUSR1, or until the cutover file has content; otherwise until it is reached.
    pub follows: bool,
    /// Follow the source to this revision, and end there.
    pub until_revision: Option<i64>,
    /// Delete a copy that is not complete, and begin again.
    pub restarts: bool,
    /// The file that ends a copy which follows, once it has content.
    pub cutover_file: Option<PathBuf>,
    /// How it is repeated.
    pub attempts: AttemptOptions,
}

/// How a program repeats a command that makes a store, until one attempt succeeds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AttemptOptions {
    /// True if a complete store is left as it is, and what an interrupted attempt, or one for another source, has left is deleted.
    pub once: bool,
    /// The request that all attempts are for: the id of the new cluster is derived from it.
    pub request_id: Option<String>,
    /// The file of the result, in JSON.
    pub result_file: Option<PathBuf>,
}

/// The configuration from the command line and the environment.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The action, unless it is to serve.
    pub subcommand: Option<Subcommand>,
    /// Name of this member.
    pub name: String,
    /// Directory of the data; not checked yet.
    pub data_dir: PathBuf,
    /// The storage of the data.
    pub storage: Storage,
    /// The memory for cached blocks of the embedded store, in bytes; `None`: derived from the available memory.
    pub embedded_cache_bytes: Option<u64>,
    /// The memory that the index of keys may take, in bytes; 0: there is none.
    pub key_index_bytes: usize,
    /// Peer URLs of all members by name, this one's included.
    pub initial_cluster: BTreeMap<String, Vec<Url>>,
    /// The domain whose SRV records name all members, instead of [`Config::initial_cluster`].
    pub discovery: Option<SrvDiscovery>,
    /// The election of a leader.
    pub election: ElectionOptions,
    /// True if storage is checked before linearizable reads are answered.
    pub strict_reads: bool,
    /// True if the JSON gateway is served to clients.
    pub grpc_gateway: bool,
    /// The URL on which plain HTTP serves the leader's name.
    pub leader_http: Option<Url>,
    /// The URLs on which clients are served. With [`Config::listen_client_http_urls`], gRPC only.
    pub listen_client_urls: Vec<Url>,
    /// The URLs on which clients are served HTTP only.
    pub listen_client_http_urls: Vec<Url>,
    /// The URLs on which metrics and health are served without client certificates.
    pub listen_metrics_urls: Vec<Url>,
    /// The URLs on which peers are served.
    pub listen_peer_urls: Vec<Url>,
    /// The client URLs in the member list.
    pub advertise_client_urls: Vec<Url>,
    /// The peer URLs in the member list.
    pub initial_advertise_peer_urls: Vec<Url>,
    /// The only cluster whose store the data directory may hold; `None`: any, or none yet.
    pub embedded_cluster_id: Option<u64>,
    /// True if this process only checks its configuration.
    pub checks: bool,
    /// True if there must be a store: none is begun. On TiKV this member joins the cluster even if none of its members is recognised.
    pub joins_existing: bool,
    /// The flags that matter only if no store exists yet.
    pub bootstrap: Bootstrap,
    /// Token of a new cluster.
    pub initial_cluster_token: String,
    /// The certificates presented to clients, and required of them.
    pub client_tls: TlsOptions,
    /// The certificates presented to peers, and required of them.
    pub peer_tls: TlsOptions,
    /// TLS versions and suites of all listeners.
    pub tls_policy: TlsPolicy,
    /// The limits of clients' requests.
    pub limits: Limits,
    /// Pings of idle connections.
    pub keepalive: Keepalive,
    /// Socket options of TCP listeners.
    pub socket: SocketOptions,
    /// The access of browsers.
    pub browsers: BrowserPolicy,
    /// Logs.
    pub log: LogOptions,
    /// Automatic compaction.
    pub auto_compaction: AutoCompaction,
    /// The pace of compactions.
    pub compaction: CompactionPace,
    /// The interval of progress notifications for an idle watch.
    pub watch_progress_notify_interval: Duration,
    /// The interval in which everything that is stored is checked, if it is.
    pub corrupt_check_interval: Option<Duration>,
    /// The store is defragmented at the start if that frees at least this number of bytes; `None` if it never is.
    pub bootstrap_defrag_bytes: Option<u64>,
    /// The durations above which requests are logged.
    pub slow_requests: SlowOptions,
    /// The export of spans, if it is enabled.
    pub tracing: Option<TracingOptions>,
    /// The time without a heartbeat after which a new leader may be elected.
    pub election_timeout: Duration,
    /// Authentication of users.
    pub auth: AuthOptions,
    /// True if each RPC has a histogram in addition to the counters.
    pub extensive_metrics: bool,
    /// True if writes do not wait for the disk.
    pub unsafe_no_fsync: bool,
}

impl Config {
    /// Returns the shortest lease that is granted, in seconds: one and a half election timeouts, rounded up.
    #[must_use]
    pub fn min_lease_ttl(&self) -> i64 {
        let millis = self.election_timeout.as_millis();
        i64::try_from((3 * millis).div_ceil(2_000)).unwrap_or(i64::MAX)
    }
}

/// The storage of the data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Storage {
    /// The data directory.
    Embedded,
    /// A TiKV cluster.
    Tikv(TikvOptions),
}

/// The election of a leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElectionOptions {
    /// The lock that they compete for.
    pub lock: ElectionLockKind,
    /// The time for which other members wait for a leader that does not renew its lock.
    pub lease_duration: Duration,
    /// The time for which a leader that cannot renew its lock continues.
    pub renew_deadline: Duration,
    /// The interval at which the lock is renewed by its holder, and read by others.
    pub retry_period: Duration,
}

/// The lock that members compete for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElectionLockKind {
    /// A record in their own storage.
    Storage,
    /// A Lease of a Kubernetes cluster.
    Lease(LeaseOptions),
}

/// The Lease, and the access to its API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseOptions {
    /// The kubeconfig of the API server; `None`: the API server of the cluster in whose pod this process runs.
    pub kubeconfig: Option<PathBuf>,
    /// The Lease's namespace; `None`: that of the kubeconfig or the pod.
    pub namespace: Option<String>,
    /// The Lease's name.
    pub name: String,
}

/// The access to a TiKV cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TikvOptions {
    /// Addresses of PD.
    pub pd_endpoints: Vec<String>,
    /// PEM files: CA, certificate and key.
    pub tls: Option<(PathBuf, PathBuf, PathBuf)>,
    /// The prefix of all keys.
    pub key_prefix: String,
    /// The only TiKV cluster that may be used; `None`: the one that PD belongs to.
    pub cluster_id: Option<u64>,
    /// The interval at which the GC safe point is moved; zero: never.
    pub gc_interval: Duration,
    /// The age up to which old versions are kept.
    pub gc_window: Duration,
}

/// The limits of clients' requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest request in bytes, as the writer counts it.
    pub max_request_bytes: usize,
    /// Longest message in bytes that is accepted from the wire: 512 KiB more than the longest request that the flag allows, as in
    /// etcd.
    pub max_receive_bytes: usize,
    /// Most operations in one list of a txn.
    pub max_txn_ops: usize,
    /// Most streams open at a time on one connection.
    pub max_concurrent_streams: u32,
    /// Bytes the store may occupy.
    pub quota: Quota,
    /// True if the NOSPACE alarm is disarmed once there is space again.
    pub disarms_nospace: bool,
    /// Bytes of memory that requests and responses in flight may take.
    pub max_inflight_bytes: usize,
}

/// The limit at which the NOSPACE alarm is raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quota {
    /// No limit.
    Off,
    /// The bytes that the store may occupy.
    Bytes(u64),
}

/// Automatic compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AutoCompaction {
    /// None.
    Off,
    /// Keeps revisions younger than this.
    Periodic(Duration),
    /// Keeps this many revisions.
    Revision(i64),
}

/// The part that `kubebrain debug` prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dump {
    /// The log, the rows or the manifest.
    pub what: Dumped,
    /// The most lines to print; `None`: no limit.
    pub limit: Option<u64>,
    /// Prints only rows of keys with this prefix; empty: all rows.
    pub prefix: Vec<u8>,
    /// True if the values of keys are printed, too.
    pub values: bool,
}

/// A part of a store that can be printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dumped {
    /// Barriers and batches.
    Log,
    /// Rows, in the order of their keys.
    Rows,
    /// The row that records which part of the log is in the rows.
    Manifest,
}
