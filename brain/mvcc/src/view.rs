//! One consistent state of the store: versions in memory over a snapshot of the rows.
//!
//! A view is published whole and never changes what it answers: versions above its revision that are inserted later into
//! its active memtable are not looked at.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::dictionaries::Dictionaries;
use super::fetch::FetchBudget;
use super::hot_rows::HotRows;
use super::key_index::{IndexCount, KeyIndex};
use super::next_page_count::PageCounts;
use super::op::{RangeOp, RangeResult, SortTarget, Span};
use super::row::{KeyMeta, decode_index, decode_object, size_of};
use super::select::select;
use crate::keys;
use crate::memtable::{MemtableSet, Version};
use engine::rows::{DynSnapshot, Order, RowsError, Scan};
use etcd_types::errors::Error;
use etcd_types::types::{KeyValue, Revision};
use runtime::budget::Meter;

pub use cursor::{Cursor, RestOfWalk, VALUE_BYTES_PER_READ};
pub use versions::{KeyVersion, VersionWalk};

mod cursor;
mod versions;

/// Bytes that one step of a scan takes at most.
const SCAN_PAGE_BYTES: usize = 256 << 10;

/// Steps in which a count may bring the index up to its revision.
const MAX_INDEX_CATCH_UP_STEPS: usize = 1_024;

/// The view of reads.
#[derive(Clone)]
pub struct View {
    /// The newest revision.
    pub revision: Revision,
    /// Reads below it are refused; -1 before the first compaction.
    pub compacted: Revision,
    /// Versions that are not in `rows`.
    pub memtables: MemtableSet,
    /// Everything that is not in `memtables`.
    pub rows: DynSnapshot,
    /// Dictionaries that values in `rows` are compressed with.
    pub dictionaries: Arc<Dictionaries>,
    /// The newest revision that may be in `rows`.
    pub rows_revision: Revision,
    /// Lists that are read page by page.
    pub page_counts: Arc<PageCounts>,
    /// Counts the keys that exist.
    pub key_index: Arc<KeyIndex>,
    /// Keys that were read from `rows`.
    pub hot: Arc<HotRows>,
}

