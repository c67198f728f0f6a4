//! A walk over the keys of a span at one revision, page by page.
//!
//! Rows and versions in memory are each in key order; a page puts the versions over the rows as far as both are complete.

use std::ops::Bound;

use bytes::Bytes;

use super::{SCAN_PAGE_BYTES, View, from_meta, from_version, successor};
use crate::keys;
use crate::memtable;
use crate::op::Span;
use crate::row::{ObjectRow, decode_index};
use engine::rows::{Order, RowsError, Scan};
use etcd_types::types::{KeyValue, Revision};

/// Rows that one step takes at most.
const MAX_PAGE_ROWS: usize = 512;

/// The most pairs of a page, and the most versions in memory that are examined for it. Then other tasks have their turn.
const MAX_PAGE_PAIRS: usize = 2_048;
const MAX_PAGE_VERSIONS: usize = 8_192;

/// The least number of wanted pairs for which a walk begins with object rows: a shorter walk would often read some rows needlessly.
const MIN_OBJECT_WALK_PAIRS: usize = 16;

/// Older versions and tombstones that a walk passes over for each pair that it finds, and at most before the next one. Where there are
/// more, index rows lead to the newest versions.
const PASSED_VERSIONS_PER_PAIR: usize = 2;
const MAX_PASSED_VERSIONS: usize = 64;

/// Bytes of values that are read at once, but for a longer one alone.
pub const VALUE_BYTES_PER_READ: usize = 1 << 20;

/// The part of a span that a walk has not answered, and how to continue there, without its view.
#[derive(Debug, Clone)]
pub struct RestOfWalk {
    /// Keys not yet answered.
    pub span: Span,
    source: WalkedRows,
}

impl RestOfWalk {
    /// All of a walk that was not begun.
    pub fn all(span: Span) -> Self {
        Self {
            span,
            source: WalkedRows::Objects,
        }
    }
}

/// The position up to which the pairs of a page are complete.
#[derive(Debug)]
enum CompleteUpTo {
    /// To the end of the span.
    End,
    /// Up to this key.
    Key(Bytes),
    /// Not even for one key.
    Nothing,
}

/// The rows that a walk reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WalkedRows {
    /// The newest versions. Their values are read from object rows, one by one.
    Index,
    /// All versions, with their values.
    Objects,
}

/// Walks the keys of a span at one revision, page by page.
pub struct Cursor<'a> {
    view: &'a View,
    at: Revision,
    values: bool,
    source: WalkedRows,
    /// Object rows that the walk may still skip before it switches to index rows.
    to_pass: usize,
    /// True if there were more of them.
    has_passed_many: bool,
    /// The most object rows that the next step reads: fewer where their values are long.
    object_rows: usize,
    /// The end of the index rows.
    index_to: Bytes,
    /// The number of rows that the next step reads: fewer where values are long.
    page_rows: usize,
    /// The least number of rows that it reads, however few pairs are wanted. It doubles each time that all rows were of deleted keys.
    least_rows: usize,
    /// Keys not yet answered.
    from: Bound<Bytes>,
    to: Option<Bytes>,
    /// Rows not yet read. Never before `from`.
    row_from: Bytes,
    row_to: Option<Bytes>,
    done: bool,
}

impl<'a> Cursor<'a> {
    /// At the beginning of a span.
    pub(super) fn new(view: &'a View, span: &Span, at: Revision, values: bool) -> Self {
        Self::over(view, span, (at, values), WalkedRows::Objects)
    }

    /// Where an earlier walk of the same revision ended. One that has met many older versions does not look for values among them again.
    pub(super) fn resumed(view: &'a View, rest: &RestOfWalk, at: Revision, values: bool) -> Self {
        Self::over(view, &rest.span, (at, values), rest.source)
    }

