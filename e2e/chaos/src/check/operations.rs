//! Every revision has one owner, and every answer is the one that the model gives at its revision.

use std::collections::BTreeMap;

use super::model::{self, RequestEffect};
use super::timeline::{RevisionChanges, Timeline};
use crate::history::{Answer, Event, History, Op, Operation, Outcome, Request, WrittenValue};

/// Which operation made which revision.
#[derive(Debug, Default)]
pub(super) struct RevisionOwners(BTreeMap<i64, usize>);

impl RevisionOwners {
    /// The operation that made a revision.
    pub(super) fn by(&self, revision: i64) -> Option<usize> {
        self.0.get(&revision).copied()
    }

    /// Revisions and the operations that made them.
    pub(super) fn all(&self) -> impl Iterator<Item = (i64, usize)> {
        self.0.iter().map(|(revision, operation)| (*revision, *operation))
    }

    /// Number of operations that were done without an answer.
    pub(super) fn late(&self, history: &History) -> usize {
        let unknown = |at: &&usize| matches!(history.operations[**at].outcome, Outcome::Unknown(_));
        self.0.values().filter(unknown).count()
    }

    fn take(&mut self, revision: i64, operation: usize, wrong: &mut Vec<String>) {
        if let Some(other) = self.0.insert(revision, operation) {
            wrong.push(format!(
                "operations {other} and {operation} both made revision {revision}"
            ));
        }
    }
}

/// Holds every operation against the timeline; tells who made which revision.
pub(super) fn check(history: &History, timeline: &Timeline, wrong: &mut Vec<String>) -> RevisionOwners {
    let mut owned = RevisionOwners::default();
    for (at, operation) in history.operations.iter().enumerate() {
        match &operation.outcome {
            Outcome::Answered(answer) => {
                if answer.wrote() {
                    owned.take(answer.revision, at, wrong);
                }
                answered(operation, answer, timeline, wrong);
            }
            Outcome::Compacted => compacted(operation, history, wrong),
            Outcome::Unknown(_) => {}
        }
    }
    find_unknown(history, timeline, &mut owned, wrong);
    find_deletes(history, timeline, &mut owned);
    owned
}

/// The answer and the events are what the model does at that revision.
fn answered(operation: &Operation, answer: &Answer, timeline: &Timeline, wrong: &mut Vec<String>) {
    let before = answer.revision - i64::from(answer.wrote());
    let Some(effect) = run(&operation.request, timeline, before) else {
        wrong.push(format!("the revision of {operation:?} is not one of the round"));
        return;
    };
    // what came with the answer; the value of a key that was not requested is not in it
    if effect.answer != *answer {
        wrong.push(format!("{operation:?}: the answer should be {:?}", effect.answer));
    } else if answer.wrote() && !makes(&effect, timeline.change(answer.revision)) {
        wrong.push(format!("{operation:?}: its revision changed something else"));
    }
}

fn run(request: &Request, timeline: &Timeline, revision: i64) -> Option<RequestEffect> {
    model::run(request, timeline.state(revision)?, revision, |past| {
        timeline.state(past)
    })
}

/// Returns true if these are the events of that revision.
fn makes(effect: &RequestEffect, change: Option<&RevisionChanges>) -> bool {
    let mut events: Vec<Event> = effect.events.iter().map(Event::bare).collect();
    events.sort_by(|a, b| a.key().cmp(b.key()));
    change.is_some_and(|change| change.events == events)
}

/// A revision is refused as compacted only after the compaction of a later one was requested.
fn compacted(operation: &Operation, history: &History, wrong: &mut Vec<String>) {
    let wanted = operation.request.then.iter().find_map(|op| match op {
        Op::Range { revision, .. } if *revision > 0 => Some(*revision),
        _ => None,
    });
    let asked = |(at, revision): &(_, i64)| *at < operation.returned && wanted.is_some_and(|wanted| wanted < *revision);
    if !history.compactions.iter().any(asked) {
        wrong.push(format!("{operation:?}: no client compacted that"));
    }
}

/// Finds operations without an answer by the values that they put. Such an operation must be applied completely, and only once.
fn find_unknown(history: &History, timeline: &Timeline, owned: &mut RevisionOwners, wrong: &mut Vec<String>) {
    let put: BTreeMap<WrittenValue, i64> = timeline
        .changes()
        .flat_map(|(revision, change)| change.events.iter().map(move |event| (revision, event)))
        .filter_map(|(revision, event)| match event {
            Event::Put { kv, .. } => Some((kv.value, revision)),
            Event::Delete { .. } => None,
        })
        .collect();
    for (at, operation) in history.operations.iter().enumerate() {
        if !matches!(operation.outcome, Outcome::Unknown(_)) {
            continue;
        }
        let mut revisions: Vec<i64> = operation
            .request
            .values()
            .filter_map(|value| put.get(&value).copied())
            .collect();
        revisions.dedup();
        match revisions[..] {
            [] => {}
            [revision] => {
                owned.take(revision, at, wrong);
                let effect = run(&operation.request, timeline, revision - 1);
                if !effect.is_some_and(|effect| makes(&effect, timeline.change(revision))) {
                    wrong.push(format!("{operation:?} was done in part at revision {revision}"));
                }
            }
            _ => wrong.push(format!("{operation:?} was done more than once: {revisions:?}")),
        }
    }
    for (value, revision) in put {
        if owned.by(revision).is_none() {
            wrong.push(format!("no client put {value:?}, which revision {revision} has"));
        }
    }
}

/// Deletes without an answer are recognized by their keys. The delete that was called first gets the first revision that fits: none of
/// them has returned, so if any assignment is right, this one is.
fn find_deletes(history: &History, timeline: &Timeline, owned: &mut RevisionOwners) {
    let mut waiting: Vec<usize> = (0..history.operations.len())
        .filter(|at| {
            let operation = &history.operations[*at];
            matches!(operation.outcome, Outcome::Unknown(_))
                && operation.request.writes()
                && operation.request.values().next().is_none()
        })
        .collect();
    waiting.sort_by_key(|at| history.operations[*at].called);
    for (revision, change) in timeline.changes() {
        if owned.by(revision).is_some() {
            continue;
        }
        let fits = |at: &usize| {
            let effect = run(&history.operations[*at].request, timeline, revision - 1);
            history.operations[*at].called < change.seen && effect.is_some_and(|effect| makes(&effect, Some(change)))
        };
        if let Some(place) = waiting.iter().position(fits) {
            owned.0.insert(revision, waiting.remove(place));
        }
    }
}
