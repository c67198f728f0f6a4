//! Which slots are taken and where their records lie, in 16 bytes each.
//!
//! Invariants: no slot stands here twice, and nothing stands here before it is synced.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::segment::{Entry, FRAMES, Segment};

/// The slots of all segments.
#[derive(Debug, Default)]
pub(super) struct Index {
    held: Vec<Held>,
    /// One more than the highest slot.
    beyond: u64,
}

#[derive(Debug)]
struct Held {
    segment: Arc<Segment>,
    /// In the order of slots.
    entries: Vec<Entry>,
    /// Offset up to which the segment is synced.
    end: u32,
}

impl Held {
    fn position(&self, slot: u64) -> usize {
        self.entries.partition_point(|entry| entry.slot < slot)
    }
}

impl Index {
    /// Adds a segment behind all others; `entries` in any order.
    pub(super) fn push(&mut self, segment: Arc<Segment>, mut entries: Vec<Entry>, end: u32) {
        entries.sort_unstable_by_key(|entry| entry.slot);
        if let Some(last) = entries.last() {
            self.beyond = self.beyond.max(last.slot.saturating_add(1));
        }
        self.held.push(Held { segment, entries, end });
    }

    /// Adds synced entries to the last segment, whose end is now `end`.
    pub(super) fn extend(&mut self, entries: &[Entry], end: u32) {
        let Some(held) = self.held.last_mut() else { return };
        held.end = end;
        for entry in entries {
            match held.entries.last() {
                Some(last) if last.slot >= entry.slot => {
                    let at = held.position(entry.slot);
                    held.entries.insert(at, *entry);
                }
                _ => held.entries.push(*entry),
            }
            self.beyond = self.beyond.max(entry.slot.saturating_add(1));
        }
    }

    /// Puts `segment`, in which nothing is yet, in the place of the last one, in which nothing was.
    pub(super) fn replace_last(&mut self, segment: Arc<Segment>) {
        if let Some(held) = self.held.last_mut() {
            held.segment = segment;
        }
    }

    /// Replaces the last segment by `shorter`, with the entries before `end`.
    pub(super) fn cut_last(&mut self, shorter: Segment, end: u32) {
        if let Some(mut held) = self.held.pop() {
            held.entries.retain(|entry| entry.at < end);
            held.segment = Arc::new(shorter);
            held.end = end;
            self.held.push(held);
        }
    }

    /// Forgets the last segment.
    pub(super) fn drop_last(&mut self) {
        self.held.pop();
    }

    /// One more than the highest slot.
    pub(super) fn beyond(&self) -> u64 {
        self.beyond
    }

    /// Bytes of all segments.
    pub(super) fn bytes(&self) -> u64 {
        self.held.iter().map(|held| u64::from(held.segment.capacity)).sum()
    }

    /// Returns the segment and the entry of the record of `slot`.
    pub(super) fn find(&self, slot: u64) -> Option<(Arc<Segment>, Entry)> {
        if slot >= self.beyond && slot != u64::MAX {
            return None;
        }
        self.held.iter().rev().find_map(|held| {
            let entry = held.entries.get(held.position(slot))?;
            (entry.slot == slot).then(|| (Arc::clone(&held.segment), *entry))
        })
    }

    /// The places of slots from `from` on, in the order of slots: the first, and then as many as fit into `max_bytes`.
    pub(super) fn collect(&self, from: u64, max_bytes: usize) -> Vec<(Arc<Segment>, Entry)> {
        let mut heads = BinaryHeap::new();
        for (n, held) in self.held.iter().enumerate() {
            let at = held.position(from);
            if let Some(entry) = held.entries.get(at) {
                heads.push(Reverse((entry.slot, n, at)));
            }
        }
        let mut found = Vec::new();
        let mut bytes = 0usize;
        while let Some(Reverse((_, n, at))) = heads.pop() {
            let held = &self.held[n];
            let entry = held.entries[at];
            bytes = bytes.saturating_add(entry.len as usize);
            if !found.is_empty() && bytes > max_bytes {
                break;
            }
            found.push((Arc::clone(&held.segment), entry));
            if let Some(next) = held.entries.get(at + 1) {
                heads.push(Reverse((next.slot, n, at + 1)));
            }
        }
        found
    }

    /// The oldest segments that hold no slot at or above `watermark`. Never the last, which is written to.
    pub(super) fn destroyable(&self, watermark: u64) -> Vec<Arc<Segment>> {
        let Some((_, sealed)) = self.held.split_last() else {
            return Vec::new();
        };
        let dead = |held: &&Held| held.entries.last().is_none_or(|last| last.slot < watermark);
        sealed
            .iter()
            .take_while(dead)
            .map(|held| Arc::clone(&held.segment))
            .collect()
    }

    /// Forgets the oldest `n` segments.
    pub(super) fn drop_oldest(&mut self, n: usize) {
        self.held.drain(..n.min(self.held.len()));
    }

    /// The last segment with anything in it and the offset up to which it is synced.
    pub(super) fn synced(&self) -> (u64, u32) {
        let written = self.held.iter().rfind(|held| held.end > FRAMES);
        written.map_or((0, 0), |held| (held.segment.seq, held.end))
    }

    /// A slot that stands in two places, if there is one.
    pub(super) fn duplicate(&self) -> Option<(Arc<Segment>, Entry)> {
        let mut last: Option<u64> = None;
        self.collect(0, usize::MAX)
            .into_iter()
            .find(|(_, entry)| last.replace(entry.slot) == Some(entry.slot))
    }
}
