//! Reads the rows that the evaluation of a request needs, before the writer takes the request.
//!
//! The writer evaluates from memory alone: it never waits for storage. The caller of a request reads the rows first, at its
//! own pace, within a budget, and for as long as it waits for the answer.
//!
//! Invariant: [`Fetched`] holds its keys as they were at `revision`, and its memtables hold every change since, up to the
//! last revision of the newest of them. Together with the memtables of a later view that is the newest state, unless the rows
//! of that view hold something newer. In that case the caller must read again, see [`Fetched::is_current`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::pin::pin;
use std::slice::Iter;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

pub use self::budget::{FEW_LEASE_KEYS, FetchBudget, FetchBudgets, FetchKind};

use super::op::{CompareTarget, Op, RangeOp, RangeResult, Span, TxnOp};
use super::view::{View, ViewError};
use crate::key_filter::KeyHash;
use crate::memtable::MemtableSet;
use etcd_types::errors::Error;
use etcd_types::types::{KeyValue, Prev, Revision};

mod budget;

/// Time for which a request counts as one of those that read at once. A longer one makes room for others, unless too many do so.
const SLOW_READ_TIME: Duration = Duration::from_millis(250);

/// Points that are read at once.
const POINTS_PER_READ: usize = 1_024;

/// Values that no request needs are read, too, for watchers that want them, if they are no more than this, in bytes.
const MAX_UNASKED_BYTES: usize = 1 << 20;

/// Values that are read at once, in bytes.
const VALUE_BYTES_PER_READ: usize = 4 << 20;

/// A key that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedRow {
    /// The key; with an empty value where that was not read.
    pub kv: KeyValue,
    /// Says if the value was read.
    pub value: ValueRead,
}

/// Says if a value was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueRead {
    /// It was.
    Read,
    /// It was not needed.
    Skipped,
}

impl FetchedRow {
    /// A key with its value.
    #[must_use]
    pub fn read(kv: KeyValue) -> Self {
        let value = ValueRead::Read;
        Self { kv, value }
    }
}

impl From<FetchedRow> for Prev {
    fn from(row: FetchedRow) -> Self {
        match row.value {
            ValueRead::Read => Prev::Version(row.kv),
            ValueRead::Skipped => Prev::Unread,
        }
    }
}

/// The part of a txn's possible reads that is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Extent {
    /// The reads that the txn needs if nothing changes before it is evaluated: the branches that its compares choose now, and values only
    /// as far as the limits of its ranges reach.
    Expected,
    /// All reads that it may need.
    #[default]
    Full,
}

/// The use of a span.
#[derive(Debug, Clone, Copy)]
struct SpanUse {
    /// The number of operations that read it.
    times: usize,
    /// The number of keys, from the first one on, whose values are needed.
    values: usize,
}

/// Keys that an evaluation will look at and that are not in memory.
#[derive(Debug, Default)]
pub struct FetchNeeds {
    /// Keys, and true if their value is needed.
    points: BTreeMap<Bytes, bool>,
    spans: HashMap<Span, SpanUse>,
    /// Ranges at an older revision.
    ranges: HashSet<RangeOp>,
    /// The lowest revision that a range reads and that is not published yet.
    unpublished: Option<Revision>,
    extent: Extent,
}

impl FetchNeeds {
    /// All reads that a write may need beside what a view has in memory.
    #[must_use]
    pub fn of(op: &Op, view: &View) -> Self {
        let mut needs = Self::default();
        needs.add(op, view);
        needs
    }

    /// The reads that a txn is expected to need, where its compares choose these [branches](super::evaluate::chosen).
    #[must_use]
    pub fn expected(txn: &TxnOp, path: &[bool], view: &View) -> Self {
        let mut needs = Self {
            extent: Extent::Expected,
            ..Self::default()
        };
        needs.add_chosen(txn, &mut path.iter(), view);
        needs
    }

