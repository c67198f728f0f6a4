//! The time of each revision, as far as it is known.
//!
//! Pure. A revision was committed before it arrived, and after the last time at which everything committed had arrived. These two are
//! seconds apart while an archive follows its source; after a pause they are not.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};

/// The uncertainty of a time that is taken for exact.
const TOLERANCE: Duration = Duration::from_secs(5);

/// Times of marks are multiples of this, so that revisions share them.
const RESOLUTION_MS: i64 = 10;

/// Revisions that arrived at one time. They follow those of the mark before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mark {
    /// The last one of them.
    pub revision: i64,
    /// The time at which they had arrived, in milliseconds since 1970. It never decreases.
    pub time: i64,
    /// Set if they may be older than five seconds: the time after which they were committed, 0 if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<i64>,
}

/// The reason why it is not known what a store held at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MarkError {
    /// All revisions arrived later.
    #[error("the archive begins at {}", Time(*.0))]
    BeforeBeginning(i64),
    /// Some revisions may have been committed before or after the time.
    #[error(
        "the archive did not follow the store then: revisions {from} to {to} were written at unknown times {}before {}; name a revision",
        Since(*.after), Time(*.before)
    )]
    Unknown {
        from: i64,
        to: i64,
        after: i64,
        before: i64,
    },
}

struct Since(i64);

impl std::fmt::Display for Since {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => Ok(()),
            after => write!(f, "after {} and ", Time(after)),
        }
    }
}

/// A time in milliseconds since 1970.
pub(super) struct Time(pub(super) i64);

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let time = DateTime::<Utc>::from_timestamp_millis(self.0).unwrap_or_default();
        f.write_str(&time.to_rfc3339_opts(SecondsFormat::Millis, true))
    }
}

/// The marks of one segment while it grows, and the time up to which nothing is missing.
#[derive(Debug, Clone, Default)]
pub(super) struct MarkList {
    marks: Vec<Mark>,
    /// The time of the last mark, also of segments before.
    last: i64,
    /// All that was committed before this time has arrived; 0 if that is not known.
    confirmed: i64,
}

impl MarkList {
    /// Continues an archive that has marks up to `last`, and everything up to `confirmed`; each is 0 if there was nothing.
    pub(super) fn continuing(last: i64, confirmed: i64) -> Self {
        Self {
            marks: Vec::new(),
            last,
            confirmed,
        }
    }

    /// Returns the time up to which nothing is missing; 0 if it is not known.
    pub(super) fn confirmed(&self) -> i64 {
        self.confirmed
    }

    /// Takes over that all that was committed before `time` has arrived.
    pub(super) fn confirm(&mut self, time: i64) {
        self.confirmed = self.confirmed.max(time);
    }

    /// Adds revisions up to `revision` that have arrived at `time`.
    pub(super) fn arrived(&mut self, revision: i64, time: i64) {
        let tolerance = i64::try_from(TOLERANCE.as_millis()).unwrap_or(i64::MAX);
        // Rounded up: they had arrived then.
        let time = (time.saturating_add(RESOLUTION_MS - 1) / RESOLUTION_MS * RESOLUTION_MS).max(self.last);
        let after = (time - self.confirmed > tolerance).then_some(self.confirmed);
        self.last = time;
        match self.marks.last_mut() {
            Some(mark) if mark.time == time && mark.after == after => mark.revision = revision,
            _ => self.marks.push(Mark { revision, time, after }),
        }
    }

    /// Takes the marks of a segment that is complete.
    pub(super) fn take(&mut self) -> Vec<Mark> {
        std::mem::take(&mut self.marks)
    }
}

