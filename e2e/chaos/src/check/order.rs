//! A later request never sees less.

use super::operations::RevisionOwners;
use crate::history::{History, MessageContent, Op, Outcome, RequestMethod, RoundTime};

/// Place in the order of all requests: reads that show a revision come after its write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum OrderPlace {
    Write(i64),
    Read(i64),
}

impl OrderPlace {
    fn key(self) -> (i64, bool) {
        match self {
            Self::Write(revision) => (revision, false),
            Self::Read(revision) => (revision, true),
        }
    }
}

/// Times at which something was shown, and at which something was asked for.
#[derive(Debug, Default)]
struct ShownTimes {
    shown: Vec<(RoundTime, OrderPlace, String)>,
    asked: Vec<(RoundTime, OrderPlace, String)>,
}

pub(super) fn check(history: &History, owned: &RevisionOwners, wrong: &mut Vec<String>) {
    let mut points = ShownTimes::default();
    points.answers(history);
    points.late_writes(history, owned);
    points.watches(history);
    points.shown.sort_by_key(|(at, ..)| *at);
    points.asked.sort_by_key(|(at, ..)| *at);
    let mut newest: Option<&(RoundTime, OrderPlace, String)> = None;
    let mut shown = points.shown.iter().peekable();
    for (at, place, what) in &points.asked {
        while let Some(next) = shown.next_if(|(shown_at, ..)| shown_at < at) {
            if newest.is_none_or(|newest| newest.1.key() < next.1.key()) {
                newest = Some(next);
            }
        }
        if let Some((before, seen, by)) = newest
            && seen.key() > place.key()
        {
            wrong.push(format!(
                "{what}, called at {at:?}, is at {place:?}, but {by} had already returned {seen:?} at {before:?}"
            ));
        }
    }
}

impl ShownTimes {
    fn answers(&mut self, history: &History) {
        for (number, operation) in history.operations.iter().enumerate() {
            let Outcome::Answered(answer) = &operation.outcome else {
                continue;
            };
            let place = match answer.wrote() {
                true => OrderPlace::Write(answer.revision),
                false => OrderPlace::Read(answer.revision),
            };
            let what = format!("operation {number} at member {}", operation.member);
            // who asks one member alone, or for the past, may be shown less, but not shown what others are not
            let past = operation
                .request
                .then
                .iter()
                .any(|op| matches!(op, Op::Range { revision, .. } if *revision > 0));
            if operation.request.method != RequestMethod::Serializable && !past {
                self.asked.push((operation.called, place, what.clone()));
            }
            self.shown.push((operation.returned, place, what));
        }
    }

    /// A write that was done without an answer was done after it was called.
    fn late_writes(&mut self, history: &History, owned: &RevisionOwners) {
        for (revision, number) in owned.all() {
            let operation = &history.operations[number];
            if matches!(operation.outcome, Outcome::Unknown(_)) {
                let what = format!("operation {number} (unanswered) at member {}", operation.member);
                self.asked.push((operation.called, OrderPlace::Write(revision), what));
            }
        }
    }

    fn watches(&mut self, history: &History) {
        for watcher in &history.watchers {
            for message in watcher.attempts.iter().flat_map(|attempt| &attempt.messages) {
                if matches!(message.told, MessageContent::Events(_) | MessageContent::Progress) {
                    let what = format!("a watch at member {}", watcher.member);
                    self.shown.push((message.at, OrderPlace::Read(message.revision), what));
                }
            }
        }
    }
}
