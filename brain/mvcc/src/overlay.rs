//! Changes that are evaluated but not published: those of the batch at hand and of those whose records are under way.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use super::op::Span;
use crate::key_filter::{KeyFilter, KeyHash};
use crate::lease::{ENDING_CHECKPOINT, Leases};
use etcd_types::types::{KeyValue, LeaseId, Revision};

/// Changes of a request that are merged with those of its batch rather than inserted one by one.
const MERGED_AT_ONCE: usize = 1_024;

/// Keys for each word of a batch's filter.
const KEYS_PER_WORD: usize = 4;

/// Changes of one batch, over the state before it.
#[derive(Debug, Default)]
pub struct Delta {
    /// The newest state of each changed key; `None` is deleted.
    keys: BTreeMap<Bytes, Option<KeyValue>>,
    /// The same keys, once there are no more to come.
    filter: Option<KeyFilter>,
    /// Leases granted (their time to live in seconds) and ended (`None`).
    leases: HashMap<LeaseId, Option<i64>>,
    /// Leases that have lost some of their keys, because they ran out.
    ending: HashSet<LeaseId>,
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
/// Layers are read newest first: the current batch, then batches under way; keys in none of them are in the view.
#[derive(Debug, Default)]
pub struct Overlay {
    current: Delta,
    /// The batch at hand before the changes that may be undone.
    saved: Option<Delta>,
    under_way: Vec<Arc<Delta>>,
}

impl Delta {
    fn get(&self, key: &[u8], hash: KeyHash) -> Option<&Option<KeyValue>> {
        let is_possible = self.filter.as_ref().is_none_or(|filter| filter.may_contain(hash));
        if is_possible { self.keys.get(key) } else { None }
    }

    fn filtered(mut self) -> Self {
        let filter = KeyFilter::new(self.keys.len() / KEYS_PER_WORD);
        self.keys.keys().for_each(|key| filter.insert(KeyHash::of(key)));
        self.filter = Some(filter);
        self
    }

    /// Puts later changes over these.
    fn extend(&mut self, mut later: Self) {
        if self.keys.is_empty() {
            self.keys = later.keys;
        } else if later.keys.len() > MERGED_AT_ONCE {
            self.keys.append(&mut later.keys);
        } else {
            self.keys.extend(later.keys);
        }
        self.leases.extend(later.leases);
        self.ending.extend(later.ending);
        for (id, attachments) in later.attachments {
            let earlier = self.attachments.entry(id).or_default();
            if attachments.is_ended {
                *earlier = attachments;
            } else {
                earlier.keys.extend(attachments.keys);
            }
        }
    }
}

impl Overlay {
    /// An empty batch over batches that are under way, oldest first.
    #[must_use]
    pub fn over(under_way: Vec<Arc<Delta>>) -> Self {
        Self {
            under_way,
            ..Self::default()
        }
    }

    /// Begins changes that [`Overlay::undo`] takes back, until [`Overlay::keep`].
    pub fn save(&mut self) {
        self.keep();
        self.saved = Some(std::mem::take(&mut self.current));
    }

    /// Keeps the changes since [`Overlay::save`].
    pub fn keep(&mut self) {
        if let Some(saved) = self.saved.take() {
            let later = std::mem::replace(&mut self.current, saved);
            self.current.extend(later);
        }
    }

    /// Takes the changes since [`Overlay::save`] back.
    pub fn undo(&mut self) {
        if let Some(saved) = self.saved.take() {
            self.current = saved;
        }
    }

    /// The changes of the batch at hand.
    #[must_use]
    pub fn into_delta(mut self) -> Delta {
        self.keep();
        self.current.filtered()
    }

    /// Everything is published.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty()
            && self.saved.is_none()
            && self.current.keys.is_empty()
            && self.current.leases.is_empty()
    }

    /// A key's state, if it is not published: `Some(None)` is deleted.
    pub fn get(&self, key: &[u8], hash: KeyHash) -> Option<Option<&KeyValue>> {
        let found = self.layers().find_map(|delta| delta.get(key, hash));
        found.map(Option::as_ref)
    }

