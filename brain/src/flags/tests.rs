use api::auth::{AuthOptions, JwtOptions, SignMethod, TokenOptions};
use net::serve::Keepalive;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;
use store::flush::CompactionPace;
use telemetry::logs::LogOutput;

use super::table::{FLAGS, Flag, Kind, Treatment};
use super::*;
use telemetry::slow_requests::SlowOptions;
use tls::SelfSigned;

mod backup;
mod bootstrap;
mod bounds;
mod debug;
mod embedded;
mod forms;
mod import;
mod log;
mod members;
mod snapshot;
mod tracing;
mod warnings;

fn ask(line: &str, env: &[(&str, &str)]) -> Result<Asked, String> {
    let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
    let env: Vec<(OsString, OsString)> = env.iter().map(|(name, value)| (name.into(), value.into())).collect();
    parse(args, env).map_err(|error| error.to_string())
}

fn serve(line: &str) -> (Config, Vec<String>) {
    match ask(line, &[]) {
        Ok(Asked::Serve(config, warnings)) => (*config, warnings),
        other => panic!("{line}: {other:?}"),
    }
}

fn refused(line: &str) -> String {
    match ask(line, &[]) {
        Err(error) => error,
        other => panic!("{line}: {other:?}"),
    }
}

/// Checks that a command line prints a help with these words.
fn help_has(line: &str, words: &[&str]) {
    let Ok(Asked::Print(text)) = ask(line, &[]) else {
        panic!("{line}")
    };
    for word in words {
        assert!(text.contains(word), "{line}: {word} is not in {text}");
    }
}

/// Every flag in `etcd --help` of 3.6.16.
const ETCD_HELP: &str = "\
    name data-dir wal-dir snapshot-count heartbeat-interval election-timeout initial-election-tick-advance \
    listen-peer-urls listen-client-urls listen-client-http-urls max-snapshots max-wals memory-mlock \
    quota-backend-bytes backend-bbolt-freelist-type backend-batch-interval backend-batch-limit max-txn-ops \
    max-request-bytes max-concurrent-streams grpc-keepalive-min-time grpc-keepalive-interval \
    grpc-keepalive-timeout socket-reuse-port socket-reuse-address enable-grpc-gateway raft-read-timeout \
    raft-write-timeout feature-gates initial-advertise-peer-urls initial-cluster initial-cluster-state \
    initial-cluster-token advertise-client-urls discovery discovery-token discovery-endpoints \
    discovery-dial-timeout discovery-request-timeout discovery-keepalive-time discovery-keepalive-timeout \
    discovery-insecure-transport discovery-insecure-skip-tls-verify discovery-cert discovery-key \
    discovery-cacert discovery-user discovery-password discovery-fallback discovery-proxy discovery-srv \
    discovery-srv-name strict-reconfig-check pre-vote auto-compaction-retention auto-compaction-mode \
    v2-deprecation cert-file key-file client-cert-auth client-cert-file client-key-file client-crl-file \
    client-cert-allowed-hostname trusted-ca-file auto-tls peer-cert-file peer-key-file peer-client-cert-auth \
    peer-client-cert-file peer-client-key-file peer-trusted-ca-file peer-cert-allowed-cn \
    peer-cert-allowed-hostname peer-auto-tls self-signed-cert-validity peer-crl-file cipher-suites cors \
    host-whitelist tls-min-version tls-max-version auth-token bcrypt-cost auth-token-ttl enable-pprof metrics \
    listen-metrics-urls logger log-outputs log-level log-format enable-log-rotation log-rotation-config-json \
    warning-unary-request-duration experimental-enable-distributed-tracing enable-distributed-tracing \
    experimental-distributed-tracing-address distributed-tracing-address \
    experimental-distributed-tracing-service-name distributed-tracing-service-name \
    experimental-distributed-tracing-instance-id distributed-tracing-instance-id \
    experimental-distributed-tracing-sampling-rate distributed-tracing-sampling-rate \
    experimental-initial-corrupt-check experimental-corrupt-check-time corrupt-check-time \
    experimental-compact-hash-check-enabled experimental-compact-hash-check-time compact-hash-check-time \
    experimental-enable-lease-checkpoint experimental-compaction-batch-limit compaction-batch-limit \
    experimental-peer-skip-client-san-verification peer-skip-client-san-verification \
    experimental-watch-progress-notify-interval watch-progress-notify-interval \
    experimental-warning-apply-duration warning-apply-duration experimental-txn-mode-write-with-shared-buffer \
    experimental-bootstrap-defrag-threshold-megabytes bootstrap-defrag-threshold-megabytes \
    experimental-warning-unary-request-duration max-learners experimental-compaction-sleep-interval \
    compaction-sleep-interval experimental-downgrade-check-time downgrade-check-time \
    experimental-enable-lease-checkpoint-persist experimental-memory-mlock experimental-snapshot-catchup-entries \
    snapshot-catchup-entries experimental-stop-grpc-service-on-defrag force-new-cluster unsafe-no-fsync";

