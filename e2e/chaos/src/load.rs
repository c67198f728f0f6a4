//! Clients that do things and write down what happened.

pub(super) mod client;
pub(super) mod leases;
mod messages;
pub(super) mod watcher;
pub(super) mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::history::{RoundTime, WrittenValue};

/// Timeout of a client's request.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of bytes after a value's number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Padding {
    /// This many after each number.
    All(usize),
    /// This many after some numbers, to fill messages and records up to their limits; none after the others.
    Some(usize),
}

/// One value in this many is filled.
const FILLED_VALUES_DIVISOR: u64 = 8;

impl Padding {
    fn of(self, value: WrittenValue) -> usize {
        match self {
            Self::All(bytes) => bytes,
            Self::Some(bytes) if value.0.is_multiple_of(FILLED_VALUES_DIVISOR) => bytes,
            Self::Some(_) => 0,
        }
    }
}

/// State that all clients of a round share.
#[derive(Clone, Debug)]
pub(super) struct RoundState {
    /// Begins all of its keys.
    pub(super) prefix: String,
    /// Bytes that are written beside the value's number.
    pub(super) padding: Padding,
    /// The revision before its first.
    pub(super) base: i64,
    began: Instant,
    values: Arc<AtomicU64>,
    newest: Arc<AtomicI64>,
}

impl RoundState {
    pub(super) fn new(number: u64, padding: Padding, base: i64) -> Self {
        Self {
            prefix: format!("round/{number}/"),
            padding,
            base,
            began: Instant::now(),
            values: Arc::new(AtomicU64::new(number << 32)),
            newest: Arc::new(AtomicI64::new(base)),
        }
    }

    /// Now.
    pub(super) fn at(&self) -> RoundTime {
        self.began.elapsed()
    }

    /// One that was never written.
    pub(super) fn value(&self) -> WrittenValue {
        WrittenValue(self.values.fetch_add(1, Ordering::Relaxed))
    }

    /// A revision was seen.
    pub(super) fn saw(&self, revision: i64) {
        self.newest.fetch_max(revision, Ordering::Relaxed);
    }

    /// The highest revision that any client has seen.
    pub(super) fn newest(&self) -> i64 {
        self.newest.load(Ordering::Relaxed)
    }
}
