//! One consistent state of the store: recent versions over a snapshot of the rows.
//!
//! A view is published whole and never changes what it answers: versions above its revision that are inserted later into
//! its active generation are not looked at.

use std::ops::Bound;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::counts::Counts;
use super::op::{RangeOp, RangeResult, Span};
use super::row::{Meta, decode_index, decode_object};
use super::{Error, KeyValue, Revision};
use crate::recent::{self, Recent, Version};
use crate::rows::{Order, RowsError, Scan, Snapshot, keys};

/// Rows and bytes that one step of a scan takes at most.
const PAGE_ROWS: usize = 512;
const PAGE_BYTES: usize = 256 << 10;

/// What reads see.
#[derive(Debug, Clone)]
pub struct View<S> {
    /// The newest revision.
    pub revision: Revision,
    /// Reads below it are refused; -1 before the first compaction.
    pub compacted: Revision,
    /// Versions that are not in `rows`.
    pub recent: Recent,
    /// Everything that is not in `recent`.
    pub rows: S,
    /// The newest revision that may be in `rows`.
    pub rows_revision: Revision,
    /// Lists that are read page by page.
    pub counts: Arc<Counts>,
}

/// Why a view cannot answer.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The request cannot be answered.
    #[error(transparent)]
    Refused(#[from] Error),
    /// The rows failed.
    #[error("read rows")]
    Rows(#[from] RowsError),
}

impl<S: Snapshot> View<S> {
    /// The revision that a request for `revision` reads at.
    ///
    /// # Errors
    /// [`Error::FutureRevision`] and [`Error::Compacted`].
    pub fn resolve(&self, revision: Revision) -> Result<Revision, Error> {
        let at = if revision <= 0 { self.revision } else { revision };
        match at {
            _ if at > self.revision => Err(Error::FutureRevision),
            _ if at < self.compacted => Err(Error::Compacted),
            _ => Ok(at),
        }
    }

    /// A key at a revision that [`View::resolve`] gave.
    ///
    /// # Errors
    /// When the rows fail.
    pub async fn get(&self, key: &Bytes, at: Revision) -> Result<Option<KeyValue>, RowsError> {
        if let Some((revision, version)) = self.recent.get(key, at) {
            return Ok(from_version(key.clone(), revision, version));
        }
        if at >= self.rows_revision {
            let Some(index) = self.rows.get(&keys::index_key(key)).await? else {
                return Ok(None);
            };
            return self.object(key, decode_index(&index)?).await.map(Some);
        }
        self.get_old(key, at).await
    }

    /// Distinct keys that are not in memory, at the newest revision, in the order of `wanted`.
    ///
    /// # Errors
    /// When the rows fail.
    pub async fn get_many(&self, wanted: &[Bytes]) -> Result<Vec<Option<KeyValue>>, RowsError> {
        let index: Vec<Bytes> = wanted.iter().map(|key| keys::index_key(key)).collect();
        let mut found = Vec::with_capacity(wanted.len());
        for (key, row) in wanted.iter().zip(self.rows.multi_get(&index).await?) {
            if let Some(row) = row {
                found.push((key.clone(), decode_index(&row)?));
            }
        }
        let mut objects = self.objects(found).await?.into_iter().peekable();
        Ok(wanted.iter().map(|key| objects.next_if(|kv| kv.key == *key)).collect())
    }

    /// Answers a range.
    ///
    /// # Errors
    /// [`ViewError::Refused`] for revisions that cannot be read, else when the rows fail.
    pub async fn range(&self, op: &RangeOp) -> Result<RangeResult, ViewError> {
        let at = self.resolve(op.revision)?;
        if op.span.is_point() {
            let kvs: Vec<KeyValue> = self.get(&op.span.key, at).await?.into_iter().collect();
            let count = i64::try_from(kvs.len()).unwrap_or(i64::MAX);
            let kvs = if op.count_only { Vec::new() } else { kvs };
            return Ok(op.select(kvs, count));
        }
        if op.count_only {
            let count = self.count(&op.span, at).await?;
            return Ok(RangeResult {
                kvs: Vec::new(),
                count,
                more: false,
            });
        }
        let enough = match usize::try_from(op.limit) {
            Ok(limit) if limit > 0 && !op.needs_all() => limit.saturating_add(1),
            _ => usize::MAX,
        };
        let values = !op.keys_only || op.target == super::op::SortTarget::Value;
        let mut cursor = self.cursor(&op.span, at, values);
        let mut kvs = Vec::new();
        while kvs.len() < enough {
            let Some(page) = cursor.next(enough - kvs.len()).await? else {
                break;
            };
            kvs.extend(page);
        }
        let read = i64::try_from(kvs.len()).unwrap_or(i64::MAX);
        let count = match cursor.rest() {
            None => read,
            Some(rest) => match self.counts.take(&op.span, at) {
                Some(count) => count,
                None => read + self.count(&rest, at).await?,
            },
        };
        let result = op.select(kvs, count);
        if result.more && !op.needs_all() {
            let next = result
                .kvs
                .iter()
                .map(|kv| &kv.key)
                .max()
                .map(successor)
                .unwrap_or_default();
            self.counts.note(
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

    /// How many keys a span holds at a revision that [`View::resolve`] gave.
    ///
    /// # Errors
    /// When the rows fail.
    pub async fn count(&self, span: &Span, at: Revision) -> Result<i64, RowsError> {
        let mut cursor = self.cursor(span, at, false);
        let mut count = 0;
        while let Some(page) = cursor.next(usize::MAX).await? {
            count += i64::try_from(page.len()).unwrap_or(i64::MAX);
        }
        Ok(count)
    }

    /// Walks a span in key order at a revision that [`View::resolve`] gave. Without `values` they are empty.
    pub fn cursor<'a>(&'a self, span: &Span, at: Revision, values: bool) -> Cursor<'a, S> {
        let rows = if at >= self.rows_revision {
            keys::index_range(&span.key, &span.end)
        } else {
            keys::object_range(&span.key, &span.end)
        };
        Cursor {
            view: self,
            at,
            values,
            from: Bound::Included(span.key.clone()),
            to: span.limit(),
            row_from: rows.from,
            row_to: Some(rows.to),
            done: span.is_empty(),
        }
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
            max_bytes: PAGE_BYTES,
        };
        match self.rows.scan(scan).await?.rows.first() {
            None => Ok(None),
            Some((_, value)) => Ok(decode_object(value)?.map(|(meta, value)| from_meta(key.clone(), meta, value))),
        }
    }

    /// A version whose index row was found.
    async fn object(&self, key: &Bytes, meta: Meta) -> Result<KeyValue, RowsError> {
        let row = self.rows.get(&keys::object_key(key, meta.mod_revision)).await?;
        expect_object(key.clone(), meta, row)
    }

    /// Versions whose index rows were found.
    async fn objects(&self, found: Vec<(Bytes, Meta)>) -> Result<Vec<KeyValue>, RowsError> {
        let objects: Vec<Bytes> = found
            .iter()
            .map(|(key, meta)| keys::object_key(key, meta.mod_revision))
            .collect();
        let rows = self.rows.multi_get(&objects).await?;
        found
            .into_iter()
            .zip(rows)
            .map(|((key, meta), row)| expect_object(key, meta, row))
            .collect()
    }
}

/// How far the pairs of a page are complete.
#[derive(Debug)]
enum Reached {
    /// To the end of the span.
    End,
    /// Up to this key.
    Key(Bytes),
    /// Not even for one key.
    Nothing,
}

/// Walks the keys of a span at one revision, page by page.
#[derive(Debug)]
pub struct Cursor<'a, S> {
    view: &'a View<S>,
    at: Revision,
    values: bool,
    /// Keys not yet answered.
    from: Bound<Bytes>,
    to: Option<Bytes>,
    /// Rows not yet read. Never behind `from`.
    row_from: Bytes,
    row_to: Option<Bytes>,
    done: bool,
}

