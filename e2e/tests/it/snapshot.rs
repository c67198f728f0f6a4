//! Snapshots go both ways: etcd serves what kubebrain saved, and kubebrain what etcd saved.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use differential::FLAGS;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::maintenance_client::MaintenanceClient;
use pb::watch_client::WatchClient;
use programs::members::{self, Members};
use programs::progress::Progress;
use programs::server::{Program, Server};
use programs::tikv::Tikv;
use programs::tools::cache::ToolCache;
use programs::tools::go;
use programs::{command, watchdog};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tonic::transport::Channel;
use wire::{etcdserverpb as pb, mvccpb};

use crate::harness::deadline;

/// Time to live of leases: longer than the test.
const LEASE_TTL: i64 = 3_600;

/// The program of etcd that reads snapshots.
fn etcdutl() -> PathBuf {
    let built = go::ETCD.build(&ToolCache::open().unwrap(), &Progress::stderr());
    built.unwrap().join("etcdutl")
}

/// Writes a history with everything in it that a snapshot must keep. Returns the compacted and the newest revision.
async fn write(channel: &Channel) -> (i64, i64) {
    let mut kv = KvClient::new(channel.clone());
    let mut lease = LeaseClient::new(channel.clone());
    let put = |n: u32, lease: i64| pb::PutRequest {
        key: format!("key/{}", n * 7 % 53).into(),
        value: vec![b'a' + u8::try_from(n % 26).unwrap(); (n * n % 9_000) as usize].into(),
        lease,
        ..Default::default()
    };
    let delete = |n: u32| pb::DeleteRangeRequest {
        key: format!("key/{}", n % 53).into(),
        range_end: format!("key/{}", n % 53 + 2).into(),
        ..Default::default()
    };
    for id in [7, -8, i64::MAX] {
        lease
            .lease_grant(pb::LeaseGrantRequest { id, ttl: LEASE_TTL })
            .await
            .unwrap();
    }
    let mut revision = 0;
    for n in 0..400 {
        let id = [0, 0, 7, 0, -8, 0, i64::MAX][n as usize % 7];
        let header = match n % 11 {
            10 => kv.delete_range(delete(n)).await.unwrap().into_inner().header,
            9 => {
                let ops = [n, n + 1, n + 2].map(|n| pb::RequestOp {
                    request: Some(pb::request_op::Request::RequestPut(put(n, id))),
                });
                let txn = pb::TxnRequest {
                    success: ops.into(),
                    ..Default::default()
                };
                kv.txn(txn).await.unwrap().into_inner().header
            }
            _ => kv.put(put(n, id)).await.unwrap().into_inner().header,
        };
        revision = header.unwrap().revision;
        if n == 150 {
            let compact = pb::CompactionRequest {
                revision: revision - 20,
                physical: true,
            };
            kv.compact(compact).await.unwrap();
        }
    }
    // Of the lease nothing is left but that it was.
    lease.lease_revoke(pb::LeaseRevokeRequest { id: 7 }).await.unwrap();
    let large = pb::PutRequest {
        key: vec![0, 0xff, 1].into(),
        value: vec![7; 1 << 20].into(),
        ..Default::default()
    };
    revision = revision.max(kv.put(large).await.unwrap().into_inner().header.unwrap().revision);
    (first_readable(&mut kv, revision).await, revision)
}

/// The compacted revision.
pub(crate) async fn first_readable(kv: &mut KvClient<Channel>, newest: i64) -> i64 {
    for revision in 1..=newest {
        let range = pb::RangeRequest {
            key: "key".into(),
            revision,
            ..Default::default()
        };
        if kv.range(range).await.is_ok() {
            return revision;
        }
    }
    panic!("no revision can be read");
}

/// The answers that a client can read.
#[derive(Debug, PartialEq)]
pub(crate) struct Content {
    /// Every key at every revision.
    revisions: BTreeMap<i64, Vec<mvccpb::KeyValue>>,
    /// Events: by revision and key.
    events: Vec<(i64, Bytes, mvccpb::Event)>,
    /// Leases: time to live and keys.
    leases: BTreeMap<i64, (i64, Vec<Bytes>)>,
}

