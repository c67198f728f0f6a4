//! `kubebrain debug`: what a store holds is printed, and the store stays as it is.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};

use crate::program::{Kubebrain, command};
use crate::wire::{Request, Response, Target as _, pb};
use pb::auth_client::AuthClient;

/// Runs the subcommand.
fn debug(args: &[&str]) -> Output {
    command().arg("debug").args(args).output().unwrap()
}

fn on(dir: &Path, args: &[&str]) -> Output {
    let dir = format!("--data-dir={}", dir.display());
    debug(&[args, &[&dir]].concat())
}

/// The lines that it prints.
fn lines(dir: &Path, args: &[&str]) -> Vec<Value> {
    let output = on(dir, args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    assert_eq!(said, "", "{args:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The one line that it ends with.
fn refusal(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    said.lines().last().unwrap().to_owned()
}

fn of_kind<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["kind"] == kind).collect()
}

/// Files below `dir` and what is in them.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

fn put(key: &[u8], value: &[u8], lease: i64) -> Request {
    Request::Put(pb::PutRequest {
        key: key.to_vec().into(),
        value: value.to_vec().into(),
        lease,
        ..Default::default()
    })
}

/// Lease 0x2a; revisions 2 and 3 of `a/1`, 4 of a key with a zero, on the lease, 5 of `b/1`, which is gone at 6.
async fn fill(dir: &Path) {
    let mut server = Kubebrain::start(dir).await;
    let grant = pb::LeaseGrantRequest { id: 42, ttl: 6_000 };
    let delete = pb::DeleteRangeRequest {
        key: b"b/1"[..].into(),
        ..Default::default()
    };
    for request in [
        Request::Grant(grant),
        put(b"a/1", b"one", 0),
        put(b"a/1", b"three", 0),
        put(b"a/\0", b"\xff", 42),
        put(b"b/1", b"", 0),
        Request::Delete(delete),
    ] {
        server.client.call(request).await.unwrap();
    }
    server.stop().await;
}

#[tokio::test]
async fn dumps_show_what_was_stored_and_change_nothing() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    fill(&dir).await;
    let before = contents(&dir);

    let log = lines(&dir, &["dump-log"]);
    assert_eq!(
        (&log[0]["kind"], &log[0]["slot"], &log[0]["epoch"]),
        (&json!("barrier"), &json!(1), &json!(1))
    );
    let batches = of_kind(&log, "batch");
    let sum = |field: &str| batches.iter().map(|batch| batch[field].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("requests"), 6, "{log:?}");
    assert!(
        sum("bytes") > 50 && batches.iter().all(|batch| batch["epoch"] == 1),
        "{log:?}"
    );
    let revisions = batches.iter().filter(|batch| !batch["first_revision"].is_null());
    let revisions: Vec<(i64, i64)> = revisions
        .map(|batch| {
            let revision = |name: &str| batch[name].as_i64().unwrap();
            (revision("first_revision"), revision("last_revision"))
        })
        .collect();
    assert_eq!((revisions[0].0, revisions[revisions.len() - 1].1), (2, 6), "{log:?}");
    assert_eq!(lines(&dir, &["dump-log", "--limit", "1"]), log[..1]);

    let rows = lines(&dir, &["dump-rows"]);
    assert_eq!(
        of_kind(&rows, "lease"),
        [&json!({"kind": "lease", "lease": "2a", "ttl": 6000, "remaining": 0})]
    );
    assert_eq!(
        of_kind(&rows, "attachment"),
        [&json!({"kind": "attachment", "lease": "2a", "key": "a/\\x00"})]
    );
    let keys = |kind| {
        of_kind(&rows, kind)
            .iter()
            .map(|row| row["key"].as_str().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(keys("index"), ["a/\\x00", "a/1"]);
    assert_eq!(keys("object"), ["a/\\x00", "a/1", "a/1", "b/1"]);
    assert_eq!(
        of_kind(&rows, "tombstone"),
        [&json!({"kind": "tombstone", "key": "b/1", "revision": 6})]
    );
    assert!(rows.iter().all(|row| row.get("value").is_none()), "{rows:?}");
    assert_eq!(
        lines(&dir, &["dump-rows", "--prefix=a/1", "--values"]),
        [
            json!({"kind": "index", "key": "a/1", "create_revision": 2, "mod_revision": 3, "version": 2, "lease": "0", "size": 5}),
            json!({"kind": "object", "key": "a/1", "revision": 3, "create_revision": 2, "version": 2, "lease": "0", "size": 5, "value": "three"}),
            json!({"kind": "object", "key": "a/1", "revision": 2, "create_revision": 2, "version": 1, "lease": "0", "size": 3, "value": "one"}),
        ]
    );
    assert_eq!(lines(&dir, &["dump-rows", "--limit=2"]), rows[..2]);

    let manifest = lines(&dir, &["dump-manifest"]);
    let [manifest] = &manifest[..] else {
        panic!("{manifest:?}")
    };
    assert_eq!(
        (&manifest["epoch"], &manifest["revision"], &manifest["compacted"]),
        (&json!(1), &json!(6), &json!(-1)),
        "{manifest}"
    );
    let last = &log[log.len() - 1];
    let behind = last["slot"].as_u64().unwrap() + last["slots"].as_u64().unwrap();
    assert_eq!(manifest["applied_slot"], behind, "{manifest}");

    assert!(contents(&dir) == before, "a dump changed the store");
    let mut server = Kubebrain::start(&dir).await;
    let range = pb::RangeRequest {
        key: b"a/1"[..].into(),
        ..Default::default()
    };
    let Response::Range(range) = server.client.call(Request::Range(range)).await.unwrap() else {
        panic!("another answer")
    };
    assert_eq!(range.kvs[0].value, b"three"[..]);
    server.stop().await;
}

#[tokio::test]
async fn users_are_dumped_without_their_passwords() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    let server = Kubebrain::start_with(&dir, &["--bcrypt-cost=4".to_owned()]).await;
    let mut auth = AuthClient::connect(server.url.clone()).await.unwrap();
    let user = pb::AuthUserAddRequest {
        name: "someone".to_owned(),
        password: "secret".to_owned(),
        ..Default::default()
    };
    auth.user_add(user).await.unwrap();
    server.stop().await;
    let rows = lines(&dir, &["dump-rows"]);
    let find = |kind: &str| rows.iter().find(|row| row["kind"] == kind).unwrap();
    assert_eq!(find("auth")["auth_revision"], 2);
    assert_eq!(find("user")["user"], "someone");
    assert!(!rows.iter().any(|row| row.to_string().contains("$2")), "{rows:?}");
}

#[tokio::test]
async fn dump_is_refused_while_a_server_holds_the_directory() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    let server = Kubebrain::start(&dir).await;
    for dump in ["dump-log", "dump-rows", "dump-manifest"] {
        let refused = refusal(&on(&dir, &[dump]));
        assert!(refused.contains("is in use by process"), "{dump}: {refused}");
    }
    server.stop().await;
    assert_eq!(lines(&dir, &["dump-manifest"]).len(), 1);
}

