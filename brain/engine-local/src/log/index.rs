//! The taken slots and the places of their records, in 16 bytes each.
//!
//! Invariants: no slot is listed twice, and none is listed before its record is synced.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::segment::{FIRST_FRAME_OFFSET, RecordPosition, Segment};

/// The slots of all segments.
#[derive(Debug, Default)]
pub(super) struct SegmentSlots {
    held: Vec<HeldSegment>,
    /// One more than the highest slot.
    beyond: u64,
}

#[derive(Debug)]
struct HeldSegment {
    segment: Arc<Segment>,
    /// In the order of slots.
    entries: Vec<RecordPosition>,
    /// Offset up to which the segment is synced.
    end: u32,
    /// True if an index file has the entries.
    is_indexed: bool,
}

impl HeldSegment {
    fn position(&self, slot: u64) -> usize {
        self.entries.partition_point(|entry| entry.slot < slot)
    }
}

impl SegmentSlots {
    /// Adds a segment after all others; `entries` in any order.
    pub(super) fn push(&mut self, segment: Arc<Segment>, mut entries: Vec<RecordPosition>, end: u32) {
        entries.sort_unstable_by_key(|entry| entry.slot);
        self.hold(HeldSegment {
            segment,
            entries,
            end,
            is_indexed: false,
        });
    }

    /// Adds a segment after all others. Its entries come from its index file, in the order of slots.
    pub(super) fn push_indexed(&mut self, segment: Arc<Segment>, entries: Vec<RecordPosition>, end: u32) {
        self.hold(HeldSegment {
            segment,
            entries,
            end,
            is_indexed: true,
        });
    }

    fn hold(&mut self, held: HeldSegment) {
        if let Some(last) = held.entries.last() {
            self.beyond = self.beyond.max(last.slot.saturating_add(1));
        }
        self.held.push(held);
    }

    /// The first segment from `seq` on without an index file that nothing is written to any more, with its entries and its end.
    pub(super) fn unindexed(&self, seq: u64) -> Option<(Arc<Segment>, Vec<RecordPosition>, u32)> {
        let (_, sealed) = self.held.split_last()?;
        let held = sealed.iter().find(|held| !held.is_indexed && held.segment.seq >= seq)?;
        Some((Arc::clone(&held.segment), held.entries.clone(), held.end))
    }

    /// An index file has the entries of the segment `seq` now.
    pub(super) fn set_indexed(&mut self, seq: u64) {
        if let Some(held) = self.held.iter_mut().find(|held| held.segment.seq == seq) {
            held.is_indexed = true;
        }
    }

    /// Adds synced entries to the last segment, whose end is now `end`.
    pub(super) fn extend(&mut self, entries: &[RecordPosition], end: u32) {
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
    pub(super) fn find(&self, slot: u64) -> Option<(Arc<Segment>, RecordPosition)> {
        if slot >= self.beyond && slot != u64::MAX {
            return None;
        }
        self.held.iter().rev().find_map(|held| {
            let entry = held.entries.get(held.position(slot))?;
            (entry.slot == slot).then(|| (Arc::clone(&held.segment), *entry))
        })
    }

    /// The places of slots from `from` on, in the order of slots: the first, and then as many as fit into `max_bytes`.
    pub(super) fn collect(&self, from: u64, max_bytes: usize) -> Vec<(Arc<Segment>, RecordPosition)> {
        let mut found = Vec::new();
        let mut bytes = 0usize;
        for (segment, entry) in self.places(from) {
            bytes = bytes.saturating_add(entry.len as usize);
            if !found.is_empty() && bytes > max_bytes {
                break;
            }
            found.push((Arc::clone(segment), entry));
        }
        found
    }

    /// The places of slots from `from` on, in the order of slots.
    fn places(&self, from: u64) -> impl Iterator<Item = (&Arc<Segment>, RecordPosition)> {
        let heads = self.held.iter().enumerate().filter_map(|(n, held)| {
            let at = held.position(from);
            let entry = held.entries.get(at)?;
            Some(Reverse((entry.slot, n, at)))
        });
        let mut heads = BinaryHeap::from_iter(heads);
        std::iter::from_fn(move || {
            let Reverse((_, n, at)) = heads.pop()?;
            let held = &self.held[n];
            if let Some(next) = held.entries.get(at + 1) {
                heads.push(Reverse((next.slot, n, at + 1)));
            }
            Some((&held.segment, held.entries[at]))
        })
    }

    /// The oldest segments that hold no slot at or above `watermark`. Never the last, which is written to.
    pub(super) fn destroyable(&self, watermark: u64) -> Vec<Arc<Segment>> {
        let Some((_, sealed)) = self.held.split_last() else {
            return Vec::new();
        };
        let dead = |held: &&HeldSegment| held.entries.last().is_none_or(|last| last.slot < watermark);
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
        let written = self.held.iter().rfind(|held| held.end > FIRST_FRAME_OFFSET);
        written.map_or((0, 0), |held| (held.segment.seq, held.end))
    }

    /// Returns a slot that is stored in two places, if there is one.
    pub(super) fn duplicate(&self) -> Option<(Arc<Segment>, RecordPosition)> {
        let mut last: Option<u64> = None;
        self.places(0)
            .find(|(_, entry)| last.replace(entry.slot) == Some(entry.slot))
            .map(|(segment, entry)| (Arc::clone(segment), entry))
    }
}
