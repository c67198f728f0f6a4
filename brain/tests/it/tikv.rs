//! The store on TiKV: on a mock, with faults on command, or on a real cluster that `TIKV_PD` names.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::log::frame::is_barrier;
use engine::log::{Fault as LogFault, Faulty, Log};
use engine_tikv::{ConnectOptions, Tikv, TikvLog, TikvRows};
use mock_tikv::{Action, Fault, MockTikv, RegionFault, Rpc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;
use crate::store::{agrees_with_the_model, requests, seed};

/// A store's place in a TiKV.
struct Place {
    log: TikvLog,
    rows: TikvRows,
    mock_tikv: Option<MockTikv>,
    prefix: String,
    _keepers: JoinSet<anyhow::Result<()>>,
}

impl Place {
    /// A new one: on a mock of its own, or in the cluster that `TIKV_PD` names.
    async fn new() -> Place {
        match std::env::var("TIKV_PD") {
            Ok(pd) => Self::at(&pd, None).await,
            Err(_) => Self::on_mock().await,
        }
    }

    async fn on_mock() -> Place {
        let options = mock_tikv::Options {
            seed: seed(),
            ..mock_tikv::Options::default().with_stores(3)
        };
        let mock_tikv = MockTikv::start(options).await.unwrap();
        Self::at(&mock_tikv.pd(), Some(mock_tikv)).await
    }

    async fn at(pd: &str, mock_tikv: Option<MockTikv>) -> Place {
        let prefix = format!("it-{:032x}-", rand::random::<u128>());
        let mut supervisors = JoinSet::new();
        let (log, rows) = connect(pd, &prefix, &mut supervisors).await;
        Place {
            log,
            rows,
            mock_tikv,
            prefix,
            _keepers: supervisors,
        }
    }

    /// The same place, as another member finds it.
    async fn again(&mut self) -> (TikvLog, TikvRows) {
        let pd = match &self.mock_tikv {
            Some(mock_tikv) => mock_tikv.pd(),
            None => std::env::var("TIKV_PD").unwrap(),
        };
        connect(&pd, &self.prefix, &mut self._keepers).await
    }

    fn fault(&self, fault: Fault) {
        self.mock_tikv.as_ref().unwrap().faults().add(fault).unwrap();
    }
}

async fn connect(pd: &str, prefix: &str, supervisors: &mut JoinSet<anyhow::Result<()>>) -> (TikvLog, TikvRows) {
    let pd = pd.split(',').map(str::to_owned).collect();
    let (tikv, supervisor) = Tikv::connect(ConnectOptions::new(pd, prefix)).await.unwrap();
    supervisors.spawn(supervisor.run(CancellationToken::new()));
    (TikvLog::keeping(tikv.clone(), is_barrier), TikvRows::new(tikv))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_on_tikv_agrees_with_the_model() {
    let place = Place::new().await;
    agrees_with_the_model(place.log.clone(), place.rows.clone(), requests(1_000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_on_a_tikv_that_fails_now_and_then_agrees_with_the_model() {
    let place = Place::on_mock().await;
    let every = |rpc, action, probability| place.fault(Fault::new(rpc, action).with_probability(probability));
    for rpc in [Rpc::Prewrite, Rpc::Commit] {
        every(rpc, Action::LoseReply { silent: false }, 0.05);
        every(rpc, Action::LoseRequest { silent: false }, 0.05);
        let after = Some(Duration::from_millis(40));
        every(rpc, Action::Duplicate { after }, 0.05);
        every(rpc, Action::Late { after }, 0.02);
        let error = RegionFault::ServerIsBusy;
        every(rpc, Action::Region { error }, 0.03);
        let error = RegionFault::EpochNotMatch;
        every(rpc, Action::Region { error }, 0.02);
    }
    let error = RegionFault::MaxTimestampNotSynced;
    every(Rpc::Prewrite, Action::Region { error }, 0.03);
    for rpc in [Rpc::Get, Rpc::BatchGet, Rpc::Scan] {
        every(rpc, Action::LoseReply { silent: false }, 0.03);
        let error = RegionFault::NotLeader;
        every(rpc, Action::Region { error }, 0.02);
    }
    agrees_with_the_model(place.log.clone(), place.rows.clone(), requests(300)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_on_tikv_finds_everything_that_was_acknowledged() {
    let mut place = Place::new().await;
    let mut revision = 1;
    for round in 0..6 {
        let (log, rows) = place.again().await;
        let mut engine = Engine::start(log, rows).await.unwrap();
        assert_eq!(engine.store.state.view().revision, revision, "round {round}");
        if round % 2 == 1 {
            engine.compact().await;
        }
        revision = engine.puts(100).await;
        engine.kill().await;
    }
    let mut last = Engine::start(place.log.clone(), place.rows.clone()).await.unwrap();
    for n in 0..17 {
        let found = last.mod_revision(format!("key-{n}").as_bytes()).await;
        assert!(found > Some(revision - 17), "key-{n} is at {found:?}");
    }
    last.stop().await.unwrap();
}

/// Returns the requests that a store with this many keys, all of them rows, sends to TiKV until it leads.
async fn asked_at_start(keys: usize) -> BTreeMap<Rpc, u64> {
    let mut place = Place::on_mock().await;
    let mut engine = Engine::start(place.log.clone(), place.rows.clone()).await.unwrap();
    for n in 0..keys {
        engine.put(format!("key-{n:05}").as_bytes(), b"value").await.unwrap();
    }
    engine.stop().await.unwrap();
    let (log, rows) = place.again().await;
    let mock_tikv = place.mock_tikv.as_ref().unwrap();
    mock_tikv.reset_requests();
    let engine = Engine::start(log, rows).await.unwrap();
    let mut asked = mock_tikv.requests();
    engine.stop().await.unwrap();
    // Timestamps and regions are asked for as chance has it, and all but primary keys are committed in the background.
    asked.retain(|rpc, _| !rpc.is_pd() && *rpc != Rpc::Commit);
    asked
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starting_and_leading_asks_for_no_more_where_there_are_more_keys() {
    let few = asked_at_start(100).await;
    assert!(few[&Rpc::Scan] > 0, "{few:?}");
    assert_eq!(asked_at_start(3_000).await, few);
}

/// Late attempts of an append: more than a writer makes until it has a successor.
const LATE_ATTEMPTS: usize = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deposed_writer_on_tikv_commits_and_acknowledges_nothing() {
    let mut place = Place::new().await;
    let log = Faulty::new(place.log.clone());
    let mut old = Engine::start(log.clone(), place.rows.clone()).await.unwrap();
    let revision = old.puts(20).await;
    // Its next append is held back until a successor has written, flushed, compacted and destroyed.
    (0..LATE_ATTEMPTS).for_each(|_| log.fail_next(LogFault::Late));
    let mut late = JoinSet::new();
    late.spawn(async move {
        let outcome = old.put(b"late", b"").await;
        (old, outcome)
    });
    while log.held() == 0 {
        tokio::task::yield_now().await;
    }
    let (other_log, other_rows) = place.again().await;
    let mut new = Engine::start(other_log.clone(), other_rows).await.unwrap();
    new.puts(200).await;
    new.compact().await;
    assert!(other_log.watermark().await.unwrap().0 > 30, "nothing was destroyed");
    for (slot, answer) in log.land_late(true).await {
        assert!(answer.is_err(), "a late append took slot {slot}");
    }
    log.calm();
    let (old, outcome) = late.join_next().await.unwrap().unwrap();
    assert!(outcome.is_err(), "a deposed writer acknowledged {outcome:?}");
    assert_eq!(
        old.store.state.view().revision,
        revision,
        "a deposed writer showed something"
    );
    assert_eq!(new.mod_revision(b"late").await, None);
    new.stop().await.unwrap();
}
