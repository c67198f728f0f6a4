//! A history in memory, for tests.

#![allow(clippy::unwrap_used, clippy::new_without_default, reason = "it is for tests")]

use async_trait::async_trait;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::{History, HistoryError};
use crate::PrevKv;
use crate::mailbox::locked;
use etcd_types::types::{Committed, Revision};

/// The simplest history that obeys the laws. It also counts reads, and fails as many of them as a test requests.
#[derive(Debug, Clone)]
pub struct ModelHistory(Arc<Mutex<ModelState>>);

#[derive(Debug)]
struct ModelState {
    revisions: BTreeMap<Revision, Arc<Committed>>,
    published: Revision,
    compacted: Revision,
    reads: usize,
    failures: usize,
}

impl ModelHistory {
    /// A fresh store.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(ModelState {
            revisions: BTreeMap::new(),
            published: 1,
            compacted: -1,
            reads: 0,
            failures: 0,
        })))
    }

    /// Appends the next revision.
    pub fn append(&self, committed: &Arc<Committed>) {
        let mut state = locked(&self.0);
        assert_eq!(committed.revision, state.published + 1, "revisions are dense");
        state.published = committed.revision;
        state.revisions.insert(committed.revision, Arc::clone(committed));
    }

    /// Drops revisions older than `revision`.
    pub fn compact(&self, revision: Revision) {
        let mut state = locked(&self.0);
        let compacted = revision.max(state.compacted);
        state.compacted = compacted;
        state.revisions = state.revisions.split_off(&compacted);
    }

    /// Makes the next `count` reads fail.
    pub fn fail(&self, count: usize) {
        locked(&self.0).failures = count;
    }

    /// Returns the number of reads so far.
    pub fn reads(&self) -> usize {
        locked(&self.0).reads
    }

    fn slice(&self, from: Revision, max_bytes: usize, prev_kv: PrevKv) -> Result<Vec<Arc<Committed>>, HistoryError> {
        let mut state = locked(&self.0);
        state.reads += 1;
        if state.failures > 0 {
            state.failures -= 1;
            return Err(HistoryError::Unavailable(anyhow::anyhow!("told to fail")));
        }
        if from < state.compacted {
            return Err(HistoryError::Compacted(state.compacted));
        }
        let mut bytes = 0;
        let mut revisions = Vec::new();
        for committed in state.revisions.range(from..).map(|(_, committed)| committed) {
            let size: usize = committed
                .events
                .iter()
                .map(|event| event.kv.key.len() + event.kv.value.len())
                .sum();
            if bytes + size > max_bytes && !revisions.is_empty() {
                break;
            }
            bytes += size;
            let mut committed = Committed::clone(committed);
            // Compaction removes versions that were superseded at or before its revision.
            let is_taken = prev_kv == PrevKv::Omitted || committed.revision <= state.compacted;
            for event in &mut committed.events {
                event.prev_kv.take_if(|_| is_taken);
                event.is_prev_unread &= !is_taken;
            }
            revisions.push(Arc::new(committed));
        }
        Ok(revisions)
    }
}

#[async_trait]
impl History for ModelHistory {
    async fn read(
        &self,
        from: Revision,
        max_bytes: usize,
        prev_kv: PrevKv,
    ) -> Result<Vec<Arc<Committed>>, HistoryError> {
        tokio::task::yield_now().await; // as a read from a medium does
        self.slice(from, max_bytes, prev_kv)
    }

    fn published(&self) -> Revision {
        locked(&self.0).published
    }

    fn compacted(&self) -> Revision {
        locked(&self.0).compacted
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::laws::{self, Subject};
    use etcd_types::types::{Event, EventKind, KeyValue};
    use mvcc::row::size_of;

    struct Store {
        history: ModelHistory,
        keys: BTreeMap<&'static str, KeyValue>,
    }

    impl Store {
        fn commit(&self, kind: EventKind, kv: KeyValue, prev_kv: Option<KeyValue>) {
            let committed = Committed {
                revision: kv.mod_revision,
                events: vec![Event {
                    kind,
                    kv,
                    prev_kv,
                    is_prev_unread: false,
                }],
            };
            self.history.append(&Arc::new(committed));
        }
    }

    impl Subject for Store {
        type History = ModelHistory;

        fn history(&self) -> &ModelHistory {
            &self.history
        }

        async fn put(&mut self, key: &'static str, value: Bytes) {
            let revision = self.history.published() + 1;
            let prev = self.keys.remove(key);
            let kv = KeyValue {
                key: Bytes::from_static(key.as_bytes()),
                size: size_of(&value),
                value,
                create_revision: prev.as_ref().map_or(revision, |prev| prev.create_revision),
                mod_revision: revision,
                version: prev.as_ref().map_or(1, |prev| prev.version + 1),
                ..KeyValue::default()
            };
            self.keys.insert(key, kv.clone());
            self.commit(EventKind::Put, kv, prev);
        }

        async fn delete(&mut self, key: &'static str) {
            let prev = self.keys.remove(key);
            let kv = KeyValue {
                key: Bytes::from_static(key.as_bytes()),
                mod_revision: self.history.published() + 1,
                ..KeyValue::default()
            };
            self.commit(EventKind::Delete, kv, prev);
        }

        async fn compact(&mut self, revision: Revision) {
            self.history.compact(revision);
        }
    }

    #[tokio::test]
    async fn the_model_obeys_the_laws() {
        let fresh = async || Store {
            history: ModelHistory::new(),
            keys: BTreeMap::new(),
        };
        laws::check(fresh).await;
    }
}
