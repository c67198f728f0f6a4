//! Rows that another member writes: read anew while other things go on, for that may take long.

use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::time::Instant;

use super::load::read_fence;
use super::{OpenError, Replica};
use crate::log::Slot;
use crate::mvcc::row::Fence;
use crate::rows::{Rows, Snapshot};

/// How long to wait before rows are read once more that could not be read.
const RETRY: Duration = Duration::from_secs(2);

/// Rows as they were a moment ago; what they hold is not looked at yet.
pub struct Newer<S> {
    pub(super) snapshot: S,
    pub(super) fence: Fence,
}

impl<S: Snapshot> Newer<S> {
    /// Reads them now.
    ///
    /// # Errors
    /// When the rows fail.
    pub async fn read<R: Rows<Snapshot = S>>(rows: R) -> Result<Self, OpenError> {
        let snapshot = rows.snapshot().await?;
        let fence = read_fence(snapshot.fence().await?)?;
        Ok(Newer { snapshot, fence })
    }

    /// Whether they hold what a replica has not applied.
    pub fn is_ahead_of<R: Rows>(&self, replica: &Replica<R>) -> bool {
        Slot(self.fence.marker) > replica.next()
    }
}

/// Reads rows when they are wanted. What is under way is lost when this is dropped.
pub struct NewerRows<R: Rows> {
    rows: R,
    reading: Option<BoxFuture<'static, Result<Newer<R::Snapshot>, OpenError>>>,
    is_wanted: bool,
    not_before: Instant,
    last: Instant,
}

impl<R: Rows> NewerRows<R> {
    /// None are wanted yet.
    pub fn new(rows: R) -> Self {
        let now = Instant::now();
        Self {
            rows,
            reading: None,
            is_wanted: false,
            not_before: now,
            last: now,
        }
    }

    /// They have changed.
    pub fn want(&mut self) {
        self.is_wanted = true;
    }

    /// They may have changed, if those read last are so old.
    pub fn want_after(&mut self, age: Duration) {
        self.is_wanted |= self.last.elapsed() >= age;
    }

    /// Answers when wanted rows are read; what failed is wanted again. May be dropped and asked again.
    ///
    /// # Errors
    /// When the rows fail.
    pub async fn next(&mut self) -> Result<Newer<R::Snapshot>, OpenError> {
        if self.reading.is_none() {
            if !self.is_wanted {
                return std::future::pending().await;
            }
            tokio::time::sleep_until(self.not_before).await;
            self.is_wanted = false;
            self.last = Instant::now();
        }
        let rows = &self.rows;
        let read = || Newer::read(rows.clone()).boxed();
        let outcome = self.reading.get_or_insert_with(read).await;
        self.reading = None;
        if outcome.is_err() {
            self.is_wanted = true;
            self.not_before = Instant::now() + RETRY;
        }
        outcome
    }
}
