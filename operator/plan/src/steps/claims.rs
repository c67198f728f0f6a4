//! Claims: bound or not, growing if the spec asks for more, and kept after the deletion of the cluster if the spec says so.

use std::collections::BTreeMap;

use crds::cluster::storage::Retention;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;

use super::{Plan, PlanStep};
use crate::objects::{ObjectKey, ObjectKind};
use crate::observed::Observed;
use crate::ownership::{self, Ownership};
use crate::quantity;
use crate::space::growth::{self, ClaimSizes};
use crate::spec::{Desired, SpecRefusal};

/// Reason for refusing changes while a claim is being deleted.
pub const VOLUME_TERMINATING: &str = "VolumeTerminating";

/// The status of the volumes.
#[derive(Debug, Default, PartialEq)]
pub struct ClaimsStatus {
    /// Number of claims.
    pub count: usize,
    /// Claims without a volume.
    pub pending: Vec<String>,
    /// Claims whose volume is lost.
    pub lost: Vec<String>,
    /// The smallest capacity among the volumes.
    pub capacity: Option<Quantity>,
    /// Reason why a volume does not grow by itself, although the spec asks for it.
    pub auto_grow_ignored: Option<String>,
    /// Claims whose volume does not have the wanted size yet.
    pub growing: Vec<String>,
    /// Growing claims that the storage cannot expand, with the reason.
    pub infeasible: BTreeMap<String, String>,
}

/// Refuses changes while a claim is being deleted whose pod still exists: Kubernetes keeps the claim, and the data in its volume, only as
/// long as that pod exists.
pub fn terminating(desired: &Desired, observed: &Observed) -> Option<SpecRefusal> {
    desired.storage.embedded()?;
    let (claim, pod) = held_by_pods(observed).next()?;
    let message = format!(
        "the volume claim {claim} is being deleted, and its data is lost when the pod {pod} ends: copy the data out first, for example with etcdctl snapshot save, then delete that pod; the operator changes nothing until then"
    );
    Some(SpecRefusal {
        reason: VOLUME_TERMINATING,
        message,
    })
}

/// Returns claims that are being deleted while their pods still exist, with these pods.
fn held_by_pods(observed: &Observed) -> impl Iterator<Item = (String, String)> {
    let terminating = observed.claims.iter().filter(|claim| is_terminating(claim));
    terminating.filter_map(|claim| {
        let name = claim.name_any();
        let pod = name.strip_prefix("data-")?.to_owned();
        let exists = observed.pods.iter().any(|each| each.name_any() == pod);
        exists.then_some((name, pod))
    })
}

pub fn is_terminating(claim: &PersistentVolumeClaim) -> bool {
    claim.metadata.deletion_timestamp.is_some()
}

pub fn plan(plan: &mut Plan, desired: &Desired, observed: &Observed) {
    let Some(wanted) = desired.storage.embedded() else {
        return;
    };
    for claim in observed.claims.iter().filter(|claim| !is_terminating(claim)) {
        let name = claim.name_any();
        plan.claims.count += 1;
        match claim.status.as_ref().and_then(|status| status.phase.as_deref()) {
            Some("Bound") => {}
            Some("Lost") => plan.claims.lost.push(name.clone()),
            _ => {
                plan.claims.pending.push(name);
                continue;
            }
        }
        let held = claim
            .status
            .as_ref()
            .and_then(|status| status.capacity.as_ref()?.get("storage"));
        let smaller = |than: &Quantity| held.and_then(quantity::parse) < quantity::parse(than);
        if held.is_some() && plan.claims.capacity.as_ref().is_none_or(smaller) {
            plan.claims.capacity = held.cloned();
        }
        let member = name.strip_prefix("data-").and_then(|pod| observed.probes.get(pod));
        let member = member.and_then(|answer| answer.as_ref().ok());
        let request = request(claim);
        let sizes = ClaimSizes {
            requested: request.as_ref(),
            capacity: held,
        };
        let size = growth::wanted(wanted, sizes, member);
        if plan.claims.auto_grow_ignored.is_none() {
            plan.claims.auto_grow_ignored = growth::ignored(wanted, held, member);
        }
        let requested = requested(claim);
        let larger = |than: Option<i128>| quantity::parse(&size) > than;
        let class = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.volume_attributes_class_name.clone());
        let reclassed = wanted.volume_attributes_class_name.is_some() && wanted.volume_attributes_class_name != class;
        // An expansion that did not happen may be reverted, but not below the capacity of the volume.
        let taken_back = requested > quantity::parse(&size) && larger(capacity(claim));
        if larger(requested) || taken_back || reclassed {
            let size = match request {
                Some(request) if !larger(requested) && !taken_back => request,
                _ => size.clone(),
            };
            let attributes_class = wanted.volume_attributes_class_name.clone().filter(|_| reclassed);
            plan.steps.push(PlanStep::ChangeClaim {
                claim: name.clone(),
                size,
                attributes_class,
            });
        }
        if larger(requested) || larger(capacity(claim)) {
            if let Some(why) = infeasible(claim).filter(|_| requested == quantity::parse(&size)) {
                plan.claims.infeasible.insert(name.clone(), why);
            }
            plan.claims.growing.push(name);
        }
    }
}