/// The reason why a view cannot answer.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The request cannot be answered.
    #[error(transparent)]
    Refused(#[from] Error),
    /// The rows failed.
    #[error("read rows")]
    Rows(#[from] RowsError),
}

impl View {
    /// Returns the revision that a request for `revision` reads at, or [`Error::FutureRev`] or [`Error::Compacted`].
    pub fn resolve(&self, revision: Revision) -> Result<Revision, Error> {
        let at = if revision <= 0 { self.revision } else { revision };
        match at {
            _ if at > self.revision => Err(Error::FutureRev),
            _ if at < self.compacted => Err(Error::Compacted),
            _ => Ok(at),
        }
    }

    /// Returns a key at a revision that [`View::resolve`] returned.
    pub async fn get(&self, key: &Bytes, at: Revision) -> Result<Option<KeyValue>, RowsError> {
        if let Some((revision, version)) = self.memtables.get(key, at) {
            return Ok(from_version(key.clone(), revision, version));
        }
        if at >= self.rows_revision {
            if let Some(found) = self.hot.get(key) {
                return Ok(found);
            }
            let found = match self.rows.get(&keys::index_key(key)).await? {
                Some(index) => Some(self.object(key, decode_index(key, &index)?).await?),
                None => None,
            };
            self.hot.keep(key, found.as_ref());
            return Ok(found);
        }
        self.get_old(key, at).await
    }

    /// Reads distinct keys that are not in memory, at the newest revision, in the order of `wanted`, without their values: index
    /// rows only.
    pub async fn get_many_without_values(&self, wanted: &[Bytes]) -> Result<Vec<Option<KeyValue>>, RowsError> {
        let index: Vec<Bytes> = wanted.iter().map(|key| keys::index_key(key)).collect();
        let rows = self.rows.multi_get(&index).await?;
        let found = wanted.iter().zip(rows).map(|(key, row)| match row {
            Some(row) => Ok(Some(from_meta(key.clone(), decode_index(key, &row)?, Bytes::new()))),
            None => Ok(None),
        });
        found.collect()
    }

    /// Answers a range. Revisions that cannot be read are [`ViewError::Refused`].
    pub async fn range(&self, op: &RangeOp) -> Result<RangeResult, ViewError> {
        self.range_metered(op, &Meter::unlimited()).await
    }

    /// Answers a range, and charges it as it is read. Fails as [`View::range`] does, and with [`Error::TooManyRequests`] if there
    /// is no memory for it.
    pub async fn range_metered(&self, op: &RangeOp, meter: &Meter) -> Result<RangeResult, ViewError> {
        self.range_charged(op, ChargedTo::Meter(meter)).await
    }

    /// Answers a range within a budget. Fails as [`View::range`] and [`FetchBudget::take`] do.
    pub async fn range_within(&self, op: &RangeOp, budget: &mut FetchBudget) -> Result<RangeResult, ViewError> {
        self.range_charged(op, ChargedTo::Budget(budget)).await
    }

    async fn range_charged(&self, op: &RangeOp, to: ChargedTo<'_>) -> Result<RangeResult, ViewError> {
        let at = self.resolve(op.revision)?;
        let mut charged = RangeCharge::new(to);
        if op.span.is_point() {
            let kvs: Vec<KeyValue> = self.get(&op.span.key, at).await?.into_iter().collect();
            charged.keep(&kvs, true)?;
            let count = i64::try_from(kvs.len()).unwrap_or(i64::MAX);
            let kvs = if op.count_only { Vec::new() } else { kvs };
            return Ok(op.select(kvs, count));
        }
        // Boxed, so that a get has no room for it.
        Box::pin(self.span_charged(op, at, charged)).await
    }

    async fn span_charged(
        &self,
        op: &RangeOp,
        at: Revision,
        mut charged: RangeCharge<'_>,
    ) -> Result<RangeResult, ViewError> {
        let indexed = self.count_in_index(&op.span, at).await;
        if op.count_only || indexed == Some(0) {
            let count = match indexed {
                Some(count) => count,
                None => self.count_charged(&op.span, at, charged.budget()).await?,
            };
            return Ok(RangeResult {
                kvs: Vec::new(),
                count,
                more: false,
            });
        }
        let few = PairSelector::of(op);
        // Index rows say which few of many pairs are answered: the values of the others are not read.
        let is_late = few.is_some() && op.target != SortTarget::Value;
        let values = op.reads_values() && !is_late;
        let enough = op.enough();
        let mut cursor = self.cursor(&op.span, at, values);
        let (mut kvs, mut read) = (Vec::new(), 0);
        while kvs.len() < enough {
            let Some(page) = cursor.page(enough - kvs.len()).await? else {
                break;
            };
            charged.keep(&page, values)?;
            read += i64::try_from(page.len()).unwrap_or(i64::MAX);
            kvs.extend(cursor.load(page).await?);
            if let Some(few) = few.as_ref().filter(|few| kvs.len() > few.at_most) {
                kvs = select(&few.op, kvs, 0).await?.kvs;
                charged.keeps(&kvs);
            }
        }
        let count = match (cursor.rest(), indexed) {
            (None, _) => self.checked(&op.span, at, (indexed, read)),
            (Some(_), Some(count)) => count,
            (Some(rest), None) => match self.page_counts.take(&op.span, at) {
                Some(count) => count,
                None => read + self.count_charged(&rest, at, charged.budget()).await?,
            },
        };
        let mut result = select(op, kvs, count).await?;
        if is_late && op.reads_values() {
            result.kvs = self.load_charged(result.kvs, &mut charged).await?;
        }
        // Others are not the first of the span.
        let is_in_order = op.target == SortTarget::Key && !op.needs_all();
        if result.more && indexed.is_none() && is_in_order {
            let next = result
                .kvs
                .iter()
                .map(|kv| &kv.key)
                .max()
                .map(successor)
                .unwrap_or_default();
            self.page_counts.note(
                Span {
                    key: next,
                    end: op.span.end.clone(),
                },
                at,
                count - op.limit,
            );
        }
        Ok(result)
    }

    /// Reads the values of pairs, a part after the other.
    async fn load_charged(
        &self,
        kvs: Vec<KeyValue>,
        charged: &mut RangeCharge<'_>,
    ) -> Result<Vec<KeyValue>, ViewError> {
        let mut loaded = Vec::with_capacity(kvs.len());
        let (mut part, mut bytes) = (Vec::new(), 0);
        let mut kvs = kvs.into_iter().peekable();
        while let Some(kv) = kvs.next() {
            bytes += kv.size as usize;
            part.push(kv);
            let is_full = kvs.peek().is_none_or(|next| {
                bytes + next.size as usize > VALUE_BYTES_PER_READ || part.len() >= PAIRS_PER_VALUE_READ
            });
            if is_full {
                charged.keep(&part, true)?;
                loaded.extend(self.load(std::mem::take(&mut part)).await?);
                bytes = 0;
            }
        }
        Ok(loaded)
    }

    /// Reads values that are not at hand.
    async fn load(&self, mut page: Vec<KeyValue>) -> Result<Vec<KeyValue>, RowsError> {
        // A version above the rows' revision came from memory, with its value.
        let missing = |kv: &KeyValue| kv.size > 0 && kv.value.is_empty();
        let wanted: Vec<Bytes> = page
            .iter()
            .filter(|kv| missing(kv))
            .map(|kv| keys::object_key(&kv.key, kv.mod_revision))
            .collect();
        let mut found = self.rows.multi_get(&wanted).await?.into_iter();
        for kv in page.iter_mut().filter(|kv| missing(kv)) {
            let meta = KeyMeta {
                create_revision: kv.create_revision,
                mod_revision: kv.mod_revision,
                version: kv.version,
                lease: kv.lease,
                size: kv.size,
            };
            *kv = self.expect_object(kv.key.clone(), meta, found.next().flatten())?;
        }
        Ok(page)
    }

    /// Returns the number of keys of a span at a revision that [`View::resolve`] returned.
    pub async fn count(&self, span: &Span, at: Revision) -> Result<i64, RowsError> {
        match self.count_in_index(span, at).await {
            Some(count) => Ok(count),
            None => self.count_in_rows(span, at).await,
        }
    }

    /// Returns the number of keys of a span at a revision that [`View::resolve`] returned, if the index knows it.
    pub async fn count_in_index(&self, span: &Span, at: Revision) -> Option<i64> {
        for _ in 0..MAX_INDEX_CATCH_UP_STEPS {
            match self.key_index.count(span, at) {
                IndexCount::Keys(count) => return Some(count),
                IndexCount::Unknown => return None,
                IndexCount::Behind => drop(self.key_index.apply_some()),
            }
            tokio::task::yield_now().await;
        }
        None
    }

    /// Returns the number of keys that were read of a whole span. An index that has another number is discarded.
    fn checked(&self, span: &Span, at: Revision, (indexed, read): (Option<i64>, i64)) -> i64 {
        if let Some(count) = indexed.filter(|count| *count != read) {
            self.key_index.discard();
            tracing::error!(
            from = %span.key.escape_ascii(),
            to = %span.end.escape_ascii(),
            revision = at,
            count,
            read,
            "the index of keys is wrong and will be rebuilt: earlier counts may have been wrong"
            );
        }
        read
    }

    /// Counts as [`View::count`] does, but without the index.
    pub async fn count_in_rows(&self, span: &Span, at: Revision) -> Result<i64, RowsError> {
        let mut cursor = self.cursor(span, at, false);
        let mut count = 0;
        while let Some(page) = cursor.next(usize::MAX).await? {
            count += i64::try_from(page.len()).unwrap_or(i64::MAX);
        }
        Ok(count)
    }

    async fn count_charged(
        &self,
        span: &Span,
        at: Revision,
        mut budget: Option<&mut FetchBudget>,
    ) -> Result<i64, ViewError> {
        let mut cursor = self.cursor(span, at, false);
        let mut count = 0;
        while let Some(page) = cursor.next(usize::MAX).await? {
            if let Some(budget) = &mut budget {
                budget.take(page.len(), 0)?;
            }
            count += i64::try_from(page.len()).unwrap_or(i64::MAX);
        }
        Ok(count)
    }

    /// Walks a span in key order at a revision that [`View::resolve`] gave. Without `values` they are empty.
    pub fn cursor<'a>(&'a self, span: &Span, at: Revision, values: bool) -> Cursor<'a> {
        Cursor::new(self, span, at, values)
    }

    /// Continues a walk that had another view, at a revision that [`View::resolve`] gave for this one.
    pub fn resume<'a>(&'a self, rest: &RestOfWalk, at: Revision, values: bool) -> Cursor<'a> {
        Cursor::resumed(self, rest, at, values)
    }

    /// Walks all versions of all keys up to a revision that [`View::resolve`] returned.
    pub fn versions(&self, at: Revision) -> VersionWalk<'_> {
        self.versions_from(&[], at)
    }

    /// The same from a key on.
    pub fn versions_from(&self, key: &[u8], at: Revision) -> VersionWalk<'_> {
        VersionWalk::new(self, key, at)
    }

    /// The newest version of a key at an older revision than the rows'.
    async fn get_old(&self, key: &Bytes, at: Revision) -> Result<Option<KeyValue>, RowsError> {
        let range = keys::object_versions(key, at);
        let scan = Scan {
            from: range.from,
            to: Some(range.to),
            order: Order::Ascending,
            keys_only: false,
            max_rows: 1,
            max_bytes: SCAN_PAGE_BYTES,
        };
        match self.rows.scan(scan).await?.rows.first() {
            None => Ok(None),
            Some((_, value)) => {
                let object = decode_object(key, value, &self.dictionaries)?;
                Ok(object.map(|(meta, value)| from_meta(key.clone(), meta, value)))
            }
        }
    }

    /// A version whose index row was found.
    async fn object(&self, key: &Bytes, meta: KeyMeta) -> Result<KeyValue, RowsError> {
        let row = self.rows.get(&keys::object_key(key, meta.mod_revision)).await?;
        self.expect_object(key.clone(), meta, row)
    }

    /// Reads the values of versions that [`View::get_many_without_values`] found, in their order.
    pub async fn read_values(&self, found: &[&KeyValue]) -> Result<Vec<Bytes>, RowsError> {
        let objects: Vec<Bytes> = found
            .iter()
            .map(|kv| keys::object_key(&kv.key, kv.mod_revision))
            .collect();
        let rows = self.rows.multi_get(&objects).await?;
        let values = found
            .iter()
            .zip(rows)
            .map(|(kv, row)| self.expect_value(&kv.key, kv.mod_revision, row));
        values.collect()
    }

    /// The object row that an index row promised.
    fn expect_object(&self, key: Bytes, meta: KeyMeta, row: Option<Bytes>) -> Result<KeyValue, RowsError> {
        let value = self.expect_value(&key, meta.mod_revision, row)?;
        Ok(from_meta(key, meta, value))
    }

    fn expect_value(&self, key: &Bytes, revision: Revision, row: Option<Bytes>) -> Result<Bytes, RowsError> {
        let decode = |row| decode_object(key, row, &self.dictionaries);
        let object = row.as_ref().map(decode).transpose()?.flatten();
        object.map(|(_, value)| value).ok_or_else(|| {
            RowsError::Corrupt(format!(
                "the version of {:?} at revision {revision} is missing",
                key.escape_ascii().to_string(),
            ))
        })
    }
}

