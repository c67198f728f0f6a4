//! A client that reads and writes a few keys, without pause.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio_util::sync::CancellationToken;

use super::RoundState;
use super::client::Client;
use crate::history::{Answer, Compare, KeySelector, Kv, Op, OpAnswer, Operation, Outcome, Request, RequestMethod};

/// The keys of a round: few, so that all clients use the same ones.
const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// Between two requests of one client.
const REQUEST_PAUSE: Duration = Duration::from_millis(4);
/// The same after an error.
const ERROR_PAUSE: Duration = Duration::from_millis(40);
/// Distance of reads of the past, in revisions.
const MAX_PAST_REVISIONS: i64 = 300;

/// Works until it is stopped.
///
/// # Errors
///
/// A wrong answer.
pub(crate) async fn run(
    clients: Vec<Client>,
    round: RoundState,
    seed: u64,
    stop: CancellationToken,
) -> anyhow::Result<Vec<Operation>> {
    let mut worker = Worker {
        chance: StdRng::seed_from_u64(seed),
        round,
        seen: None,
    };
    let mut operations = Vec::new();
    let mut at = 0;
    while !stop.is_cancelled() {
        let request = worker.next();
        let operation = clients[at].call(&worker.round, request).await?;
        let answered = matches!(operation.outcome, Outcome::Answered(_));
        if let Outcome::Answered(answer) = &operation.outcome {
            worker.learn(&operation.request, answer);
        }
        // most stay with their member, as clients do
        if worker.chance.random_bool(if answered { 0.02 } else { 0.3 }) {
            at = worker.chance.random_range(0..clients.len());
        }
        operations.push(operation);
        tokio::time::sleep(if answered { REQUEST_PAUSE } else { ERROR_PAUSE }).await;
    }
    Ok(operations)
}

struct Worker {
    chance: StdRng,
    round: RoundState,
    /// The key-value that was seen last, to be updated.
    seen: Option<Kv>,
}

impl Worker {
    fn next(&mut self) -> Request {
        match self.chance.random_range(0..100) {
            0..25 => Request::plain(self.put()),
            25..45 => Request::plain(Op::Range {
                keys: KeySelector::One(self.key()),
                revision: 0,
            }),
            45..53 => self.list(RequestMethod::Plain, 0),
            53..61 => self.list(RequestMethod::Serializable, 0),
            61..67 => {
                let past = (self.round.newest() - self.chance.random_range(0..MAX_PAST_REVISIONS))
                    .max(self.round.base)
                    .max(1);
                self.list(RequestMethod::Plain, past)
            }
            67..72 => Request::plain(Op::Delete {
                keys: KeySelector::One(self.key()),
                prev: self.chance.random_bool(0.5),
            }),
            72..90 => self.update(),
            90..96 => self.swap(),
            _ => self.list(RequestMethod::Txn, 0),
        }
    }

    fn key(&mut self) -> String {
        let key = KEYS[self.chance.random_range(0..KEYS.len())];
        format!("{}{key}", self.round.prefix)
    }

    fn put(&mut self) -> Op {
        Op::Put {
            key: self.key(),
            value: self.round.value(),
            lease: 0,
            prev: self.chance.random_bool(0.3),
        }
    }

    fn list(&mut self, method: RequestMethod, revision: i64) -> Request {
        let keys = KeySelector::Prefix(self.round.prefix.clone());
        Request {
            method,
            ..Request::plain(Op::Range { keys, revision })
        }
    }

    /// A request as an API server makes it: put if the key has not changed since it was read, else get.
    fn update(&mut self) -> Request {
        let compare = match self.seen.take() {
            Some(kv) if self.chance.random_bool(0.3) => Compare::Value(kv.key, kv.value),
            Some(kv) => Compare::Modified(kv.key, kv.modified),
            None => Compare::Modified(self.key(), 0),
        };
        let key = compare.key().to_owned();
        let put = Op::Put {
            key: key.clone(),
            value: self.round.value(),
            lease: 0,
            prev: false,
        };
        let get = Op::Range {
            keys: KeySelector::One(key.clone()),
            revision: 0,
        };
        Request {
            method: RequestMethod::Txn,
            compares: vec![compare],
            then: vec![put, get.clone()],
            otherwise: vec![get],
        }
    }

    /// Two keys in one revision, in one way or the other.
    fn swap(&mut self) -> Request {
        let (from, to) = (self.key(), self.key());
        let put = Op::Put {
            key: to.clone(),
            value: self.round.value(),
            lease: 0,
            prev: true,
        };
        let other = self.put();
        let mut then = vec![put];
        if from != to {
            then.push(Op::Delete {
                keys: KeySelector::One(from.clone()),
                prev: true,
            });
        }
        Request {
            method: RequestMethod::Txn,
            compares: vec![Compare::Version(to, self.chance.random_range(0..3))],
            then,
            otherwise: vec![other],
        }
    }

    /// Remembers a key, to update it.
    fn learn(&mut self, request: &Request, answer: &Answer) {
        for done in &answer.done {
            if let OpAnswer::Range { kvs, .. } = done
                && let Some(kv) = kvs.first()
                && request.method != RequestMethod::Serializable
            {
                self.seen = Some(kv.clone());
            }
        }
    }
}
