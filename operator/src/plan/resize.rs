//! Other resources for pods that run: in place, one pod at a time, and by the roll-out where that cannot be.
//!
//! The pod itself records the resources that it was brought to, so that amounts which admission or an autoscaler changed are no difference.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::Value;

use super::{Plan, Step};
use crate::names::{RESIZE_REFUSED, RESOURCES_HASH};
use crate::objects::{Key, Kind, resources};
use crate::observe::Observed;
use crate::spec::Desired;

/// The hash of the resources that pods of this template shall have; none in a template of an epoch without.
pub(super) fn wanted(set: &Value) -> Option<&str> {
    set["spec"]["template"]["metadata"]["annotations"][RESOURCES_HASH].as_str()
}

/// Plans to resize the first pod that has other resources than the live template.
pub(super) fn plan(plan: &mut Plan, desired: &Desired, observed: &Observed) {
    let disrupts = |step: &Step| matches!(step, Step::Replace { .. } | Step::HandOver { .. });
    if !plan.rollout.adopted || plan.is_blocked() || plan.steps.iter().any(disrupts) {
        return;
    }
    let set = observed
        .objects
        .get(&Key::new(Kind::StatefulSet, &desired.names.cluster));
    let Some((set, hash)) = set.and_then(|set| Some((&set.data, wanted(&set.data)?))) else {
        return;
    };
    if observed
        .pods
        .iter()
        .any(|pod| reason(pod, "PodResizeInProgress").is_some())
    {
        return;
    }
    let differs = |pod: &&Pod| {
        pod.metadata.deletion_timestamp.is_none()
            && !plan.rollout.outdated.contains(&pod.name_any())
            && pod.annotations().get(RESOURCES_HASH).map(String::as_str) != Some(hash)
    };
    let step = observed.pods.iter().find(differs).and_then(|pod| {
        Some(Step::Resize {
            pod: pod.name_any(),
            uid: pod.uid()?,
            patch: resources::patch(&set["spec"]["template"]),
            hash: hash.to_owned(),
        })
    });
    plan.steps.extend(step);
}

/// Returns the reason that a pod cannot get the resources of this hash in place, if any.
pub(super) fn blocker(pod: &Pod, wanted: &str) -> Option<&'static str> {
    if pod.annotations().get(RESIZE_REFUSED).map(String::as_str) == Some(wanted) {
        return Some("its resources cannot change in place");
    }
    (reason(pod, "PodResizePending") == Some("Infeasible")).then_some("its node cannot give it the resources")
}

/// The reason of a condition that is true.
fn reason<'a>(pod: &'a Pod, type_: &str) -> Option<&'a str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let found = conditions
        .iter()
        .find(|condition| condition.type_ == type_ && condition.status == "True")?;
    Some(found.reason.as_deref().unwrap_or_default())
}