    fn over(view: &'a View, span: &Span, (at, values): (Revision, bool), preferred: WalkedRows) -> Self {
        // Without older versions all values are stored side by side, and each is read once.
        let has_passed_many = preferred == WalkedRows::Index;
        let source = match at < view.rows_revision {
            true => WalkedRows::Objects,
            false if values && view.rows.scans_values() => preferred,
            false => WalkedRows::Index,
        };
        let index = keys::index_range(&span.key, &span.end);
        let index_to = index.to.clone();
        let rows = match source {
            WalkedRows::Index => index,
            WalkedRows::Objects => keys::object_range(&span.key, &span.end),
        };
        Self {
            view,
            at,
            values,
            source,
            to_pass: MAX_PASSED_VERSIONS,
            has_passed_many,
            object_rows: MAX_PAGE_ROWS,
            index_to,
            page_rows: MAX_PAGE_ROWS,
            least_rows: 1,
            from: Bound::Included(span.key.clone()),
            to: span.limit(),
            row_from: rows.from,
            row_to: Some(rows.to),
            done: span.is_empty(),
        }
    }

    /// Returns the next pairs in key order, at most `most`, and not many more bytes of values than are read at once; `None` at the
    /// end. A page may be empty.
    pub async fn next(&mut self, most: usize) -> Result<Option<Vec<KeyValue>>, RowsError> {
        match self.page(most).await? {
            Some(page) => self.load(page).await.map(Some),
            None => Ok(None),
        }
    }

    /// The same without the values that are not in memory, so that their memory can be charged by [`KeyValue::size`] first.
    /// [`Cursor::load`] reads them.
    pub async fn page(&mut self, most: usize) -> Result<Option<Vec<KeyValue>>, RowsError> {
        if self.done {
            return Ok(None);
        }
        // Pages are short enough for the thread, but a list of all of them is not.
        tokio::task::yield_now().await;
        if most < MIN_OBJECT_WALK_PAIRS && self.at >= self.view.rows_revision && self.source == WalkedRows::Objects {
            let row = match &self.from {
                Bound::Included(key) => keys::index_key(key),
                Bound::Excluded(key) => successor(&keys::index_key(key)),
                Bound::Unbounded => keys::index_key(b""),
            };
            self.go_on_with_index(row);
        }
        let page_rows = self.page_rows.min(most.max(self.least_rows));
        let (rows, reached) = match self.source {
            WalkedRows::Index => self.index_page(page_rows).await?,
            WalkedRows::Objects => self.object_page(page_rows).await?,
        };
        let most = most.min(MAX_PAGE_PAIRS);
        let (mut page, stopped) = match &reached {
            CompleteUpTo::Nothing => return Ok(Some(Vec::new())),
            CompleteUpTo::Key(key) => self.merge(rows, Some(key), most),
            CompleteUpTo::End => self.merge(rows, None, most),
        };
        self.least_rows = if page.is_empty() {
            MAX_PAGE_ROWS.min(2 * page_rows)
        } else {
            1
        };
        let most = most.min(self.fitting(&page));
        if page.len() > most {
            page.truncate(most);
            self.skip_behind(page.last().map(|kv| kv.key.clone()).unwrap_or_default());
        } else if let Some(key) = stopped {
            self.skip_behind(key);
        } else {
            match reached {
                CompleteUpTo::Key(key) => self.from = Bound::Excluded(key),
                CompleteUpTo::Nothing | CompleteUpTo::End => self.done = true,
            }
        }
        Ok(Some(page))
    }

    /// Reads the values of a page, if they are wanted and not in memory.
    pub async fn load(&self, page: Vec<KeyValue>) -> Result<Vec<KeyValue>, RowsError> {
        if self.values {
            self.view.load(page).await
        } else {
            Ok(page)
        }
    }

    /// Returns the number of pairs whose values together are no more than are read at once.
    fn fitting(&mut self, page: &[KeyValue]) -> usize {
        if !self.values || self.source == WalkedRows::Objects {
            return usize::MAX; // object rows were read with their values, in short pages
        }
        let mut bytes = 0;
        let fit = page.iter().position(|kv| {
            bytes += kv.size as usize;
            bytes > VALUE_BYTES_PER_READ
        });
        self.page_rows = match fit {
            Some(fit) => MAX_PAGE_ROWS.min(2 * fit.max(4)),
            None => MAX_PAGE_ROWS.min(2 * self.page_rows),
        };
        fit.map_or(usize::MAX, |fit| fit.max(1))
    }