impl<S: Snapshot> Cursor<'_, S> {
    /// The next pairs in key order, at most `most`; `None` at the end. A page may be empty.
    ///
    /// # Errors
    /// When the rows fail.
    pub async fn next(&mut self, most: usize) -> Result<Option<Vec<KeyValue>>, RowsError> {
        if self.done {
            return Ok(None);
        }
        // Pages are short enough for the thread, but a list of all of them is not.
        tokio::task::yield_now().await;
        let page_rows = PAGE_ROWS.min(most.max(1));
        let (rows, reached) = if self.at >= self.view.rows_revision {
            self.index_page(page_rows).await?
        } else {
            self.object_page().await?
        };
        let mut page = match &reached {
            Reached::Nothing => return Ok(Some(Vec::new())),
            Reached::Key(key) => self.merge(rows, Some(key)),
            Reached::End => self.merge(rows, None),
        };
        if page.len() > most {
            page.truncate(most);
            self.skip_behind(page.last().map(|kv| kv.key.clone()).unwrap_or_default());
        } else {
            match reached {
                Reached::Key(key) => self.from = Bound::Excluded(key),
                Reached::Nothing | Reached::End => self.done = true,
            }
        }
        if self.values {
            self.load(page).await.map(Some)
        } else {
            Ok(Some(page))
        }
    }

    /// What was not walked yet.
    pub fn rest(&self) -> Option<Span> {
        if self.done {
            return None;
        }
        let key = match &self.from {
            Bound::Included(key) => key.clone(),
            Bound::Excluded(key) => successor(key),
            Bound::Unbounded => Bytes::new(),
        };
        Some(Span {
            key,
            end: self.to.clone().unwrap_or(Bytes::from_static(&[0])),
        })
    }

    /// Goes on behind a key that may lie before rows already read.
    fn skip_behind(&mut self, key: Bytes) {
        let row = if self.at >= self.view.rows_revision {
            keys::index_key(&key)
        } else {
            keys::object_key(&key, 0)
        };
        self.row_from = successor(&row);
        self.from = Bound::Excluded(key);
    }

    /// Pairs without values from index rows.
    async fn index_page(&mut self, max_rows: usize) -> Result<(Vec<KeyValue>, Reached), RowsError> {
        let page = self.view.rows.scan(self.scan(max_rows)).await?;
        let mut rows = Vec::with_capacity(page.rows.len());
        for (row, value) in &page.rows {
            rows.push(from_meta(keys::parse_index(row)?, decode_index(value)?, Bytes::new()));
        }
        if let Some((row, _)) = page.rows.last() {
            self.row_from = successor(row);
        }
        let reached = match rows.last() {
            Some(kv) if !page.done => Reached::Key(kv.key.clone()),
            _ => Reached::End,
        };
        Ok((rows, reached))
    }

    /// Pairs with values from object rows at an old revision.
    async fn object_page(&mut self) -> Result<(Vec<KeyValue>, Reached), RowsError> {
        let page = self.view.rows.scan(self.scan(PAGE_ROWS)).await?;
        let mut rows: Vec<KeyValue> = Vec::new();
        let mut decided: Option<Bytes> = None;
        let mut last: Option<(Bytes, Revision)> = None;
        for (row, value) in &page.rows {
            let (key, revision) = keys::parse_object(row)?;
            if revision <= self.at && decided.as_ref() != Some(&key) {
                if let Some((meta, value)) = decode_object(value)? {
                    rows.push(from_meta(key.clone(), meta, value));
                }
                decided = Some(key.clone());
            }
            last = Some((key, revision));
        }
        let Some((key, _)) = last.filter(|_| !page.done) else {
            return Ok((rows, Reached::End));
        };
        // Skip what is left of the last key's versions, or go to the one that counts.
        self.row_from = if decided.as_ref() == Some(&key) {
            successor(&keys::object_key(&key, 0))
        } else {
            keys::object_key(&key, self.at)
        };
        Ok((rows, decided.map_or(Reached::Nothing, Reached::Key)))
    }

    fn scan(&self, max_rows: usize) -> Scan {
        Scan {
            from: self.row_from.clone(),
            to: self.row_to.clone(),
            order: Order::Ascending,
            keys_only: false,
            max_rows,
            max_bytes: PAGE_BYTES,
        }
    }

    /// Puts recent versions over pairs from rows, up to a key.
    fn merge(&self, rows: Vec<KeyValue>, up_to: Option<&Bytes>) -> Vec<KeyValue> {
        let from = match &self.from {
            Bound::Included(key) => key.clone(),
            Bound::Excluded(key) => successor(key),
            Bound::Unbounded => Bytes::new(),
        };
        let span = recent::Span {
            from,
            to: up_to.map(successor).or_else(|| self.to.clone()),
        };
        let mut merged = Vec::with_capacity(rows.len());
        let mut rows = rows.into_iter().peekable();
        for found in self.view.recent.range(&span, self.at, Order::Ascending) {
            while let Some(row) = rows.next_if(|row| row.key < found.key) {
                merged.push(row);
            }
            rows.next_if(|row| row.key == found.key);
            merged.extend(from_version(found.key, found.revision, found.version));
        }
        merged.extend(rows);
        merged
    }

    /// Reads the values of pairs that came from index rows.
    async fn load(&self, mut page: Vec<KeyValue>) -> Result<Vec<KeyValue>, RowsError> {
        if self.at < self.view.rows_revision {
            return Ok(page); // object rows have them
        }
        // A version above the rows' revision came from memory, with its value.
        let missing = |kv: &KeyValue| kv.mod_revision <= self.view.rows_revision && kv.value.is_empty();
        let wanted: Vec<Bytes> = page
            .iter()
            .filter(|kv| missing(kv))
            .map(|kv| keys::object_key(&kv.key, kv.mod_revision))
            .collect();
        let mut found = self.view.rows.multi_get(&wanted).await?.into_iter();
        for kv in page.iter_mut().filter(|kv| missing(kv)) {
            let meta = Meta {
                create_revision: kv.create_revision,
                mod_revision: kv.mod_revision,
                version: kv.version,
                lease: kv.lease,
            };
            *kv = expect_object(kv.key.clone(), meta, found.next().flatten())?;
        }
        Ok(page)
    }
}

/// The smallest byte string behind `key`.
pub(crate) fn successor(key: &Bytes) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.put_u8(0);
    next.freeze()
}

pub(crate) fn from_version(key: Bytes, revision: Revision, version: Version) -> Option<KeyValue> {
    Some(KeyValue {
        key,
        value: version.value?,
        create_revision: version.create_revision,
        mod_revision: revision,
        version: version.version,
        lease: version.lease,
    })
}

pub(crate) fn from_meta(key: Bytes, meta: Meta, value: Bytes) -> KeyValue {
    KeyValue {
        key,
        value,
        create_revision: meta.create_revision,
        mod_revision: meta.mod_revision,
        version: meta.version,
        lease: meta.lease,
    }
}

/// The object row that an index row promised.
fn expect_object(key: Bytes, meta: Meta, row: Option<Bytes>) -> Result<KeyValue, RowsError> {
    let object = row.as_ref().map(decode_object).transpose()?.flatten();
    match object {
        Some((_, value)) => Ok(from_meta(key, meta, value)),
        None => Err(RowsError::Corrupt(format!(
            "the version of {:?} at revision {} is missing",
            key.escape_ascii().to_string(),
            meta.mod_revision
        ))),
    }
}