/// The memory of a pair beside its bytes, read and made ready for the wire.
const PAIR_OVERHEAD_BYTES: usize = 256;

/// The memory of a pair in an answer that is encoded from pairs which are in memory already.
pub fn answer_bytes(kv: &KeyValue) -> usize {
    kv.key.len() + kv.value.len() + PAIR_OVERHEAD_BYTES
}

/// Charges an answer for pairs, before `values` that are not in memory are read: they are in memory twice while the answer is
/// encoded. Returns [`Error::TooManyRequests`] if there is no memory for it.
pub fn charge(meter: &Meter, page: &[KeyValue], values: bool) -> Result<(), Error> {
    RangeCharge::new(ChargedTo::Meter(meter)).keep(page, values)
}

fn bytes_of(page: &[KeyValue], values: bool) -> usize {
    let value = |kv: &KeyValue| if values { kv.size as usize } else { kv.value.len() };
    page.iter().map(|kv| kv.key.len() + value(kv)).sum()
}

/// Pairs whose values are read at once at most.
const PAIRS_PER_VALUE_READ: usize = 512;

/// Selects a few of many pairs while they are read: all must be examined, but few are returned.
struct PairSelector {
    /// Selects one more than are returned.
    op: RangeOp,
    /// Number of pairs that are kept before the few are selected again.
    at_most: usize,
}