/// Plans to keep the claims of a deleted cluster, if the spec wants that and the live StatefulSet does not. It is a step of its own that
/// nothing holds back, because until then a deletion would delete the data. The rest of the StatefulSet follows in a later pass.
pub fn retain(plan: &mut Plan, uid: &str, desired: &Desired, observed: &Observed) {
    let key = ObjectKey::new(ObjectKind::StatefulSet, &desired.names.cluster);
    let wanted = desired.storage.embedded();
    let Some(live) = observed
        .objects
        .get(&key)
        .filter(|_| wanted.is_some_and(|wanted| wanted.when_deleted == Retention::Retain))
    else {
        return;
    };
    let is_ours = ownership::of(&live.metadata, &desired.names.cluster, uid) == Ownership::Ours;
    let policy = &live.data["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"];
    if let (true, true, Some(live_uid)) = (is_ours, policy == "Delete", live.metadata.uid.clone()) {
        plan.steps
            .retain(|step| !matches!(step, PlanStep::Apply { object, .. } if object.key == key));
        let step = PlanStep::RetainClaims {
            set: key.name,
            uid: live_uid,
        };
        plan.steps.insert(0, step);
    }
}

fn request(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    claim
        .spec
        .as_ref()?
        .resources
        .as_ref()?
        .requests
        .as_ref()?
        .get("storage")
        .cloned()
}

fn requested(claim: &PersistentVolumeClaim) -> Option<i128> {
    quantity::parse(&request(claim)?)
}

/// Returns the capacity of a volume. Without a stated capacity, it counts as one of the requested size.
fn capacity(claim: &PersistentVolumeClaim) -> Option<i128> {
    let capacity = claim
        .status
        .as_ref()
        .and_then(|status| status.capacity.as_ref()?.get("storage"));
    capacity.map_or_else(|| requested(claim), quantity::parse)
}

/// Returns the message of the controller or the kubelet about an expansion that it cannot carry out.
fn infeasible(claim: &PersistentVolumeClaim) -> Option<String> {
    const STATES: [&str; 2] = ["ControllerResizeInfeasible", "NodeResizeInfeasible"];
    const CONDITIONS: [&str; 2] = ["ControllerResizeError", "NodeResizeError"];
    let status = claim.status.as_ref()?;
    let state = status
        .allocated_resource_statuses
        .as_ref()
        .and_then(|all| all.get("storage"));
    let mut conditions = status.conditions.iter().flatten();
    let error = conditions.find(|condition| condition.status == "True" && CONDITIONS.contains(&&*condition.type_));
    let told = error.and_then(|error| error.message.clone());
    let state = state.filter(|state| STATES.contains(&state.as_str()))?;
    Some(
        told.unwrap_or_else(|| format!("its state is {state}"))
            .chars()
            .take(512)
            .collect(),
    )
}