    /// The part that was not walked yet, for [`View::resume`].
    pub fn rest_of_walk(&self) -> Option<RestOfWalk> {
        let source = match self.has_passed_many {
            true => WalkedRows::Index,
            false => WalkedRows::Objects,
        };
        self.rest().map(|span| RestOfWalk { span, source })
    }

    /// The part that was not walked yet.
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

    /// Continues after a key that may sort before rows already read.
    fn skip_behind(&mut self, key: Bytes) {
        let row = match self.source {
            WalkedRows::Index => keys::index_key(&key),
            WalkedRows::Objects => keys::object_key(&key, 0),
        };
        self.row_from = successor(&row);
        self.from = Bound::Excluded(key);
    }

    fn go_on_with_index(&mut self, row: Bytes) {
        self.source = WalkedRows::Index;
        self.row_from = row;
        self.row_to = Some(self.index_to.clone());
    }

    /// Pairs without values from index rows.
    async fn index_page(&mut self, max_rows: usize) -> Result<(Vec<KeyValue>, CompleteUpTo), RowsError> {
        let page = self.view.rows.scan(self.scan(max_rows)).await?;
        let mut rows = Vec::with_capacity(page.rows.len());
        for (row, value) in &page.rows {
            let key = keys::parse_index(row)?;
            let meta = decode_index(&key, value)?;
            rows.push(from_meta(key, meta, Bytes::new()));
        }
        if let Some((row, _)) = page.rows.last() {
            self.row_from = successor(row);
        }
        let reached = match rows.last() {
            Some(kv) if !page.done => CompleteUpTo::Key(kv.key.clone()),
            _ => CompleteUpTo::End,
        };
        Ok((rows, reached))
    }

    /// Pairs with values from object rows.
    async fn object_page(&mut self, max_rows: usize) -> Result<(Vec<KeyValue>, CompleteUpTo), RowsError> {
        // At an old revision, newer versions may precede the wanted one.
        let max_rows = match self.at < self.view.rows_revision {
            true => self.object_rows,
            false => self.object_rows.min(max_rows + max_rows / 2),
        };
        let page = self.view.rows.scan(self.scan(max_rows)).await?;
        let mut rows: Vec<KeyValue> = Vec::new();
        let mut decided: Option<Bytes> = None;
        let mut last: Option<(Bytes, Revision)> = None;
        let (mut examined, mut bytes) = (0, 0);
        for (row, value) in &page.rows {
            let (key, revision) = keys::parse_object(row)?;
            if revision <= self.at && decided.as_ref() != Some(&key) {
                if let Some(object) = ObjectRow::decode(&key, value)? {
                    let value = match self.values {
                        true => object.value(&key, &self.view.dictionaries)?,
                        false => Bytes::new(),
                    };
                    // Values may take much less in rows than they do in memory.
                    bytes += value.len();
                    if bytes > SCAN_PAGE_BYTES && examined > 0 {
                        break;
                    }
                    rows.push(from_meta(key.clone(), object.meta, value));
                }
                decided = Some(key.clone());
            }
            examined += 1;
            last = Some((key, revision));
        }
        // Rows that are read and not examined are read again.
        self.object_rows = match examined < page.rows.len() {
            true => examined.max(1),
            false => MAX_PAGE_ROWS.min(2 * self.object_rows),
        };
        let is_done = page.done && examined == page.rows.len();
        let Some((key, _)) = last.filter(|_| !is_done) else {
            return Ok((rows, CompleteUpTo::End));
        };
        if self.at >= self.view.rows_revision {
            // Every key up to the last one is decided: its newest version comes first.
            let passed = examined - rows.len();
            let Some(left) = (self.to_pass + PASSED_VERSIONS_PER_PAIR * rows.len()).checked_sub(passed) else {
                self.has_passed_many = true;
                self.go_on_with_index(successor(&keys::index_key(&key)));
                return Ok((rows, CompleteUpTo::Key(key)));
            };
            self.to_pass = left.min(MAX_PASSED_VERSIONS);
        }
        // Skip the remaining versions of the last key, or go to the one that counts.
        self.row_from = if decided.as_ref() == Some(&key) {
            successor(&keys::object_key(&key, 0))
        } else {
            keys::object_key(&key, self.at)
        };
        Ok((rows, decided.map_or(CompleteUpTo::Nothing, CompleteUpTo::Key)))
    }

