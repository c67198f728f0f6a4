//! A restore that is killed, and goes on when the same command is given again.

use std::fs;
use std::path::Path;
use std::process::Output;

use brain::bbolt::Reader;
use brain::pb::mvccpb;
use bytes::Bytes;
use pb::auth_client::AuthClient;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::watch_client::WatchClient;
use prost::Message as _;
use tempfile::TempDir;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tonic::transport::Channel;

use crate::members::Site;
use crate::program::{Kubebrain, STEP_TIMEOUT, command};
use crate::snapshot::{fetch, versions};
use crate::wire::pb;

/// A restore says so when it does not begin anew.
const GOES_ON: &str = "going on with a restore that was interrupted";

const COMPACTED: i64 = 30;

/// Writes more than fits in some memtables, all kinds of it.
async fn write(channel: &Channel) {
    let (mut kv, mut lease) = (KvClient::new(channel.clone()), LeaseClient::new(channel.clone()));
    for id in 1..=3 {
        lease
            .lease_grant(pb::LeaseGrantRequest { id, ttl: 3_600 })
            .await
            .unwrap();
    }
    for n in 0..90_u8 {
        let put = |key: String| pb::PutRequest {
            key: key.into(),
            value: vec![n; 400_000].into(),
            lease: i64::from(n % 4),
            ..Default::default()
        };
        kv.put(put(format!("key/{}", n % 13))).await.unwrap();
        if n % 9 == 0 {
            let delete = pb::DeleteRangeRequest {
                key: format!("key/{}", n % 7).into(),
                ..Default::default()
            };
            kv.delete_range(delete).await.unwrap();
        }
    }
    let compact = pb::CompactionRequest {
        revision: COMPACTED,
        physical: true,
    };
    kv.compact(compact).await.unwrap();
    let user = pb::AuthUserAddRequest {
        name: "one".to_owned(),
        password: "p".to_owned(),
        ..Default::default()
    };
    AuthClient::new(channel.clone()).user_add(user).await.unwrap();
}

/// Versions, and pairs of leases and users, of a snapshot.
type Content = (Vec<(i64, i64, bool, mvccpb::KeyValue)>, Vec<(Vec<u8>, Bytes)>);

fn content(snapshot: &[u8]) -> Content {
    let database = &snapshot[..snapshot.len() - 32];
    let reader = Reader::open(database, database.len() as u64).unwrap();
    let mut others = Vec::new();
    for name in [&b"lease"[..], b"authUsers"] {
        let mut pairs = reader.bucket(name).unwrap().unwrap();
        while let Some((key, value)) = pairs.next().unwrap() {
            others.push((key.to_vec(), value));
        }
    }
    (versions(database), others)
}

fn assert_same(found: &[u8], expected: &[u8]) {
    let ((found, others), (versions, expected)) = (content(found), content(expected));
    assert!(
        found == versions,
        "versions differ: {} of {}",
        found.len(),
        versions.len()
    );
    let names = |pairs: &[(Vec<u8>, Bytes)]| -> Vec<Vec<u8>> { pairs.iter().map(|(name, _)| name.clone()).collect() };
    assert_eq!(others.len(), 4, "three leases and a user");
    assert_eq!(names(&others), names(&expected));
}

/// The revisions of the first events after the compacted revision.
async fn revisions(url: &str, count: usize) -> Vec<i64> {
    let mut watch = WatchClient::connect(url.to_owned()).await.unwrap();
    let create = pb::WatchCreateRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        start_revision: COMPACTED + 1,
        ..Default::default()
    };
    let create = pb::WatchRequest {
        request_union: Some(pb::watch_request::RequestUnion::CreateRequest(create)),
    };
    let requests = tokio_stream::once(create).chain(tokio_stream::pending());
    let mut events = watch.watch(requests).await.unwrap().into_inner();
    let mut found = Vec::new();
    while found.len() < count {
        let response = timeout(STEP_TIMEOUT, events.message()).await.unwrap();
        let events = response.unwrap().unwrap().events;
        let events = events.into_iter().map(|event| mvccpb::Event::decode(event).unwrap());
        found.extend(events.map(|event| event.kv.unwrap().mod_revision));
    }
    found
}

