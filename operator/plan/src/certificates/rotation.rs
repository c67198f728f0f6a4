//! When a replacement of the authority's key may advance. Pure.

use std::time::Duration;

use crds::cluster::tls::Advance;
use k8s_openapi::jiff::Timestamp;

use super::state::{AuthorityChange, AuthorityState, RotationPhase};

/// Conditions that the next phase depends on.
#[derive(Debug, Clone)]
pub struct RotationGates {
    /// Generation that the spec wants.
    pub wanted: i32,
    pub advance: Advance,
    /// The phase that a user requested and the generation of the key it applies to: `Issuing@2`.
    pub asked: Option<String>,
    /// Time until a bundle has reached all clients.
    pub propagation: Duration,
    /// Reason why nothing may change, if any.
    pub held: Option<&'static str>,
    /// The published bundle is that of this phase.
    pub published: bool,
    /// Reason why not all members trust that bundle, if any.
    pub distrust: Option<String>,
    /// Reason why not all members present certificates signed by the new key, if any.
    pub outdated: Option<String>,
    /// When the newest of these certificates was issued.
    pub issued: Timestamp,
}

/// Next step of the phase.
#[derive(Clone, PartialEq, Eq)]
pub enum RotationStep {
    Nothing,
    /// Wait for this condition.
    Wait(String),
    Do(AuthorityChange),
}

/// The next step of a replacement.
pub fn next(state: &AuthorityState, gates: &RotationGates, now: Timestamp) -> RotationStep {
    let wanted = gates.wanted > state.generation;
    if let Some(why) = gates.held.filter(|_| wanted || state.phase != RotationPhase::Stable) {
        return RotationStep::Wait(why.to_owned());
    }
    if state.phase == RotationPhase::Stable {
        return if wanted {
            RotationStep::Do(AuthorityChange::Replace {
                generation: gates.wanted,
            })
        } else {
            RotationStep::Nothing
        };
    }
    if !gates.published {
        return RotationStep::Wait("waiting for the bundle to be published".to_owned());
    }
    let Some(published) = state.published else {
        return RotationStep::Do(AuthorityChange::Published);
    };
    if let Some(why) = &gates.distrust {
        return RotationStep::Wait(format!("waiting for all members to trust the new bundle: {why}"));
    }
    match state.phase {
        RotationPhase::Stable => RotationStep::Nothing,
        RotationPhase::Publishing => {
            let generation = state
                .next
                .as_ref()
                .map_or(state.generation, |(generation, _)| *generation);
            let to = (RotationPhase::Issuing, generation);
            gate(gates, to, published, now).unwrap_or(RotationStep::Do(AuthorityChange::Issue))
        }
        RotationPhase::Issuing => {
            if let Some(why) = &gates.outdated {
                return RotationStep::Wait(format!("waiting for all members to use their new certificates: {why}"));
            }
            let to = (RotationPhase::Retiring, state.generation);
            gate(gates, to, published.max(gates.issued), now).unwrap_or(RotationStep::Do(AuthorityChange::Retire))
        }
        RotationPhase::Retiring => RotationStep::Do(AuthorityChange::Finish),
    }
}

/// Returns the step to take while the phase cannot be entered yet. Consent names the generation, so that consent to an earlier replacement
/// does not count.
fn gate(
    gates: &RotationGates,
    (to, generation): (RotationPhase, i32),
    from: Timestamp,
    now: Timestamp,
) -> Option<RotationStep> {
    match gates.advance {
        Advance::Manual => {
            let consent = format!("{}@{generation}", to.as_str());
            (gates.asked.as_ref() != Some(&consent)).then(|| {
                RotationStep::Wait(format!(
                    "set the annotation kubebrain.io/ca-advance={consent} when every client trusts the published bundle"
                ))
            })
        }
        Advance::Auto => {
            let at = from.checked_add(gates.propagation).unwrap_or(Timestamp::MAX);
            (now < at).then(|| RotationStep::Wait(format!("clients have until {at} to load the published bundle")))
        }
    }
}
