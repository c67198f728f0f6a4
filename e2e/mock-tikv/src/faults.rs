//! Faults on command.
//!
//! Every fault names one kind of request; the first one that fits a request happens to it. Chance comes from a seed.

mod rules;

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use futures::future::BoxFuture;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

pub(crate) use rules::millis;
pub use rules::{Action, Fault, FaultError, FaultId, FaultState, RefusalCode, RegionFault};

use crate::rpc::Rpc;

/// Messages that are held back, at most; beyond that the oldest is lost for good.
const MAX_HELD_MESSAGES: usize = 10_000;

/// The faults that are set, and the messages that are held back.
#[derive(Debug)]
pub struct Faults {
    rules: Mutex<FaultRules>,
    held: Mutex<HeldMessage>,
}

#[derive(Debug)]
struct FaultRules {
    set: Vec<FaultState>,
    next_id: u64,
    chance: StdRng,
}

#[derive(Default)]
struct HeldMessage {
    messages: VecDeque<BoxFuture<'static, ()>>,
}

impl std::fmt::Debug for HeldMessage {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} held messages", self.messages.len())
    }
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        let rules = FaultRules {
            set: Vec::new(),
            next_id: 0,
            chance: StdRng::seed_from_u64(seed),
        };
        Self {
            rules: Mutex::new(rules),
            held: Mutex::default(),
        }
    }

    /// Sets a fault. Refuses one that cannot happen to its kind of request.
    pub fn add(&self, fault: Fault) -> Result<FaultId, FaultError> {
        fault.check()?;
        let mut rules = self.lock();
        rules.next_id += 1;
        let id = FaultId(rules.next_id);
        rules.set.push(FaultState {
            id,
            fault,
            seen: 0,
            happened: 0,
        });
        Ok(id)
    }

    /// Removes a fault and returns its final state, or none if there is no such fault.
    pub fn remove(&self, id: FaultId) -> Option<FaultState> {
        let mut rules = self.lock();
        let place = rules.set.iter().position(|state| state.id == id)?;
        Some(rules.set.remove(place))
    }

    /// Removes all faults. Messages that are held back stay held.
    pub fn clear(&self) {
        self.lock().set.clear();
    }

    /// All faults that are set, used up ones included, with how often each happened.
    pub fn list(&self) -> Vec<FaultState> {
        self.lock().set.clone()
    }

    /// Returns the number of times that a fault has happened; none when it is not set.
    pub fn happened(&self, id: FaultId) -> Option<u64> {
        self.lock()
            .set
            .iter()
            .find(|state| state.id == id)
            .map(|state| state.happened)
    }

    /// Returns the number of messages that are held back.
    pub fn held(&self) -> usize {
        self.held
            .lock()
            .expect("nothing panics while it holds the messages")
            .messages
            .len()
    }

    /// Delivers the messages that are held back, oldest first, each after the one before is done. Answers how many.
    pub async fn deliver(&self) -> usize {
        let messages = std::mem::take(&mut *self.held.lock().expect("nothing panics while it holds the messages"));
        let count = messages.messages.len();
        for message in messages.messages {
            message.await;
        }
        count
    }

    pub(crate) fn hold(&self, message: BoxFuture<'static, ()>) {
        let mut held = self.held.lock().expect("nothing panics while it holds the messages");
        if held.messages.len() == MAX_HELD_MESSAGES {
            held.messages.pop_front();
        }
        held.messages.push_back(message);
    }

    /// Draws the fault of a request of this kind; `touches` returns true if one of its keys has a prefix, `len` is its size in bytes.
    pub(crate) fn draw(
        &self,
        rpc: Rpc,
        store: u64,
        touches: impl Fn(&[u8]) -> bool,
        len: impl Fn() -> usize,
    ) -> Option<Action> {
        let mut rules = self.lock();
        let FaultRules { set, chance, .. } = &mut *rules;
        for state in set.iter_mut() {
            let fault = &state.fault;
            let fits = fault.rpc == rpc
                && fault.store.is_none_or(|meant| meant == store)
                && (fault.key_prefix.is_empty() || touches(&fault.key_prefix))
                && (fault.min_bytes == 0 || len() >= fault.min_bytes);
            if !fits {
                continue;
            }
            state.seen += 1;
            let used_up = fault.count.is_some_and(|count| state.happened >= count);
            if used_up || state.seen <= fault.skip || !chance.random_bool(fault.probability) {
                continue;
            }
            state.happened += 1;
            return Some(fault.action.clone());
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, FaultRules> {
        self.rules.lock().expect("nothing panics while it holds the faults")
    }
}

#[cfg(test)]
mod tests;
