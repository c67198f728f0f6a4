//! A write batch: a bounded number of changes to rows, filled from a memtable.

use std::sync::Arc;

use bytes::Bytes;

use engine::rows::{self, RowChange, Rows};
use etcd_types::types::Revision;
use mvcc::dictionaries::Dictionaries;
use mvcc::keys;
use mvcc::memtable::{Found, Memtable, Version};
use mvcc::row::{KeyMeta, encode_index, encode_object, encode_object_compressed, size_of};

/// The part of a batch that is filled before other tasks get a turn: to encode rows takes time.
const PIECE_ROWS: usize = 1_000;
const PIECE_BYTES: usize = 256 << 10;

/// Changes that are applied together.
#[derive(Debug)]
pub(super) struct WriteBatch {
    pub(super) changes: Vec<RowChange>,
    bytes: usize,
    pub(super) most: rows::StepSize,
    /// Long values are compressed with these, if they are.
    dictionaries: Option<Arc<Dictionaries>>,
    /// Rows when the current piece was begun, and bytes of its values since then, not compressed.
    piece_rows: usize,
    piece_bytes: usize,
}

impl WriteBatch {
    /// An empty one for `rows`, which have these dictionaries.
    pub(super) fn new(rows: &dyn Rows, dictionaries: &Arc<Dictionaries>) -> Self {
        Self {
            changes: Vec::new(),
            bytes: 0,
            most: rows.step(),
            // Members of another version may read those of several processes.
            dictionaries: rows.is_exclusive().then(|| dictionaries.clone()),
            piece_rows: 0,
            piece_bytes: 0,
        }
    }

    /// Begins another piece.
    pub(super) fn begin_piece(&mut self) {
        (self.piece_rows, self.piece_bytes) = (self.changes.len(), 0);
    }

    /// Returns true if something was added since the piece was begun.
    pub(super) fn has_piece(&self) -> bool {
        self.changes.len() > self.piece_rows
    }

    fn is_piece_full(&self) -> bool {
        self.changes.len() - self.piece_rows >= PIECE_ROWS || self.piece_bytes >= PIECE_BYTES
    }

    pub(super) fn push(&mut self, change: RowChange) {
        self.bytes += change.len();
        self.changes.push(change);
    }

    /// Returns true if `rows` more rows of `bytes` bytes in total fit within the limits. An empty batch takes any amount.
    pub(super) fn has_room(&self, rows: usize, bytes: usize) -> bool {
        self.changes.is_empty()
            || (self.changes.len() + rows <= self.most.rows && self.bytes + bytes <= self.most.bytes)
    }

    pub(super) fn is_full(&self) -> bool {
        self.changes.len() >= self.most.rows || self.bytes >= self.most.bytes
    }
}

/// Bytes of the rows of a version beside its key, twice, and its value: at most, but for keys with many zeros.
const VERSION_ROWS_OVERHEAD_BYTES: usize = 96;

/// Adds rows of a memtable to a batch, one piece of them, after the version `last`; returns true if nothing is left. `last` also records whether the older
/// versions of its key are compacted: they need no rows. Nor do tombstones up to `deleted`, where compaction is done already: the memtable
/// of a former follower may begin before the applied slot.
pub(super) fn fill_batch(
    memtable: &Memtable,
    compacted: Revision,
    deleted: Revision,
    last: &mut Option<(Bytes, Revision, bool)>,
    batch: &mut WriteBatch,
) -> bool {
    let versions = match last {
        Some((key, revision, _)) => memtable.versions_behind(key, *revision),
        None => memtable.versions(),
    };
    for Found { key, revision, version } in versions {
        let value = version.value.as_ref().map_or(0, Bytes::len);
        if batch.is_piece_full() || !batch.has_room(2, 2 * key.len() + value + VERSION_ROWS_OVERHEAD_BYTES) {
            return false;
        }
        let covered = match last {
            Some((last_key, _, covered)) if *last_key == key => *covered,
            _ => {
                batch.push(index_row(&key, revision, &version));
                false
            }
        };
        if !covered && (version.value.is_some() || revision > deleted) {
            let row = keys::object_key(&key, revision);
            batch.piece_bytes += row.len() + value;
            let value = version.value.as_ref().map(|value| (meta_of(revision, &version), value));
            let object = value.as_ref().map(|(meta, value)| (meta, value.as_ref()));
            batch.push(RowChange::Put(
                row,
                match &batch.dictionaries {
                    Some(dictionaries) => encode_object_compressed(object, dictionaries),
                    None => encode_object(object),
                },
            ));
        }
        *last = Some((key, revision, covered || revision <= compacted));
    }
    true
}

fn index_row(key: &Bytes, revision: Revision, version: &Version) -> RowChange {
    let row = keys::index_key(key);
    match version.value {
        Some(_) => RowChange::Put(row, encode_index(&meta_of(revision, version))),
        None => RowChange::Delete(row),
    }
}

fn meta_of(revision: Revision, version: &Version) -> KeyMeta {
    KeyMeta {
        create_revision: version.create_revision,
        mod_revision: revision,
        version: version.version,
        lease: version.lease,
        size: version.value.as_deref().map_or(0, size_of),
    }
}
