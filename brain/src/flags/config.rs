//! The configuration: values of the flags, typed and checked.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::url::Url;

/// Everything that the command line and the environment decide.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `kubebrain wipe`: delete the stored data instead of serving it.
    pub wipes: bool,
    /// `kubebrain debug`: print what is stored instead of serving it.
    pub dump: Option<Dump>,
    /// Name of this member.
    pub name: String,
    /// Directory of the data; not checked yet.
    pub data_dir: PathBuf,
    /// Where the data is.
    pub storage: Storage,
    /// Bytes of the embedded store's blocks that are kept in memory; none: by the memory there is.
    pub embedded_cache_bytes: Option<u64>,
    /// Peer URLs of all members by name, this one's included.
    pub initial_cluster: BTreeMap<String, Vec<Url>>,
    /// The domain whose SRV records name all members, instead of [`Config::initial_cluster`].
    pub discovery: Option<SrvDiscovery>,
    /// How the members agree on a leader.
    pub election: ElectionOptions,
    /// Storage is asked before linearizable reads are answered.
    pub strict_reads: bool,
    /// Where plain HTTP tells who leads.
    pub leader_http: Option<Url>,
    /// Where clients are served. With [`Config::listen_client_http_urls`], gRPC alone.
    pub listen_client_urls: Vec<Url>,
    /// Where HTTP alone is served to clients.
    pub listen_client_http_urls: Vec<Url>,
    /// Where metrics and health are served without client certificates.
    pub listen_metrics_urls: Vec<Url>,
    /// Where peers are served.
    pub listen_peer_urls: Vec<Url>,
    /// Told to clients.
    pub advertise_client_urls: Vec<Url>,
    /// Told to peers.
    pub initial_advertise_peer_urls: Vec<Url>,
    /// The cluster exists: this member joins it, whatever its members were called before.
    pub joins_existing: bool,
    /// Token of a new cluster.
    pub initial_cluster_token: String,
    /// Certificates shown to clients, and asked of them.
    pub client_tls: TlsOptions,
    /// Certificates shown to peers, and asked of them.
    pub peer_tls: TlsOptions,
    /// TLS versions and suites of all listeners.
    pub tls_policy: TlsPolicy,
    /// The most that clients may ask for.
    pub limits: Limits,
    /// Pings of idle connections.
    pub keepalive: Keepalive,
    /// Socket options of TCP listeners.
    pub socket: SocketOptions,
    /// The rights of browsers.
    pub browsers: BrowserPolicy,
    /// Logs.
    pub log: LogOptions,
    /// Compaction without being asked.
    pub auto_compaction: AutoCompaction,
    /// How often an idle watch is told of progress.
    pub watch_progress_notify_interval: Duration,
    /// Heartbeat of leadership.
    pub heartbeat_interval: Duration,
    /// Time without heartbeat after which leadership is vacant.
    pub election_timeout: Duration,
    /// Authentication of users.
    pub auth: AuthOptions,
    /// Histograms for each RPC besides the counters.
    pub extensive_metrics: bool,
    /// Do not wait for the disk.
    pub unsafe_no_fsync: bool,
}

impl Config {
    /// The shortest lease that is granted, in seconds: one and a half election timeouts, rounded up.
    #[must_use]
    pub fn min_lease_ttl(&self) -> i64 {
        let millis = self.election_timeout.as_millis();
        i64::try_from((3 * millis).div_ceil(2_000)).unwrap_or(i64::MAX)
    }
}

/// Where the data is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Storage {
    /// In the data directory.
    Embedded,
    /// In a TiKV cluster.
    Tikv(TikvOptions),
}

/// Where members are looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SrvDiscovery {
    /// The domain of the records.
    pub domain: String,
    /// Behind the service's name, with a dash; none when it is empty.
    pub name: String,
}

/// How the members agree on a leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElectionOptions {
    /// The lock that they compete for.
    pub lock: ElectionLockKind,
    /// How long a leader that does not renew its lock is waited for.
    pub lease_duration: Duration,
    /// How long a leader that cannot renew its lock goes on.
    pub renew_deadline: Duration,
    /// How often the lock is renewed, and looked at.
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

/// Which Lease, and how its API server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseOptions {
    /// Leads to the API server; none means that of the cluster whose pod this is.
    pub kubeconfig: Option<PathBuf>,
    /// Its namespace; none means that of the kubeconfig or the pod.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

