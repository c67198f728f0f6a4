//! The engine in this process as a target: the whole store with its services, without sockets.
//!
//! Small bounds, so that flushes, compactions and batches of all kinds happen within a short script.

use std::sync::Arc;
use std::time::Duration;

use ::watch::{self, PrevKv};
use api::auth::Guard;
use api::context::ApiContext;
use api::kv::KvService;
use api::lease::LeaseService;
use api::request::RequestLimits;
use brain::server::node::{self, NodeHandles, NodeOptions};
use cluster::members::Members;
use cluster::node::Node;
use cluster::term::{LockClaim, Term, TermEnd, TermNotifier};
use engine::LogAndRows;
use engine::log::{DynLog, Log, MemLog};
use engine::rows::mem::MemRows;
use engine::rows::{DynRows, Rows};
use etcd_types::types::Committed;
use mvcc::fetch::FetchBudgets;
use pb::kv_server::Kv;
use pb::lease_server::Lease;
use runtime::tasks::Tasks;
use store::flush::CompactionPace;
use store::sequencer::{DynSpaceQuota, SequencerOptions, SpaceLevel, SpaceQuota};
use telemetry::metrics::Metrics;
use telemetry::slow_requests::ApplyLog;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tonic::Request as Ask;

use crate::model::{Event, Model};
use crate::wire::{Answer, Refusal, Request, Response, Target, pb};

/// A store that runs until it is stopped or dropped.
pub(crate) struct Engine {
    pub(crate) store: NodeHandles,
    pub(crate) kv: KvService,
    pub(crate) lease: LeaseService,
    tasks: Tasks,
    stop: CancellationToken,
}

/// No quota.
pub(crate) struct Endless;

impl SpaceQuota for Endless {
    fn level(&self, _: &dyn Fn() -> u64, _: &dyn Rows) -> SpaceLevel {
        SpaceLevel::Ample
    }
}

/// Settings of a store.
struct EngineSetup {
    compaction: CompactionPace,
    fetches: FetchBudgets,
    space: DynSpaceQuota,
    disarms_nospace: bool,
}

impl Default for EngineSetup {
    fn default() -> Self {
        Self {
            compaction: CompactionPace::default(),
            fetches: FetchBudgets::default(),
            space: Arc::new(Endless),
            disarms_nospace: false,
        }
    }
}

/// Opens a store, and leaves it to the caller who leads it.
pub(crate) async fn open(engine: (DynLog, DynRows), metrics: &Arc<Metrics>) -> anyhow::Result<(NodeHandles, Node)> {
    open_with(engine, metrics, EngineSetup::default()).await
}

async fn open_with(
    engine: (DynLog, DynRows),
    metrics: &Arc<Metrics>,
    setup: EngineSetup,
) -> anyhow::Result<(NodeHandles, Node)> {
    let options = NodeOptions {
        sequencer: SequencerOptions {
            member: 1,
            in_flight: 2,
            batch_requests: 64,
            batch_bytes: 64 << 10,
            flush_bytes: 16 << 10,
            flush_interval: Duration::from_millis(50),
            memtable_bytes: 256 << 10,
            lease_bytes: 8 << 20,
            disarms_nospace: setup.disarms_nospace,
            compaction: setup.compaction,
        },
        watch: watch::WatchLimits::default(),
        fetches: setup.fetches,
        lease: Duration::ZERO,
    };
    let (log, rows) = engine;
    node::open(LogAndRows { log, rows }, options, metrics, setup.space).await
}

impl Engine {
    /// Opens the store that `log` and `rows` are.
    pub(crate) async fn start(log: impl Log, rows: impl Rows) -> anyhow::Result<Self> {
        Self::start_with((Arc::new(log), Arc::new(rows)), EngineSetup::default()).await
    }

    /// The same, with compactions at this pace.
    pub(crate) async fn start_paced(
        log: impl Log,
        rows: impl Rows,
        compaction: CompactionPace,
    ) -> anyhow::Result<Self> {
        let setup = EngineSetup {
            compaction,
            ..EngineSetup::default()
        };
        Self::start_with((Arc::new(log), Arc::new(rows)), setup).await
    }

    /// The same, in a process that may use `memory` bytes of memory.
    pub(crate) async fn start_within(log: impl Log, rows: impl Rows, memory: u64) -> anyhow::Result<Self> {
        let setup = EngineSetup {
            fetches: FetchBudgets::within(memory),
            ..EngineSetup::default()
        };
        Self::start_with((Arc::new(log), Arc::new(rows)), setup).await
    }

