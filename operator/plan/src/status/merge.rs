//! Conditions with their history: the transition time moves only when the status flips.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use super::{ConditionUpdate, whole_seconds};

/// Maximum length of a message that the API server accepts.
const MAX_MESSAGE_BYTES: usize = 32_000;

/// Returns the conditions to publish: exactly the given ones, in order.
pub fn merge(
    previous: &[Condition],
    updates: &[ConditionUpdate],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    updates
        .iter()
        .map(|update| condition(previous, update, generation, now))
        .collect()
}

/// Returns all conditions unchanged except one.
pub(crate) fn replace(
    previous: &[Condition],
    update: &ConditionUpdate,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut conditions = previous.to_vec();
    let new = condition(previous, update, generation, now);
    match conditions.iter_mut().find(|condition| condition.type_ == update.type_) {
        Some(present) => *present = new,
        None => conditions.push(new),
    }
    conditions
}

fn condition(previous: &[Condition], update: &ConditionUpdate, generation: Option<i64>, now: Timestamp) -> Condition {
    let status = update.status.as_str();
    let same = previous
        .iter()
        .find(|condition| condition.type_ == update.type_ && condition.status == status);
    let since = same.map_or_else(
        || Time(whole_seconds(now)),
        |condition| condition.last_transition_time.clone(),
    );
    Condition {
        type_: update.type_.to_owned(),
        status: status.to_owned(),
        reason: update.reason.clone(),
        message: update.message.chars().take(MAX_MESSAGE_BYTES).collect(),
        last_transition_time: since,
        observed_generation: generation,
    }
}