    /// Adds the reads for the deletion of a key.
    pub fn add_key(&mut self, key: &Bytes, view: &View) {
        self.point(key, false, view);
    }

    /// The reads for the compares of a txn, nested ones included.
    #[must_use]
    pub fn of_compares(txn: &TxnOp, view: &View) -> Self {
        let mut needs = Self::default();
        needs.compares(txn, view);
        needs
    }

    /// Returns the fetched state if the view has everything that is needed in memory.
    #[must_use]
    pub fn in_memory(&self, view: &View) -> Option<Fetched> {
        let is_all =
            self.points.is_empty() && self.spans.is_empty() && self.ranges.is_empty() && self.unpublished.is_none();
        is_all.then(|| Fetched::of(view, self.extent))
    }

    fn add_chosen(&mut self, txn: &TxnOp, path: &mut Iter<'_, bool>, view: &View) {
        self.compares_of(txn, view);
        let holds = path.next().copied().unwrap_or(false);
        for op in txn.branch(holds) {
            match op {
                Op::Txn(nested) => self.add_chosen(nested, path, view),
                op => self.add(op, view),
            }
        }
    }

    fn add(&mut self, op: &Op, view: &View) {
        match op {
            Op::Put(put) => self.point(&put.key, put.prev_kv || put.ignore_value, view),
            Op::Delete(delete) if delete.span.is_point() => self.point(&delete.span.key, delete.prev_kv, view),
            Op::Delete(delete) => self.span(&delete.span, if delete.prev_kv { usize::MAX } else { 0 }),
            Op::Range(range) if range.revision > view.revision => {
                let lowest = self
                    .unpublished
                    .map_or(range.revision, |lowest| lowest.min(range.revision));
                self.unpublished = Some(lowest);
            }
            Op::Range(range) if range.revision > 0 => {
                self.ranges.insert(range.clone());
            }
            Op::Range(range) if range.span.is_point() => self.point(&range.span.key, range.reads_values(), view),
            Op::Range(range) => {
                let values = match self.extent {
                    _ if !range.reads_values() => 0,
                    Extent::Expected => range.enough(),
                    Extent::Full => usize::MAX,
                };
                self.span(&range.span, values);
            }
            Op::Txn(txn) => {
                self.compares_of(txn, view);
                txn.success.iter().chain(&txn.failure).for_each(|op| self.add(op, view));
            }
        }
    }

    fn compares(&mut self, txn: &TxnOp, view: &View) {
        self.compares_of(txn, view);
        for op in txn.success.iter().chain(&txn.failure) {
            if let Op::Txn(nested) = op {
                self.compares(nested, view);
            }
        }
    }

    fn compares_of(&mut self, txn: &TxnOp, view: &View) {
        for compare in &txn.compares {
            let values = matches!(compare.target, CompareTarget::Value(_));
            if compare.span.is_point() {
                self.point(&compare.span.key, values, view);
            } else {
                self.span(&compare.span, if values { usize::MAX } else { 0 });
            }
        }
    }

    fn point(&mut self, key: &Bytes, value: bool, view: &View) {
        if let Some(is_needed) = self.points.get_mut(key) {
            *is_needed |= value;
        } else if view.memtables.get(key, view.revision).is_none() {
            self.points.insert(key.clone(), value);
        }
    }

    fn span(&mut self, span: &Span, values: usize) {
        let wanted = self
            .spans
            .entry(span.clone())
            .or_insert(SpanUse { times: 0, values: 0 });
        wanted.times += 1;
        wanted.values = wanted.values.max(values);
    }

    /// Reads the needed rows, as of a view's revision. `newest` returns the newest view.
    pub async fn fetch(
        self,
        view: &View,
        newest: impl Fn() -> Arc<View>,
        budget: FetchBudget,
    ) -> Result<Fetched, ViewError> {
        let slow = budget.slow.clone();
        // Never closed.
        let permit = budget.reads.clone().acquire_owned().await.map_err(|_| Error::Stopped)?;
        let mut reading = pin!(self.read(view, newest, budget));
        if let Ok(read) = tokio::time::timeout(SLOW_READ_TIME, &mut reading).await {
            return read;
        }
        let _permit = match slow.try_acquire_owned() {
            Ok(slow) => {
                drop(permit);
                slow
            }
            Err(_) => permit,
        };
        reading.await
    }