    fn scan(&self, max_rows: usize) -> Scan {
        Scan {
            from: self.row_from.clone(),
            to: self.row_to.clone(),
            order: Order::Ascending,
            keys_only: false,
            max_rows,
            max_bytes: SCAN_PAGE_BYTES,
        }
    }

    /// Puts versions in memory over pairs from rows, up to a key. Where there are more than `most` pairs, or very many versions, it stops
    /// before that, and returns the last key that it looked at.
    fn merge(&self, rows: Vec<KeyValue>, up_to: Option<&Bytes>, most: usize) -> (Vec<KeyValue>, Option<Bytes>) {
        let from = match &self.from {
            Bound::Included(key) => key.clone(),
            Bound::Excluded(key) => successor(key),
            Bound::Unbounded => Bytes::new(),
        };
        let span = memtable::MemtableSpan {
            from,
            to: up_to.map(successor).or_else(|| self.to.clone()),
        };
        let mut merged = Vec::with_capacity(rows.len());
        let mut rows = rows.into_iter().peekable();
        for (looked, found) in self.view.memtables.range(&span, self.at, Order::Ascending).enumerate() {
            while let Some(row) = rows.next_if(|row| row.key < found.key) {
                merged.push(row);
            }
            rows.next_if(|row| row.key == found.key);
            let key = found.key.clone();
            merged.extend(from_version(found.key, found.revision, found.version));
            if merged.len() > most || looked >= MAX_PAGE_VERSIONS {
                return (merged, Some(key));
            }
        }
        merged.extend(rows);
        (merged, None)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::hot_rows::HotRows;
    use crate::memtable::{MemtableSet, Version};
    use crate::next_page_count::PageCounts;
    use crate::row::{KeyMeta, encode_index, encode_object};
    use engine::rows::mem::MemRows;
    use engine::rows::{RowChange, Rows};
    use etcd_types::types::LeaseId;

    /// The first step of a flush records the revision that it reaches, but its rows are not there yet.
    #[tokio::test]
    async fn empty_values_in_memory_are_not_looked_for_in_rows_of_a_flush_that_was_cut_short() {
        let memtables = MemtableSet::new();
        let version = |value: &'static [u8]| Version {
            value: Some(Bytes::from_static(value)),
            create_revision: 5,
            version: 1,
            lease: LeaseId(0),
            prev_mod: 0,
        };
        memtables.active().insert(Bytes::from_static(b"a"), 5, version(b""));
        memtables.active().insert(Bytes::from_static(b"b"), 5, version(b"v"));
        let view = View {
            revision: 5,
            compacted: -1,
            memtables,
            rows: MemRows::new().snapshot().await.unwrap(),
            dictionaries: Arc::default(),
            rows_revision: 5,
            page_counts: Arc::new(PageCounts::default()),
            key_index: Arc::default(),
            hot: Arc::new(HotRows::default()),
        };
        let span = Span {
            key: Bytes::from_static(b"a"),
            end: Bytes::from_static(b"c"),
        };
        let page = Cursor::new(&view, &span, 5, true).next(10).await.unwrap().unwrap();
        let values: Vec<_> = page.iter().map(|kv| kv.value.as_ref()).collect();
        assert_eq!(values, [&b""[..], b"v"]);
    }