const KUBEADM: &str = "--advertise-client-urls=https://10.0.0.2:2379 --cert-file=/pki/server.crt --client-cert-auth=true \
    --data-dir=/var/lib/etcd --feature-gates=InitialCorruptCheck=true --initial-advertise-peer-urls=https://10.0.0.2:2380 \
    --initial-cluster=node=https://10.0.0.2:2380 --key-file=/pki/server.key \
    --listen-client-urls=https://127.0.0.1:2379,https://10.0.0.2:2379 --listen-metrics-urls=http://127.0.0.1:2381 \
    --listen-peer-urls=https://10.0.0.2:2380 --name=node --peer-cert-file=/pki/peer.crt --peer-client-cert-auth=true \
    --peer-key-file=/pki/peer.key --peer-trusted-ca-file=/pki/ca.crt --snapshot-count=10000 --trusted-ca-file=/pki/ca.crt \
    --watch-progress-notify-interval=5s";

#[test]
fn the_command_line_of_kubeadm_is_taken_without_a_warning() {
    let (config, warnings) = serve(KUBEADM);
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(config.name, "node");
    assert_eq!(config.data_dir.to_str(), Some("/var/lib/etcd"));
    assert_eq!(config.listen_client_urls.len(), 2);
    assert_eq!(config.watch_progress_notify_interval, Duration::from_secs(5));
    assert_eq!(
        config
            .client_tls
            .trusted_ca
            .as_deref()
            .and_then(std::path::Path::to_str),
        Some("/pki/ca.crt")
    );
}

#[test]
fn the_older_command_line_of_kubeadm_means_the_same() {
    let older = KUBEADM
        .replace(
            "--feature-gates=InitialCorruptCheck=true",
            "--experimental-initial-corrupt-check=true",
        )
        .replace("--watch-progress", "--experimental-watch-progress");
    assert_eq!(serve(&older), serve(KUBEADM));
}

#[test]
fn nothing_given_is_etcds_defaults() {
    let (config, warnings) = serve("");
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(config.data_dir.to_str(), Some("default.etcd"));
    assert_eq!(config.limits.quota, Quota::Bytes(2 << 30));
    assert_eq!(
        (config.limits.max_request_bytes, config.limits.max_receive_bytes),
        (1_572_864, 2_097_152)
    );
    assert_eq!(
        (config.limits.max_txn_ops, config.limits.max_concurrent_streams),
        (128, u32::MAX)
    );
    assert_eq!(
        config.keepalive,
        Keepalive {
            interval: Some(Duration::from_secs(7200)),
            timeout: Duration::from_secs(20),
            min_time: Duration::from_secs(5),
        }
    );
    assert_eq!(config.min_lease_ttl(), 2);
    assert_eq!(config.auto_compaction, AutoCompaction::Off);
    assert_eq!(config.log.outputs, vec![LogOutput::Stderr]);
    assert_eq!(config.watch_progress_notify_interval, Duration::from_secs(600));
    assert_eq!(config.slow_requests, slow(100, 300));
}

fn slow(apply: u64, unary: u64) -> SlowOptions {
    let [apply, unary] = [apply, unary].map(Duration::from_millis);
    SlowOptions { apply, unary }
}

