//! What the evaluation of a request needs of the rows, read before the writer takes the request.
//!
//! The writer evaluates from memory alone: it never waits for storage. Whoever asks reads first, at its own pace, within a
//! budget, and for as long as it waits for the answer.
//!
//! Invariant: [`Fetched`] knows its keys as they were at `revision`, and its generations hold every change since, up to the
//! last revision of the newest of them. Under what a later view has in memory that is the newest state, unless the rows of
//! that view have taken up something newer: then it has to be read again, see [`Fetched::is_current`].

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::op::{CompareTarget, Op, RangeOp, RangeResult, Span, TxnOp};
use super::view::{View, ViewError};
use super::{Error, KeyValue, Prev, Revision};
use crate::recent::Recent;
use crate::rows::{RowsError, Snapshot};

/// Requests that read at once. Further ones wait.
const READS: usize = 1_024;

/// Memory that one request may fetch, and all of them together, in bytes: half a million keys of usual length.
const BYTES: usize = 256 << 20;

/// Rows that one request may look at, each time it looks at one.
const ROWS: usize = 4_000_000;

/// Memory that a row takes beside its key and value.
const ROW: usize = 200;

/// Points that are read at once.
const AT_ONCE: usize = 1_024;

/// Points beyond which values are not read, where nobody asked for them.
const WITH_VALUES: usize = 1_024;

/// What all requests together may read. Clones share it.
#[derive(Debug, Clone)]
pub struct Fetches {
    reads: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

impl Default for Fetches {
    fn default() -> Self {
        Self {
            reads: Arc::new(Semaphore::new(READS)),
            bytes: Arc::new(Semaphore::new(BYTES)),
        }
    }
}

impl Fetches {
    /// A request's share, nothing of it used.
    #[must_use]
    pub fn budget(&self) -> Budget {
        Budget {
            fetches: self.clone(),
            held: None,
            bytes: 0,
            rows: 0,
        }
    }
}

/// What one request has read; it is given back when this is dropped.
#[derive(Debug)]
pub struct Budget {
    fetches: Fetches,
    held: Option<OwnedSemaphorePermit>,
    bytes: usize,
    rows: usize,
}

impl Budget {
    /// Takes rows that were looked at, and the bytes of those that are kept.
    ///
    /// # Errors
    /// [`Error::TooLarge`] where this request can never be evaluated, [`Error::TooManyRequests`] where others have to end first.
    pub fn take(&mut self, rows: usize, bytes: usize) -> Result<(), Error> {
        self.rows += rows;
        self.bytes += bytes;
        if self.rows > ROWS || self.bytes > BYTES {
            return Err(Error::TooLarge);
        }
        let permits = u32::try_from(bytes).map_err(|_| Error::TooLarge)?;
        let permit = self.fetches.bytes.clone().try_acquire_many_owned(permits);
        let permit = permit.map_err(|_| Error::TooManyRequests)?;
        match &mut self.held {
            Some(held) => held.merge(permit),
            None => self.held = Some(permit),
        }
        Ok(())
    }

    /// Takes pairs that are kept.
    ///
    /// # Errors
    /// As [`Budget::take`].
    pub fn keep<'a>(&mut self, kvs: impl Iterator<Item = &'a KeyValue> + Clone) -> Result<(), Error> {
        let rows = kvs.clone().count();
        let bytes = kvs.map(|kv| kv.key.len() + kv.value.len() + ROW).sum();
        self.take(rows, bytes)
    }
}

/// A key that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The key; with an empty value where that was not read.
    pub kv: KeyValue,
    /// Whether the value was read.
    pub value: ValueRead,
}

/// Whether a value was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueRead {
    /// It was.
    Read,
    /// Nobody needed it.
    Skipped,
}

impl Row {
    /// A key with its value.
    #[must_use]
    pub fn read(kv: KeyValue) -> Self {
        let value = ValueRead::Read;
        Self { kv, value }
    }
}

impl From<Row> for Prev {
    fn from(row: Row) -> Self {
        match row.value {
            ValueRead::Read => Prev::Version(row.kv),
            ValueRead::Skipped => Prev::Unread,
        }
    }
}

/// How a span is used.
#[derive(Debug, Clone, Copy)]
struct Use {
    /// How often it is looked at.
    times: usize,
    values: bool,
}

/// Keys that an evaluation will look at and that are not in memory.
#[derive(Debug, Default)]
pub struct Needs {
    points: BTreeSet<Bytes>,
    spans: HashMap<Span, Use>,
    /// Ranges at an older revision.
    ranges: HashSet<RangeOp>,
    /// The lowest revision that a range reads and that is not published yet.
    unpublished: Option<Revision>,
}

