//! Snapshots in etcd's format: their content if they are saved during writes, their content after a restore, and refusals.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use ::watch::{HistoryError, PrevKv};
use api::kv::KvService;
use backup::snapshot::{
    RestoreOptions, RestoreSummary, SavedSnapshot, SnapshotContents, SnapshotFile, Spool, UnfitSnapshot, restore,
    resume, save,
};
use bbolt::Reader;
use bytes::Bytes;
use cluster::prefix_owner;
use engine::LogAndRows;
use engine::log::frame::is_barrier;
use engine::log::{Log, MemLog};
use engine::rows::Rows;
use engine::rows::mem::MemRows;
use engine_local::log::{FileLog, FileLogOptions};
use engine_local::rows::{LsmOptions, LsmRows};
use etcd_types::pb::mvccpb;
use etcd_types::types::Event;
use pb::kv_server::Kv as _;
use pb::maintenance_client::MaintenanceClient;
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::auth::Services;
use crate::engine::Engine;
use crate::members::Site;
use crate::model::Model;
use crate::pausable_rows::{Gates, PausableRows};
use crate::program::{Kubebrain, Process, STEP_TIMEOUT, command, refusal};
use crate::script::run;
use crate::store::{requests, seed};
use crate::wire::{Request, Response, Target as _, pb};

mod program;

fn both<L: Log + Clone, R: Rows + Clone>(log: &L, rows: &R) -> LogAndRows {
    LogAndRows::new(log.clone(), rows.clone())
}

/// Saves what an engine holds.
async fn saved(engine: &Engine, dir: &Path) -> SavedSnapshot {
    let state = &engine.store.state;
    let (view, leases, auth) = state.consistent();
    let contents = SnapshotContents {
        view,
        leases,
        auth: auth.to_change(),
        index: state.committed().0,
        term: state.epoch(),
        member: 1,
        bytes: state.sizes().in_use(),
        stored: state.sizes().in_use(),
    };
    save(contents, &Spool::new(dir)).await.unwrap()
}

fn content(saved: &SavedSnapshot) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(saved.len).unwrap()];
    saved.file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(saved.file.metadata().unwrap().len(), saved.len);
    bytes
}

/// Writes a database with its checksum to a file.
fn write(dir: &Path, database: &[u8]) -> PathBuf {
    let path = dir.join("snapshot.db");
    fs::write(&path, [database, &Sha256::digest(database)].concat()).unwrap();
    path
}

fn opened(dir: &Path, database: &[u8]) -> SnapshotFile {
    SnapshotFile::open(&write(dir, database), false).unwrap()
}

/// The versions in a database: revision, sub-revision, is a deletion, and the pair.
fn versions(database: &[u8]) -> Vec<(i64, i64, bool, mvccpb::KeyValue)> {
    let reader = Reader::open(database, database.len() as u64).unwrap();
    let (mut pairs, mut found) = (reader.bucket(b"key").unwrap().unwrap(), Vec::new());
    while let Some((key, value)) = pairs.next().unwrap() {
        let number = |at: usize| i64::from_be_bytes(key[at..at + 8].try_into().unwrap());
        let kv = mvccpb::KeyValue::decode(value).unwrap();
        found.push((number(0), number(9), key.len() == 18, kv));
    }
    found
}

/// The last event of each key at each revision.
fn last_events<'a>(events: impl Iterator<Item = (i64, &'a Bytes, &'a Bytes)>) -> BTreeMap<(i64, Bytes), Bytes> {
    events
        .map(|(revision, key, value)| ((revision, key.clone()), value.clone()))
        .collect()
}

fn by_member_1() -> RestoreOptions {
    RestoreOptions {
        member: 1,
        ..RestoreOptions::default()
    }
}