    async fn read(
        self,
        view: &View,
        newest: impl Fn() -> Arc<View>,
        mut budget: FetchBudget,
    ) -> Result<Fetched, ViewError> {
        let mut fetched = Fetched::of(view, self.extent);
        let mut more = FetchedData::default();
        let points: Vec<(Bytes, bool)> = self.points.into_iter().collect();
        for wanted in points.chunks(POINTS_PER_READ) {
            let found = read_points(view, wanted, points.len() <= POINTS_PER_READ, &mut budget).await?;
            more.points.extend(wanted.iter().map(|(key, _)| key.clone()).zip(found));
            fetched.extend(&newest());
        }
        for (span, wanted) in self.spans {
            let (mut rows, mut rest) = (Vec::new(), Some(span.clone()));
            for (values, most) in [(true, wanted.values), (false, usize::MAX)] {
                let Some(from) = rest else { break };
                let mut cursor = view.cursor(&from, view.revision, values);
                while rows.len() < most
                    && let Some(page) = cursor.next(most - rows.len()).await?
                {
                    budget.keep(page.iter())?;
                    budget.take_again(page.len() * (wanted.times - 1))?;
                    rows.extend(page.into_iter().map(|kv| row_of(kv, values)));
                    fetched.extend(&newest());
                }
                rest = cursor.rest();
            }
            more.spans.insert(span, rows);
        }
        for range in self.ranges {
            let result = view.range_within(&range, &mut budget).await;
            match result {
                Ok(result) => drop(more.ranges.insert(range, result)),
                // Known when it is evaluated, if that branch is taken.
                Err(ViewError::Refused(Error::Compacted | Error::FutureRev)) => {}
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

/// Reads points that are not in memory, each as of the view's revision. Values that no request needs are read as well if `wanted` is
/// `all` of the points and these values are small. Everything is charged before it is read, except for a single value.
async fn read_points(
    view: &View,
    wanted: &[(Bytes, bool)],
    all: bool,
    budget: &mut FetchBudget,
) -> Result<Vec<Option<FetchedRow>>, ViewError> {
    // A single key is read with its value, which stays in memory, unless neither a request nor a watcher can want it.
    let is_single = match wanted {
        [(key, value)] => *value || budget.is_unasked_read || view.hot.get(key).is_some(),
        _ => false,
    };
    if view.revision < view.rows_revision || is_single {
        let mut found = Vec::with_capacity(wanted.len());
        for (key, value) in wanted {
            let mut row = view.get(key, view.revision).await?.map(FetchedRow::read);
            if let Some(row) = row.as_mut().filter(|_| !value && wanted.len() > 1) {
                row.kv.value = Bytes::new();
                row.value = ValueRead::Skipped;
            }
            budget.keep(row.iter().map(|row| &row.kv))?;
            found.push(row);
        }
        return Ok(found);
    }
    let keys: Vec<Bytes> = wanted.iter().map(|(key, _)| key.clone()).collect();
    let found = view.get_many_without_values(&keys).await?;
    budget.keep(found.iter().flatten())?;
    let sizes = || {
        wanted
            .iter()
            .zip(&found)
            .filter_map(|((_, value), kv)| Some((*value, kv.as_ref()?.size as usize)))
    };
    let unasked: usize = sizes().filter(|(value, _)| !value).map(|(_, size)| size).sum();
    budget.take(0, sizes().filter(|(value, _)| *value).map(|(_, size)| size).sum())?;
    let is_unasked_read = all && budget.is_unasked_read && unasked <= MAX_UNASKED_BYTES;
    if is_unasked_read {
        budget.take(0, unasked)?;
    }
    let mut rows: Vec<Option<FetchedRow>> = found.into_iter().map(|kv| kv.map(|kv| row_of(kv, false))).collect();
    let asked = rows.iter_mut().zip(wanted);
    let asked = asked.filter_map(|(row, (_, value))| row.as_mut().filter(|_| *value || is_unasked_read));
    for group in value_groups(asked) {
        let kvs: Vec<&KeyValue> = group.iter().map(|row| &row.kv).collect();
        let values = view.read_values(&kvs).await?;
        for (row, value) in group.into_iter().zip(values) {
            row.kv.value = value;
            row.value = ValueRead::Read;
        }
    }
    Ok(rows)
}

/// Rows whose values are read together.
fn value_groups<'a>(rows: impl Iterator<Item = &'a mut FetchedRow>) -> Vec<Vec<&'a mut FetchedRow>> {
    let (mut groups, mut bytes) = (Vec::new(), usize::MAX);
    for row in rows {
        let size = row.kv.size as usize;
        bytes = bytes.saturating_add(size);
        if bytes > VALUE_BYTES_PER_READ {
            groups.push(Vec::new());
            bytes = size;
        }
        if let Some(group) = groups.last_mut() {
            group.push(row);
        }
    }
    groups
}

fn row_of(kv: KeyValue, values: bool) -> FetchedRow {
    // Versions from memory come with their values.
    let is_read = values || !kv.value.is_empty() || kv.size == 0;
    let value = if is_read { ValueRead::Read } else { ValueRead::Skipped };
    FetchedRow { kv, value }
}

/// The rows that were read for a request. See the module.
#[derive(Debug)]
pub struct Fetched {
    revision: Revision,
    memtables: MemtableSet,
    extent: Extent,
    /// `None` where everything was in memory.
    more: Option<Box<FetchedData>>,
}

#[derive(Debug, Default)]
struct FetchedData {
    points: HashMap<Bytes, Option<FetchedRow>>,
    spans: HashMap<Span, Vec<FetchedRow>>,
    ranges: HashMap<RangeOp, RangeResult>,
    unpublished: Option<Revision>,
    budget: Option<FetchBudget>,
}

impl Fetched {
    /// Nothing but what a view has in memory.
    fn of(view: &View, extent: Extent) -> Self {
        Self {
            revision: view.revision,
            memtables: view.memtables.clone(),
            extent,
            more: None,
        }
    }

    /// How much was read of what may be needed.
    #[must_use]
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// True if the newest state of the fetched keys is known at a view with these rows, when `head` is the newest revision.
    #[must_use]
    pub fn is_current(&self, rows_revision: Revision, head: Revision) -> bool {
        let unpublished = self.more.as_ref().and_then(|more| more.unpublished);
        rows_revision <= self.through() && unpublished.is_none_or(|revision| revision > head)
    }

    /// The last revision whose changes are included.
    fn through(&self) -> Revision {
        let last = self.memtables.active().revisions().map(|revisions| *revisions.end());
        last.map_or(self.revision, |last| last.max(self.revision))
    }

    /// Adds newer memtables, so that the result of a long read is still usable.
    fn extend(&mut self, newest: &View) {
        if newest.rows_revision <= self.through() && !Arc::ptr_eq(self.memtables.active(), newest.memtables.active()) {
            self.memtables = newest.memtables.over(&self.memtables);
        }
    }

    /// A key's state, if its view had it in memory or it was read: `Some(None)` does not exist. `hash` is that of the key.
    #[must_use]
    pub fn get(&self, key: &Bytes, hash: KeyHash, at: Revision) -> Option<Option<FetchedRow>> {
        if let Some((revision, version)) = self.memtables.get_hashed(key, hash, at) {
            return Some(super::view::from_version(key.clone(), revision, version).map(FetchedRow::read));
        }
        self.more.as_ref()?.points.get(key).cloned()
    }

    /// The keys of a span as they were when they were read, in order.
    #[must_use]
    pub fn span(&self, span: &Span) -> Option<&[FetchedRow]> {
        self.more.as_ref()?.spans.get(span).map(Vec::as_slice)
    }

    /// Rows that were looked at when it was read.
    #[must_use]
    pub fn rows(&self) -> usize {
        let budget = self.more.as_ref().and_then(|more| more.budget.as_ref());
        budget.map_or(0, |budget| budget.rows)
    }

    /// The result of a range that reads one revision whenever it is evaluated.
    #[must_use]
    pub fn range(&self, range: &RangeOp) -> Option<&RangeResult> {
        self.more.as_ref()?.ranges.get(range)
    }

    /// The memtables: those of now above those at the time of the read.
    #[must_use]
    pub fn under(&self, newer: &MemtableSet) -> MemtableSet {
        newer.over(&self.memtables)
    }

    /// Adds ranges at the revision of the view that this was read from.
    pub async fn read_ranges<'a>(
        &mut self,
        ranges: impl Iterator<Item = &'a RangeOp>,
        view: &View,
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::hot_rows::HotRows;
    use crate::keys;
    use crate::next_page_count::PageCounts;
    use crate::op::PutOp;
    use crate::row::{KeyMeta, encode_index, encode_object};
    use engine::rows::mem::MemRows;
    use engine::rows::{RowChange, Rows};
    use etcd_types::types::LeaseId;

    #[tokio::test]
    async fn values_that_no_request_needs_are_read_while_a_watcher_wants_them() {
        let (rows, meta) = (
            MemRows::new(),
            KeyMeta {
                create_revision: 2,
                mod_revision: 2,
                version: 1,
                lease: LeaseId(0),
                size: 5,
            },
        );
        let keys = [Bytes::from_static(b"a"), Bytes::from_static(b"b")];
        let changes = keys.iter().flat_map(|key| {
            let object = encode_object(Some((&meta, b"value")));
            [
                RowChange::Put(keys::index_key(key), encode_index(&meta)),
                RowChange::Put(keys::object_key(key, 2), object),
            ]
        });
        rows.apply(None, Bytes::from_static(b"1"), changes.collect())
            .await
            .unwrap();
        let view = Arc::new(View {
            revision: 2,
            compacted: -1,
            memtables: MemtableSet::new(),
            rows: rows.snapshot().await.unwrap(),
            dictionaries: Arc::default(),
            rows_revision: 2,
            page_counts: Arc::new(PageCounts::default()),
            hot: Arc::new(HotRows::default()),
            key_index: Arc::default(),
        });
        let puts = keys.iter().map(|key| {
            Op::Put(PutOp {
                key: key.clone(),
                value: Bytes::new(),
                lease: LeaseId(0),
                prev_kv: false,
                ignore_value: false,
                ignore_lease: false,
            })
        });
        let op = Op::Txn(TxnOp {
            compares: Vec::new(),
            success: puts.collect(),
            failure: Vec::new(),
        });
        let (fetches, watchers) = (FetchBudgets::default(), Arc::new(AtomicU64::new(0)));
        let read = async || {
            let needs = FetchNeeds::of(&op, &view);
            let fetched = needs
                .fetch(&view, || view.clone(), fetches.budget(FetchKind::Writes))
                .await
                .unwrap();
            let rows = keys
                .iter()
                .map(|key| fetched.get(key, KeyHash::of(key), 2).unwrap().unwrap().value);
            rows.collect::<Vec<_>>()
        };
        assert_eq!(read().await, [ValueRead::Read; 2], "other members may have watchers");
        fetches.read_unasked_for(watchers.clone());
        assert_eq!(read().await, [ValueRead::Skipped; 2]);
        watchers.fetch_add(1, Ordering::Relaxed);
        assert_eq!(read().await, [ValueRead::Read; 2]);
    }
}
