//! All flags, in one table: etcd's names and defaults, and their treatment here.

/// The kind of a flag: with or without a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `--flag`, `--flag=true`, `--flag=false`.
    Bool,
    /// `--flag value`, `--flag=value`.
    Text,
}

/// The heading of a flag in the help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    Member,
    Storage,
    Clustering,
    Security,
    Auth,
    Monitoring,
    Logging,
    Tuning,
    Experimental,
    Unsafe,
    Other,
}

impl Group {
    pub const fn heading(self) -> &'static str {
        match self {
            Group::Member => "Member",
            Group::Storage => "Storage",
            Group::Clustering => "Clustering",
            Group::Security => "Security",
            Group::Auth => "Auth",
            Group::Monitoring => "Profiling and monitoring",
            Group::Logging => "Logging",
            Group::Tuning => "Tuning",
            Group::Experimental => "Old names",
            Group::Unsafe => "Unsafe",
            Group::Other => "Other",
        }
    }
}

/// The treatment of a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// It works as in etcd. The text is its help.
    Works(&'static str),
    /// It is accepted, with a warning if it differs from the default, for this reason.
    Idle(&'static str),
    /// It is refused if it differs from the default, for this reason.
    Refused(&'static str),
    /// It is refused if it differs from the default and there is no store yet, for this reason; otherwise it has no effect.
    Bootstrap(&'static str),
    /// It is an old name of this flag.
    Renamed(&'static str),
    /// It is an old name of this feature gate.
    Gate(&'static str),
}

/// One flag.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    pub name: &'static str,
    pub kind: Kind,
    pub default: &'static str,
    pub group: Group,
    pub treatment: Treatment,
}

impl Flag {
    /// Returns the flag with this name.
    pub fn named(name: &str) -> Option<&'static Flag> {
        FLAGS.iter().find(|flag| flag.name == name)
    }

    /// Returns the environment variable that sets it if the command line does not.
    pub fn variable(&self) -> String {
        format!("ETCD_{}", self.name.to_uppercase().replace('-', "_"))
    }
}

const fn bool(name: &'static str, default: &'static str, group: Group, treatment: Treatment) -> Flag {
    Flag {
        name,
        kind: Kind::Bool,
        default,
        group,
        treatment,
    }
}

const fn text(name: &'static str, default: &'static str, group: Group, treatment: Treatment) -> Flag {
    Flag {
        name,
        kind: Kind::Text,
        default,
        group,
        treatment,
    }
}

const NO_DISCOVERY: Treatment =
    Treatment::Bootstrap("there is no discovery service: name the members by --initial-cluster or --discovery-srv");
const UNUSED: Treatment = Treatment::Idle("there is no discovery service");

use Group::{Auth, Clustering, Experimental, Logging, Member, Monitoring, Other, Security, Storage, Tuning, Unsafe};
use Treatment::{Gate, Idle, Refused, Renamed, Works};

#[rustfmt::skip]
pub const FLAGS: &[Flag] = &[
    text("name", "default", Member, Works("name of this member")),
    text("data-dir", "", Member, Works("data directory [default: <name>.etcd]")),
    text("wal-dir", "", Member, Refused("the log is part of the data directory")),
    text("snapshot-count", "10000", Member, Idle("there are no raft snapshots")),
    text("heartbeat-interval", "100", Member, Idle("the leader's lock is renewed every --election-retry-period")),
    text("election-timeout", "1000", Member, Works("election timeout in milliseconds; the shortest lease is one and a half times as long, in whole seconds")),
    bool("initial-election-tick-advance", "true", Member, Idle("there are no raft ticks")),
    text("listen-peer-urls", "http://localhost:2380", Member, Works("comma-separated URLs for peers, with --storage tikv; a data directory has one member, and nothing listens there")),
    text("listen-client-urls", "http://localhost:2379", Member, Works("comma-separated URLs for clients: http, https, unix or unixs")),
    text("listen-client-http-urls", "", Member, Works("comma-separated URLs for HTTP only; --listen-client-urls then serves no HTTP")),
    text("max-snapshots", "5", Member, Idle("there are no raft snapshots")),
    text("max-wals", "5", Member, Idle("log segments are removed when they are no longer needed")),
    bool("memory-mlock", "false", Member, Idle("memory is not locked")),
    text("quota-backend-bytes", "0", Member, Works("maximum size of the rows in bytes before the NOSPACE alarm is raised; in a data directory without the log, as in etcd. 0: 2 GiB in a data directory, no limit on TiKV; below 0: no limit")),
    bool("auto-disarm-nospace", "false", Member, Works("disarm the NOSPACE alarm once the store takes less than nine tenths of its quota, and the disk has space to spare, for 10 seconds; the leader decides")),
    text("backend-bbolt-freelist-type", "map", Member, Idle("there is no bbolt file")),
    text("backend-batch-interval", "", Member, Idle("batches form on their own")),
    text("backend-batch-limit", "0", Member, Idle("batches form on their own")),
    text("max-txn-ops", "128", Member, Works("maximum number of operations in one list of a txn")),
    text("max-request-bytes", "1572864", Member, Works("maximum size of a request in bytes; lowered to what storage can hold")),
    text("max-concurrent-streams", "4294967295", Member, Works("maximum number of streams open at a time on one connection")),
    text("max-inflight-bytes", "0", Member, Works("maximum memory in bytes for connections, requests and answers of clients, and the same amount again for peers. One connection gets at most half, one address three quarters; beyond that requests are refused with \"too many requests\". 0: a quarter of the memory, between 128 MiB and 1 GiB")),
    text("key-index-bytes", "0", Member, Works("maximum memory in bytes for the index of keys, which counts the keys of large ranges; above it the index is dropped and such counts take longer. 0: a sixteenth of the memory, between 32 MiB and 1 GiB; below 0: no index")),
    text("grpc-keepalive-min-time", "5s", Member, Works("minimum time between pings of a client with open streams; two hours without streams. Clients that ping more often get GOAWAY with too_many_pings. 0: 5 minutes, as in etcd")),
    text("grpc-keepalive-interval", "2h", Member, Works("interval at which the server pings idle clients; 0: never")),
    text("grpc-keepalive-timeout", "20s", Member, Works("time that the server waits for the answer to its ping; 0: no pings")),
    bool("socket-reuse-port", "false", Member, Works("set SO_REUSEPORT on listeners")),
    bool("socket-reuse-address", "false", Member, Works("set SO_REUSEADDR on listeners")),
    bool("enable-grpc-gateway", "true", Member, Works("serve RPCs as HTTP requests with JSON bodies under /v3/, also over WebSockets")),
    text("raft-read-timeout", "5s", Member, Idle("there are no raft connections")),
    text("raft-write-timeout", "5s", Member, Idle("there are no raft connections")),
    text("feature-gates", "", Member, Works("comma-separated Gate=true|false pairs, with etcd 3.6's gates; none has an effect. InitialCorruptCheck, LeaseCheckpoint, LeaseCheckpointPersist and TxnModeWriteWithSharedBuffer are always on; CompactHashCheck, SetMemberLocalAddr and StopGRPCServiceOnDefrag are always off")),
    text("config-file", "", Member, Works("YAML file whose keys are names of flags, as in etcd; other flags and ETCD_* variables are then ignored")),
    text("storage", "embedded", Storage, Works("embedded: a data directory, for one member; tikv: a TiKV cluster, for several")),
    text("embedded-cache-bytes", "0", Storage, Works("memory in bytes for cached blocks of the data directory; 0: an eighth of the memory, between 64 MiB and 1 GiB")),
    text("embedded-cluster-id", "", Storage, Works("id of the cluster in the data directory, in hexadecimal digits as /member shows it; a directory with another store or without one is refused before anything is written")),
    text("embedded-member", "", Storage, Works("name of the only member that may use a data directory as its storage; a member with another --name does not start. For members created from one template")),
    text("tikv-pd-endpoints", "", Storage, Works("comma-separated PD addresses, host:port")),
    text("tikv-ca", "", Storage, Works("CA file for the certificates of PD and TiKV")),
    text("tikv-cert", "", Storage, Works("client certificate file for PD and TiKV; read again when it changes")),
    text("tikv-key", "", Storage, Works("key file of --tikv-cert")),
    text("tikv-key-prefix", "kubebrain", Storage, Works("prefix of all keys of this cluster; no two clusters on one TiKV may share it")),
    text("tikv-cluster-id", "", Storage, Works("id of the TiKV cluster, in decimal digits as PD shows it; another cluster is refused before anything is written [default: the cluster on which the key prefix was first used]")),
    text("tikv-gc-interval", "0s", Storage, Works("interval at which the leader collects old versions in the whole TiKV cluster; 0: never. TiKV does not do this on its own: set it on one cluster of brains, unless a TiDB does it")),
    text("tikv-gc-window", "10m", Storage, Works("age at which TiKV may drop a version; if another program advances the safe point, at most what that program keeps")),
    text("election", "storage", Storage, Works("lock for which members on TiKV compete: storage, a record in their own storage; or lease, a Lease of a Kubernetes cluster that is not stored here")),
    text("election-lease-duration", "", Storage, Works("time after which a leader that does not renew its lock is replaced [default: 2s; 15s with --election lease]")),
    text("election-renew-deadline", "", Storage, Works("time for which a leader that cannot renew its lock continues to lead [default: 1.5s; 10s with --election lease]")),
    text("election-retry-period", "", Storage, Works("interval at which the lock is renewed and read [default: 400ms; 2s with --election lease]")),
    text("lease-namespace", "", Storage, Works("namespace of the Lease [default: that of the pod or the kubeconfig]")),
    text("lease-name", "", Storage, Works("name of the Lease")),
    text("lease-kubeconfig", "", Storage, Works("kubeconfig file for the API server of the Lease [default: the API server of the cluster of this pod]")),
    bool("strict-reads", "false", Storage, Works("ask storage, once for all waiting linearizable reads, whether another member leads. Without it a leader trusts its lease, which assumes that clocks run: a virtual machine paused for longer than the lease can serve one stale read")),
    text("leader-http", "", Member, Works("host:port on which plain HTTP reports the leader, as the leader-elector sidecar does on 0.0.0.0:4040")),
    text("initial-advertise-peer-urls", "http://localhost:2380", Clustering, Works("comma-separated peer URLs advertised to other members")),
    text("initial-cluster", "", Clustering, Works("comma-separated <name>=<peer URL> pairs of all members; for embedded storage only this member [default: <name>=<initial-advertise-peer-urls>]")),
    text("initial-cluster-state", "new", Clustering, Works("new, or existing: the store must exist already; on TiKV, existing also confirms that this member belongs to the cluster of the key prefix although all addresses changed")),
    text("initial-cluster-token", "etcd-cluster", Clustering, Works("token that makes the ids of a new cluster unique")),
    text("advertise-client-urls", "http://localhost:2379", Clustering, Works("comma-separated client URLs advertised to clients")),
    text("discovery", "", Clustering, NO_DISCOVERY),
    text("discovery-token", "", Clustering, NO_DISCOVERY),
    text("discovery-endpoints", "", Clustering, NO_DISCOVERY),
    text("discovery-dial-timeout", "2s", Clustering, UNUSED),
    text("discovery-request-timeout", "5s", Clustering, UNUSED),
    text("discovery-keepalive-time", "2s", Clustering, UNUSED),
    text("discovery-keepalive-timeout", "6s", Clustering, UNUSED),
    bool("discovery-insecure-transport", "true", Clustering, UNUSED),
    bool("discovery-insecure-skip-tls-verify", "false", Clustering, UNUSED),
    text("discovery-cert", "", Clustering, UNUSED),
    text("discovery-key", "", Clustering, UNUSED),
    text("discovery-cacert", "", Clustering, UNUSED),
    text("discovery-user", "", Clustering, UNUSED),
    text("discovery-password", "", Clustering, UNUSED),
    text("discovery-fallback", "exit", Clustering, UNUSED),
    text("discovery-proxy", "", Clustering, UNUSED),
    text("discovery-srv", "", Clustering, Works("domain whose SRV records _etcd-server-ssl._tcp and _etcd-server._tcp name the members on TiKV, instead of --initial-cluster; the name of a member is the first label of its host name")),
    text("discovery-srv-name", "", Clustering, Works("suffix of the service in the SRV records, after a dash: _etcd-server-<name>._tcp")),
    bool("strict-reconfig-check", "true", Clustering, Idle("the log needs no quorum of members, so no change of members can lose it")),
    bool("pre-vote", "true", Clustering, Idle("there is no raft election")),
    text("auto-compaction-retention", "0", Clustering, Works("history that automatic compaction keeps: a duration (a bare number is hours) or a number of revisions; 0: no automatic compaction")),
    text("auto-compaction-mode", "periodic", Clustering, Works("periodic or revision")),
    text("v2-deprecation", "write-only", Clustering, Idle("there is no v2 store")),
    text("cert-file", "", Security, Works("PEM file of the server certificate for clients, with its chain")),
    text("key-file", "", Security, Works("PEM file of the key of --cert-file")),
    bool("client-cert-auth", "false", Security, Works("require client certificates signed by --trusted-ca-file")),
    text("client-cert-file", "", Security, Idle("the server makes no client connections")),
    text("client-key-file", "", Security, Idle("the server makes no client connections")),
    text("client-crl-file", "", Security, Works("PEM or DER file of revoked client certificates")),
    text("client-cert-allowed-cn", "", Security, Works("comma-separated common names; a client certificate must have one of them; etcd has this only in its file, as client-transport-security.allowed-cn")),
    text("client-cert-allowed-hostname", "", Security, Works("comma-separated SAN host names; a client certificate must have one of them")),
    text("trusted-ca-file", "", Security, Works("PEM file of the CAs of client certificates; if set, client certificates are required")),
    bool("auto-tls", "false", Security, Works("create a self-signed certificate for clients in <data-dir>/fixtures/client, unless --cert-file is set")),
    text("peer-cert-file", "", Security, Works("PEM file of the certificate for peers; this and the other peer flags apply with --storage tikv")),
    text("peer-key-file", "", Security, Works("PEM file of the key of --peer-cert-file")),
    bool("peer-client-cert-auth", "false", Security, Works("require certificates of peers, signed by --peer-trusted-ca-file")),
    text("peer-client-cert-file", "", Security, Works("PEM file of the certificate presented to peers, if not --peer-cert-file")),
    text("peer-client-key-file", "", Security, Works("PEM file of the key of --peer-client-cert-file")),
    text("peer-trusted-ca-file", "", Security, Works("PEM file of the CAs of peer certificates")),
    text("peer-cert-allowed-cn", "", Security, Works("comma-separated common names; a peer certificate must have one of them")),
    text("peer-cert-allowed-hostname", "", Security, Works("comma-separated SAN host names; a peer certificate must have one of them")),
    bool("peer-auto-tls", "false", Security, Works("create a self-signed certificate for peers in <data-dir>/fixtures/peer, unless --peer-cert-file is set; peers then accept any certificate")),
    text("self-signed-cert-validity", "1", Security, Works("validity in years of certificates of --auto-tls and --peer-auto-tls; an expired one is replaced at the next start")),
    text("peer-crl-file", "", Security, Works("PEM or DER file of revoked peer certificates")),
    bool("peer-skip-client-san-verification", "false", Security, Idle("always the case: names in a peer certificate are not compared with the address of the peer. A peer proves that it is a member by a secret of the cluster, and --peer-cert-allowed-hostname restricts names")),
    text("cipher-suites", "", Security, Works("comma-separated TLS 1.2 cipher suites, by their Go names")),
    text("cors", "*", Security, Works("comma-separated origins allowed for browsers; *: all")),
    text("host-whitelist", "*", Security, Works("comma-separated host names accepted in HTTP requests without TLS; *: all")),
    text("tls-min-version", "TLS1.2", Security, Works("TLS1.2 or TLS1.3")),
    text("tls-max-version", "", Security, Works("TLS1.2 or TLS1.3 [default: the newest]")),
    text("auth-token", "simple", Auth, Works("kind of authentication tokens: simple; or jwt,sign-method=<method> with the PEM files pub-key=<path> and priv-key=<path> (without a private key tokens are only verified) and ttl=<duration>. Methods: HS256 to HS512, RS256 to RS512, PS256 to PS512, ES256, ES384, ES512, EdDSA")),
    text("bcrypt-cost", "10", Auth, Works("cost of hashed passwords, 4 to 31")),
    text("auth-token-ttl", "300", Auth, Works("seconds that a simple token is valid after its last use")),
    bool("enable-pprof", "false", Monitoring, Idle("there is no Go profiler: use perf")),
    text("metrics", "basic", Monitoring, Works("basic or extensive: without or with histograms for each RPC")),
    text("listen-metrics-urls", "", Monitoring, Works("comma-separated URLs for /metrics and health checks only; https asks for client certificates if the client URLs do")),
    text("logger", "zap", Logging, Works("zap: structured logs")),
    text("log-outputs", "default", Logging, Works("comma-separated targets: default, stderr, stdout or files")),
    text("log-level", "info", Logging, Works("debug, info, warn, error, panic or fatal")),
    text("log-format", "json", Logging, Works("json or console")),
    bool("enable-log-rotation", "false", Logging, Works("replace the one file among --log-outputs when it is full")),
    text("log-rotation-config-json", "{\"maxsize\": 100, \"maxage\": 0, \"maxbackups\": 0, \"localtime\": false, \"compress\": false}", Logging, Works("JSON settings of --enable-log-rotation: maxsize of a file in MiB, maxage of old files in days, maxbackups to keep, localtime in their names, compress; 0 means no limit, for maxsize 100")),
    text("warning-unary-request-duration", "300ms", Logging, Works("a unary RPC that takes longer is logged as a warning; at most 20 lines in ten seconds")),
    text("warning-apply-duration", "100ms", Tuning, Works("a read that takes longer, or a change that takes longer from its arrival at the leader to its commit, is logged as a warning; at most 20 lines in ten seconds")),
    bool("enable-distributed-tracing", "false", Tuning, Works("send spans of RPCs to an OpenTelemetry collector, by OTLP over gRPC without TLS as in etcd")),
    text("distributed-tracing-address", "localhost:4317", Tuning, Works("host:port of the collector; spans are dropped while it is unreachable")),
    text("distributed-tracing-service-name", "etcd", Tuning, Works("service name of the spans, the same for all members")),
    text("distributed-tracing-instance-id", "", Tuning, Works("service instance id of the spans, different for each member; none if empty")),
    text("distributed-tracing-sampling-rate", "0", Tuning, Works("number of requests in a million that are traced; a request with a trace of its client follows the sampling decision of the client")),
    text("corrupt-check-time", "0s", Tuning, Works("interval at which the leader reads all rows, slowly, to find damage; 0: never. Every record and block is also checked when it is read")),
    text("compact-hash-check-time", "1m", Tuning, Idle("no two members have their own copy of the data: members on TiKV share one log and one set of rows, and a data directory has one member. --corrupt-check-time looks for damage")),
    text("compaction-batch-limit", "", Tuning, Works("maximum number of versions that one step of a compaction deletes, 1 to 1000000 [default: what one write to storage takes]")),
    text("compaction-sleep-interval", "", Tuning, Works("pause between two steps of a compaction, up to 30s [default: none]")),
    text("watch-progress-notify-interval", "10m", Tuning, Works("interval of progress notifications to idle watches")),
    text("bootstrap-defrag-threshold-megabytes", "0", Tuning, Works("defragment the data directory once after a start if at least this many MiB are unused; 0: never")),
    text("max-learners", "1", Tuning, Idle("there are no learners: a new member has no data to catch up with")),
    text("downgrade-check-time", "5s", Tuning, Idle("there are no downgrades: no older etcd reads the data of a brain")),
    text("snapshot-catchup-entries", "5000", Tuning, Idle("there are no raft snapshots")),
    bool("experimental-enable-distributed-tracing", "false", Experimental, Renamed("enable-distributed-tracing")),
    text("experimental-distributed-tracing-address", "localhost:4317", Experimental, Renamed("distributed-tracing-address")),
    text("experimental-distributed-tracing-service-name", "etcd", Experimental, Renamed("distributed-tracing-service-name")),
    text("experimental-distributed-tracing-instance-id", "", Experimental, Renamed("distributed-tracing-instance-id")),
    text("experimental-distributed-tracing-sampling-rate", "0", Experimental, Renamed("distributed-tracing-sampling-rate")),
    text("experimental-corrupt-check-time", "0s", Experimental, Renamed("corrupt-check-time")),
    text("experimental-compact-hash-check-time", "1m", Experimental, Renamed("compact-hash-check-time")),
    text("experimental-compaction-batch-limit", "", Experimental, Renamed("compaction-batch-limit")),
    bool("experimental-peer-skip-client-san-verification", "false", Experimental, Renamed("peer-skip-client-san-verification")),
    text("experimental-watch-progress-notify-interval", "10m", Experimental, Renamed("watch-progress-notify-interval")),
    text("experimental-warning-apply-duration", "100ms", Experimental, Renamed("warning-apply-duration")),
    text("experimental-bootstrap-defrag-threshold-megabytes", "0", Experimental, Renamed("bootstrap-defrag-threshold-megabytes")),
    text("experimental-warning-unary-request-duration", "300ms", Experimental, Renamed("warning-unary-request-duration")),
    text("experimental-compaction-sleep-interval", "", Experimental, Renamed("compaction-sleep-interval")),
    text("experimental-downgrade-check-time", "5s", Experimental, Renamed("downgrade-check-time")),
    bool("experimental-memory-mlock", "false", Experimental, Renamed("memory-mlock")),
    text("experimental-snapshot-catchup-entries", "5000", Experimental, Renamed("snapshot-catchup-entries")),
    bool("experimental-initial-corrupt-check", "false", Experimental, Gate("InitialCorruptCheck")),
    bool("experimental-compact-hash-check-enabled", "false", Experimental, Gate("CompactHashCheck")),
    bool("experimental-enable-lease-checkpoint", "false", Experimental, Gate("LeaseCheckpoint")),
    bool("experimental-enable-lease-checkpoint-persist", "false", Experimental, Gate("LeaseCheckpointPersist")),
    bool("experimental-txn-mode-write-with-shared-buffer", "true", Experimental, Gate("TxnModeWriteWithSharedBuffer")),
    bool("experimental-stop-grpc-service-on-defrag", "false", Experimental, Gate("StopGRPCServiceOnDefrag")),
    bool("force-new-cluster", "false", Unsafe, Idle("no quorum is needed: a single member serves the stored data")),
    bool("unsafe-no-fsync", "false", Unsafe, Works("do not wait for the disk: a crash of the machine loses data")),
    bool("check", "false", Other, Works("check the flags and the files that they name, and exit; storage is not opened, and no address is bound")),
    bool("version", "false", Other, Works("print the versions and exit")),
];
