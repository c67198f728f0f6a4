//! Begins a replica from rows. Takes time by the length of the log's tail, not by the size of the data.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use tokio::time::Instant;

use super::reigns::Reigns;
use super::{OpenError, Replica};
use crate::lease::Leases;
use crate::log::{Log, LogId, Origin, Slot};
use crate::mvcc::LeaseId;
use crate::mvcc::apply::Applier;
use crate::mvcc::row::{FORMAT, Fence, LeaseRow};
use crate::mvcc::view::{View, successor};
use crate::recent::Recent;
use crate::rows::{Order, Rows, RowsError, Scan, Snapshot, keys};
use crate::state::{State, since_boot};

impl<R: Rows> Replica<R> {
    /// The state of the rows as they are now; nothing of the log's tail.
    ///
    /// # Errors
    /// [`OpenError`]; nothing was changed.
    pub async fn load<L: Log>(log: &L, rows: &R) -> Result<Self, OpenError> {
        let snapshot = rows.snapshot().await?;
        let fence = read_fence(snapshot.fence().await?)?;
        // Asked after the snapshot: a watermark beyond its marker may be newer than it.
        let (mut marker, watermark) = (Slot(fence.marker), log.watermark().await?);
        if watermark > marker {
            marker = Slot(read_fence(rows.fence().await?)?.marker);
            let error = OpenError::RowsBehind { marker, watermark };
            return Err(if watermark > marker {
                error
            } else {
                OpenError::Destroyed
            });
        }
        check_origin(log, rows, &fence).await?;
        let leases = load_leases(&snapshot).await?;
        let alarms: BTreeSet<(i32, u64)> = fence.alarms.iter().map(|alarm| (alarm.kind, alarm.member)).collect();
        let recent = Recent::new();
        let applier = Applier::new(fence.revision, fence.compacted, fence.sizes, recent.active().clone());
        let view = View {
            revision: applier.revision,
            compacted: applier.compacted,
            recent: recent.clone(),
            rows: snapshot,
            rows_revision: fence.reached(),
            counts: Arc::default(),
            hot: Arc::default(),
        };
        let state = State::new(view, leases, alarms);
        state.commit(fence.revision, marker, marker);
        state.show(marker);
        state.set_deleted_up_to(fence.deleted_up_to);
        state.set_written(&fence.sizes);
        state.set_deleted(&fence.sizes);
        state.set_epoch(fence.epoch);
        Ok(Self {
            state: Arc::new(state),
            applier,
            recent,
            sealed: VecDeque::new(),
            last_seal: Instant::now(),
            marker,
            next: marker,
            last: Slot(fence.log_last),
            reigns: Reigns::of(&fence),
        })
    }
}

/// The log that rows come from, where they name one.
///
/// # Errors
/// When the rows fail, or are newer than this version.
pub async fn origin<R: Rows>(rows: &R) -> Result<Option<Origin>, OpenError> {
    Ok(read_fence(rows.fence().await?)?.origin())
}

/// Refuses a fence that names another log than the stored one, or lacks what that has given up.
///
/// # Errors
/// [`OpenError`]; nothing was changed.
pub fn check_reach(stored: Option<Bytes>, log: Option<(LogId, Slot)>) -> Result<(), OpenError> {
    let fence = read_fence(stored)?;
    let Some((id, watermark)) = log else {
        return Ok(()); // whoever opens the log finds it missing
    };
    if fence.origin().is_some_and(|origin| origin.id != id) {
        return Err(OpenError::OtherLog);
    }
    let marker = Slot(fence.marker);
    if watermark > marker {
        return Err(OpenError::RowsBehind { marker, watermark });
    }
    Ok(())
}

/// Refuses a log that lacks what the rows hold, or is another one than they come from.
async fn check_origin<L: Log, R: Rows>(log: &L, rows: &R, fence: &Fence) -> Result<(), OpenError> {
    if let (Some(id), Some(origin)) = (log.id(), fence.origin())
        && origin.id != id
    {
        return Err(OpenError::OtherLog);
    }
    let last = Slot(fence.log_last);
    // The slot of the last record that is in rows is never destroyed before a later one is in them, too.
    if last < Slot::FIRST || !log.read(last, 1).await?.is_empty() {
        return Ok(());
    }
    let newer = read_fence(rows.fence().await?)?;
    Err(if newer.log_last > fence.log_last {
        OpenError::Destroyed
    } else {
        OpenError::LogBehind { last }
    })
}

/// The stored fence, or that of an empty store.
///
/// # Errors
/// [`OpenError::Newer`], or that it does not decode.
pub(super) fn read_fence(stored: Option<Bytes>) -> Result<Fence, OpenError> {
    let fence = match stored {
        Some(bytes) => {
            Fence::decode(bytes).map_err(|error| RowsError::Corrupt(format!("the fence does not decode: {error}")))?
        }
        None => Fence::fresh(),
    };
    if fence.format > FORMAT {
        return Err(OpenError::Newer { found: fence.format });
    }
    if fence.format < FORMAT {
        return Err(OpenError::Older { found: fence.format });
    }
    Ok(fence)
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
        from = successor(last);
        for (row, value) in page.rows {
            each(row, value)?;
        }
        if page.done {
            return Ok(());
        }
    }
}
