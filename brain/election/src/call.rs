//! Calls to a lock, as they are measured.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// The record is read.
    Read,
    /// A claim or a renewal is written, or the lock is given away.
    Write,
}

/// A call to the lock that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its kind.
    pub kind: CallKind,
    /// The time until the answer, or until it was given up.
    pub took: Duration,
    /// False if it was given up without an answer.
    pub is_answered: bool,
    /// True if the candidate led when it was sent.
    pub leads: bool,
}

/// Receives each call that has ended.
#[derive(Clone)]
pub(crate) struct Observer(pub(crate) Arc<dyn Fn(&Call) + Send + Sync>);

impl Default for Observer {
    fn default() -> Self {
        Self(Arc::new(|_| {}))
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer(..)")
    }
}
