//! Consequences of the bound on open slots: which slots are dead, where a read begins, what it proves.
//!
//! Pure rules, used by readers, by writers, and by the model that walks all states of a small log with a smaller window.

use super::Slot;
use super::frame::WINDOW_SLOTS;

/// Slots that a writer may have open at once, its first uncommitted one included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window(pub u64);

impl Window {
    /// The window of everything stored.
    pub const FORMAT: Window = Window(WINDOW_SLOTS);

    /// A writer whose first uncommitted slot is `first` may append to `slot`.
    #[must_use]
    pub fn is_open(self, first: Slot, slot: Slot) -> bool {
        first <= slot && slot.0 - first.0 < self.0
    }

    /// Returns the first slot of the epoch that a barrier begins. The slots between are dead: they catch the open appends of
    /// an older writer, whose first uncommitted slot is at most the barrier's.
    #[must_use]
    pub fn behind_barrier(self, barrier: Slot) -> Slot {
        Slot(barrier.0 + self.0)
    }
}

/// Finds the slot at which to begin to read in the middle of the log: the barriers before a slot decide whether it is dead.
///
/// A barrier may itself be in a dead slot, if the writer that placed it was misled by late records in destroyed slots. So
/// the search looks back from each barrier that it finds, until no other one is near.
#[derive(Debug, Clone)]
pub struct BarrierSearch {
    window: Window,
    from: Slot,
    /// Descending.
    barriers: Vec<Slot>,
}

impl BarrierSearch {
    /// Creates a search that looks back from a slot at or after the watermark.
    #[must_use]
    pub fn new(window: Window, from: Slot) -> Self {
        Self {
            window,
            from,
            barriers: Vec::new(),
        }
    }

    /// Returns the slots to search for barriers: from the first up to the second, which is not included.
    #[must_use]
    pub fn near(&self) -> (Slot, Slot) {
        let end = self.barriers.last().copied().unwrap_or(self.from);
        (Slot((end.0 + 1).saturating_sub(self.window.0)), end)
    }

    /// Takes the barriers found in [`BarrierSearch::near`], in ascending order. Returns true if the search must continue.
    pub fn found(&mut self, barriers: &[Slot]) -> bool {
        self.barriers.extend(barriers.iter().rev());
        !barriers.is_empty()
    }

    /// Returns the first slot at or after the starting slot that is not dead. `watermark` was read after the barriers.
    ///
    /// Barriers below the watermark do not count. The watermark is never inside the dead slots of a genuine barrier, so these are
    /// below it as well. A stray barrier, written to a destroyed slot, makes no slots dead.
    #[must_use]
    pub fn first_alive(&self, watermark: Slot) -> Slot {
        let counting = self.barriers.iter().rev().filter(|barrier| **barrier >= watermark);
        let alive = counting.fold(Slot(0), |alive, barrier| match *barrier >= alive {
            true => self.window.behind_barrier(*barrier),
            false => alive, // it is in a dead slot
        });
        alive.max(self.from)
    }
}

/// Returns true if a read that began at `began` is not valid: slots of it may have been destroyed, and look free. Read the
/// watermark after that read; an opener reads it after it has placed its barrier.
#[must_use]
pub fn may_be_cut(began: Slot, watermark: Slot) -> bool {
    watermark > began
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: Window = Window::FORMAT;

    #[test]
    fn a_barrier_kills_the_slots_that_an_older_writer_may_have_open() {
        let open = |slot| W.is_open(Slot(20), Slot(slot));
        assert_eq!((19..=28).filter(|slot| open(*slot)).count(), 8);
        assert!(open(27) && !open(28));
        assert_eq!(W.behind_barrier(Slot(20)), Slot(28));
    }

    /// Returns the slot at which a read from `from` on begins in a log with these barriers.
    fn begin(from: u64, watermark: u64, barriers: &[u64]) -> u64 {
        let mut search = BarrierSearch::new(W, Slot(from));
        loop {
            let (first, end) = search.near();
            let near = barriers.iter().map(|barrier| Slot(*barrier));
            let near: Vec<Slot> = near.filter(|barrier| (first..end).contains(barrier)).collect();
            if !search.found(&near) {
                return search.first_alive(Slot(watermark)).0;
            }
        }
    }

    #[test]
    fn reading_begins_behind_the_dead_slots() {
        assert_eq!(begin(20, 1, &[20]), 20);
        assert_eq!(begin(21, 1, &[20]), 28);
        assert_eq!(begin(27, 1, &[20]), 28);
        assert_eq!(begin(28, 1, &[20]), 28);
        assert_eq!(begin(30, 1, &[20, 28]), 36);
        assert_eq!(begin(3, 1, &[1]), 9);
        assert_eq!(begin(1, 1, &[]), 1);
    }

    #[test]
    fn a_barrier_in_a_dead_slot_kills_nothing() {
        assert_eq!(begin(30, 1, &[20, 27]), 30);
        assert_eq!(begin(30, 1, &[15, 20, 27]), 35, "of three, the last one is alive");
        assert_eq!(begin(25, 1, &[20, 24]), 28);
    }

    #[test]
    fn a_barrier_in_a_destroyed_slot_kills_nothing() {
        assert_eq!(begin(30, 30, &[29]), 30);
        assert_eq!(begin(32, 30, &[29]), 32);
        assert_eq!(begin(32, 30, &[29, 30]), 38);
        assert_eq!(begin(32, 30, &[22, 29, 31]), 39);
    }

    #[test]
    fn a_read_counts_while_the_watermark_has_not_passed_its_beginning() {
        assert!(!may_be_cut(Slot(5), Slot(5)));
        assert!(may_be_cut(Slot(5), Slot(6)));
    }
}
