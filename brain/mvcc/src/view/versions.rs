//! A walk over all versions of all keys that a view has, in order of keys, the newest version of each key first.
//!
//! Compaction deletes versions in the background, and no two members have deleted the same ones. So the walk leaves out what the
//! compacted revision made superfluous, deleted or not: all members whose views have equal revisions walk the same versions.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::{SCAN_PAGE_BYTES, View, successor};
use crate::keys;
use crate::memtable::{Found, Memtable};
use crate::row::{KeyMeta, ObjectRow, size_of};
use engine::rows::{Order, RowsError, Scan};
use etcd_types::types::Revision;

/// Versions that one step takes of a source, and returns, at most.
const VERSIONS_PER_STEP: usize = 512;

/// One version of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyVersion {
    /// The key.
    pub key: Bytes,
    /// The revision that made this version.
    pub revision: Revision,
    /// The version and its value; `None` for a deletion.
    pub put: Option<(KeyMeta, Bytes)>,
    /// True if the same revision deleted the version before this one first: the key begins anew.
    pub recreated: bool,
}

/// The walk.
pub struct VersionWalk<'a> {
    view: &'a View,
    at: Revision,
    sources: Vec<VersionSource>,
    /// The last version that was read: sources may have the same ones.
    last: Option<(Bytes, Revision)>,
    /// True if the newest version of the last key at or before the compacted revision was found.
    is_decided: bool,
    /// The last version, which may turn out to be recreated.
    held: Option<KeyVersion>,
    is_done: bool,
}

/// Versions in order, as far as they are read.
#[derive(Debug)]
struct VersionSource {
    from: SourcePosition,
    read: VecDeque<KeyVersion>,
    /// The most rows that the next scan reads: fewer where values are long.
    max_rows: usize,
    is_done: bool,
}

#[derive(Debug)]
enum SourcePosition {
    /// Rows from this row key on.
    Rows(Bytes),
    /// Versions of a memtable after this one.
    Memtable(Arc<Memtable>, Option<(Bytes, Revision)>),
}

impl<'a> VersionWalk<'a> {
    /// Begins the walk over versions of keys from `key` on, up to a revision that [`View::resolve`] returned.
    pub(super) fn new(view: &'a View, key: &[u8], at: Revision) -> Self {
        let rows = keys::object_range(key, &[0]).from;
        let behind = (!key.is_empty()).then(|| (Bytes::copy_from_slice(key), Revision::MAX));
        let memtables = view.memtables.memtables().iter();
        let memtables = memtables.map(|memtable| SourcePosition::Memtable(memtable.clone(), behind.clone()));
        let sources = std::iter::once(SourcePosition::Rows(rows)).chain(memtables);
        Self {
            view,
            at,
            sources: sources
                .map(|from| VersionSource {
                    from,
                    read: VecDeque::new(),
                    max_rows: VERSIONS_PER_STEP,
                    is_done: false,
                })
                .collect(),
            last: None,
            is_decided: false,
            held: None,
            is_done: false,
        }
    }

    /// Returns the next versions, which may be none; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<KeyVersion>>, RowsError> {
        if self.is_done {
            return Ok(None);
        }
        // Steps are short enough for the thread, but all of them are not.
        tokio::task::yield_now().await;
        for source in &mut self.sources {
            if source.read.is_empty() && !source.is_done {
                source.refill(self.view).await?;
            }
        }
        let mut found = Vec::new();
        while found.len() < VERSIONS_PER_STEP
            && self
                .sources
                .iter()
                .all(|source| source.is_done || !source.read.is_empty())
        {
            match self.first() {
                Some(version) => found.extend(self.accept(version)),
                None => {
                    found.extend(self.held.take());
                    self.is_done = true;
                    break;
                }
            }
        }
        Ok(Some(found))
    }

    /// Takes the first version of all sources.
    fn first(&mut self) -> Option<KeyVersion> {
        let heads = self.sources.iter().enumerate();
        let heads = heads.filter_map(|(index, source)| source.read.front().map(|head| (index, head)));
        let (first, _) = heads.min_by(|(_, a), (_, b)| a.key.cmp(&b.key).then(b.revision.cmp(&a.revision)))?;
        self.sources.get_mut(first)?.read.pop_front()
    }

    /// Takes a version into account. Returns the one before it, which is complete now.
    fn accept(&mut self, version: KeyVersion) -> Option<KeyVersion> {
        let is_same_key = self.last.as_ref().is_some_and(|(key, _)| *key == version.key);
        if is_same_key && self.last.as_ref().is_some_and(|(_, last)| *last <= version.revision) {
            return None;
        }
        if !is_same_key {
            self.is_decided = false;
        }
        self.last = Some((version.key.clone(), version.revision));
        if version.revision > self.at || self.is_decided {
            return None;
        }
        if version.revision <= self.view.compacted {
            self.is_decided = true;
            // Compaction deletes a deletion, too.
            version.put.as_ref()?;
        }
        let newer = self.held.as_mut().filter(|held| held.key == version.key);
        if let Some(newer) = newer
            && let Some((meta, _)) = &newer.put
        {
            newer.recreated = meta.version == 1 && version.put.is_some();
        }
        self.held.replace(version)
    }
}