#[tokio::test]
async fn damage_is_named_with_the_file_of_the_store() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    fill(&dir).await;

    let segment = dir.join("log").join(format!("{:020}.segment", 1));
    let whole = fs::read(&segment).unwrap();
    let mut damaged = whole.clone();
    let at = damaged.windows(3).position(|window| window == b"one").unwrap();
    damaged[at] ^= 1;
    fs::write(&segment, damaged).unwrap();
    let refused = refusal(&on(&dir, &["dump-log"]));
    assert!(
        refused.contains(&segment.display().to_string()) && refused.contains("is damaged at offset"),
        "{refused}"
    );
    fs::write(&segment, whole).unwrap();

    let current = dir.join("rows/tree/current");
    let whole = fs::read(&current).unwrap();
    fs::write(&current, b"nothing").unwrap();
    let refused = refusal(&on(&dir, &["dump-rows"]));
    assert!(
        refused.contains(&format!("{} is not the pointer to a manifest", current.display())),
        "{refused}"
    );
    fs::write(&current, whole).unwrap();
    assert_eq!(lines(&dir, &["dump-manifest"]).len(), 1);
}

#[test]
fn dump_of_no_store_makes_none() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    for dump in ["dump-log", "dump-rows", "dump-manifest"] {
        let refused = refusal(&on(&dir, &[dump]));
        assert!(refused.contains(&dir.display().to_string()), "{dump}: {refused}");
        assert_eq!(refused.matches("No such file").count(), 1, "{dump}: {refused}");
        assert!(!dir.exists());
    }
    fs::create_dir(&dir).unwrap();
    assert!(refusal(&on(&dir, &["dump-log"])).contains("a store is missing"));
    assert_eq!(contents(&dir).len(), 0);
}
