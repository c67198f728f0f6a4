//! Begins to lead: the rest of the log, a barrier at its end, the manifest.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;

use super::load::read_manifest;
use super::prior_leases::to_millis;
use super::tail::DecodedItem;
use super::{FlushResult, Replica};
use engine::log::frame::Candidate;
use engine::log::reader::Reader;
use engine::log::writer::{self, TakeOverPoint, Writer};
use engine::log::{DynLog, LogError, LogId, Slot};
use engine::rows::{DynRows, RowsError};
use mvcc::row::{Manifest, STORED_FORMAT, STORED_FORMAT_WITH_AUTH};

/// Slots by which the rows may be ahead of a replica that is not reset from them. To read a few slots costs less than to load all
/// leases and users again.
const MAX_REPLAYED_SLOTS: u64 = 256;

/// A member that takes a store over.
#[derive(Debug, Clone, Copy)]
pub struct TakeOver {
    /// The writer, as its barrier names it.
    pub candidate: Candidate,
    /// True if this member knows that the last holder of its lock has ended.
    pub predecessor_expired: bool,
}

impl TakeOver {
    /// Takes a store over whose last leader has ended.
    #[must_use]
    pub fn after_expiry(candidate: Candidate) -> Self {
        Self {
            candidate,
            predecessor_expired: true,
        }
    }
}

/// The right to write, within one epoch.
#[derive(Debug)]
pub struct Leadership {
    /// The right to append.
    pub writer: Writer,
    /// The manifest with this epoch in it.
    pub manifest: Manifest,
    /// The fence of the rows: that manifest, or the one before it if there was no space for it. The first change of the rows writes it then.
    pub stored: Bytes,
    /// Time for which older leaders may still answer reads: no request is served before it has passed.
    pub wait: Duration,
}

impl Leadership {
    /// Records in the rows that the leases of older leaders have been waited out. Fails if the rows belong to a later leader.
    pub async fn waited(&mut self, rows: &DynRows) -> Result<(), RowsError> {
        let mut waited = self.manifest.clone();
        waited.prior_lease_ms = 0;
        waited.number += 1;
        let fence = Bytes::from(waited.encode_to_vec());
        rows.apply(Some(self.stored.clone()), fence.clone(), Vec::new()).await?;
        (self.manifest, self.stored) = (waited, fence);
        Ok(())
    }
}