impl VersionSource {
    async fn refill(&mut self, view: &View) -> Result<(), RowsError> {
        match &mut self.from {
            SourcePosition::Rows(from) => {
                let scan = Scan {
                    from: from.clone(),
                    to: Some(keys::object_range(&[], &[0]).to),
                    order: Order::Ascending,
                    keys_only: false,
                    max_rows: self.max_rows,
                    max_bytes: SCAN_PAGE_BYTES,
                };
                let page = view.rows.scan(scan).await?;
                let mut bytes = 0;
                for (row, value) in &page.rows {
                    let (key, revision) = keys::parse_object(row)?;
                    let object = ObjectRow::decode(&key, value)?;
                    // Values may take much less in rows than they do in memory.
                    bytes += object.as_ref().map_or(0, |object| object.meta.size as usize);
                    if bytes > SCAN_PAGE_BYTES && !self.read.is_empty() {
                        // The others are read again.
                        self.max_rows = self.read.len();
                        return Ok(());
                    }
                    let put = match object {
                        Some(object) => Some((object.meta, object.value(&key, &view.dictionaries)?)),
                        None => None,
                    };
                    *from = successor(row);
                    self.read.push_back(KeyVersion {
                        key,
                        revision,
                        put,
                        recreated: false,
                    });
                }
                self.max_rows = VERSIONS_PER_STEP.min(2 * self.max_rows);
                self.is_done = page.done || page.rows.is_empty();
            }
            SourcePosition::Memtable(memtable, behind) => {
                let versions = match behind {
                    Some((key, revision)) => memtable.versions_behind(key, *revision),
                    None => memtable.versions(),
                };
                self.read.extend(versions.take(VERSIONS_PER_STEP).map(from_memtable));
                self.is_done = self.read.len() < VERSIONS_PER_STEP;
                if let Some(last) = self.read.back() {
                    *behind = Some((last.key.clone(), last.revision));
                }
            }
        }
        Ok(())
    }
}