impl Needs {
    /// What a write needs beside what a view has in memory.
    #[must_use]
    pub fn of<S>(op: &Op, view: &View<S>) -> Self {
        let mut needs = Self::default();
        needs.add(op, view);
        needs
    }

    /// What the end of a lease needs that these keys are attached to.
    #[must_use]
    pub fn of_keys<'a, S>(keys: impl Iterator<Item = &'a Bytes>, view: &View<S>) -> Self {
        let mut needs = Self::default();
        keys.for_each(|key| needs.point(key, view));
        needs
    }

    /// What the compares of a txn need, nested ones included.
    #[must_use]
    pub fn of_compares<S>(txn: &TxnOp, view: &View<S>) -> Self {
        let mut needs = Self::default();
        needs.compares(txn, view);
        needs
    }

    /// Everything is in memory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.points.is_empty() && self.spans.is_empty() && self.ranges.is_empty() && self.unpublished.is_none()
    }

    fn add<S>(&mut self, op: &Op, view: &View<S>) {
        match op {
            Op::Put(put) => self.point(&put.key, view),
            Op::Delete(delete) if delete.span.is_point() => self.point(&delete.span.key, view),
            Op::Delete(delete) => self.span(&delete.span, delete.prev_kv),
            Op::Range(range) if range.revision > view.revision => {
                let lowest = self
                    .unpublished
                    .map_or(range.revision, |lowest| lowest.min(range.revision));
                self.unpublished = Some(lowest);
            }
            Op::Range(range) if range.revision > 0 => {
                self.ranges.insert(range.clone());
            }
            Op::Range(range) if range.span.is_point() => self.point(&range.span.key, view),
            Op::Range(range) => self.span(&range.span, range.reads_values()),
            Op::Txn(txn) => {
                self.compares_of(txn, view);
                txn.success.iter().chain(&txn.failure).for_each(|op| self.add(op, view));
            }
        }
    }

    fn compares<S>(&mut self, txn: &TxnOp, view: &View<S>) {
        self.compares_of(txn, view);
        for op in txn.success.iter().chain(&txn.failure) {
            if let Op::Txn(nested) = op {
                self.compares(nested, view);
            }
        }
    }

    fn compares_of<S>(&mut self, txn: &TxnOp, view: &View<S>) {
        for compare in &txn.compares {
            if compare.span.is_point() {
                self.point(&compare.span.key, view);
            } else {
                self.span(&compare.span, matches!(compare.target, CompareTarget::Value(_)));
            }
        }
    }

    fn point<S>(&mut self, key: &Bytes, view: &View<S>) {
        if view.recent.get(key, view.revision).is_none() && !self.points.contains(key) {
            self.points.insert(key.clone());
        }
    }

    fn span(&mut self, span: &Span, values: bool) {
        let wanted = self.spans.entry(span.clone()).or_insert(Use {
            times: 0,
            values: false,
        });
        wanted.times += 1;
        wanted.values |= values;
    }

    /// Reads what is needed, as of a view's revision. `newest` answers with the newest view.
    ///
    /// # Errors
    /// As [`Budget::take`], and when the rows fail.
    pub async fn fetch<S: Snapshot>(
        self,
        view: &View<S>,
        newest: impl Fn() -> Arc<View<S>>,
        mut budget: Budget,
    ) -> Result<Fetched, ViewError> {
        let reads = budget.fetches.reads.clone();
        // Never closed.
        let _permit = reads.acquire_owned().await.map_err(|_| Error::Stopped)?;
        let mut fetched = Fetched::of(view);
        let mut more = More::default();
        let points: Vec<Bytes> = self.points.into_iter().collect();
        let is_few = points.len() <= WITH_VALUES;
        for wanted in points.chunks(AT_ONCE) {
            let found = read_points(view, wanted, is_few).await?;
            budget.keep(found.iter().flatten().map(|row| &row.kv))?;
            more.points.extend(wanted.iter().cloned().zip(found));
            fetched.extend(&newest());
        }
        for (span, wanted) in self.spans {
            let mut cursor = view.cursor(&span, view.revision, wanted.values);
            let mut rows = Vec::new();
            while let Some(page) = cursor.next(usize::MAX).await? {
                budget.keep(page.iter())?;
                budget.take(page.len() * (wanted.times - 1), 0)?;
                rows.extend(page.into_iter().map(|kv| row_of(kv, wanted.values)));
                fetched.extend(&newest());
            }
            more.spans.insert(span, rows);
        }
        for range in self.ranges {
            let result = view.range_within(&range, &mut budget).await;
            match result {
                Ok(result) => drop(more.ranges.insert(range, result)),
                // Known when it is evaluated, if that branch is taken.
                Err(ViewError::Refused(Error::Compacted | Error::FutureRevision)) => {}
                Err(error) => return Err(error),
            }
            fetched.extend(&newest());
        }
        more.unpublished = self.unpublished;
        more.budget = Some(budget);
        fetched.more = Some(Box::new(more));
        Ok(fetched)
    }
}

