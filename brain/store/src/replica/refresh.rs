//! Refreshes rows that another member writes, in the background because a read may take long.

use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::time::Instant;

use super::load::read_manifest;
use super::{Replica, StoreOpenError};
use engine::log::Slot;
use engine::rows::{DynRows, DynSnapshot};
use mvcc::row::Manifest;

/// Pause before a failed read of rows is repeated.
const READ_RETRY_DELAY: Duration = Duration::from_secs(2);

/// A new snapshot of the rows with its manifest. Not compared with the replica yet.
pub struct RefreshedRows {
    pub(super) snapshot: DynSnapshot,
    pub(super) manifest: Manifest,
}

impl RefreshedRows {
    /// Reads the rows now.
    pub async fn read(rows: DynRows) -> Result<Self, StoreOpenError> {
        let snapshot = rows.snapshot().await?;
        let manifest = read_manifest(snapshot.fence().await?)?;
        Ok(RefreshedRows { snapshot, manifest })
    }

    /// Returns true if they hold records that a replica has not applied.
    pub fn is_ahead_of(&self, replica: &Replica) -> bool {
        Slot(self.manifest.applied_slot) > replica.next()
    }
}

/// Reads rows when they are wanted. Dropping it cancels a read that is under way.
pub struct RowsRefresher {
    rows: DynRows,
    reading: Option<BoxFuture<'static, Result<RefreshedRows, StoreOpenError>>>,
    is_wanted: bool,
    not_before: Instant,
    last: Instant,
}

impl RowsRefresher {
    /// Returns a refresher; no rows are wanted yet.
    pub fn new(rows: DynRows) -> Self {
        let now = Instant::now();
        Self {
            rows,
            reading: None,
            is_wanted: false,
            not_before: now,
            last: now,
        }
    }

    /// Requests a read, because the rows have changed.
    pub fn want(&mut self) {
        self.is_wanted = true;
    }

    /// Requests a read if the last one is at least this old, because the rows may have changed since.
    pub fn want_after(&mut self, age: Duration) {
        self.is_wanted |= self.last.elapsed() >= age;
    }

    /// Returns wanted rows once they are read. After a failure they are wanted again. May be dropped and called again.
    ///
    /// # Errors
    /// The rows cannot be read.
    pub async fn next(&mut self) -> Result<RefreshedRows, StoreOpenError> {
        if self.reading.is_none() {
            if !self.is_wanted {
                return std::future::pending().await;
            }
            tokio::time::sleep_until(self.not_before).await;
            self.is_wanted = false;
            self.last = Instant::now();
        }
        let rows = &self.rows;
        let read = || RefreshedRows::read(rows.clone()).boxed();
        let outcome = self.reading.get_or_insert_with(read).await;
        self.reading = None;
        if outcome.is_err() {
            self.is_wanted = true;
            self.not_before = Instant::now() + READ_RETRY_DELAY;
        }
        outcome
    }
}
