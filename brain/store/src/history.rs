//! History is the log itself: the commits since the compacted revision, read back from slots.

use async_trait::async_trait;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::state::StoreState;
use ::watch::{History, HistoryError, PrevKv};
use engine::log::reader::{LogEntry, Reader};
use engine::log::{DynLog, LogError, Slot};
use engine::rows::RowsError;
use etcd_types::types::{Committed, KeyValue, Prev, Revision};
use mvcc::apply::{FirstEvents, event_of};
use mvcc::fetch::FetchKind;
use mvcc::keys;
use mvcc::record::{Change, KeyChange, Keys, Record, RecordHead};
use mvcc::row::decode_object;
use mvcc::view::View;

/// The log of the compacted revision itself is gone.
#[derive(Debug, thiserror::Error)]
#[error("the compacted revision is no longer in the log")]
struct GivenUp;

/// Maximum number of attempts of a read during which slots are destroyed. Compaction is never that fast.
const READ_ATTEMPTS: usize = 8;

/// Maximum number of superseded versions that one request fetches.
const MAX_VERSIONS_PER_GET: usize = 4096;

/// Bytes of a record above which it is read back while no other one of that kind is: twice a batch of short changes.
const LARGE_RECORD_BYTES: usize = 8 << 20;

/// Maximum number of noted places where reads stopped.
const MAX_READ_STOPS: usize = 64;

/// Bytes that a change takes in memory beside its key and value.
const EVENT_OVERHEAD_BYTES: usize = 400;

/// Reads committed revisions back.
pub struct LogHistory {
    log: DynLog,
    state: Arc<StoreState>,
    /// Revisions of very many changes, or that superseded much, are read back one at a time.
    large: Arc<Semaphore>,
    /// Where reads stopped: the next revision, and the slot of its batch. The oldest first.
    stops: Mutex<VecDeque<(Revision, Slot)>>,
}

impl LogHistory {
    /// The history of a store.
    pub fn new(log: DynLog, state: Arc<StoreState>) -> Self {
        Self {
            log,
            state,
            large: Arc::new(Semaphore::new(1)),
            stops: Mutex::default(),
        }
    }

    /// Returns `None` if slots were destroyed during the read.
    async fn try_read(
        &self,
        from: Revision,
        max_bytes: usize,
        prev_kv: PrevKv,
    ) -> anyhow::Result<Option<Vec<Arc<Committed>>>> {
        let view = self.state.view();
        // A fresh store is at revision 1, at which nothing happened.
        let from = from.max(2);
        if from > view.revision {
            return Ok(Some(Vec::new()));
        }
        let committed = self.state.committed();
        let mut began = self.log.watermark().await?;
        // Another member destroys, where this one follows.
        self.state.forget_below(began);
        let read = async {
            began = self.locate(from, began).await?;
            let mut turn = None;
            let revisions = self
                .read_slots((began, committed), (from, view.revision), max_bytes, &mut turn)
                .await?;
            anyhow::Ok(match prev_kv {
                PrevKv::Omitted => {
                    let plain = revisions.into_iter().map(|keys| read_back(keys, || Prev::Nothing));
                    plain.collect()
                }
                PrevKv::Included => {
                    let most = self.state.fetches().largest(FetchKind::Reads);
                    let revisions = fitting(revisions, max_bytes.min(most));
                    let is_large =
                        |keys: &Keys| keys.changes.len() > MAX_VERSIONS_PER_GET || superseded_bytes(keys) > max_bytes;
                    if revisions.first().is_some_and(is_large) {
                        self.take_turn(&mut turn).await?;
                    }
                    with_superseded(revisions, &view, most).await?
                }
            })
        };
        let read = read.await;
        // Slots that were destroyed during the read look free, or hold late records.
        if self.log.watermark().await? > began {
            return Ok(None);
        }
        let found = read?;
        if from == view.compacted && found.first().is_none_or(|first| first.revision > from) {
            return Err(GivenUp.into());
        }
        anyhow::ensure!(
            found.first().is_some_and(|first| first.revision == from),
            "revision {from} is missing in the log"
        );
        Ok(Some(found))
    }

    /// Waits until no other large revision is read, unless this read has that turn.
    async fn take_turn(&self, turn: &mut Option<OwnedSemaphorePermit>) -> anyhow::Result<()> {
        if turn.is_none() {
            *turn = Some(self.large.clone().acquire_owned().await?);
        }
        Ok(())
    }