#[test]
fn checks_and_defragmentation_are_off_unless_asked_for() {
    let of = |line: &str| {
        let config = serve(line).0;
        (config.corrupt_check_interval, config.bootstrap_defrag_bytes)
    };
    let off = "--corrupt-check-time=0s --bootstrap-defrag-threshold-megabytes=0";
    assert_eq!((of(""), of(off)), ((None, None), (None, None)));
    let on = "--corrupt-check-time=1h --experimental-bootstrap-defrag-threshold-megabytes=3";
    assert_eq!(of(on), (Some(Duration::from_secs(3_600)), Some(3 << 20)));
}

#[test]
fn pace_of_compactions_is_that_of_storage_unless_given() {
    assert_eq!(serve("").0.compaction, CompactionPace::default());
    for prefix in ["", "experimental-"] {
        let line = format!("--{prefix}compaction-batch-limit=1000 --{prefix}compaction-sleep-interval=10ms");
        let (config, warnings) = serve(&line);
        let pause = Duration::from_millis(10);
        let batch_limit = Some(1_000);
        assert_eq!(config.compaction, CompactionPace { batch_limit, pause }, "{line}");
        assert!(
            !warnings.iter().any(|warning| warning.contains("effect")),
            "{warnings:?}"
        );
    }
    assert_eq!(
        serve("--compaction-batch-limit=0 --compaction-sleep-interval=0")
            .0
            .compaction,
        CompactionPace::default()
    );
    let (config, warnings) = serve("--compaction-batch-limit=1000001 --compaction-sleep-interval=31s");
    let most = CompactionPace {
        batch_limit: Some(1_000_000),
        pause: Duration::from_secs(30),
    };
    assert_eq!((config.compaction, warnings.len()), (most, 2));
    assert!(refused("--compaction-batch-limit=-1").contains("is not a number in range"));
}

#[test]
fn least_time_between_pings_of_clients_is_etcds() {
    let of = |line: &str| serve(line).0.keepalive.min_time;
    assert_eq!(of("--grpc-keepalive-min-time=30s"), Duration::from_secs(30));
    assert_eq!(of("--grpc-keepalive-min-time=0s"), Duration::from_secs(300));
}

#[test]
fn certificates_are_made_for_urls_with_tls_unless_one_is_given() {
    let urls = "--data-dir d --listen-client-urls https://127.0.0.1:2379,http://[::1]:1 --listen-metrics-urls https://localhost:7";
    let advertised = "--advertise-client-urls https://a:2379";
    let (config, warnings) = serve(&format!(
        "--auto-tls --peer-auto-tls --self-signed-cert-validity 3 {urls} {advertised}"
    ));
    let dir = Path::new("d/fixtures/client");
    assert_eq!(
        config.client_tls.pair,
        Some((dir.join("cert.pem"), dir.join("key.pem")))
    );
    let hosts = ["127.0.0.1", "localhost"].map(str::to_owned).to_vec();
    assert_eq!(config.client_tls.self_signed, Some(SelfSigned { hosts, years: 3 }));
    assert_eq!(config.peer_tls.pair, None);
    assert!(
        warnings
            .iter()
            .any(|warning| warning.starts_with("--peer-auto-tls has no effect")),
        "{warnings:?}"
    );
    let (config, warnings) = serve(&format!("--auto-tls --cert-file c --key-file k {urls} {advertised}"));
    assert_eq!(config.client_tls.pair, Some(("c".into(), "k".into())));
    assert_eq!(config.client_tls.self_signed, None);
    assert!(
        warnings
            .iter()
            .any(|warning| warning.starts_with("--auto-tls has no effect")),
        "{warnings:?}"
    );
    assert!(refused(urls).contains("needs a certificate"));
}

#[test]
fn slow_requests_are_those_beyond_the_durations_given() {
    for prefix in ["", "experimental-"] {
        let line = format!("--{prefix}warning-apply-duration=1s --{prefix}warning-unary-request-duration=0s");
        let (config, warnings) = serve(&line);
        assert_eq!(config.slow_requests, slow(1_000, 0), "{line}");
        assert!(
            !warnings.iter().any(|warning| warning.contains("no effect")),
            "{warnings:?}"
        );
    }
}