/// Returns the last revision that had been committed at a time. The marks are those of revisions from `first` on; `None` says that all of
/// them arrived later.
pub(super) fn revision_at(marks: &[Mark], first: i64, time: i64) -> Result<Option<i64>, MarkError> {
    let arrived = marks.partition_point(|mark| mark.time <= time);
    let last = arrived.checked_sub(1).map(|at| marks[at].revision);
    let later = marks[arrived..].iter();
    let unknown: Vec<&Mark> = later
        .take_while(|mark| mark.after.is_some_and(|after| after < time))
        .collect();
    match (unknown.first(), unknown.last()) {
        (Some(oldest), Some(newest)) => Err(MarkError::Unknown {
            from: last.map_or(first, |last| last + 1),
            to: newest.revision,
            after: oldest.after.unwrap_or_default(),
            before: newest.time,
        }),
        _ => Ok(last),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOLERANCE_MS: i64 = 5_000;

    /// An event at the source or on the way from it.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        /// A revision is committed.
        Commit,
        /// All that is committed arrives.
        Arrive,
        /// A question for the newest revision is sent, and answered at once.
        Ask,
        Wait(i64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => Just(Step::Commit),
            4 => Just(Step::Arrive),
            4 => Just(Step::Ask),
            4 => (1..2_000_i64).prop_map(Step::Wait),
            1 => (2_000..90_000_i64).prop_map(Step::Wait),
        ];
        proptest::collection::vec(step, 0..60)
    }

    proptest! {
        /// The model: the time at which each revision was really committed.
        #[test]
        fn revision_at_a_time_holds_all_before_it_and_nothing_after(steps in steps(), begins_known in any::<bool>()) {
            let (mut now, mut committed, mut arrived, mut asked) = (1_000_000_i64, Vec::new(), 0, None);
            let mut list = MarkList::continuing(0, if begins_known { now } else { 0 });
            for step in steps {
                match step {
                    Step::Commit => {
                        now += 1;
                        committed.push(now);
                    }
                    Step::Arrive if arrived < committed.len() => {
                        now += 1;
                        arrived = committed.len();
                        list.arrived(arrived as i64, now);
                    }
                    Step::Arrive => {}
                    Step::Ask => {
                        now += 1;
                        let _ = asked.get_or_insert((now, committed.len()));
                    }
                    Step::Wait(time) => now += time,
                }
                if let Some((at, _)) = asked.take_if(|(_, len)| *len <= arrived) {
                    list.confirm(at);
                }
            }
            let marks = list.take();
            prop_assert!(marks.is_sorted_by_key(|mark| mark.time));
            for time in (999_000..now + 2_000).step_by(501).chain(committed.iter().copied()) {
                let before = |time: i64| committed.iter().filter(|at| **at <= time).count().min(arrived) as i64;
                match revision_at(&marks, 1, time) {
                    Ok(found) => {
                        let found = found.unwrap_or(0);
                        prop_assert!(found <= before(time), "{found} at {time}");
                        prop_assert!(found >= before(time - TOLERANCE_MS - RESOLUTION_MS), "{found} at {time}");
                    }
                    Err(MarkError::Unknown { from, to, after, before: until }) => {
                        prop_assert!(from <= to && after < time && time < until);
                        let known = committed[from as usize - 1..to as usize].iter();
                        prop_assert!(known.clone().all(|at| (after..=until).contains(at)));
                        // It is refused only if the times are really far apart.
                        prop_assert!(until - after > TOLERANCE_MS);
                    }
                    Err(MarkError::BeforeBeginning(_)) => prop_assert!(false),
                }
            }
        }
    }

    #[test]
    fn revisions_that_were_written_during_a_pause_have_no_exact_time() {
        let mut list = MarkList::continuing(10_000, 10_000);
        list.arrived(5, 11_000);
        list.confirm(12_000);
        list.arrived(9, 60_000);
        list.confirm(61_000);
        list.arrived(10, 62_000);
        let marks = list.take();
        let at = |time| revision_at(&marks, 4, time);
        assert_eq!(
            [at(10_500), at(11_000), at(12_000)],
            [Ok(None), Ok(Some(5)), Ok(Some(5))]
        );
        let unknown = MarkError::Unknown {
            from: 6,
            to: 9,
            after: 12_000,
            before: 60_000,
        };
        assert_eq!([at(12_001), at(59_999)], [Err(unknown), Err(unknown)]);
        assert_eq!([at(60_000), at(62_000)], [Ok(Some(9)), Ok(Some(10))]);
        let text = "the archive did not follow the store then: revisions 6 to 9 were written at unknown times after \
                    1970-01-01T00:00:12.000Z and before 1970-01-01T00:01:00.000Z; name a revision";
        assert_eq!(unknown.to_string(), text);
    }
}