fn from_memtable(Found { key, revision, version }: Found) -> KeyVersion {
    let put = version.value.map(|value| {
        let meta = KeyMeta {
            create_revision: version.create_revision,
            mod_revision: revision,
            version: version.version,
            lease: version.lease,
            size: size_of(&value),
        };
        (meta, value)
    });
    KeyVersion {
        key,
        revision,
        put,
        recreated: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memtable::{MemtableSet, Version};
    use crate::row::encode_object;
    use engine::rows::mem::MemRows;
    use engine::rows::{RowChange, Rows as _};
    use etcd_types::types::LeaseId;

    fn meta(create_revision: Revision, mod_revision: Revision, version: i64) -> KeyMeta {
        KeyMeta {
            create_revision,
            mod_revision,
            version,
            lease: LeaseId(0),
            size: 1,
        }
    }

    fn row(key: &str, revision: Revision, put: Option<KeyMeta>) -> RowChange {
        let put = put.as_ref().map(|meta| (meta, &b"v"[..]));
        RowChange::Put(keys::object_key(key.as_bytes(), revision), encode_object(put))
    }

    async fn walked(view: &View) -> Vec<(String, Revision, bool, bool)> {
        walked_from(view, "").await
    }

    async fn walked_from(view: &View, key: &str) -> Vec<(String, Revision, bool, bool)> {
        let (mut versions, mut all) = (view.versions_from(key.as_bytes(), view.revision), Vec::new());
        while let Some(page) = versions.next().await.unwrap() {
            all.extend(page.into_iter().map(|found| {
                let key = String::from_utf8(found.key.to_vec()).unwrap();
                (key, found.revision, found.put.is_some(), found.recreated)
            }));
        }
        all
    }

    #[tokio::test]
    async fn versions_of_rows_and_memory_are_walked_without_what_is_compacted() {
        let rows = MemRows::new();
        let stored = vec![
            row("a", 2, Some(meta(2, 2, 1))),
            row("a", 4, Some(meta(2, 4, 2))),
            row("a", 6, Some(meta(2, 6, 3))),
            row("b", 3, Some(meta(3, 3, 1))),
            row("b", 5, None),
            row("c", 7, Some(meta(7, 7, 1))),
            row("d", 3, Some(meta(3, 3, 1))),
        ];
        rows.apply(None, Bytes::from_static(b"f"), stored).await.unwrap();
        let memtables = MemtableSet::new();
        let version = |create_revision, version, value: Option<&'static [u8]>| Version {
            value: value.map(Bytes::from_static),
            create_revision,
            version,
            lease: LeaseId(0),
            prev_mod: 0,
        };
        let active = memtables.active();
        // A flush of it is under way.
        active.insert(Bytes::from_static(b"c"), 7, version(7, 1, Some(b"v")));
        active.insert(Bytes::from_static(b"c"), 8, version(0, 0, None));
        active.insert(Bytes::from_static(b"d"), 9, version(9, 1, Some(b"v")));
        active.insert(Bytes::from_static(b"e"), 10, version(10, 1, Some(b"v")));
        let view = View {
            revision: 9,
            compacted: 5,
            memtables,
            rows: rows.snapshot().await.unwrap(),
            dictionaries: Arc::default(),
            rows_revision: 7,
            page_counts: Arc::default(),
            key_index: Arc::default(),
            hot: Arc::default(),
        };
        let entry = |key: &str, revision, is_put, recreated| (key.to_owned(), revision, is_put, recreated);
        assert_eq!(
            walked(&view).await,
            [
                entry("a", 6, true, false),
                entry("a", 4, true, false),
                entry("c", 8, false, false),
                entry("c", 7, true, false),
                entry("d", 9, true, true),
                entry("d", 3, true, false),
            ]
        );
        let all = walked(&view).await;
        for (key, skipped) in [("a", 0), ("a\0", 2), ("c", 2), ("c\0", 4), ("d", 4), ("e", 6)] {
            assert_eq!(walked_from(&view, key).await, all[skipped..], "{key:?}");
        }
    }

    #[tokio::test]
    async fn walk_is_complete_over_many_steps() {
        let rows = MemRows::new();
        let memtables = MemtableSet::new();
        let mut stored = Vec::new();
        for n in 0..3_000 {
            let revision = n + 2;
            if n % 3 == 0 {
                stored.push(row("key", revision, Some(meta(2, revision, n + 1))));
            } else {
                let version = Version {
                    value: Some(Bytes::from_static(b"v")),
                    create_revision: 2,
                    version: n + 1,
                    lease: LeaseId(0),
                    prev_mod: 0,
                };
                memtables.active().insert(Bytes::from_static(b"key"), revision, version);
            }
        }
        rows.apply(None, Bytes::from_static(b"f"), stored).await.unwrap();
        let view = View {
            revision: 3_001,
            compacted: -1,
            memtables,
            rows: rows.snapshot().await.unwrap(),
            dictionaries: Arc::default(),
            rows_revision: 3_001,
            page_counts: Arc::default(),
            key_index: Arc::default(),
            hot: Arc::default(),
        };
        let revisions: Vec<_> = walked(&view).await.iter().map(|(_, revision, ..)| *revision).collect();
        assert_eq!(revisions, (2..=3_001).rev().collect::<Vec<_>>());
    }
}
