//! Runs a script against a target and the model.

use std::collections::BTreeMap;

use super::Script;
use crate::model::Model;
use crate::same::canonical;
use crate::wire::{Request, Response, Target};

/// How a script went: a run in which nothing happened proves nothing.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) answered: usize,
    /// Requests refused, by error text.
    pub(crate) refused: BTreeMap<String, usize>,
    pub(crate) last_revision: i64,
}

/// Asks `target`, which must be fresh, `requests` things, and compares every field of every answer.
///
/// # Panics
/// At the first difference, with the seed and the number of the request.
pub(crate) async fn run(seed: u64, requests: usize, target: &mut impl Target) -> (Report, Model) {
    let (mut script, mut model, mut report) = (Script::new(seed), Model::new(), Report::default());
    for number in 0..requests {
        let mut request = script.next(&model);
        let answer = target.call(request.clone()).await;
        if let (Request::Grant(grant), Ok(Response::Grant(granted))) = (&mut request, &answer)
            && grant.id == 0
        {
            assert!(granted.id > 0, "the server chose {} as a lease id", granted.id);
            grant.id = granted.id;
        }
        // Refused before an id was chosen: any will do.
        if let Request::Grant(grant) = &mut request
            && grant.id == 0
        {
            grant.id = i64::MAX;
        }
        let expected = canonical(&request, model.answer(&request));
        let answer = canonical(&request, answer);
        assert!(
            answer == expected,
            "seed {seed}, request {number}: {request:#?}\nanswered {answer:#?}\nexpected {expected:#?}"
        );
        match answer {
            Ok(_) => report.answered += 1,
            Err(refusal) => *report.refused.entry(refusal.text).or_default() += 1,
        }
    }
    report.last_revision = model.revision();
    (report, model)
}
