//! A template that would replace the only member is tried first, in a pod of its own; until it has proved that it runs, the
//! StatefulSet keeps the one that it has, and so does a member that a node loses meanwhile.

use crds::KubeBrainCluster;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::Value;

use super::{Plan, Step};
use crate::names::{RESTART_HASH, SKIP_TRIAL};
use crate::objects::pod::CONTAINER;
use crate::objects::{Object, Renderer};
use crate::observe::{Observed, is_ready};
use crate::probe::Refusal as BrainRefusal;
use crate::spec::{Desired, Refusal};
use crate::status::pod_stuck;

/// Reason of the refusal of a template that does not run.
pub(crate) const TRIAL_FAILED: &str = "TrialFailed";

/// The outcome of a trial.
enum Outcome {
    Passed,
    /// Nothing is known yet.
    Open,
    /// The node or somebody else ended it: that proves nothing.
    Lost,
    /// It does not run, and why.
    Failed(String),
}

/// Tries the template of `set` if it would replace the only member. Returns true if the StatefulSet must keep the one that it has.
pub(super) fn holds_back(
    plan: &mut Plan,
    cluster: &KubeBrainCluster,
    (desired, observed): (&Desired, &Observed),
    renderer: &Renderer<'_>,
    (set, live): (&Object, &DynamicObject),
) -> bool {
    let hash = |set: &Value| {
        let hash = set.pointer("/spec/template/metadata/annotations")?.get(RESTART_HASH)?;
        hash.as_str().map(str::to_owned)
    };
    let wanted = hash(&set.body);
    let trial = observed
        .trial
        .as_ref()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let end = |plan: &mut Plan| {
        let uid = trial.and_then(ResourceExt::uid);
        plan.steps.extend(uid.map(|uid| Step::EndTrial {
            pod: desired.names.trial(),
            uid,
        }));
    };
    let is_skipped = cluster
        .annotations()
        .get(SKIP_TRIAL)
        .is_some_and(|value| value == "true");
    if is_skipped
        || wanted.is_none()
        || wanted == hash(&live.data)
        || !is_only_member(desired, observed, live, wanted.as_ref())
    {
        end(plan);
        return false;
    }
    let is_of = |pod: &&Pod| pod.annotations().get(RESTART_HASH) == wanted.as_ref();
    let name = desired.names.trial();
    let member = desired.names.pod(0);
    let waiting = match (&observed.trial, trial.filter(is_of)) {
        (None, _) => {
            plan.steps.push(Step::Try {
                pod: renderer.trial(&set.body["spec"]["template"]),
            });
            format!("{name} tries the new template before it replaces {member}")
        }
        (Some(_), None) => {
            end(plan);
            format!("{name} of another template ends first")
        }
        (Some(_), Some(pod)) => match outcome(pod, observed) {
            Outcome::Passed => return false,
            Outcome::Open => format!("{name} tries the new template before it replaces {member}"),
            Outcome::Lost => {
                end(plan);
                format!("{name} was ended by somebody else and is made anew")
            }
            Outcome::Failed(why) => {
                plan.blocker = Some(Refusal {
                    reason: TRIAL_FAILED,
                    message: format!(
                        "the new template does not run, so {member} keeps the one that it has: {why}; change the spec, delete the pod {name} to try it again, or skip the trial by the annotation {SKIP_TRIAL}=true"
                    ),
                });
                format!("{name} does not run the new template")
            }
        },
    };
    plan.trial = Some(waiting);
    true
}

/// Returns true if one member serves, the cluster is to have one, and it is not of the template with the hash `wanted`.
fn is_only_member(desired: &Desired, observed: &Observed, live: &DynamicObject, wanted: Option<&String>) -> bool {
    let member = desired.names.pod(0);
    let serves = |pod: &Pod| {
        pod.name_any() == member
            && pod.metadata.deletion_timestamp.is_none()
            && is_ready(pod)
            && pod.annotations().get(RESTART_HASH) != wanted
    };
    desired.replicas == 1 && live.data["spec"]["replicas"] == 1 && observed.pods.iter().any(serves)
}

fn outcome(pod: &Pod, observed: &Observed) -> Outcome {
    let status = pod.status.clone().unwrap_or_default();
    let all: Vec<&ContainerStatus> = status
        .init_container_statuses
        .iter()
        .flatten()
        .chain(status.container_statuses.iter().flatten())
        .collect();
    let ended = |container: &ContainerStatus| container.state.as_ref().and_then(|state| state.terminated.clone());
    for container in &all {
        if let Some(end) = ended(container).filter(|end| end.exit_code != 0) {
            // The kubelet ends the others when the pod is taken away.
            if status.reason.is_some() {
                return Outcome::Lost;
            }
            let reported = BrainRefusal::of_container(&end).map(|refusal| refusal.message);
            let why = reported.or(end.message).unwrap_or_default();
            return Outcome::Failed(format!(
                "{} ends with exit code {}: {why}",
                container.name, end.exit_code
            ));
        }
    }
    if let Some(stuck) = pod_stuck(pod, observed.now.as_second()) {
        return Outcome::Failed(stuck.message);
    }
    let brain = all.iter().find(|container| container.name == CONTAINER);
    let is_done = brain.is_some_and(|brain| ended(brain).is_some());
    let waits = |container: &&ContainerStatus| container.state.as_ref().is_none_or(|state| state.waiting.is_some());
    match status.phase.as_deref() {
        _ if is_done && !all.iter().any(waits) => Outcome::Passed,
        Some("Failed" | "Succeeded") => Outcome::Lost,
        _ => Outcome::Open,
    }
}