async fn agrees(log: impl Log + Clone, rows: impl Rows + Clone, file: &SnapshotFile, model: &Model) {
    let restored = restore(file, both(&log, &rows), &by_member_1()).await.unwrap();
    assert_eq!(restored.revision, model.revision());
    let mut engine = Engine::start(log, rows).await.unwrap();
    engine.check_revisions(model).await;
    let from = model.compacted().max(1) + 1;
    if from <= model.revision() {
        let history = engine.history(from).await;
        let events = history.iter().flat_map(|committed| &committed.events);
        let found = last_events(events.map(|Event { kv, .. }| (kv.mod_revision, &kv.key, &kv.value)));
        let expected = model.events_from(from);
        let expected = last_events(expected.map(|event| (event.kv.mod_revision, &event.kv.key, &event.kv.value)));
        assert_eq!(found, expected);
    }
    // Compaction finds the versions that it must delete.
    engine.put(b"after", b"").await.unwrap();
    engine.compact().await;
    let left = saved(&engine, &std::env::temp_dir()).await.versions;
    let range = pb::RangeRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        count_only: true,
        ..Default::default()
    };
    let Response::Range(counted) = engine.call(Request::Range(range)).await.unwrap() else {
        panic!("no range");
    };
    assert_eq!(left, u64::try_from(counted.count).unwrap());
    engine.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_store_answers_as_the_saved_one_at_every_revision() {
    let temp = TempDir::new().unwrap();
    for more in 0..4 {
        let (log, rows) = (MemLog::new(), MemRows::new());
        let mut engine = Engine::start(log.clone(), rows.clone()).await.unwrap();
        let (_, model) = run(seed() + more, requests(700), &mut engine).await;
        let database = content(&saved(&engine, temp.path()).await);
        engine.stop().await.unwrap();
        let again = Engine::start(log, rows).await.unwrap();
        let after_flush = content(&saved(&again, temp.path()).await);
        assert!(
            versions(&database) == versions(&after_flush),
            "a snapshot of rows and one of memory differ"
        );
        again.stop().await.unwrap();
        let file = opened(temp.path(), &database);
        agrees(MemLog::new(), MemRows::new(), &file, &model).await;
        let dir = TempDir::new().unwrap();
        let log = FileLog::open(&dir.path().join("log"), FileLogOptions::default()).unwrap();
        let rows = LsmRows::open(&dir.path().join("rows"), LsmOptions::default()).unwrap();
        agrees(log, rows, &file, &model).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_is_restored_to_tikv() {
    let temp = TempDir::new().unwrap();
    let mut engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    let (_, model) = run(seed(), requests(300), &mut engine).await;
    let file = opened(temp.path(), &content(&saved(&engine, temp.path()).await));
    engine.stop().await.unwrap();
    let tikv = mock_tikv::MockTikv::start(mock_tikv::Options::default().with_stores(3))
        .await
        .unwrap();
    let options = engine_tikv::ConnectOptions::new(vec![tikv.pd()], "restored");
    let (connected, supervisor) = engine_tikv::Tikv::connect(options).await.unwrap();
    let mut supervisors = JoinSet::new();
    supervisors.spawn(supervisor.run(CancellationToken::new()));
    let log = engine_tikv::TikvLog::keeping(connected.clone(), is_barrier);
    agrees(log, engine_tikv::TikvRows::new(connected), &file, &model).await;
}

/// Each revision puts two keys: a snapshot has both or none, and all revisions up to its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_taken_during_writes_is_of_one_revision() {
    let temp = TempDir::new().unwrap();
    let dir = TempDir::new().unwrap();
    let log = FileLog::open(&dir.path().join("log"), FileLogOptions::default()).unwrap();
    let rows = LsmRows::open(&dir.path().join("rows"), LsmOptions::default()).unwrap();
    let engine = Engine::start(log, rows).await.unwrap();
    let stop = CancellationToken::new();
    let mut writers = JoinSet::new();
    for writer in 0..4 {
        let kv = KvService {
            store: engine.kv.store.clone(),
        };
        let stop = stop.clone();
        writers.spawn(async move {
            let mut written = 0;
            while !stop.is_cancelled() {
                let put = |key: String| pb::RequestOp {
                    request: Some(pb::request_op::Request::RequestPut(pb::PutRequest {
                        key: key.into(),
                        value: vec![7; 300].into(),
                        ..Default::default()
                    })),
                };
                let key = written % 50;
                let txn = pb::TxnRequest {
                    success: vec![put(format!("b/{writer}/{key}")), put(format!("a/{writer}/{key}"))],
                    ..Default::default()
                };
                kv.txn(tonic::Request::new(txn)).await.unwrap();
                written += 1;
            }
            written
        });
    }
    let mut last = 0;
    for round in 0..6 {
        while engine.store.state.view().revision < last + 100 {
            tokio::task::yield_now().await;
        }
        let saved = saved(&engine, temp.path()).await;
        assert!(saved.revision > last, "round {round}: nothing was written");
        last = saved.revision;
        let found = versions(&content(&saved));
        assert_eq!(found.len() as u64, saved.versions);
        let expected: Vec<_> = (2..=last).flat_map(|revision| [(revision, 0), (revision, 1)]).collect();
        let numbers: Vec<_> = found.iter().map(|(revision, sub, ..)| (*revision, *sub)).collect();
        assert!(
            numbers == expected,
            "round {round}: revisions are missing, or there are too many"
        );
    }
    stop.cancel();
    let written: i64 = writers.join_all().await.into_iter().sum();
    assert_eq!(engine.store.state.view().revision, 1 + written);
    engine.stop().await.unwrap();
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0, "files are left");
}

