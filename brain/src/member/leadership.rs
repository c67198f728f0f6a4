//! Leads while the elector says so.

use election::{Handle as Election, Standing, Term};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::leader::{Ended, Leader};
use crate::log::Log;
use crate::rows::Rows;
use crate::sequencer::Space;

/// Runs a leader's terms, one after another, until `stop`. `ended` is cancelled when the last one is over: the lock is needed
/// until then.
///
/// # Errors
/// When log or rows fail, or another process writes to a store that only this one may write to.
pub async fn run<L: Log, R: Rows, Q: Space + Clone>(
    mut leader: Leader<L, R, Q>,
    election: Election,
    stop: CancellationToken,
    ended: CancellationToken,
) -> anyhow::Result<()> {
    let _ended = ended.drop_guard();
    let mut standing = election.watch();
    loop {
        let term = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            term = won(&mut standing) => term?,
        };
        let lost = CancellationToken::new();
        let mut run = std::pin::pin!(leader.term(term.predecessor.ended(), &stop, &lost));
        let (after, how) = tokio::select! {
            biased;
            after = &mut run => after?,
            () = over(&mut standing, term.number) => {
                lost.cancel();
                run.await?
            }
        };
        leader = after;
        match how {
            Ended::Stopped => return Ok(()),
            Ended::Lost => tracing::warn!("lost the lead"),
            Ended::Deposed => anyhow::bail!("another process writes to this store, although its lock is held here"),
        }
    }
}

/// Waits until this member leads.
async fn won(standing: &mut watch::Receiver<Standing>) -> anyhow::Result<Term> {
    let leading = standing
        .wait_for(|standing| matches!(standing, Standing::Leading(_)))
        .await
        .map_err(|_| anyhow::anyhow!("the election ended"))?;
    match &*leading {
        Standing::Leading(term) => Ok(term.clone()),
        Standing::NoLeader | Standing::Following { .. } => anyhow::bail!("the election answered with another standing"),
    }
}

/// Waits until term `number` is over.
async fn over(standing: &mut watch::Receiver<Standing>, number: u64) {
    let other = |standing: &Standing| !matches!(standing, Standing::Leading(term) if term.number == number);
    // An elector that has ended leads no more.
    drop(standing.wait_for(other).await);
}
