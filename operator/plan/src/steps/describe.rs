//! Steps in words, for errors and for users.

use kube::ResourceExt;

use super::PlanStep;
use crate::certificates::{AuthorityChange, RotationPhase};
use crate::names::Names;
use crate::spec::Desired;

/// Describes a step for an error message.
pub fn describe(step: &PlanStep, desired: &Desired) -> String {
    let names = &desired.names;
    match step {
        PlanStep::WriteAuthority { change, .. } => change_in_words(change, names),
        PlanStep::DiscardAuthority { .. } => format!("discard the certificate authority {}", names.authority()),
        PlanStep::Issue { leaf, .. } => format!("issue the certificate {}", names.leaf(*leaf)),
        PlanStep::Apply { object, .. } => format!("apply {}", object.key),
        PlanStep::CreateClaim { claim } => format!("create the volume claim {}", claim.name_any()),
        PlanStep::Bootstrap { job } => format!("create Job {}", job.name_any()),
        PlanStep::EndBootstrap { job } => format!("delete Job {}: the spec changed", job.name_any()),
        PlanStep::CutOver { pod, .. } => format!("annotate pod {pod}: its copy ends"),
        PlanStep::TakeBack { object, additions, .. } => {
            format!("remove {} from {}", additions.fields.join(", "), object.key)
        }
        PlanStep::Delete { key, .. } => format!("delete {key}"),
        PlanStep::ChangeClaim { claim, .. } => format!("resize the volume claim {claim}"),
        PlanStep::RetainClaims { set, .. } => format!("retain the volume claims of {set} when it is deleted"),
        PlanStep::Try { .. } => format!("create pod {}", names.trial()),
        PlanStep::EndTrial { pod, .. } => format!("delete pod {pod}"),
        PlanStep::Scale { set, replicas, .. } => format!("reset the replicas of {set} to {replicas}"),
        PlanStep::Label { pod, .. } => format!("label pod {pod}"),
        PlanStep::Resize { pod, .. } => format!("resize pod {pod}"),
        PlanStep::HandOver { from, to, .. } => format!("transfer leadership from {from} to {to}"),
        PlanStep::Replace { pod, .. } => format!("delete pod {pod}"),
    }
}

/// Describes a change of the authority for an error message.
fn change_in_words(change: &AuthorityChange, names: &Names) -> String {
    let authority = names.authority();
    let phase = |phase: RotationPhase| format!("move {authority} to the phase {}", phase.as_str());
    match change {
        AuthorityChange::Create { .. } => format!("create the certificate authority {authority}"),
        AuthorityChange::Recreate { .. } => format!("create a new key for the lost certificate authority {authority}"),
        AuthorityChange::Adopt { .. } => format!("import the given certificate authority into {authority}"),
        AuthorityChange::Renew | AuthorityChange::Renewed { .. } => {
            format!("renew the certificate authority {authority}")
        }
        AuthorityChange::Replace { .. } => phase(RotationPhase::Publishing),
        AuthorityChange::Issue => phase(RotationPhase::Issuing),
        AuthorityChange::Retire => phase(RotationPhase::Retiring),
        AuthorityChange::Finish => phase(RotationPhase::Stable),
        AuthorityChange::Published => format!("record in {authority} that its bundle is published"),
        AuthorityChange::Keep => format!("apply Secret {authority}"),
    }
}
