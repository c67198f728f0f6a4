//! History is the log itself: what was committed since the compacted revision, read back from slots.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;

use super::apply::{before_txn, event_of};
use super::record::{Change, Keys, Record};
use super::row::decode_object;
use super::view::View;
use super::{Committed, KeyValue, Prev, Revision};
use crate::log::reader::{Item, Reader};
use crate::log::{Log, LogError, Slot};
use crate::rows::{Rows, RowsError, Snapshot, keys};
use crate::state::State;
use crate::watch::{History, HistoryError};

/// How often a read is begun under which slots are destroyed. Compaction is never that fast.
const ATTEMPTS: usize = 8;

/// Reads committed revisions back.
pub struct LogHistory<L, R: Rows> {
    log: L,
    state: Arc<State<R>>,
}

impl<L: Log, R: Rows> LogHistory<L, R> {
    /// The history of a store.
    pub fn new(log: L, state: Arc<State<R>>) -> Self {
        Self { log, state }
    }

    /// `None` says that slots were destroyed meanwhile.
    async fn try_read(&self, from: Revision, max_bytes: usize) -> anyhow::Result<Option<Vec<Arc<Committed>>>> {
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
            self.read_slots((began, committed), from, &view, max_bytes).await
        };
        let read = read.await;
        // Slots that were destroyed meanwhile look free, or hold what came late.
        if self.log.watermark().await? > began {
            return Ok(None);
        }
        let found = read?;
        anyhow::ensure!(
            found.first().is_some_and(|first| first.revision == from),
            "revision {from} is missing in the log"
        );
        Ok(Some(found))
    }

    /// Reads back what the slots of a range hold, from a revision on.
    async fn read_slots(
        &self,
        (began, committed): (Slot, Slot),
        from: Revision,
        view: &View<R::Snapshot>,
        max_bytes: usize,
    ) -> anyhow::Result<Vec<Arc<Committed>>> {
        let mut reader = Reader::seek(self.log.clone(), began).await?;
        let (mut found, mut bytes) = (Vec::new(), 0);
        while let Some(item) = reader.next().await? {
            let Item::Batch { first, payload, .. } = item else {
                continue;
            };
            if first >= committed {
                break; // durable perhaps, but not shown
            }
            let record = Record::decode(payload);
            let record = record.map_err(|error| LogError::Corrupt(format!("slot {first} does not decode: {error}")))?;
            for entry in record.entries {
                let Some(Change::Keys(keys)) = entry.change else {
                    continue;
                };
                if keys.revision < from {
                    continue;
                }
                if keys.revision > view.revision || (bytes >= max_bytes && !found.is_empty()) {
                    return Ok(found);
                }
                bytes += keys.encoded_len();
                found.push(Arc::new(read_back(keys, view).await?));
            }
        }
        Ok(found)
    }

    /// A slot at or before the batch that made `revision`; `low` if there is none before it.
    async fn locate(&self, revision: Revision, mut low: Slot) -> Result<Slot, LogError> {
        if let Some(slot) = self.state.slot_before(revision) {
            return Ok(slot);
        }
        // Older than what was noted since the start: search by halves. Bases ascend with slots.
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

    /// The base revision of the first batch at or behind a slot.
    async fn first_base(&self, slot: Slot) -> Result<Option<Revision>, LogError> {
        let mut reader = Reader::seek(self.log.clone(), slot).await?;
        while let Some(item) = reader.next().await? {
            if let Item::Batch { first, payload, .. } = item {
                let record = Record::decode(payload)
                    .map_err(|error| LogError::Corrupt(format!("slot {first} does not decode: {error}")))?;
                return Ok(Some(record.base));
            }
        }
        Ok(None)
    }
}

impl<L: Log, R: Rows> History for LogHistory<L, R> {
    async fn read(&self, from: Revision, max_bytes: usize) -> Result<Vec<Arc<Committed>>, HistoryError> {
        for _ in 0..ATTEMPTS {
            let compacted = self.compacted();
            if from < compacted {
                return Err(HistoryError::Compacted(compacted));
            }
            match self.try_read(from, max_bytes).await {
                Ok(Some(found)) => {
                    // What was read before a compaction passed by may lack versions that it deleted.
                    let compacted = self.compacted();
                    if from < compacted {
                        return Err(HistoryError::Compacted(compacted));
                    }
                    return Ok(found);
                }
                Ok(None) => {}
                Err(_) if from < self.compacted() => {}
                Err(error) => {
                    if is_damage(&error) && !self.state.is_corrupt() {
                        self.state.set_corrupt();
                        tracing::error!(
                            error = format!("{error:#}"),
                            "stored history is damaged: nothing is served any more"
                        );
                    }
                    return Err(HistoryError::Unavailable(error));
                }
            }
        }
        let error = anyhow::anyhow!("slots were destroyed under {ATTEMPTS} reads from revision {from} on");
        Err(HistoryError::Unavailable(error))
    }

    fn published(&self) -> Revision {
        self.state.view().revision
    }

    fn compacted(&self) -> Revision {
        self.state.view().compacted
    }
}

/// The events of a revision, with the versions that they superseded where they are still there.
async fn read_back<S: Snapshot>(keys: Keys, view: &View<S>) -> Result<Committed, RowsError> {
    let mut events = Vec::with_capacity(keys.changes.len());
    for change in keys.changes {
        let prev = match change.prev_mod {
            0 => Prev::Nothing,
            own if own == keys.revision => before_txn(&events, &change.key),
            revision => version_at(view, &change.key, revision)
                .await?
                .map_or(Prev::Nothing, Prev::Version),
        };
        events.push(event_of(change, keys.revision, prev));
    }
    Ok(Committed {
        revision: keys.revision,
        events,
    })
}

/// Stored bytes are not what was written.
fn is_damage(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        matches!(cause.downcast_ref(), Some(LogError::Corrupt(_)))
            || matches!(cause.downcast_ref(), Some(RowsError::Corrupt(_)))
    })
}

/// The version of a key that a revision made, if it is not compacted.
async fn version_at<S: Snapshot>(
    view: &View<S>,
    key: &Bytes,
    revision: Revision,
) -> Result<Option<KeyValue>, RowsError> {
    if let Some((found, version)) = view.recent.get(key, revision)
        && found == revision
    {
        return Ok(super::view::from_version(key.clone(), revision, version));
    }
    let Some(row) = view.rows.get(&keys::object_key(key, revision)).await? else {
        return Ok(None);
    };
    Ok(decode_object(key, &row)?.map(|(meta, value)| super::view::from_meta(key.clone(), meta, value)))
}