#[test]
fn go_spells_flags_in_many_ways() {
    for line in [
        "--name n",
        "-name n",
        "--name=n",
        "-name=n",
        "--name m --name n",
        "--name n --unsafe-no-fsync=false",
    ] {
        assert_eq!(serve(line).0, serve("--name n").0, "{line}");
    }
    for (line, on) in [
        ("--unsafe-no-fsync", true),
        ("-unsafe-no-fsync", true),
        ("--unsafe-no-fsync=T", true),
        ("--unsafe-no-fsync=0", false),
        ("--unsafe-no-fsync --unsafe-no-fsync=false", false),
    ] {
        assert_eq!(serve(line).0.unsafe_no_fsync, on, "{line}");
    }
    assert_eq!(serve("--initial-cluster-token -odd").0.initial_cluster_token, "-odd");
}

#[test]
fn tokens_are_those_that_the_flags_name() {
    let auth = |line: &str| serve(line).0.auth;
    assert_eq!(auth(""), AuthOptions::default());
    let simple = |secs| TokenOptions::Simple {
        ttl: Duration::from_secs(secs),
    };
    for (line, wanted) in [
        ("--auth-token simple --auth-token-ttl 7", simple(7)),
        ("--auth-token-ttl 0", simple(300)),
        ("--auth-token=", TokenOptions::None),
    ] {
        assert_eq!(auth(line).token, wanted, "{line}");
    }
    let line = "--auth-token jwt,pub-key=/p,priv-key=/k,sign-method=RS256,ttl=10m,odd=1 --bcrypt-cost 4";
    let (config, warnings) = serve(line);
    let jwt = JwtOptions {
        method: Some(SignMethod::Rs256),
        public_key: Some("/p".into()),
        private_key: Some("/k".into()),
        ttl: Duration::from_secs(600),
    };
    assert_eq!(
        (config.auth.token, config.auth.bcrypt_cost),
        (TokenOptions::Jwt(jwt), 4)
    );
    assert_eq!(warnings, ["unknown JWT options: odd"]);
    assert!(auth("--client-cert-auth --trusted-ca-file ca").client_cert_auth);
}

#[test]
fn a_flag_wins_over_its_variable() {
    let name = |line, env: &[(&str, &str)]| match ask(line, env) {
        Ok(Asked::Serve(config, warnings)) => (config.name, warnings),
        other => panic!("{other:?}"),
    };
    assert_eq!(name("", &[("ETCD_NAME", "e")]), ("e".to_owned(), vec![]));
    assert_eq!(name("--name f", &[("ETCD_NAME", "e")]), ("f".to_owned(), vec![]));
    assert_eq!(
        name("", &[("ETCD_NAME", ""), ("ETCDCTL_API", "3")]),
        ("default".to_owned(), vec![])
    );
    let (_, warnings) = name("", &[("ETCD_NO_SUCH", "x")]);
    assert_eq!(warnings, vec!["unrecognized environment variable ETCD_NO_SUCH"]);
    let error = ask("", &[("ETCD_MAX_TXN_OPS", "many")]).unwrap_err();
    assert_eq!(
        error,
        "ETCD_MAX_TXN_OPS is not valid: \"many\" is not a number in range"
    );
}

#[test]
fn file_replaces_flags_and_variables() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.yaml");
    std::fs::write(&path, "name: from-file\nmax-txn-ops: 7\n").unwrap();
    let line = format!("--name f --config-file {}", path.display());
    let (config, warnings) = match ask(&line, &[("ETCD_MAX_TXN_OPS", "9")]) {
        Ok(Asked::Serve(config, warnings)) => (config, warnings),
        other => panic!("{other:?}"),
    };
    assert_eq!((config.name.as_str(), config.limits.max_txn_ops), ("from-file", 7));
    let ignored = |origin| format!("{origin} is ignored: --config-file is given");
    assert_eq!(warnings, [ignored("ETCD_MAX_TXN_OPS"), ignored("--name")]);
    let variable = [("ETCD_CONFIG_FILE", path.to_str().unwrap())];
    assert!(matches!(ask("", &variable), Ok(Asked::Serve(config, _)) if config.name == "from-file"));
}

