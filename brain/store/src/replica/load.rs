//! Begins a replica from rows. Takes time by the length of the log's tail, not by the size of the data.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use tokio::time::Instant;

use super::prior_leases::PriorLeases;
use super::{Replica, StoreOpenError};
use crate::state::StoreState;
use engine::log::{DynLog, LogId, LogOrigin, Slot};
use engine::rows::{DynRows, DynSnapshot, Order, Rows, RowsError, Scan};
use etcd_types::types::LeaseId;
use mvcc::apply::Applier;
use mvcc::auth::{AUTH_ROW, Auth, AuthRow, Role, User};
use mvcc::dictionaries::Dictionaries;
use mvcc::keys;
use mvcc::lease::Leases;
use mvcc::memtable::MemtableSet;
use mvcc::row::{LeaseRow, Manifest, STORED_FORMAT, STORED_FORMAT_WITH_AUTH};
use mvcc::view::{View, successor};
use runtime::clock::since_boot;

impl Replica {
    /// Loads the state of the rows as they are now, without the tail of the log.
    ///
    /// # Errors
    /// [`StoreOpenError`]; nothing was changed.
    pub async fn load(log: &DynLog, rows: &DynRows) -> Result<Self, StoreOpenError> {
        let snapshot = rows.snapshot().await?;
        let manifest = read_manifest(snapshot.fence().await?)?;
        // Read after the snapshot: a watermark beyond its applied slot may be newer than it.
        let (mut applied_slot, watermark) = (Slot(manifest.applied_slot), log.watermark().await?);
        if watermark > applied_slot {
            applied_slot = Slot(read_manifest(rows.fence().await?)?.applied_slot);
            let error = StoreOpenError::RowsBehind {
                applied_slot,
                watermark,
            };
            return Err(if watermark > applied_slot {
                error
            } else {
                StoreOpenError::Destroyed
            });
        }
        check_origin(log, rows, &manifest).await?;
        let leases = load_leases(&snapshot).await?;
        let auth = load_auth(&snapshot).await?;
        // No others are compressed.
        let dictionaries = match rows.is_exclusive() {
            true => Arc::new(Dictionaries::load(&*snapshot).await?),
            false => Arc::default(),
        };
        let alarms: BTreeSet<(i32, u64)> = manifest.alarms.iter().map(|alarm| (alarm.kind, alarm.member)).collect();
        let memtables = MemtableSet::new();
        let applier = Applier::new(
            manifest.revision,
            manifest.compacted,
            manifest.sizes,
            memtables.active().clone(),
        );
        let view = View {
            revision: applier.revision,
            compacted: applier.compacted,
            memtables: memtables.clone(),
            rows: snapshot,
            dictionaries,
            rows_revision: manifest.reached(),
            page_counts: Arc::default(),
            key_index: applier.key_index.clone(),
            hot: Arc::default(),
        };
        let state = StoreState::new(view, leases, alarms, auth);
        state.commit(manifest.revision, applied_slot, applied_slot);
        state.set_applied(applied_slot);
        state.set_deleted_up_to(manifest.deleted_up_to);
        state.set_written(&manifest.sizes);
        state.set_deleted(&manifest.sizes);
        state.set_epoch(manifest.epoch);
        Ok(Self {
            state: Arc::new(state),
            applier,
            memtables,
            immutables: VecDeque::new(),
            last_rotation: Instant::now(),
            applied_slot,
            next: applied_slot,
            last: Slot(manifest.log_last),
            prior_leases: PriorLeases::of(&manifest),
        })
    }
}

/// Returns the log that the rows come from, if they name one. Fails if the rows are newer than this version.
pub async fn origin(rows: &dyn Rows) -> Result<Option<LogOrigin>, StoreOpenError> {
    Ok(read_manifest(rows.fence().await?)?.origin())
}

/// Refuses a manifest that names another log than the stored one, or lacks records that this log has destroyed.
pub fn check_reach(stored: Option<Bytes>, log: Option<(LogId, Slot)>) -> Result<(), StoreOpenError> {
    let manifest = read_manifest(stored)?;
    let Some((id, watermark)) = log else {
        return Ok(()); // opening the log reports that it is missing
    };
    if manifest.origin().is_some_and(|origin| origin.id != id) {
        return Err(StoreOpenError::OtherLog);
    }
    let applied_slot = Slot(manifest.applied_slot);
    if watermark > applied_slot {
        return Err(StoreOpenError::RowsBehind {
            applied_slot,
            watermark,
        });
    }
    Ok(())
}

/// Refuses a log that lacks records of the rows, or is another one than they come from.
async fn check_origin(log: &DynLog, rows: &DynRows, manifest: &Manifest) -> Result<(), StoreOpenError> {
    if let (Some(id), Some(origin)) = (log.id(), manifest.origin())
        && origin.id != id
    {
        return Err(StoreOpenError::OtherLog);
    }
    let last = Slot(manifest.log_last);
    // The slot of the last record that is in rows is never destroyed before a later one is in them, too.
    if last < Slot::FIRST || !log.read(last, 1).await?.is_empty() {
        return Ok(());
    }
    let newer = read_manifest(rows.fence().await?)?;
    Err(if newer.log_last > manifest.log_last {
        StoreOpenError::Destroyed
    } else {
        StoreOpenError::LogBehind { last }
    })
}

/// Decodes the stored manifest; `None` is that of an empty store. Returns [`StoreOpenError::Newer`] or [`StoreOpenError::Older`] for another
/// format.
pub(super) fn read_manifest(stored: Option<Bytes>) -> Result<Manifest, StoreOpenError> {
    let manifest = match stored {
        Some(bytes) => Manifest::decode(bytes)
            .map_err(|error| RowsError::Corrupt(format!("the fence does not decode: {error}")))?,
        None => Manifest::fresh(),
    };
    if manifest.format > STORED_FORMAT_WITH_AUTH {
        return Err(StoreOpenError::Newer { found: manifest.format });
    }
    if manifest.format < STORED_FORMAT {
        return Err(StoreOpenError::Older { found: manifest.format });
    }
    Ok(manifest)
}

/// Leases and their attachments, as stored.
async fn load_leases(rows: &DynSnapshot) -> Result<Leases, RowsError> {
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

/// Reads users and roles, as stored; none in a store that never had any.
pub async fn load_auth(rows: &DynSnapshot) -> Result<Auth, RowsError> {
    let mut auth = Auth::default();
    if let Some(row) = rows.get(&keys::meta_key(AUTH_ROW)).await? {
        auth.set(&decode::<AuthRow>("auth", row)?);
    }
    let range = keys::user_range();
    for_each_row(rows, range.from, range.to, |row, value| {
        auth.set_user(&keys::parse_user(&row)?, Some(decode::<User>("user", value)?));
        Ok(())
    })
    .await?;
    let range = keys::role_range();
    for_each_row(rows, range.from, range.to, |row, value| {
        auth.set_role(&keys::parse_role(&row)?, Some(decode::<Role>("role", value)?));
        Ok(())
    })
    .await?;
    Ok(auth)
}

fn decode<T: Message + Default>(kind: &str, row: Bytes) -> Result<T, RowsError> {
    T::decode(row).map_err(|error| RowsError::Corrupt(format!("the row of a {kind} does not decode: {error}")))
}

async fn for_each_row(
    rows: &DynSnapshot,
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
