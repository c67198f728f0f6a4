//! Opens the store: rows up to the marker, the log's tail behind it, a barrier at its end.
//!
//! Takes time by the length of the tail, not by the size of the data.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;

use super::apply::Applier;
use super::record::Record;
use super::row::{FORMAT, Fence, LeaseRow};
use super::view::View;
use super::{LeaseId, Revision};
use crate::lease::Leases;
use crate::log::reader::{Item, Reader};
use crate::log::writer::{self, Writer};
use crate::log::{Log, LogError, Slot};
use crate::recent::Recent;
use crate::rows::{Order, Rows, RowsError, Scan, Snapshot, keys};
use crate::state::{State, since_boot};

/// An opened store, of which this process is the writer.
pub struct Opened<R: Rows> {
    /// What readers see.
    pub state: Arc<State<R>>,
    /// The right to append.
    pub writer: Writer,
    /// The state behind the last record.
    pub applier: Applier,
    /// The fence as it is stored, this epoch in it.
    pub fence: Fence,
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
    Log(#[from] writer::OpenError),
    /// The rows fail.
    #[error("open the rows")]
    Rows(#[from] RowsError),
}

impl From<LogError> for OpenError {
    fn from(error: LogError) -> Self {
        OpenError::Log(error.into())
    }
}

/// Opens a store as its only writer. `member` is this member's id, `lease` how long it may answer reads after its lock was
/// last renewed.
///
/// # Errors
/// [`OpenError`]; nothing was changed unless the barrier was placed.
pub async fn open<L: Log, R: Rows>(log: &L, rows: &R, member: u64, lease: Duration) -> Result<Opened<R>, OpenError> {
    loop {
        match try_open(log, rows, member, lease).await {
            Err(OpenError::Log(writer::OpenError::Destroyed(_))) => {} // begin again from rows, which are newer now
            outcome => return outcome,
        }
    }
}

async fn try_open<L: Log, R: Rows>(log: &L, rows: &R, member: u64, lease: Duration) -> Result<Opened<R>, OpenError> {
    // In this order: an older writer that is not stopped yet may move both, the marker first.
    let watermark = log.watermark().await?;
    let (_, fence) = read_fence(rows).await?;
    let marker = Slot(fence.marker);
    if watermark > marker {
        return Err(OpenError::RowsBehind { marker, watermark });
    }
    let mut tail = Vec::new();
    let mut reader = Reader::new(log.clone(), marker);
    let (writer, barrier) = Writer::open(log, &mut reader, (marker, fence.epoch), member, lease, |item| {
        if let Item::Batch {
            first, next, payload, ..
        } = item
        {
            tail.push((first, next, payload));
        }
        Ok::<(), OpenError>(())
    })
    .await?;
    rows.take_over().await?;
    let fence = take_fence(rows, barrier.epoch).await?;
    let snapshot = rows.snapshot().await?;
    let mut leases = load_leases(&snapshot).await?;
    let mut alarms: BTreeSet<(i32, u64)> = fence.alarms.iter().map(|alarm| (alarm.kind, alarm.member)).collect();
    let recent = Recent::new();
    let mut applier = Applier::new(fence.revision, fence.compacted, recent.active().clone());
    let mut noted = Vec::with_capacity(tail.len());
    for (first, next, payload) in tail {
        // The older writer may have moved the marker since it was read.
        if first.0 >= fence.marker {
            let base = replay(first, payload, &mut applier, &mut leases, &mut alarms)?;
            noted.push((base, first, next));
        }
    }
    let view = View {
        revision: applier.revision,
        compacted: applier.compacted,
        recent,
        rows: snapshot,
        rows_revision: fence.revision,
        counts: Arc::default(),
    };
    let state = State::new(view, leases, alarms);
    noted
        .into_iter()
        .for_each(|(base, first, next)| state.commit(base, first, next));
    state.commit(applier.revision, writer.next(), writer.next());
    state.set_deleted_up_to(fence.deleted_up_to);
    state.set_epoch(barrier.epoch);
    Ok(Opened {
        state: Arc::new(state),
        writer,
        applier,
        fence,
    })
}

/// The fence as it is stored, and what it says.
async fn read_fence<R: Rows>(rows: &R) -> Result<(Option<Bytes>, Fence), OpenError> {
    let stored = rows.fence().await?;
    let fence = match &stored {
        Some(bytes) => Fence::decode(bytes.clone())
            .map_err(|error| RowsError::Corrupt(format!("the fence does not decode: {error}")))?,
        None => Fence::fresh(),
    };
    if fence.format > FORMAT {
        return Err(OpenError::Newer { found: fence.format });
    }
    Ok((stored, fence))
}

/// Writes an epoch into the fence: from then on, no older writer changes the rows.
async fn take_fence<R: Rows>(rows: &R, epoch: u64) -> Result<Fence, OpenError> {
    loop {
        let (stored, mut fence) = read_fence(rows).await?;
        if fence.epoch >= epoch {
            return Err(RowsError::Fenced(stored).into()); // there is a later writer already
        }
        fence.epoch = epoch;
        fence.number += 1;
        match rows.apply(stored, fence.encode_to_vec().into(), Vec::new()).await {
            Ok(()) => return Ok(fence),
            Err(RowsError::Fenced(_)) => {} // by the older writer, a last time or once more
            Err(error) => return Err(error.into()),
        }
    }
}

/// Applies one batch of the tail; answers with its base revision.
fn replay(
    slot: Slot,
    payload: Bytes,
    applier: &mut Applier,
    leases: &mut Leases,
    alarms: &mut BTreeSet<(i32, u64)>,
) -> Result<Revision, OpenError> {
    let record = Record::decode(payload).map_err(|error| OpenError::Record {
        slot,
        reason: error.to_string(),
    })?;
    let base = record.base;
    if base != applier.revision {
        let reason = format!(
            "a batch behind revision {base} where {} is the newest",
            applier.revision
        );
        return Err(OpenError::Record { slot, reason });
    }
    let (_, changed) = applier.apply(record, Vec::new(), leases, since_boot());
    for alarm in changed {
        if alarm.raised {
            alarms.insert((alarm.kind, alarm.member));
        } else {
            alarms.remove(&(alarm.kind, alarm.member));
        }
    }
    Ok(base)
}

/// Leases and their attachments, as stored.
async fn load_leases<S: Snapshot>(rows: &S) -> Result<Leases, RowsError> {
    let mut leases = Leases::default();
    let now = since_boot();
    let range = keys::lease_range();
    for_each_row(rows, range.from, range.to, |row, value| {
        let stored = LeaseRow::decode(value)
            .map_err(|error| RowsError::Corrupt(format!("a lease row does not decode: {error}")))?;
        leases.grant(keys::parse_lease(&row)?, stored.ttl, stored.remaining, now);
        Ok(())
    })
    .await?;
    let range = keys::attachments_range();
    for_each_row(rows, range.from, range.to, |row, _| {
        let (id, key): (LeaseId, Bytes) = keys::parse_attachment(&row)?;
        leases.attach(id, key);
        Ok(())
    })
    .await?;
    Ok(leases)
}

async fn for_each_row<S: Snapshot>(
    rows: &S,
    from: Bytes,
    to: Bytes,
    mut each: impl FnMut(Bytes, Bytes) -> Result<(), RowsError>,
) -> Result<(), RowsError> {
    let mut from = from;
    loop {
        let scan = Scan {
            from,
            to: Some(to.clone()),
            order: Order::Ascending,
            keys_only: false,
            max_rows: 1_000,
            max_bytes: 1 << 20,
        };
        let page = rows.scan(scan).await?;
        let Some((last, _)) = page.rows.last() else {
            return Ok(());
        };
        from = super::view::successor(last);
        for (row, value) in page.rows {
            each(row, value)?;
        }
        if page.done {
            return Ok(());
        }
    }
}
