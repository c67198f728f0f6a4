//! `kubebrain snapshot`: what it prints, restores and refuses.

use super::*;

fn snapshot(args: &[&str]) -> Output {
    command().arg("snapshot").args(args).output().unwrap()
}

fn refused(args: &[&str]) -> String {
    let output = snapshot(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    said.lines().last().unwrap().to_owned()
}

/// Takes a snapshot as etcdctl does.
async fn fetch(url: &str) -> Vec<u8> {
    let mut client = MaintenanceClient::connect(url.to_owned()).await.unwrap();
    let mut stream = client.snapshot(pb::SnapshotRequest {}).await.unwrap().into_inner();
    let (mut bytes, mut remaining) = (Vec::new(), Vec::new());
    while let Some(message) = stream.message().await.unwrap() {
        assert_eq!(message.version, "3.6.0");
        bytes.extend_from_slice(&message.blob);
        remaining.push((bytes.len() as u64, message.remaining_bytes));
    }
    let database = bytes.len() as u64 - 32;
    for (received, remaining) in remaining {
        assert_eq!(remaining, database.saturating_sub(received));
    }
    let (content, checksum) = bytes.split_at(bytes.len() - 32);
    assert_eq!(Sha256::digest(content).as_slice(), checksum);
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_restores_a_data_directory() {
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name);
    let text = |name: &str| path(name).to_str().unwrap().to_owned();
    let mut server = Kubebrain::start(&path("first")).await;
    for n in 0..20 {
        let put = pb::PutRequest {
            key: format!("key-{}", n % 7).into(),
            value: vec![n; 5_000].into(),
            ..Default::default()
        };
        server.client.call(Request::Put(put)).await.unwrap();
    }
    fs::write(path("taken"), fetch(&server.url).await).unwrap();
    // A client that does not read the rest holds nothing up.
    let mut client = MaintenanceClient::connect(server.url.clone()).await.unwrap();
    for _ in 0..10 {
        let mut stream = client.snapshot(pb::SnapshotRequest {}).await.unwrap().into_inner();
        stream.message().await.unwrap();
    }
    server.stop().await;

    let status = snapshot(&["status", &text("taken")]);
    let said = String::from_utf8(status.stdout).unwrap();
    assert!(said.contains(", 21, 7, ") && said.ends_with(" kB, 3.6.0\n"), "{said}");
    let into = format!("--data-dir={}", text("second"));
    let output = snapshot(&["restore", &text("taken"), &into]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "restored revision 21, not compacted: 20 versions, 0 leases\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let again = refused(&["import", &text("taken"), &into]);
    assert!(again.contains("is not empty: it holds a store"), "{again}");
    let bumped = format!("--data-dir={}", text("bumped"));
    let bump = ["--bump-revision=1000", "--mark-compacted"];
    let output = snapshot(&["restore", &text("taken"), &bumped, bump[0], bump[1]]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "restored revision 1021, compacted to 1021: 20 versions, 0 leases\n"
    );
    let mut server = Kubebrain::start(&path("second")).await;
    for revision in 2..=21 {
        let range = pb::RangeRequest {
            key: format!("key-{}", (revision - 2) % 7).into(),
            revision,
            ..Default::default()
        };
        let Response::Range(found) = server.client.call(Request::Range(range)).await.unwrap() else {
            panic!("no range");
        };
        assert_eq!(found.kvs[0].mod_revision, revision);
        assert_eq!(found.kvs[0].value[0], u8::try_from(revision - 2).unwrap());
    }
    server.stop().await;

    // A restore that was killed.
    fs::create_dir_all(path("third").join("log")).unwrap();
    fs::write(path("third").join("log").join("part"), "part").unwrap();
    fs::write(path("third").join("RESTORING"), "").unwrap();
    let said = refusal(&path("third")).await;
    assert!(said.contains("holds a part of a snapshot"), "{said}");
    let into = format!("--data-dir={}", text("third"));
    let mut damaged = fs::read(path("taken")).unwrap();
    damaged[20_000] ^= 1;
    fs::write(path("damaged"), &damaged).unwrap();
    let said = refused(&["restore", &text("damaged"), &into]);
    assert!(said.contains("damaged: its checksum is"), "{said}");
    assert!(snapshot(&["restore", &text("taken"), &into]).status.success());
    Kubebrain::start(&path("third")).await.stop().await;

    // Of a restore that fails nothing is left.
    let cut = fs::read(path("taken")).unwrap();
    fs::write(path("cut"), &cut[..cut.len() - 4_096 - 32]).unwrap();
    let into = format!("--data-dir={}", text("fourth"));
    let said = refused(&["restore", &text("cut"), &into]);
    assert!(said.contains("has no checksum"), "{said}");
    let said = refused(&["restore", &text("cut"), &into, "--skip-hash-check"]);
    assert!(said.contains("it is truncated"), "{said}");
    let left: Vec<_> = fs::read_dir(path("fourth"))
        .map(|entries| entries.map(|entry| entry.unwrap().file_name()).collect())
        .unwrap_or_default();
    assert!(left.iter().all(|name| name == "LOCK"), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_restores_a_key_prefix() {
    let temp = TempDir::new().unwrap();
    let file = temp.path().join("taken");
    let site = Site::new(2).await;
    let (one, two) = (site.begin(0, 2, &[]), site.begin(1, 2, &[]));
    for member in [&one, &two] {
        member.says("ready to serve client requests").await;
    }
    let mut kv = pb::kv_client::KvClient::new(one.connect().await);
    for n in 0..30_u8 {
        let put = pb::PutRequest {
            key: format!("key-{}", n % 7).into(),
            value: vec![n; 100].into(),
            ..Default::default()
        };
        kv.put(put).await.unwrap();
    }
    // One of them follows.
    let range = pb::RangeRequest {
        key: "key".into(),
        ..Default::default()
    };
    for member in 0..2 {
        let mut kv = pb::kv_client::KvClient::connect(site.client_url(member)).await.unwrap();
        kv.range(range.clone()).await.unwrap();
    }
    let taken = [fetch(&site.client_url(0)).await, fetch(&site.client_url(1)).await];
    assert!(versions(&taken[0]) == versions(&taken[1]), "leader and follower differ");
    fs::write(&file, &taken[1]).unwrap();
    let (pd, prefix) = (
        format!("--tikv-pd-endpoints={}", site.tikv.pd()),
        "--tikv-key-prefix=restored",
    );
    let restore = |prefix| {
        let args = ["restore", file.to_str().unwrap(), "--storage=tikv", &pd, prefix].map(str::to_owned);
        tokio::task::spawn_blocking(move || snapshot(&args.each_ref().map(String::as_str)))
    };
    let output = restore("--tikv-key-prefix=kubebrain").await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("the key prefix holds data already"), "{said}");
    drop((one, two));

    // As a restore leaves it that is interrupted before it writes.
    let options = engine_tikv::ConnectOptions::new(vec![site.tikv.pd()], "restored");
    let (tikv, _supervisor) = engine_tikv::Tikv::attach(options).await.unwrap();
    prefix_owner::begin_restore(&tikv.register(prefix_owner::OWNER_REGISTER), "etcd-cluster")
        .await
        .unwrap();
    let (code, said) = site.begin(0, 1, &[prefix]).ended().await;
    assert!(
        code == Some(1) && said.contains("a snapshot is being restored into the key prefix"),
        "{said}"
    );
    let wipe = ["wipe", "--storage=tikv", &pd, prefix, "--yes"].map(str::to_owned);
    let (code, said) = Process::begin(&wipe, String::new()).ended().await;
    assert!(code == Some(0) && tikv.is_empty().await.unwrap(), "{said}");

    prefix_owner::begin_restore(&tikv.register(prefix_owner::OWNER_REGISTER), "etcd-cluster")
        .await
        .unwrap();
    let output = restore(prefix).await.unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "restored revision 31, not compacted: 30 versions, 0 leases\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let member = site.start(0, 1, &[prefix]).await;
    let mut kv = pb::kv_client::KvClient::new(member.connect().await);
    for revision in 2..=31 {
        let range = pb::RangeRequest {
            key: format!("key-{}", (revision - 2) % 7).into(),
            revision,
            ..Default::default()
        };
        let found = kv.range(range).await.unwrap().into_inner();
        assert_eq!(found.kvs[0].mod_revision, revision);
    }
}

/// A file that is long to read does not give a member the time to begin a store where it is restored to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore_claims_a_key_prefix_before_it_reads_the_file() {
    let temp = TempDir::new().unwrap();
    let (pipe, text) = (temp.path().join("pipe"), temp.path().join("text"));
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    fs::write(&text, "no snapshot").unwrap();
    let site = Site::new(1).await;
    let pd = format!("--tikv-pd-endpoints={}", site.tikv.pd());
    let prefix = "--tikv-key-prefix=kubebrain";
    let restore = |file: &Path| {
        let file = file.to_str().unwrap();
        let args = ["snapshot", "restore", file, "--storage=tikv", &pd, prefix].map(str::to_owned);
        Process::begin(&args, String::new())
    };
    // No process writes into the pipe, so it is never read to its end.
    let reading = restore(&pipe);
    let options = engine_tikv::ConnectOptions::new(vec![site.tikv.pd()], "kubebrain");
    let (tikv, _supervisor) = engine_tikv::Tikv::attach(options).await.unwrap();
    let owner = tikv.register(prefix_owner::OWNER_REGISTER);
    let is_claimed = async {
        while !prefix_owner::is_restoring(&owner, "etcd-cluster").await.unwrap() {
            tokio::task::yield_now().await;
        }
    };
    timeout(STEP_TIMEOUT, is_claimed).await.expect("it claims the prefix");
    let (code, said) = site.begin(0, 1, &[]).ended().await;
    assert!(
        code == Some(1) && said.contains("a snapshot is being restored into the key prefix"),
        "{said}"
    );
    reading.kill().await;
    let wipe = ["wipe", "--storage=tikv", &pd, prefix, "--yes"].map(str::to_owned);
    let (code, said) = Process::begin(&wipe, String::new()).ended().await;
    assert!(code == Some(0), "{said}");
    // Of a file that is no snapshot nothing is left.
    let (code, said) = restore(&text).ended().await;
    assert!(code == Some(1) && tikv.is_empty().await.unwrap(), "{said}");
    site.start(0, 1, &[]).await.stop().await;
}