/// How a TiKV cluster is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TikvOptions {
    /// Addresses of PD.
    pub pd_endpoints: Vec<String>,
    /// PEM files: CA, certificate and key.
    pub tls: Option<(PathBuf, PathBuf, PathBuf)>,
    /// The prefix of all keys.
    pub key_prefix: String,
    /// The only TiKV cluster that is used; whichever PD leads to, if none is named.
    pub cluster_id: Option<u64>,
    /// How often the GC safe point is moved; zero is never.
    pub gc_interval: Duration,
    /// How old versions get.
    pub gc_window: Duration,
}

/// Certificates of one kind of listener.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// PEM file of the certificate and its chain, and PEM file of its key.
    pub pair: Option<(PathBuf, PathBuf)>,
    /// PEM files of the certificate and key shown when dialling, if others.
    pub dial_pair: Option<(PathBuf, PathBuf)>,
    /// PEM file of the CAs whose certificates are required; none are asked for without it.
    pub trusted_ca: Option<PathBuf>,
    /// PEM or DER file of revoked certificates.
    pub crl: Option<PathBuf>,
    /// A certificate needs one of these SAN host names, if there are any.
    pub allowed_hostnames: Vec<String>,
    /// A certificate needs one of these common names, if there are any.
    pub allowed_common_names: Vec<String>,
}

/// The versions and cipher suites of TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsPolicy {
    /// Oldest version.
    pub min: TlsVersion,
    /// Newest version.
    pub max: TlsVersion,
    /// Suites of TLS 1.2 by their Go names; empty means all.
    pub cipher_suites: Vec<String>,
}

impl Default for TlsPolicy {
    fn default() -> Self {
        Self {
            min: TlsVersion::Tls12,
            max: TlsVersion::Tls13,
            cipher_suites: Vec::new(),
        }
    }
}

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// The most that clients may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest request in bytes, as the writer counts it.
    pub max_request_bytes: usize,
    /// Longest message in bytes that is taken from the wire: etcd's 512 KiB more than a request, as long as that may be by the flag.
    pub max_receive_bytes: usize,
    /// Most operations in one list of a txn.
    pub max_txn_ops: usize,
    /// Most streams open at a time on one connection.
    pub max_concurrent_streams: u32,
    /// Bytes the store may occupy.
    pub quota: Quota,
    /// Bytes of memory that requests and answers under way may take.
    pub max_inflight_bytes: usize,
}

/// When the NOSPACE alarm is raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quota {
    /// Never.
    Off,
    /// When the store occupies so many bytes.
    Bytes(u64),
}

/// Pings of idle connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Ping after so long without traffic; none means never.
    pub interval: Option<Duration>,
    /// End the connection when a ping is not answered for so long.
    pub timeout: Duration,
}

/// Socket options of TCP listeners.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// SO_REUSEPORT.
    pub reuse_port: bool,
    /// SO_REUSEADDR.
    pub reuse_address: bool,
}

/// Which browsers are answered. A list without entries means all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BrowserPolicy {
    /// Origins told that they may read answers.
    pub cors: Vec<String>,
    /// Host names accepted in HTTP requests without TLS.
    pub host_whitelist: Vec<String>,
}

/// Logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOptions {
    /// Least severe level that is logged.
    pub level: LogLevel,
    /// Shape of a line.
    pub format: LogFormat,
    /// Where lines go; never empty.
    pub outputs: Vec<LogOutput>,
}

/// Severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Each request.
    Debug,
    /// Changes of state.
    Info,
    /// Odd, continuing.
    Warn,
    /// A human must act.
    Error,
}

/// Shape of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object.
    Json,
    /// For eyes.
    Console,
}

/// Where log lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogOutput {
    /// Standard error.
    Stderr,
    /// Standard output.
    Stdout,
    /// Appended to a file.
    File(PathBuf),
}

/// Compaction without being asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AutoCompaction {
    /// None.
    Off,
    /// Keeps what is younger.
    Periodic(Duration),
    /// Keeps so many revisions.
    Revision(i64),
}

/// Authentication of users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuthOptions {
    /// Cost of hashed passwords, 4 to 31.
    pub bcrypt_cost: u32,
    /// How long a token lives unused.
    pub token_ttl: Duration,
}

/// The part that `kubebrain debug` prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dump {
    /// Of the log, the rows or the manifest.
    pub what: Dumped,
    /// Lines at most.
    pub limit: Option<u64>,
    /// Rows of keys that begin with this; empty: all rows.
    pub prefix: Vec<u8>,
    /// The values of keys as well.
    pub values: bool,
}

/// A part of a store that can be printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dumped {
    /// Barriers and batches.
    Log,
    /// Rows, in the order of their keys.
    Rows,
    /// The row that says which part of the log is in the rows.
    Manifest,
}
