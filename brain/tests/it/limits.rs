//! The limits of the engine: what a flush writes at once, what it does when rows refuse it, what compaction reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use api::request::{self, RequestLimits};
use bytes::Bytes;
use engine::hooked::{HookedLog, HookedRows, LogHooks, RowsHooks};
use engine::log::{Log, MemLog, Slot};
use engine::rows::mem::MemRows;
use engine::rows::{RowChange, Rows, RowsError, StepSize};
use etcd_types::errors::Error;
use etcd_types::types::Caller;
use mvcc::auth::{AuthRequest, Permission};
use store::alarm::CORRUPT;
use store::sequencer::command::Command;
use tokio::time::timeout;

use crate::engine::Engine;
use crate::failing_rows::failing_after;
use crate::pausable_rows::{Gates, PausableRows};
use crate::wire::{Request, Response, Target, pb};

/// Limits of one step of the rows, as on TiKV.
const ROWS_STEP: StepSize = StepSize {
    rows: 128,
    bytes: 8 << 10,
    at_once: 4,
};

/// Maximum age of a snapshot of the rows.
const MAX_SNAPSHOT_AGE: Duration = Duration::from_secs(60);

/// Rows that refuse long values, and count the rows of their largest step.
#[derive(Clone)]
struct ValueLimit {
    longest: Arc<AtomicUsize>,
    largest: Arc<AtomicUsize>,
}

type Limited = HookedRows<MemRows, ValueLimit>;

fn limited() -> Limited {
    let hooks = ValueLimit {
        longest: Arc::new(AtomicUsize::new(usize::MAX)),
        largest: Arc::default(),
    };
    HookedRows::new(MemRows::new(), hooks)
}

impl ValueLimit {
    fn refuse_longer_than(&self, bytes: usize) {
        self.longest.store(bytes, Ordering::SeqCst);
    }
}

impl RowsHooks for ValueLimit {
    async fn before_apply(&self, changes: &[RowChange]) -> Result<(), RowsError> {
        let longest = self.longest.load(Ordering::SeqCst);
        let is_long = |change: &RowChange| matches!(change, RowChange::Put(_, value) if value.len() > longest);
        if changes.iter().any(is_long) {
            return Err(RowsError::Refused(format!("a value of more than {longest} bytes")));
        }
        self.largest.fetch_max(changes.len(), Ordering::SeqCst);
        Ok(())
    }

    fn renew_after(&self, _: Option<Duration>) -> Option<Duration> {
        Some(MAX_SNAPSHOT_AGE)
    }

    fn step(&self, _: StepSize) -> StepSize {
        ROWS_STEP
    }
}

/// The bytes that are read from a log.
#[derive(Clone, Default)]
struct BytesRead(Arc<AtomicUsize>);

impl LogHooks for BytesRead {
    fn after_read(&self, slots: &[(Slot, Bytes)]) {
        let bytes = slots.iter().map(|(_, record)| record.len()).sum();
        self.0.fetch_add(bytes, Ordering::SeqCst);
    }
}

