//! The leader, as far as this member knows, and the lease by which this member leads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tonic::transport::Channel;

use super::ReadIndexBatcher;

/// The member that answers requests that only a leader can.
#[derive(Debug, Clone, Default)]
pub enum Role {
    /// No leader is known.
    #[default]
    Nobody,
    /// This member leads, until its lease ends: see [`LeaderLease`].
    Leading(LeaderLease),
    /// Another member leads, and the channel to it is open.
    Following(LeaderClient),
    /// This member leads, but is about to transfer leadership: no member answers for a moment.
    Transferring,
    /// This member has stopped.
    Stopped,
}

/// A client of the leader. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LeaderClient {
    /// The connection.
    pub channel: Channel,
    /// Its member id.
    pub member: u64,
    /// The queue of reads that need its commit index.
    pub reads: ReadIndexBatcher,
}

/// The leader's lease: until it expires this member may answer from memory. Milliseconds on the clock of
/// [`since_boot`](runtime::clock::since_boot); unbounded if no other member can lead.
#[derive(Debug, Clone)]
pub struct LeaderLease(Arc<AtomicU64>);

impl LeaderLease {
    /// Returns a lease that never expires, for a single member.
    #[must_use]
    pub fn unbounded() -> Self {
        Self(Arc::new(AtomicU64::new(u64::MAX)))
    }

    /// Returns a lease that has not begun.
    #[must_use]
    pub fn none() -> Self {
        Self(Arc::new(AtomicU64::new(0)))
    }

    /// Extends the lease until `until`, a time since boot.
    pub fn extend(&self, until: Duration) {
        let millis = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
        self.0.fetch_max(millis, Ordering::AcqRel);
    }

    /// Returns true if both are the lease of the same term.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn is_unbounded(&self) -> bool {
        self.0.load(Ordering::Relaxed) == u64::MAX
    }

    /// Returns true if the lease is valid at `now`, a time since boot.
    #[must_use]
    pub fn holds(&self, now: Duration) -> bool {
        now.as_millis() < u128::from(self.0.load(Ordering::Acquire))
    }
}
