//! The configuration: the typed and checked values of the flags.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::bootstrap::Bootstrap;
use super::url::Url;
use crate::slow_requests::SlowOptions;

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
}

/// The action of `kubebrain import`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportCommand {
    /// The access to the store that is copied.
    pub source: SourceOptions,
    /// Follow the source until SIGUSR1; otherwise until it is reached.
    pub follows: bool,
    /// Follow the source to this revision, and end there.
    pub until_revision: Option<i64>,
    /// Delete a copy that is not complete, and begin again.
    pub restarts: bool,
}

/// The access to an etcd, as etcdctl's flags give it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceOptions {
    /// The client URLs, with the schemes http and https.
    pub endpoints: Vec<Url>,
    /// Certificates.
    pub tls: TlsOptions,
    /// Name and password.
    pub user: Option<(String, Password)>,
    /// The timeout of a connection attempt.
    pub dial_timeout: Duration,
}

/// A password, which is never logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(pub String);

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password(..)")
    }
}

/// The configuration from the command line and the environment.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `kubebrain wipe`: delete the stored data instead of serving it.
    pub wipes: bool,
    /// `kubebrain debug`: print what is stored instead of serving it.
    pub dump: Option<Dump>,
    /// `kubebrain snapshot`: read a snapshot instead of serving.
    pub snapshot: Option<SnapshotCommand>,
    /// `kubebrain import`: copy another store instead of serving.
    pub import: Option<ImportCommand>,
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
    /// What matters only where there is no store yet.
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
    /// The bytes that a defragmentation has to free so that there is one at the start; `None` if there is never one.
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

/// The DNS domain in which members are looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SrvDiscovery {
    /// The domain of the records.
    pub domain: String,
    /// The suffix of the service's name, after a dash; no suffix if empty.
    pub name: String,
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

/// Certificates of one kind of listener.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// PEM file of the certificate and its chain, and PEM file of its key.
    pub pair: Option<(PathBuf, PathBuf)>,
    /// PEM files of the certificate and key presented when dialling, if different.
    pub dial_pair: Option<(PathBuf, PathBuf)>,
    /// PEM file of the CAs that must have signed clients' certificates; without it none are required.
    pub trusted_ca: Option<PathBuf>,
    /// True if servers are trusted when dialling by the CAs that the system trusts, unless `trusted_ca` names others.
    pub system_roots: bool,
    /// PEM or DER file of revoked certificates.
    pub crl: Option<PathBuf>,
    /// A certificate needs one of these SAN host names, if there are any.
    pub allowed_hostnames: Vec<String>,
    /// A certificate needs one of these common names, if there are any.
    pub allowed_common_names: Vec<String>,
    /// The certificate that the member makes itself, and writes into the files of the pair; none if it is given one.
    pub self_signed: Option<SelfSigned>,
}

/// A certificate that a member makes for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelfSigned {
    /// Its host names and IPs.
    pub hosts: Vec<String>,
    /// The years for which it is valid.
    pub years: u32,
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

/// The pace at which a compaction deletes what it made obsolete.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompactionPace {
    /// Most versions of keys that one step deletes; `None`: as many as one write to storage takes.
    pub batch_limit: Option<usize>,
    /// The pause between two steps.
    pub pause: Duration,
}

/// Pings of idle connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Ping after this time without traffic; `None`: never.
    pub interval: Option<Duration>,
    /// Close the connection if a ping is not answered within this time.
    pub timeout: Duration,
    /// The least time between pings of a client that has open streams.
    pub min_time: Duration,
}

/// Socket options of TCP listeners.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// SO_REUSEPORT.
    pub reuse_port: bool,
    /// SO_REUSEADDR.
    pub reuse_address: bool,
}

/// The browsers that are answered. An empty list means all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BrowserPolicy {
    /// Origins that are allowed to read responses.
    pub cors: Vec<String>,
    /// Host names accepted in HTTP requests without TLS.
    pub host_whitelist: Vec<String>,
}

/// Logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOptions {
    /// Least severe level that is logged.
    pub level: LogLevel,
    /// The format of a line.
    pub format: LogFormat,
    /// The targets of log lines; never empty.
    pub outputs: Vec<LogOutput>,
    /// How the file among the targets is replaced when it is full; `None` if it never is.
    pub rotation: Option<LogRotation>,
}

/// The export of spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracingOptions {
    /// The URL of the collector: OTLP over gRPC, without TLS.
    pub collector: http::Uri,
    /// The service name, the same for all members.
    pub service_name: String,
    /// The id of this member among those of the service.
    pub instance_id: Option<String>,
    /// The traced requests in a million, of those that a client has no trace for.
    pub sampling_rate: u32,
}

/// The replacement of a log file that is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRotation {
    /// The size of a full file in bytes.
    pub max_bytes: u64,
    /// The age at which an old file is removed, if there is one.
    pub max_age: Option<Duration>,
    /// The number of old files that are kept; 0 means all.
    pub max_backups: usize,
    /// True if the time in their names is local time, else UTC.
    pub local_time: bool,
    /// True if they are compressed.
    pub compress: bool,
}

/// Severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Each request.
    Debug,
    /// Changes of state.
    Info,
    /// Unexpected, but the process continues.
    Warn,
    /// A human must act.
    Error,
}

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object.
    Json,
    /// Text for people.
    Console,
}

/// The target of log lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogOutput {
    /// Standard error.
    Stderr,
    /// Standard output.
    Stdout,
    /// A file, to which lines are appended.
    File(PathBuf),
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

/// Authentication of users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthOptions {
    /// The kind of tokens.
    pub token: TokenOptions,
    /// Cost of hashed passwords, 4 to 31.
    pub bcrypt_cost: u32,
    /// The common name of a client's certificate is its user if it sends no token.
    pub client_cert_auth: bool,
}

impl Default for AuthOptions {
    fn default() -> Self {
        Self {
            token: TokenOptions::Simple {
                ttl: Duration::from_secs(300),
            },
            bcrypt_cost: 10,
            client_cert_auth: false,
        }
    }
}

/// The kind of tokens that users are given for their passwords.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenOptions {
    /// None: passwords are of no use.
    None,
    /// Random ones that the members keep.
    Simple {
        /// The time after which an unused token expires.
        ttl: Duration,
    },
    /// JSON Web Tokens.
    Jwt(JwtOptions),
}

/// Keys of JSON Web Tokens. The files are only named here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtOptions {
    /// The way in which they are signed; always given.
    pub method: Option<SignMethod>,
    /// PEM file of the public key.
    pub public_key: Option<PathBuf>,
    /// PEM file of the private key, or the secret of an HMAC.
    pub private_key: Option<PathBuf>,
    /// The time after which a token expires.
    pub ttl: Duration,
}

/// The way in which JSON Web Tokens are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of RFC 7518 and RFC 8037")]
pub enum SignMethod {
    Hs256,
    Hs384,
    Hs512,
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    Es512,
    EdDsa,
}

impl SignMethod {
    /// All methods by name.
    pub const ALL: &[(&str, SignMethod)] = &[
        ("HS256", SignMethod::Hs256),
        ("HS384", SignMethod::Hs384),
        ("HS512", SignMethod::Hs512),
        ("RS256", SignMethod::Rs256),
        ("RS384", SignMethod::Rs384),
        ("RS512", SignMethod::Rs512),
        ("PS256", SignMethod::Ps256),
        ("PS384", SignMethod::Ps384),
        ("PS512", SignMethod::Ps512),
        ("ES256", SignMethod::Es256),
        ("ES384", SignMethod::Es384),
        ("ES512", SignMethod::Es512),
        ("EdDSA", SignMethod::EdDsa),
    ];

    /// Returns the method of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|(own, _)| *own == name)
            .map(|(_, method)| *method)
    }

    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(_, own)| *own == self)
            .map_or("", |(name, _)| name)
    }
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