    /// Keys with `versions` versions each, every fifth key deleted in the end. Returns the versions that a walk must find, too.
    async fn store(versions: impl Fn(usize) -> i64) -> (View, Vec<(Bytes, Revision)>) {
        let rows = MemRows::new();
        let (mut changes, mut live, mut revision) = (Vec::new(), Vec::new(), 1);
        for n in 0..700 {
            let key = Bytes::from(format!("key-{n:04}"));
            for version in 1..=versions(n) {
                revision += 1;
                let meta = KeyMeta {
                    create_revision: revision - version + 1,
                    mod_revision: revision,
                    version,
                    lease: LeaseId(0),
                    size: 100,
                };
                let row = keys::object_key(&key, revision);
                changes.push(RowChange::Put(row, encode_object(Some((&meta, &[7; 100])))));
                changes.push(RowChange::Put(keys::index_key(&key), encode_index(&meta)));
            }
            if n % 5 == 4 {
                revision += 1;
                changes.push(RowChange::Put(keys::object_key(&key, revision), encode_object(None)));
                changes.push(RowChange::Delete(keys::index_key(&key)));
            } else {
                live.push((key, revision));
            }
        }
        rows.apply(None, Bytes::from_static(b"1"), changes).await.unwrap();
        // One newer version of each of some keys is in memory, and a new key between two others.
        let memtables = MemtableSet::new();
        for (key, at) in live.iter_mut().step_by(7) {
            revision += 1;
            *at = revision;
            memtables.active().insert(key.clone(), revision, in_memory());
        }
        revision += 1;
        let new = Bytes::from_static(b"key-0100-new");
        memtables.active().insert(new.clone(), revision, in_memory());
        live.push((new, revision));
        live.sort();
        let view = View {
            revision,
            compacted: -1,
            memtables,
            rows: rows.snapshot().await.unwrap(),
            dictionaries: Arc::default(),
            rows_revision: revision,
            page_counts: Arc::new(PageCounts::default()),
            hot: Arc::new(HotRows::default()),
            key_index: Arc::default(),
        };
        (view, live)
    }

    fn in_memory() -> Version {
        Version {
            value: Some(Bytes::from_static(&[7; 100])),
            create_revision: 2,
            version: 9,
            lease: LeaseId(0),
            prev_mod: 2,
        }
    }

    /// A view with `keys` keys in rows and `keys` more keys in memory only. Memory also has deletions of all keys in rows but the last one.
    async fn deleted_since(keys: usize) -> View {
        let (rows, memtables) = (MemRows::new(), MemtableSet::new());
        let mut changes = Vec::new();
        for n in 0..keys {
            let (key, revision) = (Bytes::from(format!("key-{n:06}")), 2 + n as Revision);
            let meta = KeyMeta {
                create_revision: revision,
                mod_revision: revision,
                version: 1,
                lease: LeaseId(0),
                size: 100,
            };
            let row = keys::object_key(&key, revision);
            changes.push(RowChange::Put(row, encode_object(Some((&meta, &[7; 100])))));
            changes.push(RowChange::Put(keys::index_key(&key), encode_index(&meta)));
            let deleted = Version {
                value: None,
                ..in_memory()
            };
            if n + 1 < keys {
                memtables.active().insert(key, revision + keys as Revision, deleted);
            }
            let new = Bytes::from(format!("new-{n:06}"));
            memtables.active().insert(new, revision + keys as Revision, in_memory());
        }
        rows.apply(None, Bytes::from_static(b"1"), changes).await.unwrap();
        View {
            revision: 2 + 2 * keys as Revision,
            compacted: -1,
            memtables,
            rows: rows.snapshot().await.unwrap(),
            dictionaries: Arc::default(),
            rows_revision: 1 + keys as Revision,
            page_counts: Arc::new(PageCounts::default()),
            hot: Arc::new(HotRows::default()),
            key_index: Arc::default(),
        }
    }

