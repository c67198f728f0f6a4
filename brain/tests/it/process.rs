//! The program itself: the command lines people start it with, what it prints, and how it ends.

use std::fs;
use std::path::Path;

use etcd_types::pb::etcdserverpb as pb;
use pb::kv_client::KvClient;
use pb::maintenance_client::MaintenanceClient;
use rcgen::{CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use crate::program::{Kubebrain, Process, READY_MESSAGE, command, lone};

/// Starts it with these flags and waits until it serves; answers the URLs that it serves at, too.
async fn start(flags: &[String]) -> (Process, Vec<String>) {
    let process = Process::begin(flags, String::new());
    process.says(READY_MESSAGE).await;
    let log = process.log();
    let ready = log.iter().find(|line| line.contains(READY_MESSAGE)).unwrap();
    let entry: serde_json::Value = serde_json::from_str(ready).unwrap();
    let urls = entry["urls"].as_str().unwrap().split(',').map(str::to_owned).collect();
    (process, urls)
}

/// Writes a CA, a server's and a peer's certificate as kubeadm lays them out.
fn write_pki(dir: &Path) {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::<String>::new()).unwrap();
    ca.distinguished_name.push(DnType::CommonName, "etcd-ca");
    ca.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    fs::write(dir.join("ca.crt"), ca.self_signed(&ca_key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(ca, ca_key);
    for name in ["server", "peer"] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        fs::write(
            dir.join(format!("{name}.crt")),
            params.signed_by(&key, &issuer).unwrap().pem(),
        )
        .unwrap();
        fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

#[tokio::test]
async fn the_command_line_of_kubeadm_starts_it_and_sigterm_ends_it() {
    let temp = TempDir::new().unwrap();
    write_pki(temp.path());
    let pki = temp.path().display();
    let args: Vec<String> = [
        "--advertise-client-urls=https://127.0.0.1:2379".to_owned(),
        format!("--cert-file={pki}/server.crt"),
        "--client-cert-auth=true".to_owned(),
        format!("--data-dir={pki}/etcd"),
        "--feature-gates=InitialCorruptCheck=true".to_owned(),
        "--initial-advertise-peer-urls=https://127.0.0.1:2380".to_owned(),
        "--initial-cluster=node=https://127.0.0.1:2380".to_owned(),
        format!("--key-file={pki}/server.key"),
        "--listen-client-urls=https://127.0.0.1:0".to_owned(),
        "--listen-metrics-urls=http://127.0.0.1:0".to_owned(),
        "--listen-peer-urls=https://127.0.0.1:2380".to_owned(),
        "--name=node".to_owned(),
        format!("--peer-cert-file={pki}/peer.crt"),
        "--peer-client-cert-auth=true".to_owned(),
        format!("--peer-key-file={pki}/peer.key"),
        format!("--peer-trusted-ca-file={pki}/ca.crt"),
        "--snapshot-count=10000".to_owned(),
        format!("--trusted-ca-file={pki}/ca.crt"),
        "--watch-progress-notify-interval=5s".to_owned(),
    ]
    .into();
    let (server, urls) = start(&args).await;
    assert_eq!(server.said(r#""level":"warn""#), 0, "{:?}", server.log());
    for (path, body) in [
        ("/livez", "ok\n"),
        ("/readyz", "ok\n"),
        ("/health?serializable=true", r#"{"health":"true","reason":""}"#),
    ] {
        assert_eq!(server.get_at(&urls[1], path).await, (200, body.to_owned()), "{path}");
    }
    let (_, metrics) = server.get_at(&urls[1], "/metrics").await;
    assert!(metrics.contains("\netcd_server_has_leader 1\n"));

    let (code, told) = Process::begin(&args, String::new()).ended().await;
    assert_eq!(code, Some(1), "{told}");
    assert!(told.lines().last().unwrap().contains("is in use by process"), "{told}");

    server.stop().await;
    start(&args).await.0.stop().await;
}

#[tokio::test]
async fn slow_requests_are_logged_as_etcd_logs_them_without_values() {
    let temp = TempDir::new().unwrap();
    let flags = ["apply", "unary-request"].map(|of| format!("--warning-{of}-duration=1ns"));
    let server = Kubebrain::start_with(temp.path(), &flags).await;
    let mut kv = KvClient::connect(server.url.clone()).await.unwrap();
    let (key, value) = (b"a".to_vec().into(), b"secret".to_vec().into());
    let put = pb::PutRequest {
        key,
        value,
        ..Default::default()
    };
    kv.put(put).await.unwrap();
    server.says(r#""response type":"/etcdserverpb.KV/Put""#).await;
    let log = server.log();
    let line = |text: &str| -> serde_json::Value {
        let line = log.iter().find(|line| line.contains(text)).unwrap();
        assert!(!line.contains("secret"), "{line}");
        serde_json::from_str(line).unwrap()
    };
    let applied = line(r#""msg":"apply request took too long""#);
    let shown = ["level", "expected-duration", "prefix", "request"].map(|field| applied[field].as_str().unwrap());
    assert_eq!(shown, ["warn", "1ns", "", "put:<key:\"a\" value_size:6 >"]);
    let stats = line(r#""msg":"request stats""#);
    assert_eq!(stats["level"], "warn");
    assert_eq!(stats["request content"], "key:\"a\" value_size:6 ");
    assert_eq!(
        (&stats["request count"], &stats["request size"]),
        (&1.into(), &11.into())
    );
    assert_eq!(stats["response count"], 0);
    assert!(stats["response size"].as_i64().unwrap() > 0, "{stats}");
    assert!(stats["remote"].as_str().unwrap().starts_with("127.0.0.1:"), "{stats}");
    server.stop().await;
}

#[tokio::test]
async fn rows_are_checked_at_intervals() {
    let temp = TempDir::new().unwrap();
    let flags = [
        "--corrupt-check-time=100ms",
        "--bootstrap-defrag-threshold-megabytes=1000",
    ]
    .map(str::to_owned);
    let server = Kubebrain::start_with(temp.path(), &flags).await;
    server.says("skipped the defragmentation at the start").await;
    server.says_often("checked all rows", 2).await;
    server.stop().await;
}

/// Flips one bit in the middle of each large table: a table that a merge has replaced may still exist.
fn damage_large_tables(dir: &Path) {
    let tables = walk(&dir.join("rows")).into_iter();
    let tables = tables.filter(|path| path.parent().is_some_and(|parent| parent.ends_with("tables")));
    let mut damaged = 0;
    for table in tables {
        let mut bytes = fs::read(&table).unwrap();
        if bytes.len() > 1 << 20 {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(&table, bytes).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 0, "there is no large table");
}

fn walk(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] });
    files.collect()
}

#[tokio::test]
async fn damage_that_nobody_reads_is_found_by_the_check() {
    let temp = TempDir::new().unwrap();
    let server = Kubebrain::start_with(temp.path(), &[]).await;
    let mut kv = KvClient::connect(server.url.clone()).await.unwrap();
    for n in 0..300_u32 {
        // It cannot be compressed.
        let value: Vec<u8> = (0..2_048_u32)
            .flat_map(|m| crc32c::crc32c(&[n, m].map(u32::to_le_bytes).concat()).to_le_bytes())
            .collect();
        let put = pb::PutRequest {
            key: format!("key-{n:03}").into(),
            value: value.into(),
            ..Default::default()
        };
        kv.put(put).await.unwrap();
    }
    // The versions in memory become rows, and then tables.
    server.stop().await;
    let server = Kubebrain::start_with(temp.path(), &[]).await;
    let mut maintenance = pb::maintenance_client::MaintenanceClient::connect(server.url.clone())
        .await
        .unwrap();
    maintenance.defragment(pb::DefragmentRequest {}).await.unwrap();
    server.stop().await;
    damage_large_tables(temp.path());

    // Reads of other keys are answered.
    let unchecked = Kubebrain::start_with(temp.path(), &["--key-index-bytes=-1".to_owned()]).await;
    let range = || pb::RangeRequest {
        key: "key-000".into(),
        ..Default::default()
    };
    let mut kv = KvClient::connect(unchecked.url.clone()).await.unwrap();
    assert_eq!(kv.range(range()).await.unwrap().into_inner().kvs.len(), 1);
    unchecked.stop().await;

    let flags = ["--key-index-bytes=-1", "--corrupt-check-time=100ms"].map(str::to_owned);
    let server = Kubebrain::start_with(temp.path(), &flags).await;
    server.says("the check of the rows found damage").await;
    let log = server.log();
    let line = log.iter().find(|line| line.contains("found damage")).unwrap();
    assert!(line.contains(r#""level":"error""#) && line.contains("rows"), "{line}");
    let mut kv = KvClient::connect(server.url.clone()).await.unwrap();
    let refused = kv.range(range()).await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: corrupt cluster");
    server.kill().await;
}

#[tokio::test]
async fn certificate_of_its_own_is_made_before_the_data_directory_is_used() {
    let temp = TempDir::new().unwrap();
    let dir = temp.path().join("data");
    let flags = [
        "--auto-tls".to_owned(),
        "--listen-client-urls=https://127.0.0.1:0".to_owned(),
        format!("--data-dir={}", dir.display()),
    ];
    let mut made = Vec::new();
    for _ in 0..2 {
        let (server, urls) = start(&flags).await;
        assert!(urls[0].starts_with("https://127.0.0.1:"), "{urls:?}");
        made.push(fs::read(dir.join("fixtures/client/cert.pem")).unwrap());
        server.stop().await;
    }
    assert_eq!(made[0], made[1]);
}

#[test]
fn a_bad_start_is_one_line_and_an_exit_code() {
    let temp = TempDir::new().unwrap();
    let foreign = temp.path().join("foreign");
    fs::create_dir_all(foreign.join("member")).unwrap();
    let foreign = foreign.display().to_string();
    let missing = "--cert-file=/no/such.crt --key-file=/no/such.key --listen-client-urls=https://127.0.0.1:0";
    for (args, code, reason) in [
        ("--no-such-flag".to_owned(), 2, "unknown flag --no-such-flag"),
        (
            "--quota-backend-bytes=much".to_owned(),
            2,
            "--quota-backend-bytes is not valid",
        ),
        (missing.to_owned(), 1, "/no/such.crt: cannot be read"),
        (
            format!("--listen-client-urls=http://127.0.0.1:0 --data-dir={foreign}"),
            1,
            "it holds data of etcd",
        ),
        (
            "--listen-client-urls=http://192.0.2.1:7".to_owned(),
            1,
            "cannot listen on http://192.0.2.1:7",
        ),
    ] {
        let output = command()
            .current_dir(&temp)
            .args(args.split(' '))
            .arg("--log-level=error")
            .output()
            .unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), told.lines().count()),
            (Some(code), 1),
            "{args}: {told}"
        );
        assert!(
            told.starts_with("kubebrain: ") && told.contains(reason),
            "{args}: {told}"
        );
    }
    let left: Vec<_> = fs::read_dir(&temp)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["foreign"]);
}

#[test]
fn versions_are_printed_in_etcds_shape() {
    let output = command().arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && text.starts_with("etcd Version: 3.6."),
        "{text}"
    );
    assert!(text.contains("\nkubebrain Version: "), "{text}");
}

/// As etcd's own test of alarms has it: 13 pages.
#[tokio::test]
async fn tiny_quota_stops_puts_at_once_and_compaction_and_defragmentation_end_it() {
    const QUOTA: u64 = 13 * 4096;
    let dir = TempDir::new().unwrap();
    let (mut flags, url) = lone(dir.path());
    flags.push(format!("--quota-backend-bytes={QUOTA}"));
    let server = Process::begin(&flags, url);
    server.says(READY_MESSAGE).await;
    let (mut kv, mut maintenance) = (
        KvClient::new(server.connect().await),
        MaintenanceClient::new(server.connect().await),
    );
    let put = |key: &str, len: usize| pb::PutRequest {
        key: key.to_owned().into(),
        value: vec![b'b'; len].into(),
        ..Default::default()
    };
    kv.put(put("1st_test", 64)).await.unwrap();
    for _ in 0..3 {
        let mut puts = 0;
        let refused = loop {
            match kv.put(put("2nd_test", 4096)).await {
                Ok(_) => puts += 1,
                Err(status) => break status,
            }
            assert!(puts < 2_000, "{puts} puts of a page are in {QUOTA} bytes");
        };
        assert_eq!(refused.message(), "etcdserver: mvcc: database space exceeded");
        let raised = maintenance.alarm(pb::AlarmRequest::default()).await.unwrap();
        let raised = raised.into_inner().alarms;
        assert_eq!(raised.len(), 1, "{raised:?}");
        let status = maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
        let compact = pb::CompactionRequest {
            revision: status.header.unwrap().revision,
            physical: true,
        };
        kv.compact(compact).await.unwrap();
        maintenance.defragment(pb::DefragmentRequest {}).await.unwrap();
        let disarm = pb::AlarmRequest {
            action: 2,
            member_id: raised[0].member_id,
            alarm: raised[0].alarm,
        };
        maintenance.alarm(disarm).await.unwrap();
        let status = maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
        let size = u64::try_from(status.db_size).unwrap();
        assert!(size < QUOTA / 2, "{size} bytes are left");
        kv.put(put("4th_test", 64)).await.unwrap();
    }
    server.stop().await;
}

/// As etcd does: -1 is no quota, 0 the default one.
#[tokio::test]
async fn quota_is_in_status_and_metrics() {
    for (flag, quota) in [("-1", -1), ("0", 2 << 30), ("5000000000", 5_000_000_000_i64)] {
        let dir = TempDir::new().unwrap();
        let (mut flags, url) = lone(dir.path());
        flags.push(format!("--quota-backend-bytes={flag}"));
        let server = Process::begin(&flags, url);
        server.says(READY_MESSAGE).await;
        let mut maintenance = MaintenanceClient::new(server.connect().await);
        let status = maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
        assert_eq!(status.db_size_quota, quota, "{flag}");
        let (_, metrics) = server.get("/metrics").await;
        let line = format!("etcd_server_quota_backend_bytes {quota}");
        assert!(metrics.lines().any(|found| found == line), "{flag}: {metrics}");
        server.stop().await;
    }
}