/// Restores; is killed when rows are written for the n-th time, if that is said.
async fn restore(file: &Path, into: &[&str], killed_at: Option<u32>) -> Output {
    let mut command = command();
    command.args(["snapshot", "restore"]).arg(file).args(into);
    if let Some(times) = killed_at {
        command.env("KUBEBRAIN_KILL_AT", format!("rows-written:{times}"));
    }
    let ended = tokio::task::spawn_blocking(move || command.output().unwrap());
    timeout(2 * STEP_TIMEOUT, ended)
        .await
        .expect("it does not end")
        .unwrap()
}

fn log(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore_that_is_killed_goes_on() {
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name);
    let source = Kubebrain::start(&path("source")).await;
    let channel = Channel::from_shared(source.url.clone())
        .unwrap()
        .connect()
        .await
        .unwrap();
    write(&channel).await;
    let taken = fetch(&source.url).await;
    source.stop().await;
    fs::write(path("taken"), &taken).unwrap();

    let into = format!("--data-dir={}", path("copy").display());
    let mut kills = 0;
    let done = loop {
        let output = restore(&path("taken"), &[&into], Some(kills + 1)).await;
        assert_eq!(log(&output).contains(GOES_ON), kills > 0, "{}", log(&output));
        if output.status.success() {
            break output;
        }
        assert_eq!(output.status.code(), None, "{}", log(&output));
        kills += 1;
    };
    assert!(kills > 2, "it was killed {kills} times");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(said.starts_with("restored revision "), "{said}");
    let copy = Kubebrain::start(&path("copy")).await;
    assert_same(&fetch(&copy.url).await, &taken);
    let expected = versions(&taken[..taken.len() - 32]);
    let expected = expected.iter().map(|(revision, ..)| *revision);
    let expected: Vec<i64> = expected.filter(|revision| *revision > COMPACTED).collect();
    assert_eq!(revisions(&copy.url, expected.len()).await, expected);
    copy.stop().await;

    // A part of another snapshot is of no use.
    let into = format!("--data-dir={}", path("other").display());
    let other = Kubebrain::start(&path("empty")).await;
    fs::write(path("small"), fetch(&other.url).await).unwrap();
    other.stop().await;
    let output = restore(&path("taken"), &[&into], Some(2)).await;
    assert_eq!(output.status.code(), None, "{}", log(&output));
    let output = restore(&path("small"), &[&into], None).await;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        said,
        "restored revision 1, compacted to -1: 0 versions, 0 leases\n",
        "{}",
        log(&output)
    );
    Kubebrain::start(&path("other")).await.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore_into_tikv_that_is_killed_goes_on() {
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name);
    let source = Kubebrain::start(&path("source")).await;
    let channel = Channel::from_shared(source.url.clone())
        .unwrap()
        .connect()
        .await
        .unwrap();
    let empty = fetch(&source.url).await;
    write(&channel).await;
    let taken = fetch(&source.url).await;
    source.stop().await;
    fs::write(path("taken"), &taken).unwrap();
    fs::write(path("empty"), &empty).unwrap();

    let site = Site::new(1).await;
    let pd = format!("--tikv-pd-endpoints={}", site.tikv.pd());
    let into = ["--storage=tikv", &pd, "--tikv-key-prefix=restored"];
    for (kills, at) in [1, 4].into_iter().enumerate() {
        let output = restore(&path("taken"), &into, Some(at)).await;
        assert_eq!(output.status.code(), None, "{}", log(&output));
        assert_eq!(log(&output).contains(GOES_ON), kills > 0, "{}", log(&output));
    }
    let output = restore(&path("empty"), &into, None).await;
    assert!(
        output.status.code() == Some(1) && log(&output).contains("holds a part of another snapshot"),
        "{}",
        log(&output)
    );
    let output = restore(&path("taken"), &into, None).await;
    assert!(
        output.status.success() && log(&output).contains(GOES_ON),
        "{}",
        log(&output)
    );
    let member = site.start(0, 1, &["--tikv-key-prefix=restored"]).await;
    assert_same(&fetch(&site.client_url(0)).await, &taken);
    member.stop().await;
    let output = restore(&path("taken"), &into, None).await;
    assert!(
        output.status.code() == Some(1) && log(&output).contains("the key prefix holds data already"),
        "{}",
        log(&output)
    );
}