/// However slowly the disk gives what a snapshot reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_go_on_while_a_snapshot_is_read() {
    let temp = TempDir::new().unwrap();
    let rows = PausableRows::new(MemRows::new(), Gates::default());
    let mut engine = Engine::start(MemLog::new(), rows.clone()).await.unwrap();
    let before = engine.puts(40).await;
    let earlier = rows.hooks.scan.hold();
    let reading = async {
        let saved = saved(&engine, temp.path()).await;
        let last = versions(&content(&saved)).last().map(|(revision, ..)| *revision);
        assert_eq!((saved.revision, last), (before, Some(before)));
    };
    let kv = KvService {
        store: engine.kv.store.clone(),
    };
    let writing = async {
        rows.hooks.scan.reached(earlier).await;
        for n in 0..200 {
            let put = pb::PutRequest {
                key: format!("key-{}", n % 50).into(),
                // Together more than one memtable, so that rows are written, too.
                value: vec![7; 100_000].into(),
                ..Default::default()
            };
            kv.put(tonic::Request::new(put)).await.unwrap();
        }
        rows.hooks.scan.release();
    };
    let both = async { tokio::join!(reading, writing) };
    timeout(STEP_TIMEOUT, both)
        .await
        .expect("writers wait for the snapshot");
    assert_eq!(engine.store.state.view().revision, before + 200);
    engine.stop().await.unwrap();
}

#[tokio::test]
async fn users_and_roles_are_restored() {
    let temp = TempDir::new().unwrap();
    let engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    Services::of(&engine).enable().await;
    let users = engine.store.state.auth().load().to_change();
    assert!(
        users.enabled && users.users.len() == 2 && users.roles.len() == 1,
        "{users:?}"
    );
    let file = opened(temp.path(), &content(&saved(&engine, temp.path()).await));
    engine.stop().await.unwrap();
    let (log, rows) = (MemLog::new(), MemRows::new());
    restore(&file, both(&log, &rows), &by_member_1()).await.unwrap();
    let restored = Engine::start(log, rows).await.unwrap();
    assert_eq!(restored.store.state.auth().load().to_change(), users);
    restored.stop().await.unwrap();
}

/// As by `etcdutl snapshot restore --bump-revision --mark-compacted`: clients that have seen what came after the snapshot begin anew.
#[tokio::test]
async fn bumped_revision_is_the_compacted_one_and_keys_are_as_before() {
    let temp = TempDir::new().unwrap();
    let mut engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    let before = engine.puts(40).await;
    let file = opened(temp.path(), &content(&saved(&engine, temp.path()).await));
    engine.stop().await.unwrap();
    let (log, rows) = (MemLog::new(), MemRows::new());
    let bumping = RestoreOptions {
        bump_revision: 1_000,
        ..by_member_1()
    };
    let restored = restore(&file, both(&log, &rows), &bumping).await.unwrap();
    let bumped = before + 1_000;
    assert_eq!((restored.revision, restored.compacted), (bumped, bumped));
    // Again, as one that was interrupted just before its end.
    let again = resume(&file, both(&log, &rows), &bumping).await.unwrap();
    assert_eq!(again, restored);
    let mut engine = Engine::start(log, rows).await.unwrap();
    assert_eq!(engine.store.state.view().revision, bumped);
    for seen in [2, before + 1, before + 50] {
        let refused = engine.store.history.read(seen, 1, PrevKv::Omitted).await;
        assert!(
            matches!(refused, Err(HistoryError::Compacted(to)) if to == bumped),
            "{refused:?}"
        );
    }
    assert_eq!(engine.mod_revision(b"key-5").await, Some(before));
    assert_eq!(engine.put(b"after", b"").await.unwrap(), bumped + 1);
    engine.stop().await.unwrap();
    let too_far = RestoreOptions {
        bump_revision: u64::MAX,
        ..by_member_1()
    };
    let refused = restore(&file, both(&MemLog::new(), &MemRows::new()), &too_far)
        .await
        .unwrap_err();
    assert!(refused.is::<UnfitSnapshot>(), "{refused:#}");
}

