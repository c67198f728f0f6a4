//! Removes the journals of an idle store once their rows are in tables.

use tokio::sync::OwnedMutexGuard;

use super::{FjallRows, FjallShared, FjallWriter, guard, inspect};
use engine::rows::RowsError;

/// The length at which fjall ends a journal, and the size and the maximum number of the fillers that are written to reach it.
const JOURNAL_ROTATION_BYTES: u64 = 64_000_000;
const SHORT_JOURNAL_BYTES: u64 = 8 << 20;
const FILLER_BYTES: usize = 1 << 20;
const MAX_FILLERS: usize = 80;

impl FjallRows {
    /// Has fjall end a newest journal that is long, and remove it once its rows are in tables.
    pub(super) async fn retire_journal(&self, mut writer: OwnedMutexGuard<FjallWriter>) -> Result<(), RowsError> {
        for filled in 0..MAX_FILLERS {
            writer = self.shared.wait_for_room(writer, &[]).await?;
            let shared = self.shared.clone();
            let more;
            (writer, more) = guard::blocking(move || shared.fill_journal(writer)).await?;
            if !more {
                // One that has ended may wait for rows that came to memory after its own.
                if filled == 0 && inspect::journals(&self.shared.dir)?.len() < 2 {
                    return Ok(());
                }
                break;
            }
        }
        writer.renewed = writer.batch;
        let shared = self.shared.clone();
        // fjall looks at the length of the journal when it writes a table.
        guard::blocking(move || shared.write(|| shared.keyspace.rotate_memtable()).map(|_| ())).await
    }
}

impl FjallShared {
    /// fjall ends a journal, and removes it once its rows are in tables, only when it has [`JOURNAL_ROTATION_BYTES`]. Brings a newest journal
    /// that occupies space nearer to that; `false` when there is nothing to do.
    fn fill_journal(
        &self,
        mut writer: OwnedMutexGuard<FjallWriter>,
    ) -> Result<(OwnedMutexGuard<FjallWriter>, bool), RowsError> {
        let bytes = inspect::newest_journal_bytes(&self.dir)?;
        let Some(fence) = writer.fence.clone() else {
            return Ok((writer, false));
        };
        // A short one is left alone, and so is a medium that has no room for it.
        if !(SHORT_JOURNAL_BYTES..=JOURNAL_ROTATION_BYTES).contains(&bytes)
            || inspect::require_space(&self.dir, self.options.reserve_bytes + 2 * JOURNAL_ROTATION_BYTES).is_err()
        {
            return Ok((writer, false));
        }
        self.commit(&mut writer, fence, &[], FILLER_BYTES)?;
        Ok((writer, true))
    }

    /// Returns true if journals occupy much more than the tables. Without writes nothing else makes them shorter.
    pub(super) fn has_long_journals(&self) -> bool {
        inspect::journal_bytes(&self.dir) > self.keyspace.disk_space() + SHORT_JOURNAL_BYTES
    }
}
