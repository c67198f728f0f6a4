//! All flags, in one table: etcd's names and defaults, and their treatment here.

/// The kind of a flag: with or without a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// `--flag`, `--flag=true`, `--flag=false`.
    Bool,
    /// `--flag value`, `--flag=value`.
    Text,
}

/// The heading of a flag in the help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
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
    pub(super) const fn heading(self) -> &'static str {
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
pub(super) enum Treatment {
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
#[derive(Debug)]
pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) default: &'static str,
    pub(super) group: Group,
    pub(super) treatment: Treatment,
}

impl Flag {
    /// Returns the flag with this name.
    pub(super) fn named(name: &str) -> Option<&'static Flag> {
        FLAGS.iter().find(|flag| flag.name == name)
    }

    /// Returns the environment variable that sets it if the command line does not.
    pub(super) fn variable(&self) -> String {
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
pub(super) const FLAGS: &[Flag] = &[
    text("name", "default", Member, Works("name of this member")),
    text("data-dir", "", Member, Works("directory of the data [default: <name>.etcd]")),
    text("wal-dir", "", Member, Refused("the log lives in the data directory")),
    text("snapshot-count", "10000", Member, Idle("there are no raft snapshots")),
    text("heartbeat-interval", "100", Member, Idle("the leader's lock is renewed every --election-retry-period")),
    text("election-timeout", "1000", Member, Works("election timeout in milliseconds; the shortest lease is one and a half of it, in whole seconds")),
    bool("initial-election-tick-advance", "true", Member, Idle("there are no raft ticks")),
    text("listen-peer-urls", "http://localhost:2380", Member, Works("comma-separated URLs for peers, with --storage tikv; nothing listens there for a data directory, which has one member")),
    text("listen-client-urls", "http://localhost:2379", Member, Works("comma-separated URLs on which clients are served: http, https, unix or unixs")),
    text("listen-client-http-urls", "", Member, Works("comma-separated URLs for HTTP alone; they take it away from --listen-client-urls")),
    text("max-snapshots", "5", Member, Idle("there are no raft snapshots")),
    text("max-wals", "5", Member, Idle("segments of the log go when they are not needed any more")),
    bool("memory-mlock", "false", Member, Idle("memory is not locked")),
    text("quota-backend-bytes", "0", Member, Works("bytes the rows may occupy before the NOSPACE alarm is raised, in a data directory without the log, as with etcd; 0 means 2 GiB in a data directory and no limit on TiKV, below 0 no limit")),
    text("backend-bbolt-freelist-type", "map", Member, Idle("there is no bbolt file")),
    text("backend-batch-interval", "", Member, Idle("batches form by themselves")),
    text("backend-batch-limit", "0", Member, Idle("batches form by themselves")),
    text("max-txn-ops", "128", Member, Works("most operations in one list of a txn")),
    text("max-request-bytes", "1572864", Member, Works("longest request in bytes; lowered to what storage can hold")),
    text("max-concurrent-streams", "4294967295", Member, Works("most streams open at a time on one connection")),
    text("max-inflight-bytes", "0", Member, Works("bytes of memory that connections, requests and answers of clients may take, those of peers as much again; one connection has at most half of it, one address three quarters; more are refused with \"too many requests\"; 0 means a quarter of the memory, between 128 MiB and 1 GiB")),
    text("key-index-bytes", "0", Member, Works("bytes of memory that the index of keys may take, which counts the keys of large ranges; beyond that it is dropped, and such counts take longer; 0 means a sixteenth of the memory, between 32 MiB and 1 GiB, below 0 no index")),
    text("grpc-keepalive-min-time", "5s", Member, Works("least time between pings of a client with open streams; without streams it is two hours. Clients that ping more often are sent GOAWAY with too_many_pings. 0 means 5 minutes, as in etcd")),
    text("grpc-keepalive-interval", "2h", Member, Works("how often the server pings idle clients; 0 means never")),
    text("grpc-keepalive-timeout", "20s", Member, Works("how long the server waits for the answer to its ping; 0 means never pinging")),
    bool("socket-reuse-port", "false", Member, Works("set SO_REUSEPORT on listeners")),
    bool("socket-reuse-address", "false", Member, Works("set SO_REUSEADDR on listeners")),
    bool("enable-grpc-gateway", "true", Member, Works("serve RPCs as HTTP requests with JSON bodies under /v3/, also over WebSockets")),
    text("raft-read-timeout", "5s", Member, Idle("there are no raft connections")),
    text("raft-write-timeout", "5s", Member, Idle("there are no raft connections")),
    text("feature-gates", "", Member, Works("comma-separated Gate=true|false pairs, with the gates of etcd 3.6; none has an effect here: InitialCorruptCheck, LeaseCheckpoint, LeaseCheckpointPersist and TxnModeWriteWithSharedBuffer are always on, CompactHashCheck, SetMemberLocalAddr and StopGRPCServiceOnDefrag always off")),
    text("config-file", "", Member, Works("YAML file whose keys are names of flags, as etcd's; other flags and ETCD_* variables are ignored then")),
    text("storage", "embedded", Storage, Works("embedded: the data directory, for one member; tikv: a TiKV cluster, for many")),
    text("embedded-cache-bytes", "0", Storage, Works("bytes of memory for blocks of the data directory; 0 means an eighth of the memory there is, between 64 MiB and 1 GiB")),
    text("embedded-cluster-id", "", Storage, Works("id of the cluster in the data directory, in hexadecimal digits as /member has it; a directory with another store, or without one, is refused before anything is written")),
    text("embedded-member", "", Storage, Works("name of the only member that may use a data directory as its storage; a member of another --name does not start. It is for members that are made from one template, which could be made twice")),
    text("tikv-pd-endpoints", "", Storage, Works("comma-separated addresses of TiKV's PD, host:port")),
    text("tikv-ca", "", Storage, Works("path of the CA that signed PD's and TiKV's certificates")),
    text("tikv-cert", "", Storage, Works("path of the certificate shown to PD and TiKV; read anew when it changes")),
    text("tikv-key", "", Storage, Works("path of its key")),
    text("tikv-key-prefix", "kubebrain", Storage, Works("what all keys of this cluster begin with; no two clusters on one TiKV may share it")),
    text("tikv-cluster-id", "", Storage, Works("id of the TiKV cluster, in decimal digits as PD has it; another cluster is refused before anything is written [default: the cluster that the key prefix was first used on]")),
    text("tikv-gc-interval", "0s", Storage, Works("how often the member that leads has the whole TiKV cluster forget old versions; 0: never. TiKV does nothing of the kind by itself: give it to one cluster of brains, unless a TiDB is there to do it")),
    text("tikv-gc-window", "10m", Storage, Works("how old a version gets before TiKV's GC takes it; where somebody else moves the safe point, not more than they keep")),
    text("election", "storage", Storage, Works("what members on TiKV compete for to lead: storage, a record in their own storage; or lease, a Lease of a Kubernetes cluster other than one that is stored here")),
    text("election-lease-duration", "", Storage, Works("how long a leader that does not renew its lock is waited for [default: 2s, with --election lease 15s]")),
    text("election-renew-deadline", "", Storage, Works("how long a leader that cannot renew its lock goes on [default: 1.5s, with --election lease 10s]")),
    text("election-retry-period", "", Storage, Works("how often the lock is renewed, and looked at [default: 400ms, with --election lease 2s]")),
    text("lease-namespace", "", Storage, Works("namespace of the Lease [default: that of the pod or the kubeconfig]")),
    text("lease-name", "", Storage, Works("name of the Lease")),
    text("lease-kubeconfig", "", Storage, Works("path of the kubeconfig that leads to the API server of the Lease [default: the API server of the cluster that this is a pod of]")),
    bool("strict-reads", "false", Storage, Works("ask storage, once for all linearizable reads that wait, whether another member leads by now; without it a leader trusts its lease, which assumes that clocks run: a virtual machine that was paused for longer than the lease can serve one stale read")),
    text("leader-http", "", Member, Works("host:port on which plain HTTP tells who leads, as the leader-elector sidecar does on 0.0.0.0:4040")),
    text("initial-advertise-peer-urls", "http://localhost:2380", Clustering, Works("comma-separated peer URLs told to others")),
    text("initial-cluster", "", Clustering, Works("comma-separated <name>=<peer URL> pairs of all members; for embedded storage only this member itself [default: <name>=<initial-advertise-peer-urls>]")),
    text("initial-cluster-state", "new", Clustering, Works("new, or existing: refuses to begin a store where there is none; on a TiKV cluster it also vouches that this member belongs to the cluster of the key prefix although all addresses changed")),
    text("initial-cluster-token", "etcd-cluster", Clustering, Works("token that makes the ids of a new cluster its own")),
    text("advertise-client-urls", "http://localhost:2379", Clustering, Works("comma-separated client URLs told to clients")),
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
    text("discovery-srv", "", Clustering, Works("domain whose SRV records _etcd-server-ssl._tcp and _etcd-server._tcp name the members on TiKV, instead of --initial-cluster; a member is called as the first label of its host name")),
    text("discovery-srv-name", "", Clustering, Works("suffix of the SRV records' service, behind a dash: _etcd-server-<name>._tcp")),
    bool("strict-reconfig-check", "true", Clustering, Idle("the log needs no quorum of members, so no change of members can lose it")),
    bool("pre-vote", "true", Clustering, Idle("there is no raft election")),
    text("auto-compaction-retention", "0", Clustering, Works("what automatic compaction keeps: a duration (a bare number is hours) or a number of revisions; 0 means no automatic compaction")),
    text("auto-compaction-mode", "periodic", Clustering, Works("periodic or revision")),
    text("v2-deprecation", "write-only", Clustering, Idle("there is no v2 store")),
    text("cert-file", "", Security, Works("PEM file of the server certificate for clients, with its chain")),
    text("key-file", "", Security, Works("PEM file of the key of --cert-file")),
    bool("client-cert-auth", "false", Security, Works("require client certificates signed by --trusted-ca-file")),
    text("client-cert-file", "", Security, Idle("the server makes no client connections")),
    text("client-key-file", "", Security, Idle("the server makes no client connections")),
    text("client-crl-file", "", Security, Works("PEM or DER file of revoked client certificates")),
    text("client-cert-allowed-cn", "", Security, Works("comma-separated common names of which a client certificate needs one; in etcd's file only, client-transport-security.allowed-cn")),
    text("client-cert-allowed-hostname", "", Security, Works("comma-separated SAN host names of which a client certificate needs one")),
    text("trusted-ca-file", "", Security, Works("PEM file of the CAs of client certificates; given, they are required")),
    bool("auto-tls", "false", Security, Works("make a self-signed certificate for clients in <data-dir>/fixtures/client, unless --cert-file is given")),
    text("peer-cert-file", "", Security, Works("PEM file of the certificate for peers; this and the other flags for peers are used with --storage tikv")),
    text("peer-key-file", "", Security, Works("PEM file of the key of --peer-cert-file")),
    bool("peer-client-cert-auth", "false", Security, Works("require certificates of peers, signed by --peer-trusted-ca-file")),
    text("peer-client-cert-file", "", Security, Works("PEM file of the certificate shown to peers, if not --peer-cert-file")),
    text("peer-client-key-file", "", Security, Works("PEM file of the key of --peer-client-cert-file")),
    text("peer-trusted-ca-file", "", Security, Works("PEM file of the CAs of peer certificates")),
    text("peer-cert-allowed-cn", "", Security, Works("comma-separated common names of which a peer certificate needs one")),
    text("peer-cert-allowed-hostname", "", Security, Works("comma-separated SAN host names of which a peer certificate needs one")),
    bool("peer-auto-tls", "false", Security, Works("make a self-signed certificate for peers in <data-dir>/fixtures/peer, unless --peer-cert-file is given; peers accept any certificate then")),
    text("self-signed-cert-validity", "1", Security, Works("years for which certificates of --auto-tls and --peer-auto-tls are valid; one that has expired is replaced at the next start")),
    text("peer-crl-file", "", Security, Works("PEM or DER file of revoked peer certificates")),
    bool("peer-skip-client-san-verification", "false", Security, Idle("it is always so: names in a peer's certificate are not compared with the address that it connects from; a peer proves that it is a member by a secret of the cluster, and --peer-cert-allowed-hostname restricts names")),
    text("cipher-suites", "", Security, Works("comma-separated TLS 1.2 cipher suites, by their Go names")),
    text("cors", "*", Security, Works("comma-separated origins that browsers may come from; * means all")),
    text("host-whitelist", "*", Security, Works("comma-separated host names accepted in HTTP requests without TLS; * means all")),
    text("tls-min-version", "TLS1.2", Security, Works("TLS1.2 or TLS1.3")),
    text("tls-max-version", "", Security, Works("TLS1.2 or TLS1.3 [default: the newest]")),
    text("auth-token", "simple", Auth, Works("kind of authentication tokens: simple; or jwt,sign-method=<method> with the PEM files pub-key=<path> and priv-key=<path>, without which it only verifies tokens, and ttl=<duration>; the methods are HS256 to HS512, RS256 to RS512, PS256 to PS512, ES256, ES384, ES512 and EdDSA")),
    text("bcrypt-cost", "10", Auth, Works("cost of hashed passwords, 4 to 31")),
    text("auth-token-ttl", "300", Auth, Works("seconds that a simple token lives after its last use")),
    bool("enable-pprof", "false", Monitoring, Idle("there is no Go profiler: profile the process by perf")),
    text("metrics", "basic", Monitoring, Works("basic or extensive: with or without histograms for each RPC")),
    text("listen-metrics-urls", "", Monitoring, Works("comma-separated URLs for /metrics and health alone; https asks for client certificates as the client URLs do")),
    text("logger", "zap", Logging, Works("zap: structured logs")),
    text("log-outputs", "default", Logging, Works("comma-separated targets: default, stderr, stdout or files")),
    text("log-level", "info", Logging, Works("debug, info, warn, error, panic or fatal")),
    text("log-format", "json", Logging, Works("json or console")),
    bool("enable-log-rotation", "false", Logging, Works("replace the one file among --log-outputs when it is full")),
    text("log-rotation-config-json", "{\"maxsize\": 100, \"maxage\": 0, \"maxbackups\": 0, \"localtime\": false, \"compress\": false}", Logging, Works("JSON of what --enable-log-rotation does: maxsize of a file in MiB, maxage of old files in days, maxbackups that are kept, localtime in their names, compress; 0 means no bound, for maxsize 100")),
    text("warning-unary-request-duration", "300ms", Logging, Works("how long a unary RPC may take before it is logged as a warning, 20 lines in ten seconds at most")),
    text("warning-apply-duration", "100ms", Tuning, Works("how long a read, or a change from when the leader takes it until it is committed, may take before it is logged as a warning, 20 lines in ten seconds at most")),
    bool("enable-distributed-tracing", "false", Tuning, Works("send spans of RPCs to an OpenTelemetry collector by OTLP over gRPC, without TLS as etcd does")),
    text("distributed-tracing-address", "localhost:4317", Tuning, Works("host:port of the collector; spans are dropped while it cannot be reached")),
    text("distributed-tracing-service-name", "etcd", Tuning, Works("service name of the spans, the same for all members")),
    text("distributed-tracing-instance-id", "", Tuning, Works("service instance id of the spans, another one for each member; none if empty")),
    text("distributed-tracing-sampling-rate", "0", Tuning, Works("how many of a million requests are traced; one that a client has a trace for is traced if, and only if, the client samples it")),
    text("corrupt-check-time", "0s", Tuning, Works("how often the member that leads reads all rows to find damage, slowly; 0 means never. Every record and block is checked when it is read, anyway")),
    text("compact-hash-check-time", "1m", Tuning, Idle("no two members have data of their own that could differ: members on TiKV share one log and one set of rows, and a data directory has one member. --corrupt-check-time looks for damage")),
    text("compaction-batch-limit", "", Tuning, Works("most versions of keys that one step of a compaction deletes, 1 to 1000000 [default: what one write to storage takes]")),
    text("compaction-sleep-interval", "", Tuning, Works("pause between two steps of a compaction, up to 30s [default: none]")),
    text("watch-progress-notify-interval", "10m", Tuning, Works("how often idle watches are told of progress")),
    text("bootstrap-defrag-threshold-megabytes", "0", Tuning, Works("defragment the data directory once after a start if at least so many MiB are not in use by then; 0 means never")),
    text("max-learners", "1", Tuning, Idle("there are no learners: a member that starts has no data to catch up with before it counts")),
    text("downgrade-check-time", "5s", Tuning, Idle("there are no downgrades: no older etcd reads what a brain stores")),
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
    bool("force-new-cluster", "false", Unsafe, Idle("no quorum of other members is needed: a member alone serves what is stored")),
    bool("unsafe-no-fsync", "false", Unsafe, Works("do not wait for the disk: a crash of the machine loses data")),
    bool("check", "false", Other, Works("check the flags and the files that they name, and exit; storage is not opened, and no address is bound")),
    bool("version", "false", Other, Works("print the versions and exit")),
];