    #[tokio::test]
    async fn first_pair_behind_many_deleted_keys_is_found_in_few_steps() {
        const KEYS: usize = 10_000;
        let view = deleted_since(KEYS).await;
        for from in ["key-", "key-000100"] {
            let span = Span {
                key: Bytes::from(from),
                end: Bytes::from_static(b"key."),
            };
            let mut cursor = Cursor::new(&view, &span, view.revision, true);
            let (mut found, mut pages) = (Vec::new(), 0);
            while let Some(page) = cursor.next(1).await.unwrap() {
                found.extend(page.into_iter().map(|kv| kv.key));
                pages += 1;
            }
            assert_eq!(found, ["key-009999"]);
            assert!(pages < KEYS / MAX_PAGE_ROWS + 20, "{pages} pages");
        }
    }

    #[tokio::test]
    async fn pages_of_keys_in_memory_are_short() {
        const KEYS: usize = 20_000;
        let view = deleted_since(KEYS).await;
        let span = Span {
            key: Bytes::from_static(b"key-"),
            end: Bytes::from_static(b"new."),
        };
        let memory = Span {
            key: Bytes::from_static(b"new-"),
            ..span.clone()
        };
        let cursor = Cursor::new(&view, &memory, view.revision, true);
        assert_eq!(cursor.merge(Vec::new(), None, 1).0.len(), 2);
        let cursor = Cursor::new(&view, &span, view.revision, true);
        let (pairs, stopped) = cursor.merge(Vec::new(), None, 1);
        assert_eq!((pairs.len(), stopped), (0, Some(Bytes::from_static(b"key-008192"))));
        let mut cursor = Cursor::new(&view, &span, view.revision, true);
        let mut found = Vec::new();
        while let Some(page) = cursor.next(usize::MAX).await.unwrap() {
            assert!(page.len() <= MAX_PAGE_PAIRS, "{}", page.len());
            found.extend(page.into_iter().map(|kv| kv.key));
        }
        let new = (0..KEYS).map(|n| format!("new-{n:06}"));
        let expected: Vec<String> = ["key-019999".to_owned()].into_iter().chain(new).collect();
        assert_eq!(found, expected);
    }

    async fn walk(view: &View, most: usize) -> (Vec<(Bytes, Revision)>, WalkedRows) {
        let span = Span {
            key: Bytes::from_static(b"key-"),
            end: Bytes::from_static(b"key."),
        };
        let (mut cursor, mut found) = (Cursor::new(view, &span, view.revision, true), Vec::new());
        while let Some(page) = cursor.next(most).await.unwrap() {
            assert!(page.len() <= most, "{} pairs, {most} wanted", page.len());
            assert!(page.iter().all(|kv| kv.value.len() == 100));
            found.extend(page.into_iter().map(|kv| (kv.key, kv.mod_revision)));
        }
        (found, cursor.source)
    }

    #[tokio::test]
    async fn walk_finds_the_newest_versions_whatever_rows_it_reads() {
        // The number of versions of a key, and the rows that a long walk ends with.
        type Case = (fn(usize) -> i64, Option<WalkedRows>);
        let cases: [Case; 4] = [
            (|_| 1, Some(WalkedRows::Objects)),
            (|_| 2, Some(WalkedRows::Objects)),
            (|_| 20, Some(WalkedRows::Index)),
            (|n| if n == 350 { 2_000 } else { 1 }, None),
        ];
        for (case, (versions, source)) in cases.into_iter().enumerate() {
            let (view, live) = store(versions).await;
            for most in [1, MIN_OBJECT_WALK_PAIRS - 1, MIN_OBJECT_WALK_PAIRS, 100, 10_000] {
                let (found, ended) = walk(&view, most).await;
                assert_eq!(found, live, "case {case}, {most} at once");
                if let Some(expected) = source {
                    let expected = if most < MIN_OBJECT_WALK_PAIRS {
                        WalkedRows::Index
                    } else {
                        expected
                    };
                    assert_eq!(ended, expected, "case {case}, {most} at once");
                }
            }
        }
    }
}