    /// The revisions that the slots of a range hold, from `from` through `newest`. Takes the turn of a large one.
    async fn read_slots(
        &self,
        (began, committed): (Slot, Slot),
        (from, newest): (Revision, Revision),
        max_bytes: usize,
        turn: &mut Option<OwnedSemaphorePermit>,
    ) -> anyhow::Result<Vec<Keys>> {
        let mut reader = Reader::seek(self.log.clone(), began).await?;
        let (mut found, mut bytes) = (Vec::new(), 0);
        while let Some(item) = reader.next().await? {
            let LogEntry::Batch { first, payload, .. } = item else {
                continue;
            };
            if first >= committed {
                break; // durable perhaps, but not shown
            }
            if bytes >= max_bytes && !found.is_empty() {
                let head: RecordHead = decode(first, payload)?;
                self.note_stop(head.base + 1, first);
                break;
            }
            if payload.len() > LARGE_RECORD_BYTES {
                self.take_turn(turn).await?; // decoded, it is a multiple of that
            }
            let record: Record = decode(first, payload)?;
            for entry in record.entries {
                let Some(Change::Keys(keys)) = entry.change else {
                    continue;
                };
                if keys.revision < from {
                    continue;
                }
                // A very large revision is read alone, so that all watchers that lag share it.
                let is_enough = bytes >= max_bytes || keys.changes.len() > MAX_VERSIONS_PER_GET;
                if keys.revision > newest || (is_enough && !found.is_empty()) {
                    self.note_stop(keys.revision, first);
                    return Ok(found);
                }
                bytes += keys.encoded_len() + EVENT_OVERHEAD_BYTES * keys.changes.len();
                found.push(keys);
            }
        }
        Ok(found)
    }

    /// Records that a read stopped before a revision, which is in the batch at this slot: the next read begins there.
    fn note_stop(&self, revision: Revision, slot: Slot) {
        let mut stops = self.stops();
        stops.retain(|(noted, _)| *noted != revision);
        if stops.len() >= MAX_READ_STOPS {
            stops.pop_front();
        }
        stops.push_back((revision, slot));
    }

    fn stop_before(&self, revision: Revision) -> Option<Slot> {
        let stops = self.stops();
        let mut found = stops.iter().filter(|(noted, _)| *noted == revision);
        found.next().map(|(_, slot)| *slot)
    }

