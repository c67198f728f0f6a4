//! Forms of values that etcd 3.6 takes.

use super::*;

/// Command lines, and the same in plain words.
const SAME: &[(&str, &str)] = &[
    ("--max-txn-ops 0x80", "--max-txn-ops 128"),
    ("--max-txn-ops 0200", "--max-txn-ops 128"),
    ("--max-txn-ops 0b10000000", "--max-txn-ops 128"),
    ("--max-txn-ops 1_28", "--max-txn-ops 128"),
    (
        "--quota-backend-bytes 2_147_483_648",
        "--quota-backend-bytes 2147483648",
    ),
    ("--quota-backend-bytes +5", "--quota-backend-bytes 5"),
    ("--max-concurrent-streams 0", "--max-concurrent-streams 4294967295"),
    (
        "--watch-progress-notify-interval 0s",
        "--watch-progress-notify-interval 10m",
    ),
    (
        "--watch-progress-notify-interval -5s",
        "--watch-progress-notify-interval 10m",
    ),
    ("--grpc-keepalive-interval -1s", "--grpc-keepalive-interval 0s"),
    ("--corrupt-check-time -0", "--corrupt-check-time 0s"),
    ("--listen-client-urls=", ""),
    ("--advertise-client-urls=", ""),
    ("--initial-advertise-peer-urls=", ""),
    ("--listen-metrics-urls=", ""),
    (
        "--listen-client-urls HTTP://127.0.0.1:1",
        "--listen-client-urls http://127.0.0.1:1",
    ),
    (
        "--advertise-client-urls http://user:word@h_1:1",
        "--advertise-client-urls http://h_1:1",
    ),
    (
        "--listen-client-urls unix:/run/a.sock",
        "--listen-client-urls unix:///run/a.sock",
    ),
    ("--log-level INFO", "--log-level info"),
    ("--log-level Warn", "--log-level warn"),
    ("--log-level=", "--log-level info"),
    ("--log-format=", "--log-format json"),
    ("--log-outputs=", ""),
    ("--tls-min-version=", ""),
    ("--auto-compaction-retention +1", "--auto-compaction-retention 1h"),
];

/// Command lines that etcd starts with, the same in plain words, and the beginning of the warning.
const WARNED: &[(&str, &str, &str)] = &[
    (
        "--metrics all",
        "",
        "--metrics of \"all\" is neither basic nor extensive",
    ),
    ("--bcrypt-cost 3", "", "--bcrypt-cost of 3 is not in 4 to 31"),
    ("--bcrypt-cost 99", "", "--bcrypt-cost of 99 is not in 4 to 31"),
    (
        "--watch-progress-notify-interval 1ms",
        "--watch-progress-notify-interval 100ms",
        "adjusting watch progress notify interval",
    ),
    (
        "--log-outputs systemd/journal",
        "",
        "--log-outputs=systemd/journal: lines are written to stderr",
    ),
    ("--cert-file a", "", "--cert-file needs --key-file; it has no effect"),
    ("--key-file a", "", "--key-file needs --cert-file; it has no effect"),
    (
        "--peer-cert-file a",
        "",
        "--peer-cert-file needs --peer-key-file; it has no effect",
    ),
    ("-vv", "", "--vv has no effect"),
    ("--cluster-active-size=7", "", "--cluster-active-size has no effect"),
];

#[test]
fn forms_that_etcd_takes_mean_what_they_mean_there() {
    for (line, plain) in SAME {
        let ((config, warnings), expected) = (serve(line), serve(plain));
        assert_eq!((config, warnings), expected, "{line}");
    }
    for (line, plain, warning) in WARNED {
        let (config, warnings) = serve(line);
        assert_eq!(config, serve(plain).0, "{line}");
        assert!(
            warnings.iter().any(|found| found.starts_with(warning)),
            "{line}: {warnings:?}"
        );
    }
}

#[test]
fn values_that_etcd_refuses_are_refused() {
    for (line, reason) in [
        ("--max-txn-ops 08", "is not a number in range"),
        ("--max-txn-ops 1e3", "is not a number in range"),
        ("--max-txn-ops -1", "is not a number in range"),
        ("--max-txn-ops 1__0", "is not a number in range"),
        ("--max-txn-ops=", "is not a number in range"),
        ("--grpc-keepalive-interval 5", "without a unit"),
        ("--grpc-keepalive-interval 1d", "unknown unit"),
        ("--grpc-keepalive-interval=", "an empty duration"),
        ("--unsafe-no-fsync=yes", "must be true or false"),
        ("--unsafe-no-fsync=tRUE", "must be true or false"),
        ("--unsafe-no-fsync true", "\"true\" is not a valid flag"),
        ("--advertise-client-urls http://:1", "unexpected empty host"),
        ("--initial-advertise-peer-urls http://:1", "unexpected empty host"),
        ("--listen-client-urls http://127.0.0.1:1/", "must not contain a path"),
        ("--log-format xml", "none of json, console"),
        ("--auto-compaction-mode=", "none of periodic, revision"),
    ] {
        let error = refused(line);
        assert!(error.contains(reason), "{line}: {error}");
    }
    let error = ask("", &[("ETCD_UNSAFE_NO_FSYNC", "yes")]).unwrap_err();
    assert!(error.contains("ETCD_UNSAFE_NO_FSYNC must be true or false"), "{error}");
}

/// The keys of the sample file that comes with etcd, with values of their kinds.
const SAMPLE: &str = "
name: 'default'
data-dir:
wal-dir:
snapshot-count: 10000
heartbeat-interval: 100
election-timeout: 1000
quota-backend-bytes: 0
listen-peer-urls: http://localhost:2380
listen-client-urls: http://localhost:2379
max-snapshots: 5
max-wals: 5
cors:
initial-advertise-peer-urls: http://localhost:2380
advertise-client-urls: http://localhost:2379
discovery:
discovery-fallback: 'proxy'
discovery-proxy:
discovery-srv:
initial-cluster:
initial-cluster-token: 'etcd-cluster'
initial-cluster-state: 'new'
strict-reconfig-check: false
enable-pprof: true
proxy: 'off'
proxy-failure-wait: 5000
client-transport-security:
  cert-file:
  key-file:
  client-cert-auth: false
  trusted-ca-file:
  auto-tls: false
peer-transport-security:
  cert-file:
  key-file:
  client-cert-auth: false
  trusted-ca-file:
  auto-tls: false
  allowed-cn:
  allowed-hostname:
self-signed-cert-validity: 1
log-level: debug
logger: zap
log-outputs: [stderr]
force-new-cluster: false
auto-compaction-mode: periodic
auto-compaction-retention: '1'
cipher-suites: [
  TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
]
tls-min-version: 'TLS1.2'
tls-max-version: 'TLS1.3'
";

#[test]
fn sample_file_of_etcd_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("etcd.conf.yml");
    std::fs::write(&path, SAMPLE).unwrap();
    let (config, warnings) = serve(&format!("--config-file {}", path.display()));
    let plain = "--log-level debug --auto-compaction-retention 1 --tls-max-version TLS1.3 \
        --cipher-suites TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
    assert_eq!(config, serve(plain).0);
    let mut without_effect: Vec<_> = warnings
        .iter()
        .map(|warning| warning.split(' ').next().unwrap())
        .collect();
    without_effect.sort_unstable();
    assert_eq!(
        without_effect,
        [
            "discovery-fallback",
            "enable-pprof",
            "proxy",
            "proxy-failure-wait",
            "strict-reconfig-check"
        ]
    );
}
