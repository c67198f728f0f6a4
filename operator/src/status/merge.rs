//! Conditions with their history: the transition time moves only when the status flips.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use super::{Judgement, whole_seconds};

/// The API server refuses longer messages.
const MESSAGE: usize = 32_000;

/// The conditions to publish: exactly those judged, in their order.
pub(crate) fn merge(
    previous: &[Condition],
    judgements: &[Judgement],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    judgements
        .iter()
        .map(|judgement| condition(previous, judgement, generation, now))
        .collect()
}

/// All conditions as they were, but for one.
pub(super) fn replace(
    previous: &[Condition],
    judgement: &Judgement,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut conditions = previous.to_vec();
    let new = condition(previous, judgement, generation, now);
    match conditions
        .iter_mut()
        .find(|condition| condition.type_ == judgement.type_)
    {
        Some(present) => *present = new,
        None => conditions.push(new),
    }
    conditions
}

fn condition(previous: &[Condition], judgement: &Judgement, generation: Option<i64>, now: Timestamp) -> Condition {
    let status = judgement.verdict.as_str();
    let same = previous
        .iter()
        .find(|condition| condition.type_ == judgement.type_ && condition.status == status);
    let since = same.map_or_else(
        || Time(whole_seconds(now)),
        |condition| condition.last_transition_time.clone(),
    );
    Condition {
        type_: judgement.type_.to_owned(),
        status: status.to_owned(),
        reason: judgement.reason.clone(),
        message: judgement.message.chars().take(MESSAGE).collect(),
        last_transition_time: since,
        observed_generation: generation,
    }
}
