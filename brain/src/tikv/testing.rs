//! A TiKV for tests: the stand-in, or a real cluster that `TIKV_PD` names. Each store has a prefix of its own.

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Options, Tikv};

/// A connection whose keeper runs until this is dropped.
pub(crate) struct Connected {
    pub(crate) tikv: Tikv,
    _keeper: JoinSet<anyhow::Result<()>>,
}

/// A connection to a store that nobody has used.
pub(crate) async fn fresh() -> Connected {
    connect(options()).await
}

/// Options for a store that nobody has used.
pub(crate) fn options() -> Options {
    let pd = std::env::var("TIKV_PD").expect("TIKV_PD names a PD");
    let prefix = format!("brain-test-{:032x}-", rand::random::<u128>());
    Options::new(pd.split(',').map(str::to_owned).collect(), prefix)
}

/// Connects.
pub(crate) async fn connect(options: Options) -> Connected {
    let (tikv, keeper) = Tikv::connect(options).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(keeper.run(CancellationToken::new()));
    Connected { tikv, _keeper: tasks }
}