/// Command lines, and a part of the reason why each is refused.
const BAD_VALUES: &[(&str, &str)] = &[
    ("--no-such-flag", "unknown flag --no-such-flag"),
    ("-no-such-flag=1", "unknown flag --no-such-flag"),
    (
        "--listen-client-url http://127.0.0.1:1",
        "did you mean --listen-client-urls?",
    ),
    ("gateway start", "kubebrain has no \"gateway\", only wipe"),
    ("--name", "--name needs a value"),
    ("--unsafe-no-fsync=maybe", "--unsafe-no-fsync must be true or false"),
    ("--quota-backend-bytes x", "--quota-backend-bytes is not valid"),
    ("--max-request-bytes 0", "--max-request-bytes is not valid"),
    ("--watch-progress-notify-interval 5", "without a unit"),
    ("--election-timeout 400", "at least as 5 times"),
    ("--heartbeat-interval 0", "must be >0"),
    ("--election-timeout 60000", "too long"),
    (
        "--listen-client-urls http://example.org:1",
        "expected IP in URL for binding",
    ),
    (
        "--listen-client-urls http://0.0.0.0:1",
        "--advertise-client-urls is required",
    ),
    (
        "--listen-client-urls https://127.0.0.1:1",
        "set --cert-file and --key-file",
    ),
    (
        "--listen-client-urls https://127.0.0.1:1 --cert-file a",
        "--cert-file needs --key-file",
    ),
    (
        "--listen-client-urls https://127.0.0.1:1 --key-file a",
        "--key-file needs --cert-file",
    ),
    (
        "--listen-client-urls https://127.0.0.1:1 --client-cert-auth --cert-file a --key-file b",
        "--client-cert-auth needs --trusted-ca-file",
    ),
    (
        "--listen-client-urls https://127.0.0.1:1 --client-crl-file x --cert-file a --key-file b",
        "need --trusted-ca-file",
    ),
    ("--tls-min-version TLS1.1", "none of TLS1.2, TLS1.3"),
    ("--tls-min-version TLS1.3 --tls-max-version TLS1.2", "greater than max"),
    ("--tls-min-version TLS1.3 --cipher-suites X", "only TLS1.3"),
    ("--initial-cluster-state old", "none of new, existing"),
    ("--discovery-fallback proxy", "v2 proxy is deprecated"),
    ("--discovery-fallback none", "none of exit, proxy"),
    ("--auto-compaction-mode often", "none of periodic, revision"),
    (
        "--auto-compaction-retention x",
        "--auto-compaction-retention is not valid",
    ),
    ("--feature-gates Unknown=true", "unrecognized feature gate: Unknown"),
    ("--feature-gates InitialCorruptCheck", "missing bool value"),
    (
        "--feature-gates LeaseCheckpointPersist=true",
        "requires enabling feature gate LeaseCheckpoint",
    ),
    ("--log-level loud", "none of debug"),
    ("--logger capnslog", "none of zap"),
    ("--auth-token basic", "invalid auth options: \"basic\""),
    ("--auth-token jwt,pub-key", "invalid auth options: \"pub-key\""),
    (
        "--auth-token jwt,pub-key=a,pub-key=b",
        "invalid auth options: \"pub-key=b\"",
    ),
    ("--auth-token jwt,pub-key=x", "sign-method must be one of HS256"),
    (
        "--auth-token jwt,pub-key=x,sign-method=none",
        "sign-method must be one of HS256",
    ),
    ("--auth-token jwt,sign-method=RS256", "missing key data"),
    ("--auth-token jwt,pub-key=x,sign-method=RS256,ttl=1", "ttl \"1\""),
    ("--auth-token-ttl -1", "not a number in range"),
    (
        "--compaction-batch-limit 5 --experimental-compaction-batch-limit 5",
        "at the same time",
    ),
    (
        "--feature-gates InitialCorruptCheck=true --experimental-initial-corrupt-check",
        "at the same time",
    ),
    (
        "--auto-tls --listen-client-urls https://127.0.0.1:0 --self-signed-cert-validity 0",
        "0 is not in 1 to 100",
    ),
    ("--peer-auto-tls --peer-trusted-ca-file x", "did not sign"),
    (
        "--config-file no/such.yaml",
        "--config-file \"no/such.yaml\": No such file",
    ),
];

