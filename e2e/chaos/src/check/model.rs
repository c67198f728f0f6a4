//! The dumbest etcd that could be right, for the requests of a round.

use std::collections::BTreeMap;

use crate::history::{Answer, Compare, Event, KeySelector, Kv, Op, OpAnswer, Request};

/// State of all keys at one revision.
pub(super) type KeyStates = BTreeMap<String, Kv>;

/// Effect of a request on a state.
pub(super) struct RequestEffect {
    pub(super) answer: Answer,
    pub(super) events: Vec<Event>,
}

/// Runs a request on the state of `revision`. `past` knows the states before.
pub(super) fn run<'a>(
    request: &Request,
    state: &KeyStates,
    revision: i64,
    past: impl Fn(i64) -> Option<&'a KeyStates>,
) -> Option<RequestEffect> {
    let succeeded = request.compares.iter().all(|compare| holds(compare, state));
    let ops = if succeeded { &request.then } else { &request.otherwise };
    let mut run = Run {
        state: state.clone(),
        revision: revision + 1,
        events: Vec::new(),
    };
    let mut done = Vec::new();
    for op in ops {
        done.push(match op {
            Op::Put {
                key,
                value,
                lease,
                prev,
            } => {
                let before = run.put(key, *value, *lease);
                OpAnswer::Put {
                    prev: before.filter(|_| *prev),
                }
            }
            Op::Delete { keys, prev } => {
                let before = run.delete(keys);
                OpAnswer::Delete {
                    deleted: i64::try_from(before.len()).ok()?,
                    prev: if *prev { before } else { Vec::new() },
                }
            }
            Op::Range { keys, revision: 0 } => range(&run.state, keys),
            Op::Range { keys, revision } => range(past(*revision)?, keys),
        });
    }
    let revision = if run.events.is_empty() { revision } else { run.revision };
    Some(RequestEffect {
        answer: Answer {
            revision,
            succeeded,
            done,
        },
        events: run.events,
    })
}

struct Run {
    state: KeyStates,
    revision: i64,
    events: Vec<Event>,
}

impl Run {
    fn put(&mut self, key: &str, value: crate::history::WrittenValue, lease: i64) -> Option<Kv> {
        let prev = self.state.get(key).cloned();
        let kv = Kv {
            key: key.to_owned(),
            value,
            create: prev.as_ref().map_or(self.revision, |prev| prev.create),
            modified: self.revision,
            version: prev.as_ref().map_or(1, |prev| prev.version + 1),
            lease,
        };
        self.state.insert(key.to_owned(), kv.clone());
        let event = Event::Put { kv, prev: prev.clone() };
        self.events.push(event);
        prev
    }

    fn delete(&mut self, keys: &KeySelector) -> Vec<Kv> {
        let before: Vec<Kv> = self
            .state
            .values()
            .filter(|kv| keys.contain(&kv.key))
            .cloned()
            .collect();
        for kv in &before {
            self.state.remove(&kv.key);
            self.events.push(Event::Delete {
                key: kv.key.clone(),
                revision: self.revision,
                prev: Some(kv.clone()),
            });
        }
        before
    }
}

fn range(state: &KeyStates, keys: &KeySelector) -> OpAnswer {
    let kvs: Vec<Kv> = state.values().filter(|kv| keys.contain(&kv.key)).cloned().collect();
    let count = i64::try_from(kvs.len()).unwrap_or(i64::MAX);
    OpAnswer::Range { kvs, count }
}

fn holds(compare: &Compare, state: &KeyStates) -> bool {
    match compare {
        Compare::Modified(key, wanted) => state.get(key).map_or(0, |kv| kv.modified) == *wanted,
        Compare::Version(key, wanted) => state.get(key).map_or(0, |kv| kv.version) == *wanted,
        // a key that is not there has no value to compare with
        Compare::Value(key, wanted) => state.get(key).is_some_and(|kv| kv.value == *wanted),
    }
}