impl Content {
    /// The revision of each event.
    pub(crate) fn revisions(&self) -> Vec<i64> {
        self.events.iter().map(|(revision, ..)| *revision).collect()
    }
}

pub(crate) async fn read(channel: &Channel, (compacted, newest): (i64, i64)) -> Content {
    let mut kv = KvClient::new(channel.clone()).max_decoding_message_size(usize::MAX);
    let everything = || (Bytes::from_static(b"\0"), Bytes::from_static(b"\0"));
    let mut revisions = BTreeMap::new();
    for revision in compacted..=newest {
        let (key, range_end) = everything();
        let range = pb::RangeRequest {
            key,
            range_end,
            revision,
            ..Default::default()
        };
        revisions.insert(revision, kv.range(range).await.unwrap().into_inner().kvs);
    }
    let (key, range_end) = everything();
    let create = pb::WatchCreateRequest {
        key,
        range_end,
        start_revision: compacted + 1,
        prev_kv: true,
        ..Default::default()
    };
    let create = pb::WatchRequest {
        request_union: Some(pb::watch_request::RequestUnion::CreateRequest(create)),
    };
    let (requests, received) = tokio::sync::mpsc::channel(1);
    requests.send(create).await.unwrap();
    let mut watch = WatchClient::new(channel.clone()).max_decoding_message_size(usize::MAX);
    let stream = watch.watch(tokio_stream::wrappers::ReceiverStream::new(received)).await;
    let (mut stream, mut events) = (stream.unwrap().into_inner(), Vec::<(i64, Bytes, mvccpb::Event)>::new());
    while events.last().is_none_or(|(revision, ..)| *revision < newest) {
        let message = stream.message().await.unwrap().expect("a watch goes on");
        assert!(!message.canceled, "{}", message.cancel_reason);
        events.extend(message.events.into_iter().map(|mut event| {
            let kv = event.kv.clone().unwrap();
            // The first versions of history superseded compacted ones.
            if event.prev_kv.as_ref().is_some_and(|prev| prev.mod_revision < compacted) {
                event.prev_kv = None;
            }
            (kv.mod_revision, kv.key, event)
        }));
    }
    events.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    let mut client = LeaseClient::new(channel.clone());
    let mut leases = BTreeMap::new();
    let all = client
        .lease_leases(pb::LeaseLeasesRequest {})
        .await
        .unwrap()
        .into_inner();
    for id in all.leases.into_iter().map(|lease| lease.id) {
        let ask = pb::LeaseTimeToLiveRequest { id, keys: true };
        let mut found = client.lease_time_to_live(ask).await.unwrap().into_inner();
        found.keys.sort();
        leases.insert(id, (found.granted_ttl, found.keys));
    }
    Content {
        revisions,
        events,
        leases,
    }
}

/// Takes a snapshot as etcdctl does.
pub(crate) async fn save(channel: &Channel, path: &Path) {
    let mut client = MaintenanceClient::new(channel.clone());
    let mut stream = client.snapshot(pb::SnapshotRequest {}).await.unwrap().into_inner();
    let (mut bytes, mut remaining) = (Vec::new(), None);
    while let Some(message) = stream.message().await.unwrap() {
        bytes.extend_from_slice(&message.blob);
        remaining = Some(message.remaining_bytes);
    }
    assert_eq!(remaining, Some(0));
    let (database, checksum) = bytes.split_at(bytes.len() - 32);
    assert_eq!(Sha256::digest(database).as_slice(), checksum);
    fs::write(path, bytes).unwrap();
}

/// Prints the status of a snapshot by both programs, which must agree.
fn check_status(kubebrain: &Program, file: &Path) {
    let file = file.to_str().unwrap();
    let ours = command::run(&kubebrain.path, ["snapshot", "status", file]).unwrap();
    let theirs = command::run(etcdutl(), ["snapshot", "status", file]).unwrap();
    assert_eq!(ours, theirs);
}

/// Restores a snapshot by a program, and starts a server on it.
fn restored(by: &Path, server: &Program, file: &Path, dir: &Path) -> Server {
    let arguments = [
        "snapshot",
        "restore",
        file.to_str().unwrap(),
        "--data-dir",
        dir.to_str().unwrap(),
    ];
    command::run(by, arguments).unwrap();
    Server::start_in(server, dir, FLAGS).unwrap()
}