impl PairSelector {
    fn of(op: &RangeOp) -> Option<Self> {
        let limit = usize::try_from(op.limit)
            .ok()
            .filter(|limit| *limit > 0 && op.needs_all())?;
        let wider = RangeOp {
            limit: op.limit.saturating_add(1),
            keys_only: false,
            ..op.clone()
        };
        Some(Self {
            op: wider,
            at_most: limit.saturating_mul(2).saturating_add(PAIRS_PER_VALUE_READ),
        })
    }
}

/// The account that a range is charged to.
enum ChargedTo<'a> {
    Meter(&'a Meter),
    Budget(&'a mut FetchBudget),
}

/// The most bytes that a range which is read kept at once, charged.
struct RangeCharge<'a> {
    to: ChargedTo<'a>,
    kept: usize,
    taken: usize,
}

impl<'a> RangeCharge<'a> {
    fn new(to: ChargedTo<'a>) -> Self {
        Self { to, kept: 0, taken: 0 }
    }

    /// Charges for further pairs that are kept; with `values`, also for their values that are yet to be read.
    fn keep(&mut self, page: &[KeyValue], values: bool) -> Result<(), Error> {
        let bytes = bytes_of(page, values);
        self.kept += match &self.to {
            // Pairs are held a second time when they are encoded.
            ChargedTo::Meter(_) => 2 * bytes + page.len() * PAIR_OVERHEAD_BYTES,
            ChargedTo::Budget(_) => bytes + page.len() * PAIR_OVERHEAD_BYTES,
        };
        let more = self.kept.saturating_sub(self.taken);
        self.taken += more;
        match &mut self.to {
            ChargedTo::Meter(meter) => meter.charge(more).map_err(|_| Error::TooManyRequests),
            ChargedTo::Budget(budget) => budget.take(page.len(), more),
        }
    }

