//! How much would be left of tables that are merged whole. Counters of tables do not say it: a deletion may have no row below it any
//! more, and the rows that stay may be the large ones.

use lsm_tree::{AbstractTree as _, Guard as _, SeqNo};

use super::guard::caught;
use super::tree::RowsTree;
use engine::rows::RowsError;

/// The bytes that a table stores for each row in addition to its key and value.
const ROW_OVERHEAD_BYTES: u64 = 16;

/// Tables are read again once one in this many of their rows is another.
const CHANGED_ROWS_DIVISOR: u64 = 8;

/// The contents of all tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct TableContents {
    pub(super) rows: u64,
    pub(super) deleted: u64,
    pub(super) bytes: u64,
}

/// The bytes that were left of some contents.
#[derive(Debug, Default)]
pub(super) struct LiveBytes(Option<(TableContents, u64)>);

impl LiveBytes {
    /// Returns what was found before, if the contents are much the same still; all that was added is counted.
    pub(super) fn known(&self, now: TableContents) -> Option<u64> {
        let (then, left) = self.0?;
        let changed = now.rows.abs_diff(then.rows) + now.deleted.abs_diff(then.deleted);
        (changed <= then.rows / CHANGED_ROWS_DIVISOR).then(|| left + now.bytes.saturating_sub(then.bytes))
    }

    /// Reads all rows that a view sees, and remembers their bytes: not compressed, and no more than the tables have. Blocks until the read
    /// is complete or `is_over`. If the view can no longer be read, returns the bytes of all tables.
    pub(super) fn read(
        &mut self,
        tree: &RowsTree,
        (now, seqno): (TableContents, SeqNo),
        is_over: impl Fn() -> bool,
    ) -> Result<u64, RowsError> {
        let Ok(rows) = caught(|| Ok(tree.iter(seqno, None))) else {
            return Ok(now.bytes);
        };
        let mut left = 0;
        caught(|| {
            for row in rows {
                let (key, value) = row.into_inner()?;
                left += key.len() as u64 + value.len() as u64 + ROW_OVERHEAD_BYTES;
                if left >= now.bytes || is_over() {
                    left = now.bytes;
                    break;
                }
            }
            Ok(())
        })?;
        self.0 = Some((now, left));
        Ok(left)
    }
}
