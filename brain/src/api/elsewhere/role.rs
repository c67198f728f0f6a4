//! Who leads, as far as this member knows, and how long it may say so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tonic::transport::Channel;

use super::Reads;

/// Who answers what only a leader can.
#[derive(Debug, Clone, Default)]
pub enum Role {
    /// Nobody is known to lead.
    #[default]
    Nobody,
    /// This member, until its right ends: see [`Right`].
    Leading(Right),
    /// This one: the channel to it stands.
    Following(Leader),
    /// This member, but it is about to hand the lead over: nobody answers for a moment.
    Leaving,
    /// This member has stopped.
    Stopped,
}

/// The way to a leader. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Leader {
    /// The connection.
    pub channel: Channel,
    /// Its member id.
    pub member: u64,
    /// Reads that wait for a question to it.
    pub reads: Reads,
}

/// How long this member may answer from memory as the leader, on the clock of [`since_boot`](crate::state::since_boot), in
/// milliseconds. For ever where nobody else can lead.
#[derive(Debug, Clone)]
pub struct Right(Arc<AtomicU64>);

impl Right {
    /// The right of one whom nobody can depose.
    #[must_use]
    pub fn for_ever() -> Self {
        Self(Arc::new(AtomicU64::new(u64::MAX)))
    }

    /// No right yet.
    #[must_use]
    pub fn none() -> Self {
        Self(Arc::new(AtomicU64::new(0)))
    }

    /// Extends it up to a moment since boot.
    pub fn extend(&self, until: Duration) {
        let millis = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
        self.0.fetch_max(millis, Ordering::AcqRel);
    }

    /// Whether it is of the same term.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn is_for_ever(&self) -> bool {
        self.0.load(Ordering::Relaxed) == u64::MAX
    }

    /// Whether it holds at a moment since boot.
    #[must_use]
    pub fn holds(&self, now: Duration) -> bool {
        now.as_millis() < u128::from(self.0.load(Ordering::Acquire))
    }
}
