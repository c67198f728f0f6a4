//! Computes the steps of one pass from the desired and the observed state. Pure.
//!
//! Invariants: no object that this cluster does not own is changed; at most one pod is replaced in a pass, and none while anything else
//! blocks; a pass that finds everything in order has no steps.

use std::collections::BTreeMap;
use std::time::Duration;

use crds::KubeBrainCluster;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use serde_json::Value;

use self::leadership::LeaderState;
use crate::bootstrap::{self, BootstrapProgress};
use crate::certificates::{AuthorityChange, AuthorityState, CertificatePair, CertificateRequest, Leaf};
use crate::event::ClusterEvent;
use crate::objects::{Object, ObjectKey, ObjectKind, Renderer, resources};
use crate::observed::Observed;
use crate::ownership;
use crate::spec::is_external;
use crate::spec::{Desired, SpecRefusal};

mod additions;
mod certificates;
pub mod claims;
mod describe;
mod downgrade;
pub mod leadership;
mod owned;
mod replicas;
mod resize;
mod roles;
mod rollout;
mod storage;
mod store;
#[cfg(test)]
mod tests;
mod trial;

pub use additions::Additions;
pub use certificates::{AuthorityView, CertificatesStatus, LiveObject, StoredCertificate, pair as stored_pair};
pub use describe::describe;
pub use owned::keep_metadata;
pub use rollout::{LeaderTransfer, Rollout, revision};
pub use storage::CLUSTER_ID_CHANGED;
pub use store::{DATA_REPLACED, seen as seen_store};
pub use trial::failed as failed_trial;

/// One write. It has no `Debug`, because some steps contain keys.
#[derive(Clone, PartialEq)]
pub enum PlanStep {
    /// Create the authority, or move the stored one to its next state.
    WriteAuthority {
        change: AuthorityChange,
        before: Option<Box<AuthorityState>>,
        live: Option<LiveObject>,
    },
    /// Delete an authority that the status never recorded and that published nothing.
    DiscardAuthority { live: LiveObject },
    /// Issue a certificate and store it with the bundle.
    Issue {
        leaf: Leaf,
        request: CertificateRequest,
        uid: Option<String>,
        why: String,
        signer: CertificatePair,
        bundle: String,
    },
    /// Apply an object; `uid` is that of the live object.
    Apply { object: Object, uid: Option<String> },
    /// Create the volume claim that a restore fills, as the StatefulSet's controller would.
    CreateClaim { claim: Box<PersistentVolumeClaim> },
    /// Create the Job that restores the first data.
    Bootstrap { job: Box<Job> },
    /// Delete that Job: it was created for another spec.
    EndBootstrap { job: Box<Job> },
    /// Let a pod of that Job end its copy.
    CutOver { pod: String, uid: String },
    /// Remove what another manager added to the live object of this uid; `object` is the wanted one.
    TakeBack {
        object: Object,
        uid: String,
        additions: Additions,
    },
    /// Make the StatefulSet keep its claims when it is deleted.
    RetainClaims { set: String, uid: String },
    /// Set the number of members of the StatefulSet back to the last one that the operator set, while nothing may change.
    Scale { set: String, uid: String, replicas: i32 },
    /// Create the pod in which a new template is tried: the small one, or the whole one where a small one is forbidden.
    Try { pod: Value, whole: Value },
    /// Delete that pod.
    EndTrial { pod: String, uid: String },
    /// Delete an object that is no longer wanted.
    Delete { key: ObjectKey, uid: String },
    /// Let a volume grow, or change its attributes class.
    ChangeClaim {
        claim: String,
        size: Quantity,
        attributes_class: Option<String>,
    },
    /// Label a pod with the role of its brain; `None` if unknown.
    Label {
        pod: String,
        uid: String,
        role: Option<&'static str>,
    },
    /// Give the containers of a running pod the resources of the template, in place.
    Resize {
        pod: String,
        uid: String,
        patch: Value,
        /// The pod template to reach.
        template: Value,
        /// Amounts that former templates set.
        former: resources::ResourceNames,
        /// The brain must be restarted for its memory.
        restarts: bool,
        hash: String,
    },
    /// Ask the leader at `address` to hand over to the member `target`.
    HandOver {
        from: String,
        address: String,
        to: String,
        target: u64,
    },
    /// Delete a pod, so that it is recreated from the present template.
    Replace {
        pod: String,
        uid: String,
        version: String,
        why: String,
    },
}

