//! Runs a script against a target and the model.

use std::collections::BTreeMap;

use super::Script;
use crate::canonical::canonical;
use crate::model::Model;
use crate::wire::{Answer, Request, Response, Target, pb};

/// A script under way. It may continue against another target that has the same state, such as a restarted server.
pub(crate) struct Run {
    seed: u64,
    script: Script,
    /// The state that the target must have now.
    pub(crate) model: Model,
    requests: usize,
    /// Requests that were answered.
    pub(crate) answered: usize,
    /// Requests that were refused, by error text.
    pub(crate) refused: BTreeMap<String, usize>,
}

impl Run {
    /// For a fresh target. The same seed gives the same requests.
    pub(crate) fn new(seed: u64) -> Self {
        eprintln!("SEED={seed}");
        Self {
            seed,
            script: Script::new(seed),
            model: Model::new(),
            requests: 0,
            answered: 0,
            refused: BTreeMap::new(),
        }
    }

    /// Asks `target` the next `requests` things, and compares every field of every answer.
    ///
    /// # Panics
    /// At the first difference, with the seed and the number of the request.
    pub(crate) async fn go(&mut self, target: &mut impl Target, requests: usize) {
        for _ in 0..requests {
            let request = self.script.next(&self.model);
            self.ask(target, request).await;
            self.requests += 1;
        }
    }

    async fn ask(&mut self, target: &mut impl Target, mut request: Request) {
        let answer = target.call(request.clone()).await;
        if let Request::Grant(grant) = &mut request
            && grant.id == 0
        {
            // The server chose; if it refused, any id would have been.
            grant.id = match &answer {
                Ok(Response::Grant(granted)) => granted.id,
                _ => i64::MAX,
            };
            assert!(grant.id > 0, "the server chose {} as a lease id", grant.id);
        }
        let expected = canonical(&request, self.model.answer(&request));
        let answer = canonical(&request, answer);
        let (seed, number) = (self.seed, self.requests);
        assert!(
            answer == expected,
            "seed {seed}, request {number}: {request:#?}\nanswered {answer:#?}\nexpected {expected:#?}"
        );
        match answer {
            Ok(_) => self.answered += 1,
            Err(refusal) => *self.refused.entry(refusal.text).or_default() += 1,
        }
    }

    /// The next request of the script that changes keys, whatever else it would ask before.
    pub(crate) fn next_write(&mut self) -> Request {
        loop {
            let request = self.script.next(&self.model);
            let mut after = self.model.clone();
            let is_write = matches!(request, Request::Put(_) | Request::Delete(_) | Request::Txn(_));
            if is_write && after.answer(&request).is_ok() && after.revision() > self.model.revision() {
                return request;
            }
        }
    }

    /// Takes note of a request whose answer did not arrive (`None`): `target` shows whether all of it was done, or nothing.
    /// Answers which.
    ///
    /// # Panics
    /// It was done in part; or not at all, although it was acknowledged.
    pub(crate) async fn settle(&mut self, target: &mut impl Target, request: Request, answer: Option<Answer>) -> bool {
        let mut after = self.model.clone();
        let expected = canonical(&request, after.answer(&request));
        let acknowledged = answer.is_some();
        if let Some(answer) = answer {
            assert_eq!(canonical(&request, answer), expected, "seed {}", self.seed);
        }
        let everything = pb::RangeRequest {
            key: bytes::Bytes::from_static(b"\0"),
            range_end: bytes::Bytes::from_static(b"\0"),
            ..pb::RangeRequest::default()
        };
        let everything = Request::Range(everything);
        let found = canonical(&everything, target.call(everything.clone()).await);
        let done = found == after.answer(&everything);
        if done {
            self.model = after;
        } else {
            let seed = self.seed;
            assert!(!acknowledged, "seed {seed}: lost what was acknowledged: {request:#?}");
            assert_eq!(
                found,
                self.model.answer(&everything),
                "seed {seed}: done in part: {request:#?}"
            );
        }
        done
    }

    /// A run in which nothing is refused, or everything, proves nothing.
    ///
    /// # Panics
    /// The run was such a one.
    pub(crate) fn was_worth_it(&self) {
        eprintln!("{} answered, refused: {:#?}", self.answered, self.refused);
        assert!(self.answered * 2 > self.requests, "most requests were refused");
        assert!(self.model.revision() as usize * 4 > self.requests, "little was written");
        assert!(self.model.compacted() > 0, "nothing was compacted");
        assert!(self.refused.len() >= 9, "only few kinds of errors occurred");
    }
}

/// The outcome of a script.
#[derive(Debug)]
pub(crate) struct Report {
    /// Requests refused, by error text.
    pub(crate) refused: BTreeMap<String, usize>,
    pub(crate) last_revision: i64,
}

/// Runs a whole script on one fresh target; also returns the state that the target must have now.
///
/// # Panics
/// At the first difference.
pub(crate) async fn run(seed: u64, requests: usize, target: &mut impl Target) -> (Report, Model) {
    let mut run = Run::new(seed);
    run.go(target, requests).await;
    let last_revision = run.model.revision();
    let report = Report {
        refused: run.refused,
        last_revision,
    };
    (report, run.model)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A correct target, except that it flips `prev_kv` of the puts from request 1,500 on.
    struct Liar {
        model: Model,
        asked: usize,
    }

    impl Target for Liar {
        async fn call(&mut self, mut request: Request) -> Answer {
            self.asked += 1;
            if let Request::Grant(grant) = &mut request
                && grant.id == 0
            {
                grant.id = 1_000_000 + self.asked as i64;
            }
            if let (Request::Put(put), 1_500..) = (&mut request, self.asked) {
                put.prev_kv = !put.prev_kv;
            }
            self.model.answer(&request)
        }
    }

    #[test]
    fn the_model_agrees_with_itself_and_one_wrong_field_is_found() {
        let mut run = Run::new(3);
        let mut liar = Liar {
            model: Model::new(),
            asked: 0,
        };
        futures::executor::block_on(run.go(&mut liar, 1_499));
        let wrong = std::panic::AssertUnwindSafe(|| futures::executor::block_on(run.go(&mut liar, 100)));
        let panic = std::panic::catch_unwind(wrong).unwrap_err();
        assert!(panic.downcast::<String>().unwrap().starts_with("seed 3, request 15"));
    }
}