pub(crate) fn assert_same(found: &Content, expected: &Content, what: &str) {
    for (revision, kvs) in &expected.revisions {
        assert!(
            found.revisions.get(revision) == Some(kvs),
            "{what}: revision {revision}"
        );
    }
    for (found, expected) in found.events.iter().zip(&expected.events) {
        assert!(found == expected, "{what}: {found:?}\n{expected:?}");
    }
    assert_eq!(found.leases, expected.leases, "{what}");
    assert!(found == expected, "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_of_etcd_and_of_a_brain_are_served_by_the_other() {
    let _deadline: watchdog::Watchdog = deadline();
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name);
    let (kubebrain, etcd) = (
        Program::kubebrain().unwrap(),
        Program::etcd(&Progress::stderr()).unwrap(),
    );
    let (brain, other) = (
        Server::start(&kubebrain, FLAGS).unwrap(),
        Server::start(&etcd, FLAGS).unwrap(),
    );
    let mut expected = None;
    let mut written = Vec::new();
    for server in [&brain, &other] {
        let channel = server.connect().await.unwrap();
        let revisions = write(&channel).await;
        let content = read(&channel, revisions).await;
        save(&channel, &path(server.name())).await;
        check_status(&kubebrain, &path(server.name()));
        assert_same(
            expected.get_or_insert(read(&channel, revisions).await),
            &content,
            server.name(),
        );
        written.push(revisions);
    }
    assert_eq!(written[0], written[1]);
    let (revisions, expected) = (written[0], expected.unwrap());
    brain.stop().unwrap();
    other.stop().unwrap();

    let etcd_of_brain = restored(&etcdutl(), &etcd, &path("kubebrain"), &path("etcd-of-brain"));
    let brain_of_etcd = restored(&kubebrain.path, &kubebrain, &path("etcd"), &path("brain-of-etcd"));
    for server in [&etcd_of_brain, &brain_of_etcd] {
        let channel = server.connect().await.unwrap();
        assert_same(&read(&channel, revisions).await, &expected, server.name());
        // Writes continue after the restored revision.
        let mut kv = KvClient::new(channel.clone());
        let put = pb::PutRequest {
            key: "key/9".into(),
            prev_kv: true,
            ..Default::default()
        };
        let header = kv.put(put).await.unwrap().into_inner().header.unwrap();
        assert_eq!(header.revision, revisions.1 + 1);
        let compact = pb::CompactionRequest {
            revision: header.revision,
            physical: true,
        };
        kv.compact(compact).await.unwrap();
        save(&channel, &path("again")).await;
        check_status(&kubebrain, &path("again"));
    }
    etcd_of_brain.stop().unwrap();
    brain_of_etcd.stop().unwrap();
}

/// A member that does not lead has the complete snapshot, too.
#[tokio::test(flavor = "multi_thread")]
async fn snapshot_of_a_follower_on_tikv_is_served_by_etcd() {
    let _deadline: watchdog::Watchdog = deadline();
    let temp = TempDir::new().unwrap();
    let path = |name: &str| temp.path().join(name);
    let (kubebrain, etcd) = (
        Program::kubebrain().unwrap(),
        Program::etcd(&Progress::stderr()).unwrap(),
    );
    let tikv = Tikv::for_test().unwrap();
    let flags = [FLAGS, &members::PATIENT_ELECTION_FLAGS].concat();
    let brains = Members::brains(&kubebrain, tikv.pd(), 3, &flags).unwrap();
    let follower = brains.followers().await.unwrap()[0];
    let channel = brains.server(follower).unwrap().connect().await.unwrap();
    let revisions = write(&channel).await;
    let expected = read(&channel, revisions).await;
    save(&channel, &path("taken")).await;
    check_status(&kubebrain, &path("taken"));
    brains.stop().unwrap();
    let server = restored(&etcdutl(), &etcd, &path("taken"), &path("etcd"));
    let channel = server.connect().await.unwrap();
    assert_same(&read(&channel, revisions).await, &expected, "etcd");
    server.stop().unwrap();
}
