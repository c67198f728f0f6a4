//! What a leader may answer without a record: a txn that changes nothing proves to nobody who leads.

use std::time::Duration;

use brain::api::elsewhere::{Elsewhere, Right, Role};
use brain::api::kv::KvService;
use brain::api::request::Limits;
use brain::api::store::Store;
use brain::log::MemLog;
use brain::pb::etcdserverpb as pb;
use brain::rows::mem::MemRows;
use brain::state::since_boot;
use bytes::Bytes;
use pb::kv_server::Kv as _;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::engine::Engine;

const KEY: &[u8] = b"key";

/// When the right is renewed that is waited for.
const RENEWED: Duration = Duration::from_millis(300);

/// A leader that is asked by a follower, and who says how long it may lead.
struct Asked {
    engine: Engine<MemLog, MemRows>,
    kv: KvService<MemRows>,
    roles: watch::Sender<Role>,
}

impl Asked {
    async fn start(right: &Right) -> Self {
        let engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
        let roles = watch::Sender::new(Role::Leading(right.clone()));
        let store = Store {
            state: engine.store.state.clone(),
            sequencer: engine.store.sequencer.clone(),
            elsewhere: Elsewhere::new(roles.subscribe()).last(),
            limits: Limits {
                txn_ops: 128,
                request_bytes: 1_572_864,
                key_bytes: 30_000,
            },
            cluster_id: 7,
            member_id: 1,
        };
        let kv = KvService {
            store,
            stop: CancellationToken::new(),
        };
        Self { engine, kv, roles }
    }

    async fn put(&self) -> Result<Response<pb::PutResponse>, Status> {
        let put = pb::PutRequest {
            key: Bytes::from_static(KEY),
            ..pb::PutRequest::default()
        };
        self.kv.put(Request::new(put)).await
    }

    /// A put under a condition that does not hold.
    async fn fail(&self) -> Result<Response<pb::TxnResponse>, Status> {
        let put = pb::PutRequest {
            key: Bytes::from_static(KEY),
            ..pb::PutRequest::default()
        };
        let txn = pb::TxnRequest {
            compare: vec![pb::Compare {
                target: pb::compare::CompareTarget::Version as i32,
                key: Bytes::from_static(KEY),
                target_union: Some(pb::compare::TargetUnion::Version(100)),
                ..pb::Compare::default()
            }],
            success: vec![pb::RequestOp {
                request: Some(pb::request_op::Request::RequestPut(put)),
            }],
            failure: Vec::new(),
        };
        self.kv.txn(Request::new(txn)).await
    }

    /// A put that is refused because of what is stored.
    async fn refused(&self) -> Result<Response<pb::PutResponse>, Status> {
        let put = pb::PutRequest {
            key: Bytes::from_static(KEY),
            lease: 4711,
            ..pb::PutRequest::default()
        };
        self.kv.put(Request::new(put)).await
    }
}

fn message<T: std::fmt::Debug>(answer: Result<T, Status>) -> String {
    answer.unwrap_err().message().to_owned()
}

#[tokio::test(start_paused = true)]
async fn who_may_not_lead_any_more_answers_nothing_from_memory() {
    let right = Right::none();
    let asked = Asked::start(&right).await;
    asked.put().await.expect("a record proves it");
    let ends = async {
        tokio::task::yield_now().await;
        // Another term of this member's: somebody else may have led in between.
        let next = Right::none();
        next.extend(since_boot() + Duration::from_secs(3_600));
        asked.roles.send_replace(Role::Leading(next));
    };
    let (failed, refused, ()) = tokio::join!(asked.fail(), asked.refused(), ends);
    assert_eq!(message(failed), "etcdserver: not leader");
    assert_eq!(message(refused), "etcdserver: not leader");
    asked.engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_answered_from_memory_waits_for_the_right() {
    let right = Right::none();
    let asked = Asked::start(&right).await;
    asked.put().await.unwrap();
    let renewed = async {
        tokio::time::sleep(RENEWED).await;
        right.extend(since_boot() + Duration::from_secs(3_600));
    };
    let begun = Instant::now();
    let (failed, ()) = tokio::join!(asked.fail(), renewed);
    assert!(!failed.unwrap().get_ref().succeeded);
    assert!(begun.elapsed() >= RENEWED, "{:?}", begun.elapsed());
    assert_eq!(message(asked.refused().await), "etcdserver: requested lease not found");
    asked.engine.stop().await.unwrap();
}