/// An object that another manager keeps changing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContestedObject {
    /// The first field that differs.
    pub field: String,
    /// Time for which it is not applied.
    pub held: Duration,
}

/// The steps of one pass, and what the status needs to know about their reasons.
#[derive(Default)]
pub struct Plan {
    pub steps: Vec<PlanStep>,
    /// Foreign objects under the names of ours.
    pub foreign: Vec<ObjectKey>,
    /// Objects of a deleted cluster of the same name, which will be deleted soon.
    pub former: Vec<ObjectKey>,
    pub certificates: CertificatesStatus,
    pub rollout: Rollout,
    /// The leader.
    pub lead: LeaderState,
    pub claims: claims::ClaimsStatus,
    /// The restore of the first data, until the status says that it is complete. No StatefulSet is created before.
    pub bootstrap: Option<BootstrapProgress>,
    /// Objects that are not applied now, because another manager keeps changing them.
    pub contested: BTreeMap<ObjectKey, ContestedObject>,
    /// Reason why nothing that runs may be changed; only a user can fix it.
    pub blocker: Option<SpecRefusal>,
    /// The trial that a new template waits for, in words.
    pub trial: Option<String>,
    /// A trial ended without a result.
    pub lost_trial: bool,
    /// Event to publish about a template that cannot be tried, if this pass writes one.
    pub untried: Option<ClusterEvent>,
    /// Reason why a member keeps its present resources instead of those of the spec, in words.
    pub stays: Option<String>,
    /// Number of members that the StatefulSet has after this pass.
    pub replicas: Option<i32>,
    /// Fields of the StatefulSet that differ from the wanted ones and cannot be changed.
    pub fixed: Vec<&'static str>,
}

impl Plan {
    /// Returns true if something must be resolved before pods are created or replaced.
    pub fn is_blocked(&self) -> bool {
        !self.foreign.is_empty()
            || !self.former.is_empty()
            || self.certificates.problem.is_some()
            || self.blocker.is_some()
    }

    /// Returns the steps that are taken although nothing may change: the leader is still labelled, existing certificates are still renewed,
    /// volumes that must survive a deletion of the cluster are kept, and so is the number of members.
    pub fn safe_steps(&self) -> Vec<PlanStep> {
        let safe = self.steps.iter().filter(|step| match step {
            PlanStep::WriteAuthority { change, .. } => {
                matches!(
                    change,
                    AuthorityChange::Renew | AuthorityChange::Renewed { .. } | AuthorityChange::Keep
                )
            }
            PlanStep::Issue { uid, .. } => uid.is_some(),
            PlanStep::Apply { object, uid } => {
                uid.is_some() && matches!(object.key.kind, ObjectKind::Secret | ObjectKind::ConfigMap)
            }
            PlanStep::Label { .. } | PlanStep::RetainClaims { .. } | PlanStep::Scale { .. } => true,
            PlanStep::DiscardAuthority { .. }
            | PlanStep::CreateClaim { .. }
            | PlanStep::Bootstrap { .. }
            | PlanStep::EndBootstrap { .. }
            | PlanStep::CutOver { .. }
            | PlanStep::TakeBack { .. }
            | PlanStep::Delete { .. }
            | PlanStep::Try { .. }
            | PlanStep::EndTrial { .. }
            | PlanStep::ChangeClaim { .. }
            | PlanStep::Resize { .. }
            | PlanStep::HandOver { .. }
            | PlanStep::Replace { .. } => false,
        });
        safe.cloned().collect()
    }

