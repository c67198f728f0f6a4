//! The tables of the tree, as lsm-tree has them.

use lsm_tree::AbstractTree as _;

use super::shape::{Levels, TableRange};
use super::tree::RowsTree;

/// Bytes of tables that were merged and may stay.
pub(super) const MAX_LEFT_OVER_BYTES: u64 = 8 << 20;

/// Tables are merged down to the last level once one row in this many is deleted above it. Otherwise deleted rows would stay until very
/// much more was written.
const DELETED_ROWS_DIVISOR: u64 = 4;

/// All tables are written again once one of this many of their bytes is dead, and the rows are idle.
const DEAD_BYTES_DIVISOR: u64 = 8;

/// The contents of tables.
#[derive(Debug, Default)]
pub(super) struct TableCounts {
    pub(super) rows: u64,
    /// Deletions above the last level: there they end.
    pub(super) deleted: u64,
    pub(super) bytes: u64,
    pub(super) last: LastLevelCounts,
}

/// The contents of the last level.
#[derive(Debug, Default)]
pub(super) struct LastLevelCounts {
    pub(super) rows: u64,
    /// Deletions of rows that views needed when both came there.
    pub(super) deleted: u64,
    pub(super) bytes: u64,
}

impl TableCounts {
    pub(super) fn of(tree: &RowsTree) -> Self {
        let version = tree.current_version();
        let mut counts = Self::default();
        for (at, level) in version.iter_levels().enumerate() {
            for table in level.iter().flat_map(|run| run.iter()) {
                counts.rows += table.metadata.item_count;
                counts.bytes += table.metadata.file_size;
                if at + 1 < version.level_count() {
                    counts.deleted += table.metadata.tombstone_count;
                } else {
                    counts.last.rows += table.metadata.item_count;
                    counts.last.deleted += table.metadata.tombstone_count;
                    counts.last.bytes += table.metadata.file_size;
                }
            }
        }
        counts
    }

    /// Returns true if a merge is worth it when this many rows are deleted.
    pub(super) fn are_many(&self, deletions: u64) -> bool {
        self.bytes > MAX_LEFT_OVER_BYTES && deletions * DELETED_ROWS_DIVISOR >= self.rows
    }

    /// Returns true if there are tables above the last level.
    pub(super) fn are_spread(&self) -> bool {
        self.bytes > self.last.bytes
    }

    /// Returns the bytes of rows that are deleted and not removed yet, about, with deletions that are in no table: each is of one row, and
    /// all rows are taken to be of the same length.
    pub(super) fn deleted_bytes(&self, unwritten: u64) -> u64 {
        let written = self.deleted + self.last.deleted;
        let rows = self.rows.saturating_sub(written).max(1);
        let deleted = (written + unwritten).min(rows);
        let bytes = u128::from(self.bytes) * u128::from(deleted) / u128::from(rows);
        u64::try_from(bytes).unwrap_or(self.bytes)
    }

    /// Returns true if so much of the tables is dead that it is worth to write all of them again, where `in_use` bytes of rows are not.
    /// Rows that compress well take less than those: what is dead among them is not seen here.
    pub(super) fn are_dead(&self, in_use: u64) -> bool {
        let dead = self.bytes.saturating_sub(in_use);
        self.bytes > MAX_LEFT_OVER_BYTES && dead * DEAD_BYTES_DIVISOR >= self.bytes
    }

    pub(super) fn is_last_much_deleted(&self) -> bool {
        let last = &self.last;
        last.bytes > MAX_LEFT_OVER_BYTES && last.deleted > 0 && last.deleted * DELETED_ROWS_DIVISOR >= last.rows
    }
}

impl Levels {
    /// The tables as they are.
    pub(super) fn of(tree: &RowsTree) -> Self {
        let version = tree.current_version();
        let mut levels = Self::default();
        for (at, tables) in levels.0.iter_mut().enumerate() {
            let runs = version.level(at).into_iter().flat_map(|level| level.iter());
            let found = runs.flat_map(|run| run.iter()).map(|table| {
                let range = &table.metadata.key_range;
                TableRange {
                    first: range.min().to_vec(),
                    last: range.max().to_vec(),
                    bytes: table.metadata.file_size,
                }
            });
            tables.extend(found);
        }
        levels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deletion_is_of_a_row_as_long_as_the_others() {
        let deleted_bytes = |rows, deleted, last, unwritten| {
            let counts = TableCounts {
                rows,
                deleted,
                bytes: 1_000,
                last: LastLevelCounts {
                    deleted: last,
                    ..LastLevelCounts::default()
                },
            };
            counts.deleted_bytes(unwritten)
        };
        assert_eq!(deleted_bytes(100, 0, 0, 0), 0);
        assert_eq!(deleted_bytes(125, 20, 5, 0), 250);
        assert_eq!(deleted_bytes(100, 0, 0, 50), 500);
        assert_eq!(deleted_bytes(100, 60, 0, u64::MAX / 2), 1_000, "there is no more");
        assert_eq!(deleted_bytes(0, 0, 0, 0), 0);
    }

    #[test]
    fn tables_are_written_again_once_an_eighth_of_them_is_dead() {
        let are_dead = |mib: u64, in_use| {
            let counts = TableCounts {
                bytes: mib << 20,
                ..TableCounts::default()
            };
            counts.are_dead(in_use)
        };
        assert!(are_dead(160, 140 << 20) && !are_dead(160, 141 << 20));
        assert!(!are_dead(8, 0), "it is little");
        assert!(!are_dead(160, u64::MAX), "nobody counts what is in use");
    }
}
