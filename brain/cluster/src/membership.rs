//! The rows of all members, including those that are down, in one register that every member compares and sets.
//!
//! A member writes its own row when it starts, if the row changes. It sees new rows of other members when it reads the register
//! again, which it does every 30 s; followers of the same leader see each other at once.

use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::peers::Peers;
use crate::members::Members;
use engine::cas_register::{Cas, CasRegister, DynRegister};
use etcd_types::pb::etcdserverpb as pb;

pub use removal::{MemberRemoval, RemoveError, RemoveMember};
pub use table::{ConfiguredMember, JoinError, JoinRequest, MemberTable};

mod removal;
mod table;

/// The interval at which the rows are read.
const MEMBERSHIP_READ_INTERVAL: Duration = Duration::from_secs(30);

/// The least pause between two reads for unknown members.
const MIN_READ_PAUSE: Duration = Duration::from_millis(100);

/// The reason why a member did not get its row.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// The member does not belong to this cluster. Nothing was written.
    #[error(transparent)]
    Refused(#[from] JoinError),
    /// The register cannot be reached: try again later.
    #[error("cannot reach the rows of members")]
    Unreachable(#[source] anyhow::Error),
}

/// Returns true if a member has a row: it has started before.
pub async fn has_row(register: &dyn CasRegister, name: &str) -> Result<bool, EnterError> {
    let stored = register.get().await.map_err(EnterError::Unreachable)?;
    let table = MemberTable::decode(stored.as_ref())?;
    Ok(table.rows().any(|(member, _)| member == name))
}

/// Writes the row of a member that starts, and returns all rows.
pub async fn enter(register: &dyn CasRegister, request: &JoinRequest) -> Result<MemberTable, EnterError> {
    loop {
        let stored = register.get().await.map_err(EnterError::Unreachable)?;
        let table = MemberTable::decode(stored.as_ref())?;
        let Some(next) = table.join(request)? else {
            return Ok(table);
        };
        match register.compare_and_set(stored, Some(next.encode())).await {
            Cas::Swapped => return Ok(next),
            Cas::Mismatch => {} // another one entered
            Cas::Unknown(error) => return Err(EnterError::Unreachable(error)),
        }
    }
}

/// Returns all members that are known at the start.
#[must_use]
pub fn members(request: &JoinRequest, table: &MemberTable, peers: &Peers) -> Members {
    Members::new(list(request, table, peers))
}

/// Updates `members` from the rows until `stop`, and enters this member's row again if it was removed. Fails if the rows are damaged, or of
/// a newer version.
pub async fn follow(
    register: DynRegister,
    (request, peers): (JoinRequest, Peers),
    members: Members,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut look = tokio::time::interval_at(
        tokio::time::Instant::now() + MEMBERSHIP_READ_INTERVAL,
        MEMBERSHIP_READ_INTERVAL,
    );
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
        () = stop.cancelled() => return Ok(()),
        _ = look.tick() => {}
        // The pause limits the rate of reads if nothing else triggers them.
        () = members.asked_for() => {
        look.reset();
        tokio::time::sleep(MIN_READ_PAUSE).await;
        }
        }
        match register.get().await {
            Ok(stored) => {
                let mut table = MemberTable::decode(stored.as_ref())?;
                if table.is_removed(request.row().0) {
                    tracing::warn!("this member was removed although it is running; adding its row again");
                    match enter(&*register, &request).await {
                        Ok(entered) => table = entered,
                        Err(error) => tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            "could not add the row of this member again"
                        ),
                    }
                }
                members.replace(list(&request, &table, &peers));
            }
            Err(error) => tracing::debug!(error = format!("{error:#}"), "cannot read the rows of members"),
        }
    }
}

/// Returns the members that have a row, and those that are configured and never started: like etcd's, the latter have no name and
/// no client URLs.
fn list(request: &JoinRequest, table: &MemberTable, peers: &Peers) -> Vec<pb::Member> {
    let configured = peers.all().map(|(name, urls)| pb::Member {
        id: peers.id(name),
        peer_ur_ls: urls.iter().map(ToString::to_string).collect(),
        ..pb::Member::default()
    });
    let started = table.rows().chain([request.row()]).map(|(name, row)| pb::Member {
        id: peers.id(name),
        name: name.to_owned(),
        peer_ur_ls: row.peer_urls,
        client_ur_ls: row.client_urls,
        is_learner: false,
    });
    // Of two entries with one id the later one is kept.
    configured.chain(started).collect()
}

#[cfg(test)]
mod tests;
