//! What follows from the bound on open slots: dead slots, where to begin to read, when a read counts.
//!
//! Pure rules, for readers and writers, and for the model that walks all states of a small log with a smaller window.

use super::Slot;
use super::frame::WINDOW;

/// Slots that a writer may have open at once, its first uncommitted one included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window(pub u64);

impl Window {
    /// The window of everything stored.
    pub const FORMAT: Window = Window(WINDOW);

    /// A writer whose first uncommitted slot is `first` may append to `slot`.
    #[must_use]
    pub fn is_open(self, first: Slot, slot: Slot) -> bool {
        first <= slot && slot.0 - first.0 < self.0
    }

    /// Where the epoch of a barrier begins. The slots between are dead: they catch what an older writer had open, whose
    /// first uncommitted slot is at most the barrier's.
    #[must_use]
    pub fn behind_barrier(self, barrier: Slot) -> Slot {
        Slot(barrier.0 + self.0)
    }

    /// The first slot whose barrier would make `from` a dead slot.
    #[must_use]
    pub fn look_back(self, from: Slot) -> Slot {
        Slot((from.0 + 1).saturating_sub(self.0).max(Slot::FIRST.0))
    }

    /// The first slot at or behind `from` that is not dead. `barriers` are those found from [`Window::look_back`] on, and
    /// `watermark` was read after them.
    ///
    /// A barrier below the watermark does not count. If it is a true one its dead slots are below the watermark as well,
    /// which never stands inside them. It may be a stray one, put into a destroyed slot by an opener that took it for a
    /// free one: what stands behind that is alive.
    #[must_use]
    pub fn first_alive(self, from: Slot, watermark: Slot, barriers: impl IntoIterator<Item = Slot>) -> Slot {
        barriers
            .into_iter()
            .filter(|barrier| *barrier >= watermark && *barrier < from)
            .map(|barrier| self.behind_barrier(barrier))
            .fold(from, Slot::max)
    }
}

/// What was read from `began` on does not count: slots of it may have been destroyed, and look free. The watermark is to
/// be read afterwards; by an opener after its barrier is placed.
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

    #[test]
    fn reading_begins_behind_the_dead_slots() {
        assert_eq!(W.look_back(Slot(27)), Slot(20));
        assert_eq!(W.look_back(Slot(3)), Slot(1));
        for (from, barriers, first) in [
            (27, vec![20], 28),
            (28, vec![], 28),
            (27, vec![], 27),
            (27, vec![20, 24], 32),
            // Of two that stand closely, as when an opener was overtaken in the dead slots.
            (27, vec![27], 27),
        ] {
            let barriers = barriers.into_iter().map(Slot);
            assert_eq!(W.first_alive(Slot(from), Slot(1), barriers), Slot(first));
        }
    }

    #[test]
    fn a_barrier_in_a_destroyed_slot_kills_nothing() {
        assert_eq!(W.first_alive(Slot(30), Slot(30), [Slot(29)]), Slot(30));
        assert_eq!(W.first_alive(Slot(32), Slot(30), [Slot(29)]), Slot(32));
        assert_eq!(W.first_alive(Slot(32), Slot(30), [Slot(29), Slot(30)]), Slot(38));
    }

    #[test]
    fn a_read_counts_while_the_watermark_has_not_passed_its_beginning() {
        assert!(!may_be_cut(Slot(5), Slot(5)));
        assert!(may_be_cut(Slot(5), Slot(6)));
    }
}
