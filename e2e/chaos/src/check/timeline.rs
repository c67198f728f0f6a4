//! The revisions of a round, as all watches together tell them.

use std::collections::BTreeMap;

use super::model::KeyStates;
use crate::history::{Event, History, Kv, MessageContent, RoundTime};

/// Changes of one revision.
#[derive(Debug)]
pub(super) struct RevisionChanges {
    /// In key order, without what came before.
    pub(super) events: Vec<Event>,
    /// Time at which a watch first sent it.
    pub(super) seen: RoundTime,
}

/// All changes of a round, without a gap, and the states between them.
#[derive(Debug)]
pub(super) struct Timeline {
    base: i64,
    changes: Vec<RevisionChanges>,
    states: Vec<KeyStates>,
}

impl Timeline {
    /// Merges the events of the watches of all keys.
    pub(super) fn of(history: &History) -> Result<Self, Vec<String>> {
        let mut wrong = Vec::new();
        let mut changes: BTreeMap<i64, RevisionChanges> = BTreeMap::new();
        for watcher in &history.watchers {
            for message in watcher.attempts.iter().flat_map(|attempt| &attempt.messages) {
                // a watch of a part does not have the whole of a revision
                let whole = message.watch.is_some_and(|watch| watcher.watches[watch].contain(""));
                if let (MessageContent::Events(events), true) = (&message.told, whole) {
                    merge(&mut changes, events, message.at, watcher.member, &mut wrong);
                }
            }
        }
        let mut timeline = Self {
            base: history.base,
            changes: Vec::new(),
            states: vec![KeyStates::new()],
        };
        for (revision, change) in changes.split_off(&(history.base + 1)) {
            if revision > history.end {
                wrong.push(format!("revision {revision} came after the last, {}", history.end));
                break;
            }
            let next = timeline.last() + 1;
            if revision != next {
                wrong.push(format!("revisions {next} to {} are missing", revision - 1));
                break;
            }
            timeline.push(change, &mut wrong);
        }
        if timeline.last() != history.end && wrong.is_empty() {
            wrong.push(format!(
                "revisions {} to {} are missing",
                timeline.last() + 1,
                history.end
            ));
        }
        if wrong.is_empty() { Ok(timeline) } else { Err(wrong) }
    }

    /// The next change; its events must follow from the state before them.
    fn push(&mut self, change: RevisionChanges, wrong: &mut Vec<String>) {
        let revision = self.last() + 1;
        let mut state = self.newest().clone();
        for event in &change.events {
            let prev = state.get(event.key());
            match event {
                Event::Put { kv, .. } => {
                    let expected = Kv {
                        create: prev.map_or(revision, |prev| prev.create),
                        version: prev.map_or(1, |prev| prev.version + 1),
                        ..kv.clone()
                    };
                    if *kv != expected {
                        wrong.push(format!("revision {revision} puts {kv:?} after {prev:?}"));
                    }
                    state.insert(kv.key.clone(), kv.clone());
                }
                Event::Delete { key, .. } if prev.is_none() => {
                    wrong.push(format!("revision {revision} deletes {key}, which does not exist"));
                }
                Event::Delete { key, .. } => drop(state.remove(key)),
            }
        }
        self.changes.push(change);
        self.states.push(state);
    }

    fn last(&self) -> i64 {
        self.base + i64::try_from(self.changes.len()).unwrap_or(i64::MAX)
    }

    fn newest(&self) -> &KeyStates {
        self.states.last().expect("there is one from the beginning")
    }

    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }

    /// Changes of a revision; none outside of the round.
    pub(super) fn change(&self, revision: i64) -> Option<&RevisionChanges> {
        let at = usize::try_from(revision - self.base - 1).ok()?;
        self.changes.get(at)
    }

    /// State of all keys at a revision; none outside of the round.
    pub(super) fn state(&self, revision: i64) -> Option<&KeyStates> {
        let at = usize::try_from(revision - self.base).ok()?;
        self.states.get(at)
    }

    /// All changes with their revisions.
    pub(super) fn changes(&self) -> impl Iterator<Item = (i64, &RevisionChanges)> {
        (self.base + 1..).zip(&self.changes)
    }
}

/// Adds one message's events: all watches send the same for a revision.
fn merge(
    changes: &mut BTreeMap<i64, RevisionChanges>,
    events: &[Event],
    at: RoundTime,
    member: usize,
    wrong: &mut Vec<String>,
) {
    for group in events.chunk_by(|a, b| a.revision() == b.revision()) {
        let revision = group[0].revision();
        let mut events: Vec<Event> = group.iter().map(Event::bare).collect();
        events.sort_by(|a, b| a.key().cmp(b.key()));
        let known = changes.entry(revision).or_insert_with(|| RevisionChanges {
            events: events.clone(),
            seen: at,
        });
        known.seen = known.seen.min(at);
        if known.events != events {
            wrong.push(format!(
                "revision {revision} is {events:?} at member {member} and {:?} elsewhere",
                known.events
            ));
        }
    }
}