    /// The same in memory, with this quota. The NOSPACE alarm is disarmed once there is space again.
    pub(crate) async fn start_disarming(space: impl SpaceQuota) -> anyhow::Result<Self> {
        let setup = EngineSetup {
            space: Arc::new(space),
            disarms_nospace: true,
            ..EngineSetup::default()
        };
        Self::start_with((Arc::new(MemLog::new()), Arc::new(MemRows::new())), setup).await
    }

    async fn start_with((log, rows): (DynLog, DynRows), setup: EngineSetup) -> anyhow::Result<Self> {
        let stop = CancellationToken::new();
        let mut tasks = Tasks::new(stop.clone());
        let metrics = Arc::new(Metrics::new(false));
        let limits = RequestLimits::new(128, 1_572_864, &*rows);
        let (store, node) = open_with((log, rows), &metrics, setup).await?;
        let ending = stop.clone();
        let claim = LockClaim {
            lock: 0,
            predecessor_expired: true,
        };
        let (begun, begins) = oneshot::channel();
        let told = TermNotifier {
            placed: oneshot::channel().0,
            begun,
        };
        tasks.spawn("leader", async move {
            let term = Term { node, claim };
            match term.run(&ending, &CancellationToken::new(), told).await? {
                (_, TermEnd::Stopped) => Ok(()),
                (_, ended) => anyhow::bail!("the term ended: {ended:?}"),
            }
        });
        tasks.spawn("watch hub", store.hub.clone().run(stop.clone()));
        if begins.await.is_err() {
            tasks.join().await?;
            anyhow::bail!("ended before it led");
        }
        let api = ApiContext {
            guard: Guard::simple(store.state.auth().clone())?,
            state: store.state.clone(),
            sequencer: store.sequencer.clone(),
            router: cluster::forward::LeaderRouter::single_member(),
            limits,
            min_ttl: 2,
            members: Members::new([]),
            stop: stop.clone(),
            cluster_id: 7,
            member_id: 1,
            slow: ApplyLog::new(Duration::from_millis(100), metrics.server.slow_apply.clone()),
            metrics,
        };
        let lease = LeaseService::new(api.clone(), None);
        Ok(Self {
            store,
            kv: KvService { store: api },
            lease,
            tasks,
            stop,
        })
    }

    /// Builds the index of keys and keeps it up to date.
    pub(crate) fn index_keys(&mut self) {
        let index = store::index::run(self.store.state.clone(), 64 << 20, self.stop.clone());
        self.tasks.spawn("index of keys", index);
    }

