//! A TiKV for tests: the mock, or a real cluster that `TIKV_PD` names. Each store has a prefix of its own.

use std::time::Duration;

use mock_tikv::MockTikv;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{ConnectOptions, Tikv};

/// A connection whose supervisor runs until this is dropped.
pub(crate) struct Connected {
    pub(crate) tikv: Tikv,
    /// `None` on a real cluster.
    mock_tikv: Option<MockTikv>,
    _keeper: JoinSet<anyhow::Result<()>>,
}

impl Connected {
    /// The prefix of the store.
    pub(crate) fn prefix(&self) -> Vec<u8> {
        self.tikv.shared.options.key_prefix.clone()
    }

    /// The mock below, for tests that want something to go wrong.
    pub(crate) fn mock_tikv(&self) -> &MockTikv {
        self.mock_tikv.as_ref().expect("such a test runs on a mock of its own")
    }
}

/// A connection to a store that has not been used.
pub(crate) async fn fresh() -> Connected {
    match std::env::var("TIKV_PD") {
        Ok(pd) => {
            let pd = pd.split(',').map(str::to_owned).collect();
            connect(ConnectOptions::new(pd, prefix()), None).await
        }
        Err(_) => on_mock(|_| {}).await,
    }
}

/// A connection to a mock, whatever `TIKV_PD` says, with other options.
pub(crate) async fn on_mock(change: impl FnOnce(&mut ConnectOptions)) -> Connected {
    on(mock_tikv::Options::default(), change).await
}

/// A connection to a mock that is set up so, with other options.
pub(crate) async fn on(setup: mock_tikv::Options, change: impl FnOnce(&mut ConnectOptions)) -> Connected {
    let mock_tikv = MockTikv::start(setup.with_stores(3)).await.unwrap();
    let mut options = ConnectOptions::new(vec![mock_tikv.pd()], prefix());
    change(&mut options);
    connect(options, Some(mock_tikv)).await
}

/// Polls a condition until it holds, 20 s at most. The mock sends no notifications, so nothing can be awaited.
pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(20), "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A prefix that no other test uses.
pub(crate) fn prefix() -> String {
    format!("brain-test-{:032x}-", rand::random::<u128>())
}

async fn connect(options: ConnectOptions, mock_tikv: Option<MockTikv>) -> Connected {
    let (tikv, supervisor) = Tikv::connect(options).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(supervisor.run(CancellationToken::new()));
    Connected {
        tikv,
        mock_tikv,
        _keeper: tasks,
    }
}