#[test]
fn bad_values_are_refused_in_one_line_that_names_them() {
    for &(line, reason) in BAD_VALUES {
        let error = refused(line);
        assert!(error.contains(reason), "{line}: {error}");
        assert!(!error.contains('\n'), "{line}: {error}");
    }
}

#[test]
fn every_flag_is_taken_with_its_default() {
    for flag in FLAGS.iter().filter(|flag| flag.name != "version") {
        // An absent default is not a value that can be given.
        let Some(value) = Some(flag.default).filter(|value| !value.is_empty()) else {
            continue;
        };
        let asked = parse([OsString::from(format!("--{}={value}", flag.name))], []);
        let Ok(Asked::Serve(config, warnings)) = asked else {
            panic!("--{}: {asked:?}", flag.name)
        };
        assert_eq!(warnings, Vec::<String>::new(), "{}", flag.name);
        assert_eq!(*config, serve("").0, "{}", flag.name);
    }
}

#[test]
fn the_table_is_sound() {
    let names: BTreeSet<_> = FLAGS.iter().map(|flag| flag.name).collect();
    assert_eq!(names.len(), FLAGS.len());
    for flag in FLAGS {
        if let Treatment::Renamed(new) = flag.treatment {
            let new = Flag::named(new).unwrap();
            assert_eq!((new.kind, new.default), (flag.kind, flag.default), "{}", flag.name);
        }
        assert!(
            flag.kind == Kind::Text || go_bool(flag.default).is_some(),
            "{}",
            flag.name
        );
    }
    for flag in ETCD_HELP.split_whitespace() {
        assert!(names.contains(flag), "{flag}");
    }
}

