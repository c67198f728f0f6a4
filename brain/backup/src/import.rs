//! Copies another etcd into a new store: what it does from the snapshot's revision on is applied at the same revisions.
//!
//! Keys come by one watch over all of them. Leases are no part of it: a lease that an event names is asked for before the event is
//! applied, and all of them are compared from time to time.

pub use backlog::{Backlog, collecting};
pub use follow::{CopyOptions, CopySummary, copy};
pub use source::{Password, SourceOptions};
pub use source::{SnapshotParts, Source, SourceCompacted, in_short, is_transient};

pub mod backlog;
pub mod bounded;
mod client_writes;
mod dial;
mod events;
pub mod follow;
mod leases;
mod source;
mod verify;

#[cfg(test)]
mod tests;
