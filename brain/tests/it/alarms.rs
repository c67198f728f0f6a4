//! Alarms that clients raise.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use api::maintenance::{HashLimit, MaintenanceService, SnapshotSender};
use backup::snapshot::Spool;
use cluster::members::Members;
use engine::log::MemLog;
use engine::rows::Rows;
use engine::rows::mem::MemRows;
use etcd_types::errors::Error;
use etcd_types::types::Caller;
use pb::maintenance_server::Maintenance as _;
use store::alarm::{CORRUPT, NOSPACE};
use store::sequencer::command::Command;
use store::sequencer::{SpaceLevel, SpaceQuota};
use tonic::{Code, Request as Ask};

use crate::engine::Engine;
use crate::wire::{Request, Target as _, pb};

const ALARM_ACTIVATE: i32 = 1;
const NOSPACE_ALARM: i32 = 1;

/// As etcd, which takes a txn within a txn for a write.
#[tokio::test]
async fn corrupt_alarm_stops_txns_within_txns_and_no_other_reads() {
    let mut engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    let txn = |op| pb::TxnRequest {
        success: vec![pb::RequestOp { request: Some(op) }],
        ..pb::TxnRequest::default()
    };
    let range = pb::RangeRequest {
        key: "key".into(),
        ..pb::RangeRequest::default()
    };
    let reads = txn(pb::request_op::Request::RequestRange(range));
    let nested = txn(pb::request_op::Request::RequestTxn(reads.clone()));
    for raised in [false, true, false] {
        let alarm = Command::Alarm(1, CORRUPT, raised);
        let (sequencer, state) = (&engine.store.sequencer, &engine.store.state);
        let changed = sequencer.propose(state, Caller::Server, alarm, 64).await;
        changed.result.unwrap();
        engine.call(Request::Txn(reads.clone())).await.unwrap();
        let answer = engine.call(Request::Txn(nested.clone())).await;
        let refused = answer.err().map(|refused| refused.text);
        assert_eq!(refused.as_deref(), raised.then_some("etcdserver: corrupt cluster"));
    }
    engine.stop().await.unwrap();
}

#[tokio::test]
async fn alarms_are_those_of_members_and_of_known_kinds() {
    let engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    let member = pb::Member {
        id: 7,
        ..Default::default()
    };
    let mut store = engine.kv.store.clone();
    store.members = Members::new([member]);
    let maintenance = MaintenanceService {
        snapshots: SnapshotSender::new(Spool::new(&std::env::temp_dir())),
        hashes: HashLimit::default(),
        store,
        size: Arc::new(|| 0),
        size_in_use: Arc::new(|| 0),
        defragment: Arc::new(|| Box::pin(async { Ok(()) })),
        quota: 0,
        move_leader: Arc::new(|_| Box::pin(async { Err(Error::NotLeader) })),
    };
    let alarm = async |action, member_id, alarm| {
        let request = pb::AlarmRequest {
            action,
            member_id,
            alarm,
        };
        maintenance.alarm(Ask::new(request)).await
    };
    for kind in [3, -1, i32::MAX] {
        let refused = alarm(ALARM_ACTIVATE, 7, kind).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    }
    for stranger in [1, 6, u64::MAX] {
        let refused = alarm(ALARM_ACTIVATE, stranger, NOSPACE_ALARM).await.unwrap_err();
        assert_eq!(refused.message(), "etcdserver: member not found");
    }
    assert!(engine.store.state.alarms().is_empty());
    for member in [0, 7] {
        alarm(ALARM_ACTIVATE, member, NOSPACE_ALARM).await.unwrap();
    }
    assert_eq!(engine.store.state.alarms().len(), 2);
    for member in [0, 7] {
        alarm(2, member, NOSPACE_ALARM).await.unwrap();
    }
    assert!(engine.store.state.alarms().is_empty());
    engine.stop().await.unwrap();
}

/// The level that the test sets.
#[derive(Clone, Default)]
struct SetSpace(Arc<AtomicU8>);

impl SetSpace {
    fn set(&self, level: SpaceLevel) {
        self.0.store(level as u8, Ordering::SeqCst);
    }
}

impl SpaceQuota for SetSpace {
    fn level(&self, _: &dyn Fn() -> u64, _: &dyn Rows) -> SpaceLevel {
        let levels = [SpaceLevel::Ample, SpaceLevel::Low, SpaceLevel::Exhausted];
        levels[usize::from(self.0.load(Ordering::SeqCst))]
    }
}

#[tokio::test(start_paused = true)]
async fn nospace_is_disarmed_once_space_has_been_ample_for_ten_seconds() {
    let space = SetSpace::default();
    let mut engine = Engine::start_disarming(space.clone()).await.unwrap();
    let put = || {
        Request::Put(pb::PutRequest {
            key: "key".into(),
            value: "value".into(),
            ..pb::PutRequest::default()
        })
    };
    engine.call(put()).await.unwrap();
    space.set(SpaceLevel::Exhausted);
    let state = engine.store.state.clone();
    let raised = || state.has_alarm(NOSPACE);
    let until = async |is_raised| {
        while raised() != is_raised {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    until(true).await;
    // A client's alarm is another one, which does not outlive the first.
    let alarm = Command::Alarm(7, NOSPACE, true);
    let asked = engine.store.sequencer.propose(&state, Caller::Server, alarm, 64).await;
    asked.result.unwrap();
    for level in [SpaceLevel::Exhausted, SpaceLevel::Low] {
        space.set(level);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(raised(), "{level:?}");
        engine.call(put()).await.unwrap_err();
    }
    space.set(SpaceLevel::Ample);
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert!(raised());
    // Space that is low for a moment begins the time anew.
    space.set(SpaceLevel::Low);
    tokio::time::sleep(Duration::from_secs(1)).await;
    space.set(SpaceLevel::Ample);
    let again = tokio::time::Instant::now();
    until(false).await;
    assert!(again.elapsed() >= Duration::from_secs(9), "{:?}", again.elapsed());
    assert!(state.alarms().is_empty());
    engine.call(put()).await.unwrap();
    engine.stop().await.unwrap();
}