/// Checks the committed list of all flags, for programs that pass flags on. `KUBEBRAIN_BLESS=1` rewrites it.
#[test]
fn table_is_published_as_committed() {
    let line = |flag: &Flag| match flag.treatment {
        Treatment::Works(_) => format!("{} works {}", flag.name, values::Values::of(flag)),
        Treatment::Idle(_) => format!("{} idle", flag.name),
        Treatment::Refused(_) | Treatment::Bootstrap(_) => format!("{} refused", flag.name),
        Treatment::Renamed(new) => format!("{} renamed {new}", flag.name),
        Treatment::Gate(_) => format!("{} renamed feature-gates", flag.name),
    };
    let mut lines: Vec<String> = FLAGS.iter().map(line).collect();
    lines.sort();
    let rendered = format!("{}\n", lines.join("\n"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds/flags.txt");
    if std::env::var_os("KUBEBRAIN_BLESS").is_some() {
        std::fs::write(&path, &rendered).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == rendered,
        "crds/flags.txt differs; KUBEBRAIN_BLESS=1 writes it anew"
    );
}

#[test]
fn compaction_is_asked_for_as_in_etcd() {
    for (line, wanted) in [
        ("--auto-compaction-retention 0", AutoCompaction::Off),
        (
            "--auto-compaction-retention 2",
            AutoCompaction::Periodic(Duration::from_secs(7200)),
        ),
        (
            "--auto-compaction-retention 5m",
            AutoCompaction::Periodic(Duration::from_secs(300)),
        ),
        (
            "--auto-compaction-mode revision --auto-compaction-retention 1000",
            AutoCompaction::Revision(1000),
        ),
        (
            "--auto-compaction-mode revision --auto-compaction-retention 1us",
            AutoCompaction::Revision(1000),
        ),
    ] {
        assert_eq!(serve(line).0.auto_compaction, wanted, "{line}");
    }
}

#[test]
fn odd_limits_mean_what_they_mean_in_etcd() {
    assert_eq!(serve("--quota-backend-bytes=-1").0.limits.quota, Quota::Off);
    assert_eq!(serve("--quota-backend-bytes -1").0.limits.quota, Quota::Off);
    assert_eq!(serve("--quota-backend-bytes 5").0.limits.quota, Quota::Bytes(5));
    assert_eq!(serve("--grpc-keepalive-interval 0s").0.keepalive.interval, None);
    assert_eq!(serve("--election-timeout 5000").0.min_lease_ttl(), 8);
    assert_eq!(
        serve("--listen-client-urls http://127.0.0.1:7").0.advertise_client_urls,
        serve("--listen-client-urls http://127.0.0.1:7").0.listen_client_urls
    );
}

#[test]
fn wipe_takes_only_what_says_where_and_has_to_be_confirmed() {
    let store = "--storage tikv --tikv-pd-endpoints pd:1 --tikv-key-prefix p --initial-cluster-token t";
    let (config, warnings) = serve(&format!("wipe {store} --tikv-cluster-id 7 --yes"));
    assert_eq!((config.subcommand, warnings), (Some(Subcommand::Wipe), Vec::new()));
    assert_eq!(serve(store).0.subcommand, None);
    assert!(
        serve(&format!("wipe -yes=true {store} --tikv-key-prefix=q"))
            .0
            .subcommand
            .is_some()
    );
    for (line, reason) in [
        (format!("wipe {store}"), "use --yes to confirm"),
        (format!("wipe {store} --yes=false"), "use --yes to confirm"),
        (format!("wipe {store} --yes --name n"), "wipe takes no --name"),
        (format!("wipe {store} --yes --prefix p"), "wipe takes no --prefix"),
        (format!("wipe {store} --yes --force"), "wipe takes no --force"),
        (format!("wipe {store} --yes now"), "wipe takes no \"now\""),
        ("wipe --yes --tikv-key-prefix p".to_owned(), "needs --storage tikv"),
        (
            "wipe --yes --storage tikv --tikv-pd-endpoints pd:1".to_owned(),
            "wipe needs --tikv-key-prefix",
        ),
        ("wipe --yes".to_owned(), "wipe needs --storage tikv"),
        (format!("{store} --yes"), "unknown flag --yes"),
    ] {
        let error = refused(&line);
        assert!(error.contains(reason), "{line}: {error}");
    }
}

#[test]
fn tikv_cluster_is_named_by_its_decimal_id() {
    let id = |flags: &str| match serve(&format!("--storage tikv --tikv-pd-endpoints pd:1 {flags}"))
        .0
        .storage
    {
        Storage::Tikv(options) => options.cluster_id,
        Storage::Embedded => panic!("{flags}"),
    };
    assert_eq!(id(""), None);
    assert_eq!(
        id("--tikv-cluster-id 7401234567890123456"),
        Some(7_401_234_567_890_123_456)
    );
    assert!(refused("--tikv-cluster-id 7").contains("needs --storage tikv"));
    let error = refused("--storage tikv --tikv-pd-endpoints pd:1 --tikv-cluster-id 0x7");
    assert!(error.contains("--tikv-cluster-id is not valid"), "{error}");
}

#[test]
fn versions_and_help_are_printed() {
    for line in ["--version", "-version", "--version=true"] {
        let Ok(Asked::Print(text)) = ask(line, &[]) else {
            panic!("{line}")
        };
        assert!(
            text.starts_with("etcd Version: 3.6.") && text.contains("\nkubebrain Version: "),
            "{text}"
        );
    }
    for line in ["--help", "-h", "-help", "help"] {
        help_has(line, &["--listen-client-urls", "ETCD_DATA_DIR"]);
        for subcommand in ["wipe", "debug", "snapshot", "import"] {
            help_has(line, &[&format!("\n  {subcommand} ")]);
        }
    }
    for line in ["wipe -h", "wipe --help", "wipe -help", "help wipe"] {
        help_has(line, &["--yes", "--tikv-key-prefix", "[default: kubebrain]"]);
    }
}