    /// Ends in order: what was acknowledged is flushed.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.stop.cancel();
        drop((self.kv, self.lease));
        self.tasks.join().await
    }

    /// Ends as a killed process does: nothing is flushed any more.
    pub(crate) async fn kill(self) {
        self.tasks.abort().await;
    }

    /// Puts one key; answers with the revision.
    pub(crate) async fn put(&mut self, key: &[u8], value: &[u8]) -> Result<i64, Refusal> {
        let (key, value) = (bytes::Bytes::copy_from_slice(key), bytes::Bytes::copy_from_slice(value));
        match self
            .call(Request::Put(pb::PutRequest {
                key,
                value,
                ..Default::default()
            }))
            .await?
        {
            Response::Put(response) => Ok(response.header.unwrap().revision),
            other => panic!("a put was answered by {other:?}"),
        }
    }

    /// Puts `count` keys; answers with the last revision.
    pub(crate) async fn puts(&mut self, count: usize) -> i64 {
        let mut last = 0;
        for n in 0..count {
            last = self
                .put(format!("key-{}", n % 17).as_bytes(), format!("value-{n}").as_bytes())
                .await
                .unwrap();
        }
        last
    }

    /// The revision that a key was last put at.
    pub(crate) async fn mod_revision(&mut self, key: &[u8]) -> Option<i64> {
        self.mod_revision_at(key, 0).await
    }

    /// The same as of a revision.
    pub(crate) async fn mod_revision_at(&mut self, key: &[u8], revision: i64) -> Option<i64> {
        let range = pb::RangeRequest {
            key: bytes::Bytes::copy_from_slice(key),
            revision,
            ..Default::default()
        };
        match self.call(Request::Range(range)).await.unwrap() {
            Response::Range(response) => response.kvs.first().map(|kv| kv.mod_revision),
            other => panic!("a range was answered by {other:?}"),
        }
    }

    /// Compacts everything, and waits until it is gone.
    pub(crate) async fn compact(&mut self) {
        self.compact_at(self.store.state.view().revision).await;
    }

    /// Compacts at a revision, and waits for nothing.
    pub(crate) async fn compact_soon(&mut self, revision: i64) {
        let compact = pb::CompactionRequest {
            revision,
            physical: false,
        };
        self.call(Request::Compact(compact)).await.unwrap();
    }

    /// Compacts at a revision, and waits until what was before is gone.
    pub(crate) async fn compact_at(&mut self, revision: i64) {
        self.call(Request::Compact(pb::CompactionRequest {
            revision,
            physical: true,
        }))
        .await
        .unwrap();
    }

    /// Returns the history from `from` on, up to the published revision.
    pub(crate) async fn history(&self, from: i64) -> Vec<Arc<Committed>> {
        let (mut next, mut all) = (from, Vec::new());
        loop {
            let chunk = self.store.history.read(next, 4 << 10, PrevKv::Included).await.unwrap();
            let Some(last) = chunk.last() else { return all };
            next = last.revision + 1;
            all.extend(chunk);
        }
    }

    /// Everything that can be read must be what the model has: every revision that is not compacted, and history.
    pub(crate) async fn check(&mut self, model: &Model) {
        self.check_revisions(model).await;
        self.check_history(model).await;
    }

    /// Every revision that is not compacted must be what the model has.
    pub(crate) async fn check_revisions(&mut self, model: &Model) {
        for revision in model.compacted().max(1)..=model.revision() {
            for (limit, count_only, keys_only) in
                [(0, false, false), (3, false, false), (0, true, false), (0, false, true)]
            {
                let (key, range_end) = (bytes::Bytes::from_static(b"\0"), bytes::Bytes::from_static(b"\0"));
                let range = pb::RangeRequest {
                    key,
                    range_end,
                    revision,
                    limit,
                    count_only,
                    keys_only,
                    ..Default::default()
                };
                let request = Request::Range(range);
                let expected = model.clone().answer(&request);
                let answer = crate::canonical::canonical(&request, self.call(request.clone()).await);
                assert!(
                    answer == expected,
                    "{request:?}\nanswered {answer:#?}\nexpected {expected:#?}"
                );
            }
        }
    }

    async fn check_history(&mut self, model: &Model) {
        let from = model.compacted().max(2);
        let history = self.history(from).await;
        let events = history.iter().flat_map(|committed| &committed.events);
        // The versions that the oldest revision superseded may be deleted.
        let before = |revision, prev: Option<i64>| prev.filter(|_| revision > from);
        let found: Vec<_> = events
            .map(|etcd_types::types::Event { kv, prev_kv, .. }| {
                let prev = prev_kv.as_ref().map(|kv| kv.mod_revision);
                let revision = kv.mod_revision;
                (kv.key.clone(), kv.value.clone(), revision, before(revision, prev))
            })
            .collect();
        let expected = |Event { kv, prev_kv, .. }: &Event| {
            let prev = prev_kv.as_ref().map(|kv| kv.mod_revision);
            let revision = kv.mod_revision;
            (kv.key.clone(), kv.value.clone(), revision, before(revision, prev))
        };
        assert_eq!(found, model.events_from(from).map(expected).collect::<Vec<_>>());
    }
}

impl Target for Engine {
    async fn call(&mut self, request: Request) -> Answer {
        let answer = match request {
            Request::Range(range) => self
                .kv
                .range(Ask::new(range))
                .await
                .map(|r| Response::Range(r.into_inner())),
            Request::Put(put) => self.kv.put(Ask::new(put)).await.map(|r| Response::Put(r.into_inner())),
            Request::Delete(delete) => self
                .kv
                .delete_range(Ask::new(delete))
                .await
                .map(|r| Response::Delete(r.into_inner())),
            Request::Txn(txn) => self.kv.txn(Ask::new(txn)).await.map(|r| Response::Txn(r.into_inner())),
            Request::Compact(compact) => self
                .kv
                .compact(Ask::new(compact))
                .await
                .map(|r| Response::Compact(r.into_inner())),
            Request::Grant(grant) => self
                .lease
                .lease_grant(Ask::new(grant))
                .await
                .map(|r| Response::Grant(r.into_inner())),
            Request::Revoke(revoke) => self
                .lease
                .lease_revoke(Ask::new(revoke))
                .await
                .map(|r| Response::Revoke(r.into_inner())),
            Request::KeepAlive(ask) => self.lease.keep_alive(ask).await.map(Response::KeepAlive),
            Request::TimeToLive(ask) => self
                .lease
                .lease_time_to_live(Ask::new(ask))
                .await
                .map(|r| Response::TimeToLive(r.into_inner())),
            Request::Leases(ask) => self
                .lease
                .lease_leases(Ask::new(ask))
                .await
                .map(|r| Response::Leases(r.into_inner())),
        };
        answer.map_err(Refusal::from)
    }
}