    /// Returns true if a step changes running pods, and not only the metadata about them.
    pub fn changes_pods(&self) -> bool {
        self.steps.iter().any(|step| match step {
            PlanStep::Apply { object, .. } | PlanStep::TakeBack { object, .. } => {
                object.key.kind == ObjectKind::StatefulSet
            }
            PlanStep::Replace { .. }
            | PlanStep::HandOver { .. }
            | PlanStep::RetainClaims { .. }
            | PlanStep::Scale { .. } => true,
            _ => false,
        })
    }
}

/// Returns the objects that a cluster should have and that are missing in `observed`.
///
/// # Errors
/// An object fails to serialise.
pub fn missing(
    cluster: &KubeBrainCluster,
    desired: &Desired,
    observed: &Observed,
) -> Result<Vec<ObjectKey>, serde_json::Error> {
    let set = ObjectKey::new(ObjectKind::StatefulSet, &desired.names.cluster);
    let renderer = Renderer::beside(observed.objects.get(&set), cluster, desired)?;
    let mut keys = owned::keys(desired, observed, &renderer)?;
    // This also holds while the spec is refused: existing pods are still managed.
    if !is_external(cluster) && !keys.contains(&set) {
        keys.push(set);
    }
    keys.retain(|key| !observed.objects.contains_key(key));
    Ok(keys)
}

/// Plans one pass.
///
/// # Errors
/// An object fails to serialise.
pub fn plan(cluster: &KubeBrainCluster, desired: &Desired, observed: &Observed) -> Result<Plan, serde_json::Error> {
    let uid = cluster.uid().unwrap_or_default();
    let set = observed
        .objects
        .get(&ObjectKey::new(ObjectKind::StatefulSet, &desired.names.cluster));
    let renderer = Renderer::beside(set, cluster, desired)?;
    let mut plan = Plan {
        blocker: claims::terminating(desired, observed)
            .or_else(|| storage::changed(desired, observed))
            .or_else(|| store::replaced(cluster, desired, observed))
            .or_else(|| storage::unfit_authority(desired, observed))
            .or_else(|| storage::missing_keys(cluster, observed))
            .or_else(|| downgrade::refused(cluster, observed)),
        ..Plan::default()
    };
    let authority = ObjectKey::new(ObjectKind::Secret, desired.names.authority());
    for key in owned::keys(desired, observed, &renderer)? {
        match observed
            .objects
            .get(&key)
            .map(|live| ownership::of(&live.metadata, &cluster.name_any(), &uid))
        {
            Some(ownership::Ownership::Foreign) => plan.foreign.push(key),
            // A key that others may know is not taken over because of its label alone.
            Some(ownership::Ownership::Orphaned) if key == authority => plan.foreign.push(key),
            Some(ownership::Ownership::Former) => plan.former.push(key),
            Some(ownership::Ownership::Ours | ownership::Ownership::Orphaned) | None => {}
        }
    }
    certificates::plan(&mut plan, cluster, desired, observed, &renderer)?;
    if desired.refusal().is_none() {
        plan.bootstrap = bootstrap::assess(cluster, desired, observed);
        owned::plan(&mut plan, cluster, (desired, observed), &renderer)?;
        bootstrap::plan(&mut plan, cluster, (desired, observed), &renderer)?;
    }
    claims::plan(&mut plan, desired, observed);
    claims::retain(&mut plan, &uid, desired, observed);
    let strangers = store::strangers(desired, observed);
    plan.lead = leadership::lead(observed, &strangers);
    roles::plan(&mut plan, observed, &strangers);
    rollout::plan(&mut plan, cluster, desired, observed);
    replicas::hold(&mut plan, cluster, desired, observed);
    resize::plan(&mut plan, desired, observed)?;
    Ok(plan)
}
