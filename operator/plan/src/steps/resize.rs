//! Changes the resources of running pods: in place, one pod at a time, or by the roll-out where that is impossible.
//!
//! The pod itself records the resources that were applied to it, so amounts that admission or an autoscaler changed do not count as a
//! difference.

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use kube::ResourceExt;
use serde_json::Value;

use super::{Plan, PlanStep};
use crate::names::{MEMORY_RESIZED, RESIZE_REFUSED, RESOURCES_HASH};
use crate::objects::{BRAIN_CONTAINER, ObjectKey, ObjectKind, resources};
use crate::observed::Observed;
use crate::quantity;
use crate::spec::Desired;

/// Returns the hash of the resources that pods of this template must have; `None` for a template of an epoch without this hash.
pub(super) fn wanted(set: &Value) -> Option<&str> {
    set["spec"]["template"]["metadata"]["annotations"][RESOURCES_HASH].as_str()
}

/// Plans to resize the first pod that has other resources than the live template.
///
/// # Errors
/// A pod fails to serialise.
pub(super) fn plan(plan: &mut Plan, desired: &Desired, observed: &Observed) -> Result<(), serde_json::Error> {
    let disrupts = |step: &PlanStep| matches!(step, PlanStep::Replace { .. } | PlanStep::HandOver { .. });
    if !plan.rollout.adopted || plan.is_blocked() || plan.steps.iter().any(disrupts) {
        return Ok(());
    }
    let set = observed
        .objects
        .get(&ObjectKey::new(ObjectKind::StatefulSet, &desired.names.cluster));
    let Some((set, hash)) = set.and_then(|set| Some((set, wanted(&set.data)?))) else {
        return Ok(());
    };
    if observed
        .pods
        .iter()
        .any(|pod| reason(pod, "PodResizeInProgress").is_some())
    {
        return Ok(());
    }
    let differs = |pod: &&Pod| {
        pod.metadata.deletion_timestamp.is_none()
            && !plan.rollout.outdated.contains(&pod.name_any())
            && pod.annotations().get(RESOURCES_HASH).map(String::as_str) != Some(hash)
    };
    let template = &set.data["spec"]["template"];
    let former = resources::former(set);
    let step = observed.pods.iter().find(differs).map(|pod| {
        Ok::<_, serde_json::Error>(PlanStep::Resize {
            pod: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            patch: resources::patch(template, &serde_json::to_value(pod)?, &former),
            template: template.clone(),
            former: former.clone(),
            restarts: limit(&set.data).is_some_and(|limit| Some(limit) != present(pod))
                || (pod.annotations().contains_key(MEMORY_RESIZED) && given(pod) == memory(pod)),
            hash: hash.to_owned(),
        })
    });
    plan.steps.extend(step.transpose()?);
    Ok(())
}

/// Returns the reason why a pod cannot get the resources of this hash in place, if any; `set` is the StatefulSet.
///
/// A brain divides its memory at startup, so another limit replaces its pod. The only member first gets more memory in place: once its node
/// has given it, the next pod has room, too. A member that does not run (`runs`) loses nothing by a replacement, which may go to a node
/// with more room. If its node can never give the resources, there may be no other node that can: the member stays until a user deletes its
/// pod. A member that does not run only at the moment stays, too.
pub(super) fn blocker(pod: &Pod, wanted: &str, set: &Value, (is_only, runs): (bool, bool)) -> Option<&'static str> {
    const MEMORY: &str = "a brain divides its memory only at startup, and its memory limit changes";
    let has = |key| pod.annotations().get(key).map(String::as_str) == Some(wanted);
    let (limit, present) = (limit(set), present(pod));
    let grows_first = is_only && runs && present.is_some() && present < limit && !has(RESIZE_REFUSED);
    if !has(RESOURCES_HASH) && limit.is_some() && limit != present && !grows_first {
        return Some(MEMORY);
    }
    if has(MEMORY_RESIZED) {
        return (!runs || given(pod) == limit).then_some(MEMORY);
    }
    if has(RESIZE_REFUSED) {
        return Some("its resources cannot change in place");
    }
    let waits = pod.annotations().contains_key(MEMORY_RESIZED);
    let stays = waits || is_only;
    (is_infeasible(pod) && !stays).then_some("its node does not have the resources")
}

/// Returns true if the node of a pod can never give it the requested resources.
pub(super) fn is_infeasible(pod: &Pod) -> bool {
    reason(pod, "PodResizePending") == Some("Infeasible")
}

/// Returns what a member waits for whose node has not given it its resources, in words: for these resources, or for the memory with which
/// it will be restarted.
pub(super) fn waits(pod: &Pod) -> Option<String> {
    let name = pod.name_any();
    let waits = pod.annotations().contains_key(MEMORY_RESIZED);
    if let Some(state) = reason(pod, "PodResizePending").filter(|_| waits) {
        return Some(format!(
            "{name} keeps its memory because its node does not have more ({state}): free memory on the node, or delete the pod to move it"
        ));
    }
    if let Some(condition) = condition(pod, "PodResizePending").filter(|it| it.reason.as_deref() == Some("Infeasible"))
    {
        let why = condition.message.as_deref().unwrap_or("Infeasible");
        return Some(format!(
            "{name} keeps its resources because its node can never provide the new ones ({why}): change the spec, or delete the pod to move it to a larger node"
        ));
    }
    let is_given = given(pod) == memory(pod);
    (waits && !is_given).then(|| {
        let state = reason(pod, "PodResizeInProgress").filter(|state| !state.is_empty());
        let state = state.map_or_else(String::new, |state| format!(" ({state})"));
        format!("{name} restarts with its new memory limit once its node has provided it{state}")
    })
}

/// Returns the memory limit that the kubelet has given to the brain of a pod.
fn given(pod: &Pod) -> Option<i128> {
    let mut containers = pod
        .status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten());
    let brain = containers.find(|container| container.name == BRAIN_CONTAINER)?;
    quantity::parse(brain.resources.as_ref()?.limits.as_ref()?.get("memory")?)
}

/// Returns the memory limit with which the brain of a pod was started, ignoring one that its node has not given yet.
fn present(pod: &Pod) -> Option<i128> {
    let asked = pod.annotations().contains_key(MEMORY_RESIZED);
    given(pod).filter(|_| asked).or_else(|| memory(pod))
}

/// Returns the memory limit of the brain of a pod, in thousandths of a byte.
fn memory(pod: &Pod) -> Option<i128> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut brains = containers.filter(|container| container.name == BRAIN_CONTAINER);
    let limits = brains.next()?.resources.as_ref()?.limits.as_ref()?;
    quantity::parse(limits.get("memory")?)
}

/// Returns the memory limit of the brain's container in the template.
fn limit(set: &Value) -> Option<i128> {
    let containers = set["spec"]["template"]["spec"]["containers"].as_array()?;
    let brain = containers
        .iter()
        .find(|container| container["name"] == BRAIN_CONTAINER)?;
    quantity::of(&brain["resources"]["limits"]["memory"])
}

/// Returns a condition that is true.
fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == type_ && condition.status == "True")
}

/// Returns the reason of a condition that is true.
fn reason<'a>(pod: &'a Pod, type_: &str) -> Option<&'a str> {
    condition(pod, type_).map(|found| found.reason.as_deref().unwrap_or_default())
}