async fn is_alarmed(engine: &Engine) -> bool {
    let raised = async {
        while !engine.store.state.has_alarm(CORRUPT) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(60), raised).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn refused_flush_stops_writes_and_serves_reads() {
    let (log, rows) = (MemLog::new(), limited());
    let mut engine = Engine::start(log.clone(), rows.clone()).await.unwrap();
    engine.put(b"a", b"short").await.unwrap();
    rows.hooks.refuse_longer_than(100);
    let last = engine.put(b"b", &[7; 200]).await.unwrap();
    assert!(is_alarmed(&engine).await, "no alarm was raised");
    let refused = engine.put(b"c", b"short").await.unwrap_err();
    assert_eq!(refused.text, "etcdserver: corrupt cluster");
    assert_eq!(engine.mod_revision(b"b").await, Some(last));
    timeout(Duration::from_secs(5), engine.stop()).await.unwrap().unwrap();

    let mut again = Engine::start(log.clone(), rows.clone()).await.unwrap();
    assert_eq!(again.mod_revision(b"b").await, Some(last));
    again.put(b"c", b"short").await.unwrap_err();
    // An alarm that is disarmed while its cause remains is raised again.
    let disarm = Command::Alarm(1, CORRUPT, false);
    again
        .store
        .sequencer
        .propose(&again.store.state, Caller::Server, disarm, 64)
        .await
        .result
        .unwrap();
    assert!(is_alarmed(&again).await, "the alarm did not come back");
    rows.hooks.refuse_longer_than(usize::MAX);
    tokio::time::sleep(Duration::from_secs(61)).await;
    let disarm = Command::Alarm(1, CORRUPT, false);
    again
        .store
        .sequencer
        .propose(&again.store.state, Caller::Server, disarm, 64)
        .await
        .result
        .unwrap();
    tokio::time::sleep(Duration::from_secs(61)).await;
    again.put(b"c", b"short").await.unwrap();
    again.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn refusal_that_passes_raises_no_alarm() {
    let rows = limited();
    let gated = PausableRows::new(rows.clone(), Gates::default());
    let mut engine = Engine::start(MemLog::new(), gated.clone()).await.unwrap();
    rows.hooks.refuse_longer_than(100);
    let last = engine.put(b"a", &[7; 200]).await.unwrap();
    for _ in 0..3 {
        let before = gated.hooks.change.passed();
        gated.hooks.change.reached(before).await;
    }
    rows.hooks.refuse_longer_than(usize::MAX);
    while engine.store.state.view().memtables.get(b"a", last).is_some() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(!engine.store.state.has_alarm(CORRUPT));
    engine.put(b"b", b"v").await.unwrap();
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn views_stay_young_while_a_flush_waits() {
    let rows = limited();
    let gated = PausableRows::new(rows.clone(), Gates::default());
    let mut engine = Engine::start(MemLog::new(), gated.clone()).await.unwrap();
    let before = gated.hooks.change.hold();
    let mut last = 0;
    for n in 0..2 * ROWS_STEP.rows {
        last = engine.put(format!("key-{n:03}").as_bytes(), b"").await.unwrap();
    }
    // Some of the flush is written, the next step waits.
    gated.hooks.change.reached(before).await;
    gated.hooks.change.step().await;
    let young = async {
        for _ in 0..3 {
            let before = gated.hooks.snapshot.passed();
            gated.hooks.snapshot.reached(before).await;
        }
    };
    timeout(10 * MAX_SNAPSHOT_AGE, young).await.expect("younger snapshots");
    let absent = engine.mod_revision(b"key-999").await;
    let newest = engine
        .mod_revision(format!("key-{:03}", 2 * ROWS_STEP.rows - 1).as_bytes())
        .await;
    assert_eq!((absent, newest), (None, Some(last)));
    assert_eq!(engine.mod_revision(b"key-000").await, Some(2));
    gated.hooks.change.release();
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn views_stay_young_while_rows_refuse_a_flush() {
    let rows = limited();
    let gated = PausableRows::new(rows.clone(), Gates::default());
    let mut engine = Engine::start(MemLog::new(), gated.clone()).await.unwrap();
    rows.hooks.refuse_longer_than(100);
    engine.put(b"a", &[7; 200]).await.unwrap();
    assert!(is_alarmed(&engine).await, "no alarm was raised");
    let young = async {
        for _ in 0..3 {
            let before = gated.hooks.snapshot.passed();
            gated.hooks.snapshot.reached(before).await;
        }
    };
    timeout(10 * MAX_SNAPSHOT_AGE, young).await.expect("younger snapshots");
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn flushes_go_before_the_deletion_of_a_large_revision() {
    const KEYS: usize = 40 * ROWS_STEP.rows;
    let rows = limited();
    let gated = PausableRows::new(rows.clone(), Gates::default());
    let mut engine = Engine::start(MemLog::new(), gated.clone()).await.unwrap();
    for n in 0..KEYS {
        engine.put(format!("key-{n:05}").as_bytes(), b"v").await.unwrap();
    }
    let all = pb::DeleteRangeRequest {
        key: "key-".into(),
        range_end: "key.".into(),
        ..Default::default()
    };
    engine.call(Request::Delete(all)).await.unwrap();
    let deleted = engine.put(b"other", b"v").await.unwrap();
    let flushed = async {
        while engine.store.state.view().rows_revision < deleted {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(10 * MAX_SNAPSHOT_AGE, flushed)
        .await
        .expect("the delete is flushed");
    // Nothing is written any more but what passes step by step.
    let before = gated.hooks.change.hold();
    let compact = pb::CompactionRequest {
        revision: deleted,
        physical: false,
    };
    engine.call(Request::Compact(compact)).await.unwrap();
    gated.hooks.change.reached(before).await;
    for _ in 0..4 {
        gated.hooks.change.step().await;
    }
    let later = engine.put(b"later", b"v").await.unwrap();
    let mut steps = 0;
    while engine.store.state.view().rows_revision < later {
        gated.hooks.change.step().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        steps += 1;
        assert!(steps < 20, "the flush waits for {} rows", 2 * KEYS);
    }
    gated.hooks.change.release();
    engine.compact().await;
    assert_eq!(engine.mod_revision(b"later").await, Some(later));
    engine.stop().await.unwrap();
}

async fn grant(engine: &mut Engine, id: i64) {
    let grant = pb::LeaseGrantRequest { ttl: 600, id };
    engine.call(Request::Grant(grant)).await.unwrap();
}

async fn attach(engine: &mut Engine, key: String, lease: i64) {
    let put = pb::PutRequest {
        key: key.into(),
        lease,
        ..Default::default()
    };
    engine.call(Request::Put(put)).await.unwrap();
}

async fn attached(engine: &mut Engine, id: i64) -> (i64, Vec<Bytes>) {
    let ask = pb::LeaseTimeToLiveRequest { id, keys: true };
    match engine.call(Request::TimeToLive(ask)).await.unwrap() {
        Response::TimeToLive(found) => (found.granted_ttl, found.keys),
        other => panic!("{other:?}"),
    }
}

const LEASES: i64 = 300;

/// Grants leases and attaches keys in a first flush; ends leases, moves keys and grants again in a second one.
async fn lease_changes(engine: &mut Engine) {
    for id in 1..=LEASES {
        attach(engine, format!("key-{}", id % 100), 1 + id % 7).await;
    }
    for id in 8..40 {
        engine
            .call(Request::Revoke(pb::LeaseRevokeRequest { id }))
            .await
            .unwrap();
        grant(engine, id).await;
        attach(engine, format!("key-{id}"), id).await;
    }
    for id in [2, 3] {
        engine
            .call(Request::Revoke(pb::LeaseRevokeRequest { id }))
            .await
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn lease_rows_are_flushed_in_bounded_steps() {
    let (log, rows) = (MemLog::new(), limited());
    let mut engine = Engine::start(log, rows.clone()).await.unwrap();
    for id in 1..=LEASES {
        grant(&mut engine, id).await;
    }
    engine.stop().await.unwrap();
    let largest = rows.hooks.largest.load(Ordering::SeqCst);
    assert!(
        largest <= ROWS_STEP.rows,
        "{largest} rows in one step of at most {}",
        ROWS_STEP.rows
    );
}

#[tokio::test(start_paused = true)]
async fn flush_of_leases_that_was_cut_short_is_done_again() {
    let mut cuts = 0;
    for writes in 1.. {
        let (log, rows) = (MemLog::new(), limited());
        let mut first = Engine::start(log.clone(), rows.clone()).await.unwrap();
        for id in 1..=LEASES {
            grant(&mut first, id).await;
        }
        first.stop().await.unwrap();
        // All of it is in the log, and nothing in rows.
        let gated = PausableRows::new(rows.clone(), Gates::default());
        let mut second = Engine::start(log.clone(), gated.clone()).await.unwrap();
        gated.hooks.change.hold();
        lease_changes(&mut second).await;
        let mut expected = Vec::new();
        for id in 1..=LEASES {
            expected.push(attached(&mut second, id).await);
        }
        let sizes = second.store.state.sizes();
        second.kill().await;
        let cut = failing_after(writes, rows.clone());
        let is_cut = match Engine::start(log.clone(), cut).await {
            Ok(third) => third.stop().await.is_err(),
            Err(_) => true,
        };
        // As the log has it, then as the rows have it.
        for _ in 0..2 {
            let mut again = Engine::start(log.clone(), rows.clone()).await.unwrap();
            for (id, expected) in (1..).zip(&expected) {
                let found = attached(&mut again, id).await;
                assert!(found == *expected, "lease {id} after {writes} writes: {found:?}");
            }
            assert_eq!(again.store.state.sizes(), sizes);
            again.stop().await.unwrap();
        }
        if !is_cut {
            break;
        }
        cuts += 1;
    }
    assert!(cuts >= 3, "the flush took {cuts} steps");
}

#[tokio::test(start_paused = true)]
async fn compaction_reads_the_log_about_once() {
    let (log, rows) = (MemLog::new(), limited());
    let log = HookedLog::new(log.clone(), BytesRead::default());
    let mut engine = Engine::start(log.clone(), rows.clone()).await.unwrap();
    for n in 0..4_000 {
        engine
            .put(format!("key-{}", n % 100).as_bytes(), &[7; 1_000])
            .await
            .unwrap();
    }
    let written = usize::try_from(log.size()).unwrap();
    let before = log.hooks.0.load(Ordering::SeqCst);
    engine.compact().await;
    let read = log.hooks.0.load(Ordering::SeqCst) - before;
    assert!(read < 2 * written, "{read} bytes were read of a log of {written} bytes");
    assert!(read > written / 2);
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn sizes_are_those_of_the_rows() {
    let (log, rows) = (MemLog::new(), limited());
    let mut engine = Engine::start(log.clone(), rows.clone()).await.unwrap();
    let everything = pb::DeleteRangeRequest {
        key: "key-3".into(),
        range_end: "\0".into(),
        ..Default::default()
    };
    let put = |key: &'static str| pb::RequestOp {
        request: Some(pb::request_op::Request::RequestPut(pb::PutRequest {
            key: key.into(),
            value: "again".into(),
            ..Default::default()
        })),
    };
    let delete = pb::RequestOp {
        request: Some(pb::request_op::Request::RequestDeleteRange(everything.clone())),
    };
    for round in 0..3 {
        for n in 0..300_u32 {
            let key = [format!("key-{}", n % 90).as_bytes(), &[0; 3]].concat();
            engine.put(&key, &vec![7; n as usize]).await.unwrap();
        }
        let success = match round {
            0 => vec![put("key-4")],
            1 => vec![delete.clone(), put("key-4"), put("key-0")],
            _ => vec![put("key-5"), delete.clone()],
        };
        let txn = pb::TxnRequest {
            success,
            ..Default::default()
        };
        engine.call(Request::Txn(txn)).await.unwrap();
        let revision = engine.store.state.view().revision;
        if round > 0 {
            engine.compact_at(revision - 10).await;
        }
        let sizes = engine.store.state.sizes();
        engine.stop().await.unwrap();
        engine = Engine::start(log.clone(), rows.clone()).await.unwrap();
        assert_eq!(engine.store.state.sizes(), sizes, "round {round}");
        // A key that one txn puts and deletes counts twice until it is compacted.
        let stored = rows.size().unwrap();
        assert!(
            sizes.in_use().abs_diff(stored) < 100,
            "round {round}: {sizes:?}, {stored} stored"
        );
    }
    let before = engine.store.state.sizes();
    engine.compact().await;
    let after = engine.store.state.sizes();
    assert_eq!(Some(after.in_use()), rows.size());
    // Of the log hardly more is retained than the revision of the compaction.
    let retained = after.total() - after.in_use();
    assert!(
        retained < 5_000 && before.total() > after.total(),
        "{before:?} {after:?}"
    );
    engine.stop().await.unwrap();
}

#[tokio::test]
async fn values_that_rows_do_not_take_are_refused_at_once() {
    let mut limits = RequestLimits::new(128, usize::MAX >> 1, &MemRows::new());
    (limits.key_bytes, limits.value_bytes) = (10, 100);
    let put = |key: usize, value: usize| pb::PutRequest {
        key: vec![b'k'; key].into(),
        value: vec![b'v'; value].into(),
        ..Default::default()
    };
    let refused = |put: &pb::PutRequest| request::put(put, &limits).err().map(|error| format!("{error:?}"));
    assert_eq!(refused(&put(10, 100)), None);
    for too_large in [put(11, 0), put(1, 101)] {
        assert_eq!(refused(&too_large).as_deref(), Some("RequestTooLarge"));
        let op = pb::request_op::Request::RequestPut(too_large);
        let txn = pb::TxnRequest {
            failure: vec![pb::RequestOp { request: Some(op) }],
            ..Default::default()
        };
        let refused = request::txn(&txn, &limits).err().map(|error| format!("{error:?}"));
        assert_eq!(refused.as_deref(), Some("RequestTooLarge"));
    }
}

/// A put that keeps a long value is short itself; its record is not.
#[tokio::test(start_paused = true)]
async fn records_are_bounded_by_the_changes_and_not_by_the_requests() {
    const LONG_KEY_BYTES: usize = 60 << 10; // of the 64 KiB of a record in these tests
    let mut engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    engine.put(b"long", &vec![b'v'; LONG_KEY_BYTES]).await.unwrap();
    let role = || "r".to_owned();
    let permission = |key: Vec<u8>| Permission {
        kind: 0,
        key: key.into(),
        range_end: Bytes::new(),
    };
    let (sequencer, state) = (engine.store.sequencer.clone(), engine.store.state.clone());
    let change = async |request| {
        let change = Command::Auth(request, usize::MAX);
        let changed = sequencer.propose(&state, Caller::Server, change, 64).await;
        changed.result.map(drop)
    };
    change(AuthRequest::AddRole(role())).await.unwrap();
    let long = permission(vec![b'k'; LONG_KEY_BYTES]);
    change(AuthRequest::GrantPermission(role(), Some(long))).await.unwrap();
    let before = state.committed().0;
    let kv = &engine.kv;
    let puts = (0..40).map(|_| {
        let put = pb::PutRequest {
            key: "long".into(),
            ignore_value: true,
            ..pb::PutRequest::default()
        };
        async move { drop(pb::kv_server::Kv::put(kv, tonic::Request::new(put)).await.unwrap()) }
    });
    let grants = (0..40_u8).map(|n| change(AuthRequest::GrantPermission(role(), Some(permission(vec![n])))));
    let grants = async {
        futures::future::join_all(grants)
            .await
            .into_iter()
            .for_each(Result::unwrap)
    };
    tokio::join!(futures::future::join_all(puts), grants);
    let batches = state.committed().0 - before;
    assert!(batches >= 40, "{batches} batches of two requests at most");
    assert_eq!(engine.mod_revision(b"long").await, Some(42));
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn users_and_roles_grow_up_to_a_limit_and_can_be_deleted_then() {
    let engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    let (sequencer, state) = (engine.store.sequencer.clone(), engine.store.state.clone());
    let change = async |request| {
        let change = Command::Auth(request, usize::MAX);
        let changed = sequencer.propose(&state, Caller::Server, change, 64).await;
        changed.result.map(drop)
    };
    let name = |n: usize| format!("{n:060000}");
    let mut roles = 0;
    let refused = loop {
        match change(AuthRequest::AddRole(name(roles))).await {
            Ok(()) => roles += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::RequestTooLarge), "{refused:?}");
    assert!((200..300).contains(&roles), "{roles} roles");
    for _ in 0..2 {
        change(AuthRequest::DeleteRole(name(0))).await.unwrap();
        change(AuthRequest::AddRole(name(0))).await.unwrap();
        assert!(change(AuthRequest::AddRole(name(roles))).await.is_err());
    }
    engine.stop().await.unwrap();
}
