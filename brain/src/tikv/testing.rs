//! A TiKV for tests: the stand-in, or a real cluster that `TIKV_PD` names. Each store has a prefix of its own.

use std::time::Duration;

use tikv_stand_in::StandIn;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Options, Tikv};

/// A connection whose keeper runs until this is dropped.
pub(crate) struct Connected {
    pub(crate) tikv: Tikv,
    /// `None` on a real cluster.
    stand_in: Option<StandIn>,
    _keeper: JoinSet<anyhow::Result<()>>,
}

impl Connected {
    /// The prefix of the store.
    pub(crate) fn prefix(&self) -> Vec<u8> {
        self.tikv.shared.options.key_prefix.clone()
    }

    /// What this runs on, for tests that want something to go wrong.
    pub(crate) fn stand_in(&self) -> &StandIn {
        self.stand_in
            .as_ref()
            .expect("such a test runs on a stand-in of its own")
    }
}

/// A connection to a store that nobody has used.
pub(crate) async fn fresh() -> Connected {
    match std::env::var("TIKV_PD") {
        Ok(pd) => {
            let pd = pd.split(',').map(str::to_owned).collect();
            connect(Options::new(pd, prefix()), None).await
        }
        Err(_) => on_stand_in(|_| {}).await,
    }
}

/// A connection to a stand-in, whatever `TIKV_PD` says, with other options.
pub(crate) async fn on_stand_in(change: impl FnOnce(&mut Options)) -> Connected {
    on(tikv_stand_in::Options::default(), change).await
}

/// A connection to a stand-in that is set up so, with other options.
pub(crate) async fn on(setup: tikv_stand_in::Options, change: impl FnOnce(&mut Options)) -> Connected {
    let stand_in = StandIn::start(setup.with_stores(3)).await.unwrap();
    let mut options = Options::new(vec![stand_in.pd()], prefix());
    change(&mut options);
    connect(options, Some(stand_in)).await
}

/// Waits until something is so. What a stand-in has seen tells nobody by itself, so it is looked at again and again.
pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(20), "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A prefix that nobody else uses.
pub(crate) fn prefix() -> String {
    format!("brain-test-{:032x}-", rand::random::<u128>())
}

async fn connect(options: Options, stand_in: Option<StandIn>) -> Connected {
    let (tikv, keeper) = Tikv::connect(options).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(keeper.run(CancellationToken::new()));
    Connected {
        tikv,
        stand_in,
        _keeper: tasks,
    }
}