/// Errors of opening a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreOpenError {
    /// Stored by a newer brain.
    #[error(
        "the data is of format {found}, this version reads formats up to {STORED_FORMAT_WITH_AUTH}: start a newer version"
    )]
    Newer {
        /// The format found.
        found: u32,
    },
    /// Stored by an older brain, in a format that this one does not read.
    #[error(
        "the data is of format {found}, this version reads formats from {STORED_FORMAT} on: start the version that stored it, and copy the data from it"
    )]
    Older {
        /// The format found.
        found: u32,
    },
    /// The rows lack records that the log has destroyed already.
    #[error(
        "the rows reach slot {applied_slot} of the log but the log begins at slot {watermark}: rows were lost or rolled back; restore the data directory from a backup"
    )]
    RowsBehind {
        /// The next slot that is not in the rows.
        applied_slot: Slot,
        /// The slot below which the log is gone.
        watermark: Slot,
    },
    /// The log lacks records that are in the rows.
    #[error(
        "the log ends before slot {last}, which the rows come from: the log was rolled back; restore log and rows from one copy"
    )]
    LogBehind {
        /// The last slot that the rows come from.
        last: Slot,
    },
    /// The rows come from another log.
    #[error("this is another log, not the one that the rows come from: restore log and rows from one copy")]
    OtherLog,
    /// Slots were destroyed while they were read: begin again from rows.
    #[error("the log was truncated while it was read")]
    Destroyed,
    /// A record does not decode, or contradicts the records before it.
    #[error("the log is damaged: slot {slot}: {reason}")]
    Record {
        /// The slot.
        slot: Slot,
        /// The fault.
        reason: String,
    },
    /// The log fails.
    #[error("open the log")]
    Log(#[source] writer::WriterOpenError),
    /// The rows fail.
    #[error("open the rows")]
    Rows(#[from] RowsError),
}

impl From<writer::WriterOpenError> for StoreOpenError {
    fn from(error: writer::WriterOpenError) -> Self {
        match error {
            writer::WriterOpenError::Destroyed(_) => StoreOpenError::Destroyed,
            error => StoreOpenError::Log(error),
        }
    }
}

impl From<LogError> for StoreOpenError {
    fn from(error: LogError) -> Self {
        StoreOpenError::Log(error.into())
    }
}

impl Replica {
    /// Becomes the only writer: reads and applies the rest of the log, places the candidate's barrier after it, and writes the epoch into
    /// the manifest. Watchers are not notified: they read history.
    ///
    /// If the rows are far ahead, it is reset from them first. May be dropped and begun again.
    ///
    /// # Errors
    /// [`StoreOpenError`]. After [`StoreOpenError::Destroyed`] the replica must be reset from the rows.
    pub async fn lead(
        &mut self,
        log: &DynLog,
        rows: &DynRows,
        TakeOver {
            candidate,
            predecessor_expired,
        }: TakeOver,
    ) -> Result<Leadership, StoreOpenError> {
        // An unfinished write of an older leader may lock the manifest, and every read of it would wait.
        rows.take_over().await?;
        let manifest = read_manifest(rows.fence().await?)?;
        // A barrier may be in the log but not yet in the manifest.
        let known_epoch = manifest.epoch.max(self.state.epoch());
        // Rows that are far ahead are loaded first, because everything that is read from the log is held in memory until the barrier is
        // placed. This is done once: an older leader may continue to flush.
        if manifest.applied_slot > self.next().0.saturating_add(MAX_REPLAYED_SLOTS) {
            self.reset_from_snapshot(log, rows).await?;
        }
        let began = self.next();
        let mut read = Vec::new();
        let mut reader = Reader::new(log.clone(), began);
        // A record that cannot be decoded is refused before anything is written.
        let (writer, own) = Writer::open(
            &**log,
            &mut reader,
            TakeOverPoint { began, known_epoch },
            candidate,
            |item| {
                read.push(DecodedItem::of(item)?);
                Ok::<(), StoreOpenError>(())
            },
        )
        .await?;
        let mut wait = Duration::ZERO;
        for read in read {
            if matches!(&read, DecodedItem::Barrier(_, barrier) if *barrier == own) {
                wait = self.prior_leases.wait(candidate.lock, predecessor_expired);
            }
            self.replay(read)?;
        }
        rows.take_over().await?;
        let (manifest, stored) = take_over_manifest(rows, (own.epoch, log.id()), (candidate, wait)).await?;
        let snapshot = rows.snapshot().await?;
        let through = read_manifest(snapshot.fence().await?)?;
        self.swap_rows(FlushResult {
            through: Some((Slot(through.applied_slot), through.reached())),
            snapshot,
        });
        self.state.set_deleted(&manifest.sizes);
        self.state.set_deleted_up_to(manifest.deleted_up_to);
        Ok(Leadership {
            writer,
            manifest,
            stored,
            wait,
        })
    }
}

/// Writes a later epoch into the manifest: every pending write of an older leader fails from now on. Returns the manifest, and the fence
/// that is stored. If there is no space for it, but no other process can write the rows, the member leads nevertheless: the rows can be
/// read.
async fn take_over_manifest(
    rows: &DynRows,
    (epoch, log): (u64, Option<LogId>),
    (candidate, wait): (Candidate, Duration),
) -> Result<(Manifest, Bytes), StoreOpenError> {
    loop {
        let stored: Option<Bytes> = rows.fence().await?;
        let mut manifest = read_manifest(stored.clone())?;
        if manifest.epoch > epoch {
            return Err(
                writer::WriterOpenError::Write(writer::WriteError::Deposed(Slot(manifest.applied_slot))).into(),
            );
        }
        manifest.epoch = epoch;
        manifest.number += 1;
        manifest.lock = candidate.lock;
        manifest.lease = to_millis(candidate.lease);
        manifest.prior_lease_ms = to_millis(wait);
        manifest.log_id = log.map(|LogId(id)| id.to_vec()).unwrap_or_default();
        let fence = Bytes::from(manifest.encode_to_vec());
        match rows.apply(stored.clone(), fence.clone(), Vec::new()).await {
            Ok(()) => return Ok((manifest, fence)),
            Err(RowsError::Fenced(_)) => {} // an older leader was faster, once more
            Err(error) => {
                return match (error, stored) {
                    (RowsError::Full(reason), Some(stored)) if rows.is_exclusive() => {
                        tracing::warn!(
                            reason = format!("{reason:#}"),
                            "no space left for rows: reads are served, and writes wait for space"
                        );
                        Ok((manifest, stored))
                    }
                    (error, _) => Err(error.into()),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{ErrorKind, Write as _};
    use std::path::Path;

    use super::*;
    use engine::hooked::{HookedRows, RowsHooks};
    use engine::log::MemLog;
    use engine::log::frame::is_barrier;
    use engine::rows::RowChange;
    use engine::rows::mem::MemRows;
    use engine_local::log::{FileLog, FileLogOptions};
    use engine_local::rows::{LsmOptions, LsmRows};
    use std::sync::Arc;
    use testkit::small_disk;

    /// No space, and no other process that can write the rows.
    #[derive(Clone)]
    struct Full;

    impl RowsHooks for Full {
        async fn before_apply(&self, _: &[RowChange]) -> Result<(), RowsError> {
            Err(RowsError::Full(anyhow::anyhow!("there is none")))
        }

        fn is_exclusive(&self, _: bool) -> bool {
            true
        }
    }

    #[tokio::test]
    async fn store_without_space_is_led_and_its_first_change_writes_the_epoch() {
        let (log, mem): (DynLog, _) = (Arc::new(MemLog::keeping(is_barrier)), MemRows::new());
        let rows: DynRows = Arc::new(mem.clone());
        let stored = Bytes::from(
            Manifest {
                revision: 4,
                epoch: 3,
                ..Manifest::fresh()
            }
            .encode_to_vec(),
        );
        rows.apply(None, stored.clone(), Vec::new()).await.unwrap();
        let full: DynRows = Arc::new(HookedRows::new(mem, Full));
        let mut replica = Replica::load(&log, &full).await.unwrap();
        let leadership = replica
            .lead(&log, &full, TakeOver::after_expiry(Candidate::default()))
            .await
            .unwrap();
        assert_eq!((leadership.stored.clone(), replica.revision()), (stored, 4));
        assert_eq!((leadership.manifest.epoch, leadership.writer.epoch()), (4, 4));
        // There is space again.
        let manifest = leadership.manifest.encode_to_vec().into();
        rows.apply(Some(leadership.stored), manifest, Vec::new()).await.unwrap();
        let mut later = Replica::load(&log, &rows).await.unwrap();
        let leadership = later
            .lead(&log, &rows, TakeOver::after_expiry(Candidate::default()))
            .await
            .unwrap();
        assert_eq!(leadership.manifest.epoch, 5);
    }

    /// Writes a file until nothing more fits, not even one byte.
    fn fill(disk: &Path) {
        let mut file = File::create(disk.join("filler")).unwrap();
        for len in [1 << 20, 4096, 1] {
            let part = vec![1; len];
            loop {
                match file.write_all(&part) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn store_on_a_full_disk_is_opened_and_led() {
        const TEST: &str = "replica::lead::tests::store_on_a_full_disk_is_opened_and_led";
        let Some(disk) = small_disk::mounted_for(TEST, 128) else {
            return;
        };
        let open = || {
            let log: DynLog = Arc::new(FileLog::open(&disk.join("log"), FileLogOptions::default()).unwrap());
            let rows: DynRows = Arc::new(LsmRows::open(&disk.join("rows"), LsmOptions::default()).unwrap());
            (log, rows)
        };
        {
            let (log, rows) = open();
            let mut replica = Replica::load(&log, &rows).await.unwrap();
            let leadership = replica
                .lead(&log, &rows, TakeOver::after_expiry(Candidate::default()))
                .await
                .unwrap();
            let manifest = Manifest {
                revision: 4,
                ..leadership.manifest
            };
            let row = RowChange::Put("x".into(), vec![7; 100_000].into());
            let fence = manifest.encode_to_vec().into();
            rows.apply(Some(leadership.stored), fence, vec![row]).await.unwrap();
            rows.sync().await.unwrap();
        }
        fill(&disk);
        for _ in 0..3 {
            let (log, rows) = open();
            let mut replica = Replica::load(&log, &rows).await.unwrap();
            replica
                .lead(&log, &rows, TakeOver::after_expiry(Candidate::default()))
                .await
                .unwrap();
            assert_eq!(replica.revision(), 4);
            let view = replica.state().view();
            assert_eq!(view.rows.get(b"x").await.unwrap().unwrap().len(), 100_000);
        }
        std::fs::remove_file(disk.join("filler")).unwrap();
        let (log, rows) = open();
        let mut replica = Replica::load(&log, &rows).await.unwrap();
        let leadership = replica
            .lead(&log, &rows, TakeOver::after_expiry(Candidate::default()))
            .await
            .unwrap();
        assert_eq!(leadership.stored, leadership.manifest.encode_to_vec());
    }

    #[tokio::test]
    async fn records_that_are_in_rows_are_not_read_again() {
        let (log, rows): (DynLog, DynRows) = (Arc::new(MemLog::keeping(is_barrier)), Arc::new(MemRows::new()));
        let mut replica = Replica::load(&log, &rows).await.unwrap();
        // A read of it fails.
        log.append(Slot::FIRST, "no record".into()).await.unwrap();
        let manifest = Manifest {
            applied_slot: replica.next().0 + MAX_REPLAYED_SLOTS + 1,
            revision: 4,
            ..Manifest::fresh()
        };
        let stored = manifest.encode_to_vec().into();
        rows.apply(None, stored, Vec::new()).await.unwrap();
        let leadership = replica
            .lead(&log, &rows, TakeOver::after_expiry(Candidate::default()))
            .await
            .unwrap();
        assert_eq!(replica.revision(), 4);
        assert!(replica.next().0 > manifest.applied_slot);
        assert_eq!(leadership.manifest.applied_slot, manifest.applied_slot);
    }
}
