//! Begins to lead: the rest of the log, a barrier at its end, the fence.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;

use super::load::read_fence;
use super::reigns::to_millis;
use super::tail::Read;
use super::{Flushed, Replica};
use crate::log::frame::Candidate;
use crate::log::reader::Reader;
use crate::log::writer::{self, Writer};
use crate::log::{Log, LogError, LogId, Slot};
use crate::mvcc::row::{FORMAT, Fence};
use crate::rows::{Rows, RowsError, Snapshot};

/// The right to write, within one epoch.
#[derive(Debug)]
pub struct Leadership {
    /// The right to append.
    pub writer: Writer,
    /// The fence as it is stored, this epoch in it.
    pub fence: Fence,
    /// How long older leaders may go on answering reads: nobody is served before.
    pub wait: Duration,
}

impl Leadership {
    /// Notes in the rows that older leaders have been waited for.
    ///
    /// # Errors
    /// The rows fail, or belong to a later leader.
    pub async fn waited<R: Rows>(&mut self, rows: &R) -> Result<(), RowsError> {
        let stored = Bytes::from(self.fence.encode_to_vec());
        self.fence.haunted = 0;
        self.fence.number += 1;
        rows.apply(Some(stored), self.fence.encode_to_vec().into(), Vec::new())
            .await
    }
}

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Stored by a newer brain.
    #[error("the data is of format {found}, this version reads formats up to {FORMAT}: start a newer version")]
    Newer {
        /// The format found.
        found: u32,
    },
    /// Stored by an older brain, in a format that this one does not read.
    #[error(
        "the data is of format {found}, this version reads format {FORMAT}: start the version that stored it, and copy what it has"
    )]
    Older {
        /// The format found.
        found: u32,
    },
    /// The rows lack what the log has given up already.
    #[error(
        "the rows reach slot {marker} of the log but the log begins at slot {watermark}: rows were lost or rolled back; restore the data directory from a backup"
    )]
    RowsBehind {
        /// The next slot that is not in the rows.
        marker: Slot,
        /// The slot below which the log is gone.
        watermark: Slot,
    },
    /// The log lacks what is in the rows.
    #[error(
        "the log ends before slot {last}, which the rows come from: the log was rolled back; restore log and rows from one copy"
    )]
    LogBehind {
        /// The last slot that the rows come from.
        last: Slot,
    },
    /// The rows come from another log.
    #[error("this is another log than the one that the rows come from: restore log and rows from one copy")]
    OtherLog,
    /// Slots were destroyed while they were read: begin again from rows.
    #[error("the log was cut while it was read")]
    Destroyed,
    /// A record does not decode, or contradicts what stands before it.
    #[error("the log is damaged: slot {slot}: {reason}")]
    Record {
        /// The slot.
        slot: Slot,
        /// What is wrong.
        reason: String,
    },
    /// The log fails.
    #[error("open the log")]
    Log(#[source] writer::OpenError),
    /// The rows fail.
    #[error("open the rows")]
    Rows(#[from] RowsError),
}

impl From<writer::OpenError> for OpenError {
    fn from(error: writer::OpenError) -> Self {
        match error {
            writer::OpenError::Destroyed(_) => OpenError::Destroyed,
            error => OpenError::Log(error),
        }
    }
}

impl From<LogError> for OpenError {
    fn from(error: LogError) -> Self {
        OpenError::Log(error.into())
    }
}

impl<R: Rows> Replica<R> {
    /// Becomes the only writer: reads and shows what is left of the log, places the candidate's barrier behind it, and
    /// writes the epoch into the fence. Watchers are not told: they have history.
    ///
    /// May be dropped and begun again. `seen` says that this member knows the last holder of its lock to have ended.
    ///
    /// # Errors
    /// [`OpenError`]. After [`OpenError::Destroyed`] the replica has to begin anew from rows.
    pub async fn lead<L: Log>(
        &mut self,
        log: &L,
        rows: &R,
        (candidate, seen): (Candidate, bool),
    ) -> Result<Leadership, OpenError> {
        let began = self.next();
        // What an older leader left unfinished may hold the fence, and whoever reads that would wait for it.
        rows.take_over().await?;
        // A barrier that was read before is in no fence yet if whoever placed it, be it this member, came no further.
        let floor = read_fence(rows.fence().await?)?.epoch.max(self.state.epoch());
        let mut read = Vec::new();
        let mut reader = Reader::new(log.clone(), began);
        // What does not read is refused before anything is written.
        let (writer, own) = Writer::open(log, &mut reader, (began, floor), candidate, |item| {
            read.push(Read::of(item)?);
            Ok::<(), OpenError>(())
        })
        .await?;
        let mut wait = Duration::ZERO;
        for read in read {
            if matches!(&read, Read::Barrier(_, barrier) if *barrier == own) {
                wait = self.reigns.wait(candidate.lock, seen);
            }
            self.replay(read)?;
        }
        rows.take_over().await?;
        let fence = take_fence(rows, (own.epoch, log.id()), (candidate, wait)).await?;
        let snapshot = rows.snapshot().await?;
        let through = read_fence(snapshot.fence().await?)?;
        self.swap_rows(Flushed {
            through: Some((Slot(through.marker), through.reached())),
            snapshot,
        });
        self.state.set_deleted_up_to(fence.deleted_up_to);
        self.state.set_deleted(&fence.sizes);
        Ok(Leadership { writer, fence, wait })
    }
}

/// Writes a later epoch into the fence: whatever an older leader still has in hand fails from now on.
async fn take_fence<R: Rows>(
    rows: &R,
    (epoch, log): (u64, Option<LogId>),
    (candidate, wait): (Candidate, Duration),
) -> Result<Fence, OpenError> {
    loop {
        let stored: Option<Bytes> = rows.fence().await?;
        let mut fence = read_fence(stored.clone())?;
        if fence.epoch > epoch {
            return Err(writer::OpenError::Write(writer::WriteError::Deposed(Slot(fence.marker))).into());
        }
        fence.epoch = epoch;
        fence.number += 1;
        fence.lock = candidate.lock;
        fence.lease = to_millis(candidate.lease);
        fence.haunted = to_millis(wait);
        fence.log_id = log.map(|LogId(id)| id.to_vec()).unwrap_or_default();
        match rows.apply(stored, fence.encode_to_vec().into(), Vec::new()).await {
            Ok(()) => return Ok(fence),
            Err(RowsError::Fenced(_)) => {} // an older leader was faster, once more
            Err(error) => return Err(error.into()),
        }
    }
}
