//! Steps in words, for errors and for users.

use super::Step;
use crate::certificates::{Change, Phase};
use crate::names::Names;
use crate::spec::Desired;

/// Describes a step for an error message.
pub fn describe(step: &Step, desired: &Desired) -> String {
    let names = &desired.names;
    match step {
        Step::WriteAuthority { change, .. } => change_in_words(change, names),
        Step::DiscardAuthority { .. } => format!("discard the certificate authority {}", names.authority()),
        Step::Issue { leaf, .. } => format!("issue the certificate {}", names.leaf(*leaf)),
        Step::Apply { object, .. } => format!("apply {}", object.key),
        Step::TakeBack { object, additions, .. } => {
            format!("remove {} from {}", additions.fields.join(", "), object.key)
        }
        Step::Delete { key, .. } => format!("delete {key}"),
        Step::ChangeClaim { claim, .. } => format!("resize the volume claim {claim}"),
        Step::RetainClaims { set, .. } => format!("retain the volume claims of {set} when it is deleted"),
        Step::Try { .. } => format!("create pod {}", names.trial()),
        Step::EndTrial { pod, .. } => format!("delete pod {pod}"),
        Step::Scale { set, replicas, .. } => format!("reset the replicas of {set} to {replicas}"),
        Step::Label { pod, .. } => format!("label pod {pod}"),
        Step::Resize { pod, .. } => format!("resize pod {pod}"),
        Step::HandOver { from, to, .. } => format!("transfer leadership from {from} to {to}"),
        Step::Replace { pod, .. } => format!("delete pod {pod}"),
    }
}

/// Describes a change of the authority for an error message.
fn change_in_words(change: &Change, names: &Names) -> String {
    let authority = names.authority();
    let phase = |phase: Phase| format!("move {authority} to the phase {}", phase.as_str());
    match change {
        Change::Create { .. } => format!("create the certificate authority {authority}"),
        Change::Recreate { .. } => format!("create a new key for the lost certificate authority {authority}"),
        Change::Adopt { .. } => format!("import the given certificate authority into {authority}"),
        Change::Renew | Change::Renewed { .. } => format!("renew the certificate authority {authority}"),
        Change::Replace { .. } => phase(Phase::Publishing),
        Change::Issue => phase(Phase::Issuing),
        Change::Retire => phase(Phase::Retiring),
        Change::Finish => phase(Phase::Stable),
        Change::Published => format!("record in {authority} that its bundle is published"),
        Change::Keep => format!("apply Secret {authority}"),
    }
}
