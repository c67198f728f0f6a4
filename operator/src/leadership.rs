//! Which replica works. The only file that knows the elector.

use std::time::Duration;

use anyhow::Context;
use election::{AfterLoss, Config, Elector, Handle, LeaseLock, Standing};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// How long the elector may be late before the replica calls itself dead.
const TOLERANCE: Duration = Duration::from_secs(20);

/// This replica's part, as others may ask for it.
#[derive(Clone)]
pub(crate) enum Leadership {
    /// There is no election: it always works.
    Alone,
    /// It works while it holds the Lease.
    Elected(Handle),
}

impl Leadership {
    /// Whether the elector, if any, keeps up.
    ///
    /// # Errors
    /// What is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Self::Alone => Ok(()),
            Self::Elected(handle) => handle.check(TOLERANCE).map_err(|overdue| overdue.to_string()),
        }
    }

    pub(crate) fn is_leading(&self) -> bool {
        match self {
            Self::Alone => true,
            Self::Elected(handle) => handle.is_leading(),
        }
    }

    /// Waits until this replica may work; `false` if `stop` came first.
    pub(crate) async fn won(&self, stop: &CancellationToken) -> bool {
        let Self::Elected(handle) = self else {
            return !stop.is_cancelled();
        };
        let mut standing = handle.watch();
        let leading = standing.wait_for(|standing| matches!(standing, Standing::Leading(_)));
        tokio::select! {
            biased;
            () = stop.cancelled() => false,
            won = leading => won.is_ok(),
        }
    }
}

/// A candidate for the Lease `namespace`/`name`, and how to ask it.
///
/// # Errors
/// The client cannot be made, or the configuration is wrong.
pub(crate) fn candidate(
    config: kube::Config,
    namespace: &str,
    name: &str,
    identity: &str,
) -> anyhow::Result<(Elector<LeaseLock>, Leadership)> {
    let mut election = Config::lease(Config::unique(identity));
    election.after_loss = AfterLoss::Return;
    let client = election::client(config, election.call_timeout).context("make a client for the Lease")?;
    let (elector, handle) =
        Elector::new(LeaseLock::new(client, namespace, name), election).context("configure the election")?;
    Ok((elector, Leadership::Elected(handle)))
}

/// Campaigns and leads until `stop`, then releases the Lease. Losing it ends the process: another replica works already.
///
/// # Errors
/// The Lease was lost.
pub(crate) async fn run(elector: Elector<LeaseLock>, stop: CancellationToken) -> anyhow::Result<()> {
    elector.run(stop).await?;
    info!("the Lease is released");
    Ok(())
}
