//! A leader that can renew its lock and gets nothing into its log, or out of it: another member leads.

use std::sync::Arc;
use std::time::Duration;

use api::health::StoreHealth;
use api::kv::KvService;
use bytes::Bytes;
use cluster::forward::Role;
use cluster::lock::StorageLock;
use engine::cas_register::mem::MemRegister;
use engine::hooked::{HookedLog, LogHooks};
use engine::log::frame::is_barrier;
use engine::log::{LogError, MemLog, Slot};
use engine::rows::mem::MemRows;
use net::http::HealthChecks as _;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::locks::{LockView, Member};
use crate::wire::pb::PutRequest;
use crate::wire::pb::kv_server::Kv as _;

/// Timeout of each step of a test.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Time within which a process must end, even if its storage is stuck.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between flushes.
const FLUSH_INTERVAL: Duration = Duration::from_millis(50);

/// Which requests of a connection to a log get through; the others hang until they do.
#[derive(Clone)]
pub(crate) struct Open {
    appends: watch::Sender<bool>,
    reads: watch::Sender<bool>,
}

async fn pass(open: &watch::Sender<bool>) {
    open.subscribe().wait_for(|open| *open).await.map(drop).unwrap();
}

impl LogHooks for Open {
    async fn before_append(&self, _: Slot) {
        pass(&self.appends).await;
    }

    async fn before_read(&self, _: Slot) -> Result<(), LogError> {
        pass(&self.reads).await;
        Ok(())
    }

    async fn before_watermark(&self) {
        pass(&self.reads).await;
    }
}

/// A member's connection to a log that others reach by connections of their own.
pub(crate) type Way = HookedLog<MemLog, Open>;

pub(crate) fn way_to(log: &MemLog) -> Way {
    let hooks = Open {
        appends: watch::Sender::new(true),
        reads: watch::Sender::new(true),
    };
    HookedLog::new(log.clone(), hooks)
}

impl Open {
    fn cut(&self) {
        self.appends.send_replace(false);
        self.reads.send_replace(false);
    }

    pub(crate) fn cut_appends(&self) {
        self.appends.send_replace(false);
    }

    pub(crate) fn mend(&self) {
        self.appends.send_replace(true);
        self.reads.send_replace(true);
    }
}

/// Two members of one store, which compete for one lock.
struct Pair {
    ways: [Way; 2],
    rows: MemRows,
    view: LockView,
}

impl Pair {
    fn new() -> Self {
        let log = MemLog::keeping(is_barrier);
        Self {
            ways: [way_to(&log), way_to(&log)],
            rows: MemRows::new(),
            view: LockView::Shared(StorageLock::new(Arc::new(MemRegister::new()), "the lock")),
        }
    }

    async fn start(&self, member: usize) -> Member {
        let engine = (self.ways[member].clone(), self.rows.clone());
        Member::start(member as u64 + 1, engine, &self.view, FLUSH_INTERVAL).await
    }
}

async fn leads(member: &Member) {
    timeout(STEP_TIMEOUT, member.leads()).await.expect("it does not lead");
}

/// Returns the reason that a member gives for not being ready to lead.
async fn cannot_lead(member: &Member) -> String {
    let why = async {
        loop {
            match StoreHealth(member.kv.store.clone()).linearizable_read().await {
                Err(why) if why.contains("cannot lead") => return why,
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    timeout(STEP_TIMEOUT, why).await.expect("it says nothing")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_appends_hang_is_followed_by_another_member_and_leads_again_when_it_can() {
    let pair = Pair::new();
    let first = pair.start(0).await;
    leads(&first).await;
    assert_eq!(first.add((0, 0)).await.unwrap(), Some(2));
    let second = pair.start(1).await;
    pair.ways[0].hooks.cut();
    let unknown = first.add((1, 2)).await.unwrap_err();
    assert_eq!(unknown.message(), "etcdserver: request timed out");
    leads(&second).await;
    // The write was not there before the barrier of the second one.
    assert_eq!(second.add((1, 2)).await.unwrap(), Some(3));
    assert!(cannot_lead(&first).await.contains("storage has not answered an append"));
    // No member holds the lock, and still the first one does not take it.
    second.stop().await;
    let mut roles = first.roles.clone();
    let leads_again = roles.wait_for(|role| matches!(role, Role::Leading(_)));
    assert!(
        timeout(STOP_TIMEOUT, leads_again).await.is_err(),
        "it leads without a log"
    );
    pair.ways[0].hooks.mend();
    leads(&first).await;
    assert_eq!(first.read().await, Some((2, 3)));
    StoreHealth(first.kv.store.clone()).linearizable_read().await.unwrap();
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_cannot_begin_its_term_leaves_the_lock_to_another() {
    let pair = Pair::new();
    pair.ways[0].hooks.appends.send_replace(false);
    let first = pair.start(0).await;
    cannot_lead(&first).await;
    let second = pair.start(1).await;
    leads(&second).await;
    assert_eq!(second.add((0, 0)).await.unwrap(), Some(2));
    for member in [first, second] {
        timeout(STOP_TIMEOUT, member.stop()).await.expect("it does not end");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_with_a_stuck_append_ends_when_it_is_to_stop() {
    let pair = Pair::new();
    let first = pair.start(0).await;
    leads(&first).await;
    let second = pair.start(1).await;
    pair.ways[0].hooks.cut();
    let stuck = pair.ways[0].hooks.appends.clone();
    let kv = KvService {
        store: first.kv.store.clone(),
    };
    let put = PutRequest {
        key: Bytes::from_static(b"stuck"),
        ..Default::default()
    };
    let mut asked = runtime::tasks::Owned::start(async move {
        kv.put(tonic::Request::new(put)).await.unwrap_err().message().to_owned()
    });
    while stuck.receiver_count() == 0 {
        tokio::task::yield_now().await;
    }
    timeout(STOP_TIMEOUT, first.stop()).await.expect("it does not end");
    assert_eq!(asked.end().await.unwrap(), "etcdserver: request timed out");
    leads(&second).await;
    second.stop().await;
}
