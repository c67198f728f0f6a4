//! The rows of members, in one cell that all of them compare and set: who there is, also of those that are down.
//!
//! A member writes its own row when it starts, if it says something new. What the others wrote shows when it reads the cell
//! again, which it does now and then; who follows the same leader is known at once.

use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::peers::Peers;
use crate::api::cluster::Members;
use crate::cell::{Cell, Swap};
use crate::pb::etcdserverpb as pb;

pub use table::{Applicant, Refusal, Table};

mod table;

/// How often the rows are read anew.
const LOOK: Duration = Duration::from_secs(30);

/// Between two reads for members that are looked for.
const PAUSE: Duration = Duration::from_millis(100);

/// Why a member did not get its row.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// It does not belong here. Nothing was written.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Try again later.
    #[error("the rows of members cannot be reached")]
    Unreachable(#[source] anyhow::Error),
}

/// Writes the row of a member that starts, and answers with all rows.
///
/// # Errors
/// [`EnterError`].
pub async fn enter<C: Cell>(cell: &C, applicant: &Applicant) -> Result<Table, EnterError> {
    loop {
        let stored = cell.get().await.map_err(EnterError::Unreachable)?;
        let table = Table::decode(stored.as_ref())?;
        let Some(next) = table.admit(applicant)? else {
            return Ok(table);
        };
        match cell.compare_and_set(stored, Some(next.encode())).await {
            Swap::Won => return Ok(next),
            Swap::Lost => {} // another one entered
            Swap::Unknown(error) => return Err(EnterError::Unreachable(error)),
        }
    }
}

/// All members as they are known at the start.
#[must_use]
pub fn members(applicant: &Applicant, table: &Table, peers: &Peers) -> Members {
    Members::new(list(applicant, table, peers))
}

/// Keeps `members` as the rows say, until `stop`.
///
/// # Errors
/// The rows are damaged, or of a newer version.
pub async fn follow<C: Cell>(
    cell: C,
    (applicant, peers): (Applicant, Peers),
    members: Members,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut look = tokio::time::interval_at(tokio::time::Instant::now() + LOOK, LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = look.tick() => {}
            // No more often than somebody who asks for nothing else could bear.
            () = members.asked_for() => {
                look.reset();
                tokio::time::sleep(PAUSE).await;
            }
        }
        match cell.get().await {
            Ok(stored) => members.replace(list(&applicant, &Table::decode(stored.as_ref())?, &peers)),
            Err(error) => tracing::debug!(error = format!("{error:#}"), "cannot read the rows of members"),
        }
    }
}

/// Who has a row, and who is configured and never started: like etcd's these have no name and no client URLs.
fn list(applicant: &Applicant, table: &Table, peers: &Peers) -> Vec<pb::Member> {
    let configured = peers.all().map(|(name, urls)| pb::Member {
        id: peers.id(name),
        peer_ur_ls: urls.iter().map(ToString::to_string).collect(),
        ..pb::Member::default()
    });
    let started = table.rows().chain([applicant.row()]).map(|(name, row)| pb::Member {
        id: peers.id(name),
        name: name.to_owned(),
        peer_ur_ls: row.peer_urls,
        client_ur_ls: row.client_urls,
        is_learner: false,
    });
    // Later ones count.
    configured.chain(started).collect()
}

#[cfg(test)]
mod tests;
