//! Claims: bound or not, and growing when the spec asks for more.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;

use super::{Plan, Step};
use crate::observe::Observed;
use crate::quantity;
use crate::spec::Desired;

/// The status of the volumes.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Claims {
    /// Number of claims.
    pub(crate) count: usize,
    /// Claims without a volume.
    pub(crate) pending: Vec<String>,
    /// Claims whose volume is gone.
    pub(crate) lost: Vec<String>,
    /// The smallest capacity among the volumes.
    pub(crate) capacity: Option<Quantity>,
    /// Claims whose volume has not the wanted size yet.
    pub(crate) growing: Vec<String>,
    /// Those among them that the storage cannot let grow, and why.
    pub(crate) infeasible: BTreeMap<String, String>,
}

pub(super) fn plan(plan: &mut Plan, desired: &Desired, observed: &Observed) {
    let Some(wanted) = desired.storage.embedded() else {
        return;
    };
    for claim in observed
        .claims
        .iter()
        .filter(|claim| claim.metadata.deletion_timestamp.is_none())
    {
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
        let requested = requested(claim);
        let larger = |than: Option<i128>| quantity::parse(&wanted.size) > than;
        let class = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.volume_attributes_class_name.clone());
        let reclassed = wanted.volume_attributes_class_name.is_some() && wanted.volume_attributes_class_name != class;
        // A growth that did not happen may be taken back, but not below what the volume has.
        let taken_back = requested > quantity::parse(&wanted.size) && larger(capacity(claim));
        if larger(requested) || taken_back || reclassed {
            let size = if larger(requested) || taken_back {
                wanted.size.clone()
            } else {
                request(claim).unwrap_or(wanted.size.clone())
            };
            let attributes_class = wanted.volume_attributes_class_name.clone().filter(|_| reclassed);
            plan.steps.push(Step::ChangeClaim {
                claim: name.clone(),
                size,
                attributes_class,
            });
        }
        if larger(requested) || larger(capacity(claim)) {
            if let Some(why) = infeasible(claim).filter(|_| requested == quantity::parse(&wanted.size)) {
                plan.claims.infeasible.insert(name.clone(), why);
            }
            plan.claims.growing.push(name);
        }
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

/// A volume without a stated capacity counts as one of the requested size.
fn capacity(claim: &PersistentVolumeClaim) -> Option<i128> {
    let capacity = claim
        .status
        .as_ref()
        .and_then(|status| status.capacity.as_ref()?.get("storage"));
    capacity.map_or_else(|| requested(claim), quantity::parse)
}

/// The message of the controller or the kubelet about a growth that it cannot carry out.
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