/// Points that are not in memory, each as it is at a view's revision.
async fn read_points<S: Snapshot>(
    view: &View<S>,
    wanted: &[Bytes],
    values: bool,
) -> Result<Vec<Option<Row>>, RowsError> {
    if view.revision < view.rows_revision || wanted.len() == 1 {
        let mut found = Vec::with_capacity(wanted.len());
        for key in wanted {
            found.push(view.get(key, view.revision).await?.map(Row::read));
        }
        return Ok(found);
    }
    if values {
        let found = view.get_many(wanted).await?;
        return Ok(found.into_iter().map(|kv| kv.map(Row::read)).collect());
    }
    let found = view.get_many_without_values(wanted).await?;
    let row = |kv| row_of(kv, false);
    Ok(found.into_iter().map(|kv| kv.map(row)).collect())
}

fn row_of(kv: KeyValue, values: bool) -> Row {
    // Versions from memory come with their values.
    let is_read = values || !kv.value.is_empty() || kv.size == 0;
    let value = if is_read { ValueRead::Read } else { ValueRead::Skipped };
    Row { kv, value }
}

/// What was read for a request. See the module.
#[derive(Debug)]
pub struct Fetched {
    revision: Revision,
    recent: Recent,
    /// `None` where everything was in memory.
    more: Option<Box<More>>,
}

#[derive(Debug, Default)]
struct More {
    points: HashMap<Bytes, Option<Row>>,
    spans: HashMap<Span, Vec<Row>>,
    ranges: HashMap<RangeOp, RangeResult>,
    unpublished: Option<Revision>,
    budget: Option<Budget>,
}

impl Fetched {
    /// Nothing but what a view has in memory.
    #[must_use]
    pub fn of<S>(view: &View<S>) -> Self {
        Self {
            revision: view.revision,
            recent: view.recent.clone(),
            more: None,
        }
    }

    /// The newest state of what was fetched is known at a view with these rows, when `head` is the newest revision.
    #[must_use]
    pub fn is_current(&self, rows_revision: Revision, head: Revision) -> bool {
        let unpublished = self.more.as_ref().and_then(|more| more.unpublished);
        rows_revision <= self.through() && unpublished.is_none_or(|revision| revision > head)
    }

    /// The last revision of which the changes are here.
    fn through(&self) -> Revision {
        let last = self.recent.active().revisions().map(|revisions| *revisions.end());
        last.map_or(self.revision, |last| last.max(self.revision))
    }

    /// Takes newer generations along, so that a long read is not in vain.
    fn extend<S>(&mut self, newest: &View<S>) {
        if newest.rows_revision <= self.through() && !Arc::ptr_eq(self.recent.active(), newest.recent.active()) {
            self.recent = newest.recent.over(&self.recent);
        }
    }

    /// A key's state, if its view had it in memory or it was read: `Some(None)` does not exist.
    #[must_use]
    pub fn get(&self, key: &Bytes, at: Revision) -> Option<Option<Row>> {
        if let Some((revision, version)) = self.recent.get(key, at) {
            return Some(super::view::from_version(key.clone(), revision, version).map(Row::read));
        }
        self.more.as_ref()?.points.get(key).cloned()
    }

    /// The keys of a span as they were when they were read, in order.
    #[must_use]
    pub fn span(&self, span: &Span) -> Option<&[Row]> {
        self.more.as_ref()?.spans.get(span).map(Vec::as_slice)
    }

    /// What a range found that reads one revision whenever it is evaluated.
    #[must_use]
    pub fn range(&self, range: &RangeOp) -> Option<&RangeResult> {
        self.more.as_ref()?.ranges.get(range)
    }

    /// What is in memory: newer generations over those that were when this was read.
    #[must_use]
    pub fn under(&self, newer: &Recent) -> Recent {
        newer.over(&self.recent)
    }

    /// Adds ranges at the revision of the view that this was read from.
    ///
    /// # Errors
    /// As [`View::range`], and [`Budget::take`].
    pub async fn read_ranges<'a, S: Snapshot>(
        &mut self,
        ranges: impl Iterator<Item = &'a RangeOp>,
        view: &View<S>,
    ) -> Result<(), ViewError> {
        let more = self.more.get_or_insert_default();
        for range in ranges {
            let Some(budget) = &mut more.budget else { continue };
            if !more.ranges.contains_key(range) {
                let result = view.range_within(range, budget).await?;
                more.ranges.insert(range.clone(), result);
            }
        }
        Ok(())
    }
}