    fn stops(&self) -> MutexGuard<'_, VecDeque<(Revision, Slot)>> {
        self.stops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot at or before the batch that made `revision`; `low` if there is none before it.
    async fn locate(&self, revision: Revision, mut low: Slot) -> Result<Slot, LogError> {
        let stop = self.stop_before(revision).filter(|slot| *slot >= low);
        if let Some(slot) = stop.max(self.state.slot_before(revision)) {
            return Ok(slot);
        }
        // Older than the index, which begins at the start of this process: binary search. Bases ascend with slots.
        let mut high = self
            .state
            .first_noted()
            .unwrap_or_else(|| self.state.committed())
            .max(low);
        while high.0 - low.0 > 1 {
            let middle = Slot(low.0 + (high.0 - low.0) / 2);
            match self.first_base(middle).await? {
                Some(base) if base < revision => low = middle,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    /// Returns the base revision of the first batch at or after a slot.
    async fn first_base(&self, slot: Slot) -> Result<Option<Revision>, LogError> {
        let mut reader = Reader::seek(self.log.clone(), slot).await?;
        while let Some(item) = reader.next().await? {
            if let LogEntry::Batch { first, payload, .. } = item {
                let head: RecordHead = decode(first, payload)?;
                return Ok(Some(head.base));
            }
        }
        Ok(None)
    }
}

#[async_trait]
impl History for LogHistory {
    async fn read(
        &self,
        from: Revision,
        max_bytes: usize,
        prev_kv: PrevKv,
    ) -> Result<Vec<Arc<Committed>>, HistoryError> {
        for _ in 0..READ_ATTEMPTS {
            let compacted = self.compacted();
            if from < compacted {
                return Err(HistoryError::Compacted(compacted));
            }
            match self.try_read(from, max_bytes, prev_kv).await {
                Ok(Some(found)) => {
                    // If a compaction ran during the read, the result may lack versions that it deleted.
                    let compacted = self.compacted();
                    if from < compacted {
                        return Err(HistoryError::Compacted(compacted));
                    }
                    return Ok(found);
                }
                Ok(None) => {}
                Err(_) if from < self.compacted() => {}
                Err(error) if error.is::<GivenUp>() => return Err(HistoryError::Compacted(from + 1)),
                Err(error) => {
                    if is_damage(&error) && !self.state.is_corrupt() {
                        self.state.set_corrupt();
                        tracing::error!(
                            error = format!("{error:#}"),
                            "stored history is damaged: this member stops serving"
                        );
                    }
                    return Err(HistoryError::Unavailable(error));
                }
            }
        }
        let error = anyhow::anyhow!("slots were destroyed under {READ_ATTEMPTS} reads from revision {from} on");
        Err(HistoryError::Unavailable(error))
    }

    fn published(&self) -> Revision {
        self.state.view().revision
    }

    fn compacted(&self) -> Revision {
        self.state.view().compacted
    }
}

fn decode<M: Message + Default>(slot: Slot, payload: Bytes) -> Result<M, LogError> {
    M::decode(payload).map_err(|error| LogError::Corrupt(format!("slot {slot} does not decode: {error}")))
}

/// The events of a revision. `superseded` has the versions of earlier revisions that its changes superseded, in order.
fn read_back(keys: Keys, mut superseded: impl FnMut() -> Prev) -> Arc<Committed> {
    let mut events = Vec::with_capacity(keys.changes.len());
    let mut first_events = FirstEvents::default();
    for change in keys.changes {
        let prev = match change.prev_mod {
            0 => Prev::Nothing,
            own if own == keys.revision => first_events.before_txn(&events, &change.key),
            _ => superseded(),
        };
        events.push(event_of(change, keys.revision, prev));
    }
    Arc::new(Committed {
        revision: keys.revision,
        events,
    })
}

/// Returns the first of some revisions, and as many more as fit into `max_bytes` with the versions that they superseded.
fn fitting(mut revisions: Vec<Keys>, max_bytes: usize) -> Vec<Keys> {
    let mut bytes = 0_usize;
    let exceeds = revisions.iter().position(|keys| {
        bytes += superseded_bytes(keys) + keys.encoded_len();
        bytes > max_bytes
    });
    revisions.truncate(exceeds.map_or(usize::MAX, |fitting| fitting.max(1)));
    revisions
}

/// Returns the events of revisions, with the versions that they superseded if those are still there. Where a single revision superseded
/// more than `most` bytes, they are not read.
async fn with_superseded(revisions: Vec<Keys>, view: &View, most: usize) -> Result<Vec<Arc<Committed>>, RowsError> {
    if let Some(first) = revisions.first().filter(|first| superseded_bytes(first) > most) {
        // Compaction deletes what the compacted revision superseded.
        let prev = match first.revision > view.compacted {
            true => Prev::Unread,
            false => Prev::Nothing,
        };
        let unread = revisions.into_iter().map(|keys| read_back(keys, || prev.clone()));
        return Ok(unread.collect());
    }
    let mut versions = superseded(&revisions, view).await?.into_iter();
    let mut version = || versions.next().flatten().map_or(Prev::Nothing, Prev::Version);
    Ok(revisions
        .into_iter()
        .map(|keys| read_back(keys, &mut version))
        .collect())
}

/// Bytes of the values that the changes of a revision superseded.
fn superseded_bytes(keys: &Keys) -> usize {
    let changes = keys
        .changes
        .iter()
        .filter(|change| is_of_earlier(change, keys.revision));
    changes.map(|change| change.prev_size as usize).sum()
}

/// The versions that changes superseded, of each change that superseded one of an earlier revision; `None` where it is gone.
async fn superseded(revisions: &[Keys], view: &View) -> Result<Vec<Option<KeyValue>>, RowsError> {
    let changes = revisions
        .iter()
        .flat_map(|keys| keys.changes.iter().map(|change| (keys.revision, change)))
        .filter(|(revision, change)| is_of_earlier(change, *revision))
        .map(|(_, change)| (&change.key, change.prev_mod));
    let (mut versions, mut rows, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
    for (key, revision) in changes {
        match view.memtables.get(key, revision) {
            Some((found, version)) if found == revision => {
                versions.push(mvcc::view::from_version(key.clone(), revision, version));
            }
            _ => {
                rows.push((versions.len(), key));
                versions.push(None);
                wanted.push(keys::object_key(key, revision));
            }
        }
    }
    for (rows, wanted) in rows
        .chunks(MAX_VERSIONS_PER_GET)
        .zip(wanted.chunks(MAX_VERSIONS_PER_GET))
    {
        for ((at, key), row) in rows.iter().zip(view.rows.multi_get(wanted).await?) {
            let object = row
                .map(|row| decode_object(key, &row, &view.dictionaries))
                .transpose()?
                .flatten();
            versions[*at] = object.map(|(meta, value)| mvcc::view::from_meta((*key).clone(), meta, value));
        }
    }
    Ok(versions)
}

/// Returns true if a change of a revision superseded a version of an earlier one.
fn is_of_earlier(change: &KeyChange, revision: Revision) -> bool {
    change.prev_mod != 0 && change.prev_mod != revision
}

/// True if stored bytes are not what was written.
fn is_damage(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        matches!(cause.downcast_ref(), Some(LogError::Corrupt(_)))
            || matches!(cause.downcast_ref(), Some(RowsError::Corrupt(_)))
    })
}