    /// States of a span's keys that are not published, by key.
    #[must_use]
    pub fn range(&self, span: &Span) -> BTreeMap<Bytes, Option<KeyValue>> {
        let mut merged = BTreeMap::new();
        for delta in self.oldest_first() {
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
            self.current
                .attachments
                .entry(prev_lease)
                .or_default()
                .keys
                .insert(key.clone(), false);
        }
        if lease != LeaseId::NONE {
            self.current
                .attachments
                .entry(lease)
                .or_default()
                .keys
                .insert(key.clone(), true);
        }
        self.current.keys.insert(key, kv);
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

    /// Notes that a lease has lost some of its keys.
    pub fn note_ending(&mut self, id: LeaseId) {
        self.current.ending.insert(id);
    }

    /// Returns true if a lease has lost some of its keys, published or not.
    #[must_use]
    pub fn is_ending(&self, id: LeaseId, published: &Leases) -> bool {
        let is_stored = published
            .stored(id)
            .is_some_and(|(_, remaining)| remaining == ENDING_CHECKPOINT);
        is_stored || self.layers().any(|delta| delta.ending.contains(&id))
    }

    /// Returns true if a lease was granted or ended, and that is not published.
    #[must_use]
    pub fn changes_lease(&self, id: LeaseId) -> bool {
        self.layers().any(|delta| delta.leases.contains_key(&id))
    }

    /// The lease exists, published or not.
    #[must_use]
    pub fn has_lease(&self, id: LeaseId, published: &Leases) -> bool {
        match self.layers().find_map(|delta| delta.leases.get(&id)) {
            Some(granted) => granted.is_some(),
            None => published.contains(id),
        }
    }

    /// The time to live of a lease, in seconds, published or not.
    #[must_use]
    pub fn ttl(&self, id: LeaseId, published: &Leases) -> Option<i64> {
        match self.layers().find_map(|delta| delta.leases.get(&id)) {
            Some(granted) => *granted,
            None => published.stored(id).map(|(ttl, _)| ttl),
        }
    }

    /// The first keys attached to a lease, published or not, in key order; at most `most`.
    #[must_use]
    pub fn attached(&self, id: LeaseId, published: &Leases, most: usize) -> BTreeSet<Bytes> {
        let (mut changed, mut is_ended) = (BTreeMap::new(), false);
        for attachments in self.oldest_first().filter_map(|delta| delta.attachments.get(&id)) {
            if attachments.is_ended {
                is_ended = true;
                changed.clear();
            }
            changed.extend(attachments.keys.iter().map(|(key, attached)| (key, *attached)));
        }
        // No more than that are looked at: a lease may have millions.
        let published = published.attached(id).filter(|key| !changed.contains_key(key));
        let mut keys: BTreeSet<Bytes> = published.take(if is_ended { 0 } else { most }).cloned().collect();
        keys.extend(
            changed
                .iter()
                .filter(|(_, attached)| **attached)
                .map(|(key, _)| (*key).clone()),
        );
        while keys.len() > most {
            keys.pop_last();
        }
        keys
    }

    fn layers(&self) -> impl Iterator<Item = &Delta> {
        [&self.current]
            .into_iter()
            .chain(&self.saved)
            .chain(self.under_way.iter().rev().map(Arc::as_ref))
    }

    fn oldest_first(&self) -> impl Iterator<Item = &Delta> {
        let under_way = self.under_way.iter().map(Arc::as_ref);
        under_way.chain(&self.saved).chain([&self.current])
    }
}

/// The state of the sequence, as the next request will find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The newest revision, published or not.
    pub revision: Revision,
    /// The compacted revision, published or not.
    pub compacted: Revision,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn first_keys_of_a_lease_are_those_of_all_layers() {
        const LEASE: LeaseId = LeaseId(7);
        let key = |name: &'static str| Bytes::from_static(name.as_bytes());
        let kv = |name| KeyValue {
            key: key(name),
            lease: LEASE,
            ..KeyValue::default()
        };
        let mut leases = Leases::default();
        leases.grant(LEASE, 9, 0, Duration::ZERO);
        for name in ["a", "b", "c", "d"] {
            leases.attach(LEASE, key(name));
        }
        let mut earlier = Overlay::over(Vec::new());
        earlier.set(key("a"), None, LEASE);
        earlier.set(key("bb"), Some(kv("bb")), LeaseId::NONE);
        let mut overlay = Overlay::over(vec![Arc::new(earlier.into_delta())]);
        overlay.set(key("b"), None, LEASE);
        overlay.set(key("a"), Some(kv("a")), LeaseId::NONE);
        let first = |overlay: &Overlay, most| Vec::from_iter(overlay.attached(LEASE, &leases, most));
        assert_eq!(first(&overlay, 9), ["a", "bb", "c", "d"].map(key));
        assert_eq!(first(&overlay, 3), ["a", "bb", "c"].map(key));
        overlay.note_ending(LEASE);
        overlay.save();
        overlay.keep();
        assert!(Overlay::over(vec![Arc::new(overlay.into_delta())]).is_ending(LEASE, &leases));
        let mut overlay = Overlay::default();
        assert!(!overlay.is_ending(LEASE, &leases));
        overlay.revoke(LEASE);
        overlay.set(key("e"), Some(kv("e")), LeaseId::NONE);
        assert_eq!(first(&overlay, 9), [key("e")]);
    }
}
