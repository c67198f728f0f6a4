//! Removes the row of a member that is gone for good: `MemberRemove`.
//!
//! Rows that no configuration names any more go by themselves, once all others were started without them. Where that does not happen,
//! because members find each other by DNS or several went at once, an operator removes them. A member that runs is not removed: it
//! answers on its peer port. One that is cut off from here may be removed by mistake; it sees that within half a minute, and enters its
//! row again.

use std::pin::Pin;

use anyhow::Context as _;

use super::{JoinError, JoinRequest, MemberTable, list};
use crate::members::Members;
use crate::peers::Peers;
use engine::cas_register::{Cas, DynRegister};

/// The reason why a member is not removed. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// There is no such member.
    #[error("there is no such member")]
    Unknown,
    /// `--initial-cluster` of this member names it, and would name it after the removal, too.
    #[error("--initial-cluster names the member")]
    Configured,
    /// It runs.
    #[error("the member runs")]
    Running,
    /// The rows are damaged, or of a newer version.
    #[error(transparent)]
    Unreadable(#[from] JoinError),
    /// The rows cannot be reached; the member may be removed.
    #[error("cannot reach the rows of members")]
    Unreachable(#[source] anyhow::Error),
}

/// The removal of members, whatever the storage.
pub trait RemoveMember: Send + Sync {
    /// Removes the row of the member with this id.
    fn remove<'a>(&'a self, id: u64) -> Pin<Box<dyn Future<Output = Result<(), RemoveError>> + Send + 'a>>;
}

/// Removes rows from a register.
#[derive(Clone)]
pub struct MemberRemoval {
    /// The rows.
    pub register: DynRegister,
    /// This member.
    pub request: JoinRequest,
    /// The ways to other members.
    pub peers: Peers,
    /// The list that is updated.
    pub members: Members,
}

impl RemoveMember for MemberRemoval {
    fn remove<'a>(&'a self, id: u64) -> Pin<Box<dyn Future<Output = Result<(), RemoveError>> + Send + 'a>> {
        Box::pin(async move {
            let stored = self.read().await?;
            let table = MemberTable::decode(stored.as_ref())?;
            if self.peers.all().any(|(name, _)| self.peers.id(name) == id) {
                return Err(RemoveError::Configured);
            }
            let own = self.request.row().0;
            let name = table
                .rows()
                .map(|(name, _)| name)
                .find(|name| self.peers.id(name) == id);
            let name = match name {
                _ if self.peers.id(own) == id => return Err(RemoveError::Running),
                Some(name) => name.to_owned(),
                None => return Err(RemoveError::Unknown),
            };
            if self.peers.answers(&name, &self.members).await {
                return Err(RemoveError::Running);
            }
            let table = self.take_out(&name).await?;
            tracing::info!(member = name, "removed a member that does not answer");
            self.members.replace(list(&self.request, &table, &self.peers));
            Ok(())
        })
    }
}

impl MemberRemoval {
    async fn read(&self) -> Result<Option<bytes::Bytes>, RemoveError> {
        let stored = self.register.get().await.context("read the rows of members");
        stored.map_err(RemoveError::Unreachable)
    }

    /// Removes a row; returns the rows that are left.
    async fn take_out(&self, name: &str) -> Result<MemberTable, RemoveError> {
        loop {
            let stored = self.read().await?;
            let table = MemberTable::decode(stored.as_ref())?;
            let Some(next) = table.without(name) else {
                return Ok(table);
            };
            match self.register.compare_and_set(stored, Some(next.encode())).await {
                Cas::Swapped => return Ok(next),
                Cas::Mismatch => {} // another row changed
                Cas::Unknown(error) => return Err(RemoveError::Unreachable(error)),
            }
        }
    }
}
