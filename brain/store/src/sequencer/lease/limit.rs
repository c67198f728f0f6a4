//! Room for leases in memory. Leases that soon end have some more of it than the others, so that locks and elections still work when
//! clients have attached very many keys to leases of an hour.

/// The longest time to live of a lease that soon ends, in seconds.
const MAX_SHORT_TTL: i64 = 60;

/// The leases that there is room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::sequencer) enum LeaseRoom {
    /// All leases, and keys that are attached to them.
    Ample,
    /// Those of leases that soon end.
    Short,
    /// None.
    Nothing,
}

impl LeaseRoom {
    /// Returns the room that is left when leases take `bytes` of `most`. Once the room is not enough, a sixteenth must become free.
    pub(in crate::sequencer) fn of(bytes: usize, most: usize, before: Self) -> Self {
        let kept_free = most / 16;
        let reached = |room: Self, most: usize| bytes >= if before >= room { most - kept_free } else { most };
        if reached(Self::Nothing, most.saturating_add(most / 4)) {
            Self::Nothing
        } else if reached(Self::Short, most) {
            Self::Short
        } else {
            Self::Ample
        }
    }

    /// Returns true if there is room for a lease of this time to live, in seconds.
    pub(in crate::sequencer) fn takes(self, ttl: i64) -> bool {
        match self {
            Self::Ample => true,
            Self::Short => ttl <= MAX_SHORT_TTL,
            Self::Nothing => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_that_soon_end_have_more_room() {
        use LeaseRoom::{Ample, Nothing, Short};
        let of = |bytes, before| LeaseRoom::of(bytes, 1_600, before);
        assert_eq!(
            [of(1_599, Ample), of(1_600, Ample), of(2_000, Ample)],
            [Ample, Short, Nothing]
        );
        // Not back and forth with each key.
        assert_eq!([of(1_999, Nothing), of(1_899, Nothing)], [Nothing, Short]);
        assert_eq!(
            [of(1_500, Short), of(1_499, Short), of(1_499, Nothing)],
            [Short, Ample, Ample]
        );
        assert_eq!(LeaseRoom::of(usize::MAX - 1, usize::MAX, Ample), Ample);
        let takes = |ttl| [Ample, Short, Nothing].map(|room| room.takes(ttl));
        assert_eq!(takes(MAX_SHORT_TTL), [true, true, false]);
        assert_eq!(takes(MAX_SHORT_TTL + 1), [true, false, false]);
    }
}
