//! The index of slots that need not be read again: the slots that were seen, those of them that are kept for ever, and their bytes.
//!
//! Invariant: every slot of a run was seen taken. A slot that was seen free is in none: it may be taken since.

use std::collections::{BTreeMap, BTreeSet};

/// Slots that were seen.
#[derive(Debug, Default)]
pub(super) struct SlotIndex {
    /// Runs of slots without a gap, by their first slot.
    runs: BTreeMap<u64, SlotRun>,
    /// Slots among them that are not to be destroyed.
    kept: BTreeSet<u64>,
    /// Which slots below are kept is not known any more. The others are destroyed.
    forgotten: u64,
}

#[derive(Debug, Clone, Copy)]
struct SlotRun {
    /// The slot after the last one.
    end: u64,
    bytes: u64,
}

impl SlotIndex {
    /// Records a slot that was seen taken.
    pub(super) fn note(&mut self, slot: u64, len: usize, keep: bool) {
        if keep {
            self.kept.insert(slot);
        }
        let len = len as u64;
        let before = self.runs.range(..=slot).next_back().map(|(&from, &run)| (from, run));
        let from = match before {
            Some((_, run)) if slot < run.end => return,
            Some((from, run)) if slot == run.end => {
                let bytes = run.bytes + len;
                self.runs.insert(from, SlotRun { end: slot + 1, bytes });
                from
            }
            _ => {
                let end = slot + 1;
                self.runs.insert(slot, SlotRun { end, bytes: len });
                slot
            }
        };
        if let Some(behind) = self.runs.remove(&(slot + 1))
            && let Some(run) = self.runs.get_mut(&from)
        {
            run.end = behind.end;
            run.bytes += behind.bytes;
        }
    }

    /// Pieces of `[from, to)` that were not seen.
    pub(super) fn gaps(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut next = match self.runs.range(..=from).next_back() {
            Some((_, run)) => from.max(run.end),
            None => from,
        };
        if next >= to {
            return gaps;
        }
        for (&start, run) in self.runs.range(next..to) {
            if start > next {
                gaps.push((next, start));
            }
            next = run.end;
        }
        if next < to {
            gaps.push((next, to));
        }
        gaps
    }

    /// The ranges of `[from, to)` to destroy: what remains when the slots that are kept, and those that were destroyed, are taken out.
    pub(super) fn between_kept(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let mut ranges = Vec::new();
        let mut next = from.max(self.forgotten);
        for &kept in self.kept.range(next..to.max(next)) {
            if next < kept {
                ranges.push((next, kept));
            }
            next = kept + 1;
        }
        if next < to {
            ranges.push((next, to));
        }
        ranges
    }

    /// Removes the destroyed slots, which are all below `slot`.
    pub(super) fn forget_below(&mut self, slot: u64) {
        self.forgotten = self.forgotten.max(slot);
        self.kept = self.kept.split_off(&slot);
        let behind = self.runs.split_off(&slot);
        let cut = self.runs.pop_last().filter(|(_, run)| run.end > slot);
        self.runs = behind;
        if let Some((from, SlotRun { end, bytes })) = cut {
            // The bytes of each slot are not known: they are divided evenly.
            let bytes = bytes / (end - from) * (end - slot);
            self.runs.insert(slot, SlotRun { end, bytes });
        }
    }

    /// Bytes of all slots that were seen and not destroyed.
    pub(super) fn bytes(&self) -> u64 {
        self.runs.values().map(|run| run.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(slots: &[u64]) -> SlotIndex {
        let mut known = SlotIndex::default();
        slots.iter().for_each(|&slot| known.note(slot, 10, false));
        known
    }

    #[test]
    fn slots_in_any_order_become_runs() {
        let known = known(&[5, 3, 4, 9, 4, 8, 1, 3]);
        assert_eq!(known.gaps(0, 12), [(0, 1), (2, 3), (6, 8), (10, 12)]);
        assert_eq!(known.gaps(4, 6), []);
        assert_eq!(known.gaps(3, 4), []);
        assert_eq!(known.gaps(7, 7), []);
        assert_eq!(known.gaps(5, 9), [(6, 8)]);
        assert_eq!(known.gaps(6, 7), [(6, 7)]);
        assert_eq!(known.bytes(), 60);
    }

    #[test]
    fn ranges_spare_what_is_kept() {
        let mut known = known(&[1, 2, 3]);
        known.note(4, 10, true);
        known.note(12, 10, true);
        assert_eq!(known.between_kept(0, 20), [(0, 4), (5, 12), (13, 20)]);
        assert_eq!(known.between_kept(4, 12), [(5, 12)]);
        assert_eq!(known.between_kept(4, 5), []);
    }

    #[test]
    fn destroyed_slots_are_forgotten() {
        let mut known = known(&[1, 2, 3, 4, 8]);
        known.note(2, 10, true);
        known.note(9, 10, true);
        known.forget_below(3);
        assert_eq!(known.gaps(0, 10), [(0, 3), (5, 8)]);
        assert_eq!(known.bytes(), 40);
        assert_eq!(
            known.between_kept(0, 10),
            [(3, 9)],
            "one that is kept may be among those below"
        );
        known.forget_below(100);
        assert_eq!(known.bytes(), 0);
        assert_eq!(known.gaps(0, 5), [(0, 5)]);
    }
}