    /// Records that only these pairs are kept.
    fn keeps(&mut self, kvs: &[KeyValue]) {
        self.kept = 2 * bytes_of(kvs, false) + kvs.len() * PAIR_OVERHEAD_BYTES;
    }

    /// Returns the budget for examined rows, if one applies.
    fn budget(&mut self) -> Option<&mut FetchBudget> {
        match &mut self.to {
            ChargedTo::Meter(_) => None,
            ChargedTo::Budget(budget) => Some(budget),
        }
    }
}

/// The smallest byte string after `key`.
pub fn successor(key: &Bytes) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.put_u8(0);
    next.freeze()
}

pub fn from_version(key: Bytes, revision: Revision, version: Version) -> Option<KeyValue> {
    let value = version.value?;
    Some(KeyValue {
        key,
        size: size_of(&value),
        value,
        create_revision: version.create_revision,
        mod_revision: revision,
        version: version.version,
        lease: version.lease,
    })
}

pub fn from_meta(key: Bytes, meta: KeyMeta, value: Bytes) -> KeyValue {
    KeyValue {
        key,
        value,
        size: meta.size,
        create_revision: meta.create_revision,
        mod_revision: meta.mod_revision,
        version: meta.version,
        lease: meta.lease,
    }
}

#[cfg(test)]
mod tests;