#[tokio::test]
async fn leases_keep_their_keys() {
    let temp = TempDir::new().unwrap();
    let mut engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    for (id, ttl) in [(7, 600), (-8, 70), (i64::MAX, 9_000_000_000)] {
        let grant = pb::LeaseGrantRequest { id, ttl };
        engine.call(Request::Grant(grant)).await.unwrap();
        for key in ["a", "b"] {
            let put = pb::PutRequest {
                key: format!("{id}/{key}").into(),
                lease: id,
                ..Default::default()
            };
            engine.call(Request::Put(put)).await.unwrap();
        }
    }
    // Detached again.
    engine.put(b"7/b", b"").await.unwrap();
    let file = opened(temp.path(), &content(&saved(&engine, temp.path()).await));
    engine.stop().await.unwrap();

    let (log, rows) = (MemLog::new(), MemRows::new());
    let restored = restore(&file, both(&log, &rows), &by_member_1()).await.unwrap();
    assert_eq!(
        restored,
        RestoreSummary {
            revision: 8,
            compacted: -1,
            versions: 7,
            leases: 3,
        }
    );
    let mut engine = Engine::start(log, rows).await.unwrap();
    for (id, ttl, keys) in [
        (7, 600, vec!["7/a"]),
        (-8, 70, vec!["-8/a", "-8/b"]),
        (
            i64::MAX,
            9_000_000_000,
            vec!["9223372036854775807/a", "9223372036854775807/b"],
        ),
    ] {
        let ask = pb::LeaseTimeToLiveRequest { id, keys: true };
        let Response::TimeToLive(found) = engine.call(Request::TimeToLive(ask)).await.unwrap() else {
            panic!("no time to live");
        };
        assert_eq!(
            (found.granted_ttl, found.keys),
            (ttl, keys.into_iter().map(Bytes::from).collect())
        );
    }
    engine
        .call(Request::Revoke(pb::LeaseRevokeRequest { id: -8 }))
        .await
        .unwrap();
    assert_eq!(engine.mod_revision(b"-8/a").await, None);
    assert_eq!(engine.mod_revision(b"7/b").await, Some(8));
    engine.stop().await.unwrap();
}

#[tokio::test]
async fn damaged_snapshots_are_refused() {
    let temp = TempDir::new().unwrap();
    let mut engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    engine.puts(40).await;
    let database = content(&saved(&engine, temp.path()).await);
    engine.stop().await.unwrap();
    let path = write(temp.path(), &database);
    let whole = fs::read(&path).unwrap();
    let expected = versions(&database);
    for at in (0..whole.len()).step_by(61) {
        let mut other = whole.clone();
        other[at] ^= 1;
        fs::write(&path, &other).unwrap();
        SnapshotFile::open(&path, false).unwrap_err();
        // Without the checksum not all of it can be found, but nothing worse comes of it.
        let file = SnapshotFile::open(&path, true).unwrap();
        let restored = restore(&file, both(&MemLog::new(), &MemRows::new()), &by_member_1()).await;
        if let Ok(restored) = restored {
            assert!(restored.versions <= expected.len() as u64);
        }
    }
    for len in [
        0,
        1,
        31,
        32,
        4_096,
        whole.len() - 4_096,
        whole.len() - 32,
        whole.len() - 1,
    ] {
        fs::write(&path, &whole[..len]).unwrap();
        SnapshotFile::open(&path, false).unwrap_err();
    }
}

/// Reads a file of etcd that was compacted, deletes and leases in it, so that the format is not only what is written here.
#[tokio::test]
async fn snapshot_of_etcd_is_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/etcd-3.6.db");
    let file = SnapshotFile::open(&path, false).unwrap();
    // As `etcdutl snapshot status` prints it.
    assert_eq!(file.status().unwrap().to_string(), "ea578792, 10, 5, 20 kB, 3.6.0");
    let (log, rows) = (MemLog::new(), MemRows::new());
    let restored = restore(&file, both(&log, &rows), &by_member_1()).await.unwrap();
    assert_eq!((restored.revision, restored.compacted, restored.leases), (10, 8, 1));
    let mut engine = Engine::start(log, rows).await.unwrap();
    for (key, revision, found) in [
        ("k1", 10, Some(8)),
        ("k2", 9, Some(3)),
        ("k2", 10, None),
        ("leased", 8, None),
        ("leased", 10, Some(9)),
    ] {
        assert_eq!(engine.mod_revision_at(key.as_bytes(), revision).await, found, "{key}");
    }
    let events = engine
        .history(9)
        .await
        .iter()
        .map(|committed| committed.events.len())
        .sum::<usize>();
    assert_eq!(events, 2);
    engine.stop().await.unwrap();
}
