//! What is evaluated but not published: changes of the batch at hand and of those whose records are under way.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use super::op::Span;
use super::{KeyValue, LeaseId, Revision};
use crate::lease::Leases;

/// Changes of a request that are merged with those of its batch rather than inserted one by one.
const MERGED_AT_ONCE: usize = 1_024;

/// Changes of one batch, over what came before it.
#[derive(Debug, Default)]
pub struct Delta {
    /// The newest state of each changed key; `None` is deleted.
    keys: BTreeMap<Bytes, Option<KeyValue>>,
    /// Leases granted (their time to live in seconds) and ended (`None`).
    leases: HashMap<LeaseId, Option<i64>>,
    /// Keys attached to and detached from leases.
    attachments: HashMap<LeaseId, Attachments>,
}

/// Keys of one lease that a batch attached or detached.
#[derive(Debug, Default)]
struct Attachments {
    /// The lease ended within the batch: nothing that was attached before counts, even if the lease was granted again since.
    is_ended: bool,
    /// Attached (`true`) and detached (`false`) keys.
    keys: BTreeMap<Bytes, bool>,
}

/// The newest state, published or not.
///
/// Layers are asked newest first: the request at hand, the batch at hand, then batches under way; what none of them knows is
/// in the view. What a request changed is of the batch only once it is kept.
#[derive(Debug, Default)]
pub struct Overlay {
    request: Delta,
    current: Delta,
    under_way: Vec<Arc<Delta>>,
}

impl Overlay {
    /// An empty batch over batches that are under way, oldest first.
    #[must_use]
    pub fn over(under_way: Vec<Arc<Delta>>) -> Self {
        Self {
            request: Delta::default(),
            current: Delta::default(),
            under_way,
        }
    }

    /// The request at hand is done: its changes are of the batch.
    pub fn keep(&mut self) {
        let Delta {
            mut keys, attachments, ..
        } = std::mem::take(&mut self.request);
        if self.current.keys.is_empty() {
            self.current.keys = keys;
        } else if keys.len() > MERGED_AT_ONCE {
            self.current.keys.append(&mut keys);
        } else {
            self.current.keys.extend(keys);
        }
        for (lease, changed) in attachments {
            self.current
                .attachments
                .entry(lease)
                .or_default()
                .keys
                .extend(changed.keys);
        }
    }

    /// The request at hand failed: it changed nothing.
    pub fn forget(&mut self) {
        self.request = Delta::default();
    }

    /// The changes of the batch at hand.
    #[must_use]
    pub fn into_delta(self) -> Delta {
        self.current
    }

    /// Everything is published.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty()
            && self.request.keys.is_empty()
            && self.current.keys.is_empty()
            && self.current.leases.is_empty()
    }

    /// A key's state, if it is not published: `Some(None)` is deleted.
    pub fn get(&self, key: &[u8]) -> Option<Option<&KeyValue>> {
        self.layers().find_map(|delta| delta.keys.get(key)).map(Option::as_ref)
    }

    /// States of a span's keys that are not published, by key.
    #[must_use]
    pub fn range(&self, span: &Span) -> BTreeMap<Bytes, Option<KeyValue>> {
        let mut merged = BTreeMap::new();
        for delta in self
            .under_way
            .iter()
            .map(Arc::as_ref)
            .chain([&self.current, &self.request])
        {
            let keys = delta
                .keys
                .range(span.key.clone()..)
                .take_while(|(key, _)| span.contains(key));
            merged.extend(keys.map(|(key, kv)| (key.clone(), kv.clone())));
        }
        merged
    }

    /// Sets the state of a key, which was attached to `prev_lease`.
    pub fn set(&mut self, key: Bytes, kv: Option<KeyValue>, prev_lease: LeaseId) {
        let lease = kv.as_ref().map_or(LeaseId::NONE, |kv| kv.lease);
        if prev_lease != LeaseId::NONE && prev_lease != lease {
            self.request
                .attachments
                .entry(prev_lease)
                .or_default()
                .keys
                .insert(key.clone(), false);
        }
        if lease != LeaseId::NONE {
            self.request
                .attachments
                .entry(lease)
                .or_default()
                .keys
                .insert(key.clone(), true);
        }
        self.request.keys.insert(key, kv);
    }

    /// Grants a lease.
    pub fn grant(&mut self, id: LeaseId, ttl: i64) {
        self.current.leases.insert(id, Some(ttl));
    }

    /// Ends a lease.
    pub fn revoke(&mut self, id: LeaseId) {
        self.current.leases.insert(id, None);
        let ended = Attachments {
            is_ended: true,
            keys: BTreeMap::new(),
        };
        self.current.attachments.insert(id, ended);
    }

    /// The lease exists, published or not.
    #[must_use]
    pub fn has_lease(&self, id: LeaseId, published: &Leases) -> bool {
        match self.layers().find_map(|delta| delta.leases.get(&id)) {
            Some(granted) => granted.is_some(),
            None => published.contains(id),
        }
    }

    /// The keys attached to a lease, published or not, in key order.
    #[must_use]
    pub fn attached(&self, id: LeaseId, published: &Leases) -> BTreeSet<Bytes> {
        let mut keys: BTreeSet<Bytes> = published.attached(id).cloned().collect();
        for delta in self
            .under_way
            .iter()
            .map(Arc::as_ref)
            .chain([&self.current, &self.request])
        {
            let Some(attachments) = delta.attachments.get(&id) else {
                continue;
            };
            if attachments.is_ended {
                keys.clear();
            }
            for (key, attached) in &attachments.keys {
                if *attached {
                    keys.insert(key.clone());
                } else {
                    keys.remove(key);
                }
            }
        }
        keys
    }

    fn layers(&self) -> impl Iterator<Item = &Delta> {
        [&self.request, &self.current]
            .into_iter()
            .chain(self.under_way.iter().rev().map(Arc::as_ref))
    }
}

/// The state of the sequence: what the next request will find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The newest revision, published or not.
    pub revision: Revision,
    /// The compacted revision, published or not.
    pub compacted: Revision,
}
