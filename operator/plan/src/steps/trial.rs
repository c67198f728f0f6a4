//! A template that would replace the only member is tried first, in a pod of its own. Until the trial proves that it runs, the StatefulSet
//! keeps its present template, so a member that is lost with its node is recreated from that template.
//!
//! The member's readiness decides nothing. A template is applied untried only if nothing can be lost: no member ever ran, none is wanted,
//! or the present template is known not to run.

use crds::KubeBrainCluster;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use kube::ResourceExt;
use kube::core::DynamicObject;
use serde_json::Value;

use super::{Plan, PlanStep, resize};
use crate::event::ClusterEvent;
use crate::member::BrainRefusal;
use crate::names::{Names, RESOURCES_HASH, RESTART_HASH, SKIP_TRIAL};
use crate::objects::pod::BRAIN_CONTAINER;
use crate::objects::trial::TrialSize;
use crate::objects::{Object, Renderer};
use crate::observed::{Observed, is_ready};
use crate::spec::{Desired, SpecRefusal};
use crate::status::{UNSCHEDULABLE, pod_stuck, sandbox_awaited_since};

/// Reason for refusing a template that does not run.
pub(super) const TRIAL_FAILED: &str = "TrialFailed";
/// Seconds after which a trial without a result is repeated.
const TRIAL_RETRY_SECONDS: i64 = 20;
/// Number of trials in a row without a result after which the template counts as one that does not run.
const MAX_LOST_TRIALS: i32 = 3;
/// Beginning of the error message of a brain that does not know `--check` yet.
const NO_CHECK_MESSAGE: &str = "unknown flag --check";

/// The kubelet's reasons for the end of a container that never ran.
const NEVER_RAN: [&str; 3] = ["StartError", "ContainerCannotRun", "ContainerStatusUnknown"];

/// The outcome of a trial.
enum TrialOutcome {
    Passed,
    /// The image does not support trials.
    Untestable,
    /// The trial has no result yet.
    Open,
    /// The trial was ended from outside, for instance by the node, for this reason; it proves nothing.
    Lost(String),
    /// The template does not run, for this reason.
    Failed(String),
}

/// Tries the template of `set` if it would replace the only member. Returns true if the StatefulSet must keep its present template.
pub(super) fn holds_back(
    plan: &mut Plan,
    cluster: &KubeBrainCluster,
    (desired, observed): (&Desired, &Observed),
    renderer: &Renderer<'_>,
    (set, live): (&Object, &DynamicObject),
) -> bool {
    let wanted = TemplateHashes::of_set(&set.body);
    let trial = observed
        .trial
        .as_ref()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let end = |plan: &mut Plan| {
        let uid = trial.and_then(ResourceExt::uid);
        plan.steps.extend(uid.map(|uid| PlanStep::EndTrial {
            pod: desired.names.trial(),
            uid,
        }));
    };
    let is_skipped = cluster
        .annotations()
        .get(SKIP_TRIAL)
        .is_some_and(|value| value == "true");
    let live_hashes = TemplateHashes::of_set(&live.data);
    if is_skipped || wanted.restart.is_none() || !wanted.differs(&live_hashes) || desired.replicas != 1 {
        end(plan);
        return false;
    }
    let begun = trial.filter(|pod| !wanted.differs(&TemplateHashes::of_pod(pod)));
    // A trial that has begun decides, whatever happens to the member until then.
    if begun.is_none() && !may_lose_member(cluster, desired, observed, live, &wanted) {
        end(plan);
        return false;
    }
    let name = desired.names.trial();
    let member = desired.names.pod(0);
    let waiting = match (&observed.trial, begun) {
        (None, _) => {
            let (template, present) = (&set.body["spec"]["template"], &live.data["spec"]["template"]);
            let trial = |size| renderer.trial(template, present, size);
            // The member does not have the resources of the live template either: some node must have room for all of them.
            let lacks = |pod: &Pod| pod.name_any() == member && resize::is_infeasible(pod);
            let first = match observed.pods.iter().any(lacks) {
                true => TrialSize::Whole,
                false => TrialSize::Small,
            };
            plan.steps.push(PlanStep::Try {
                pod: trial(first),
                whole: trial(TrialSize::Whole),
            });
            format!("{name} tries the new template before it replaces {member}")
        }
        (Some(_), None) => {
            end(plan);
            format!("{name} of another template must end first")
        }
        (Some(_), Some(pod)) => match outcome(pod, observed) {
            TrialOutcome::Passed => return false,
            TrialOutcome::Untestable => {
                let note = format!(
                    "the brain of the new template does not support --check, so {member} is replaced without a trial"
                );
                plan.untried = Some(ClusterEvent::warning("TrialSkipped", "Try", note));
                return false;
            }
            TrialOutcome::Open => format!("{name} tries the new template before it replaces {member}"),
            TrialOutcome::Lost(why) if losses(cluster) < MAX_LOST_TRIALS => {
                let created = pod.metadata.creation_timestamp.as_ref();
                let age = created.map(|created| observed.now.as_second() - created.0.as_second());
                if age.is_none_or(|age| age >= TRIAL_RETRY_SECONDS) {
                    end(plan);
                    plan.lost_trial = true;
                }
                format!("another client ended {name}; it will be created again: {why}")
            }
            TrialOutcome::Lost(why) | TrialOutcome::Failed(why) => {
                plan.blocker = Some(failed(&desired.names, &why));
                format!("{name} does not run the new template")
            }
        },
    };
    plan.trial = Some(waiting);
    true
}

/// Returns the refusal of a template whose trial did not run, with the reason.
pub fn failed(names: &Names, why: &str) -> SpecRefusal {
    let (name, member) = (names.trial(), names.pod(0));
    SpecRefusal {
        reason: TRIAL_FAILED,
        message: format!(
            "the new template does not run, so {member} keeps its present one: {why}; change the spec, delete the pod {name} to try again, or skip the trial with the annotation {SKIP_TRIAL}=true"
        ),
    }
}

/// The hashes over the parts of a template that need a restart, and over its CPU and memory. A change of CPU and memory alone is made in a
/// running pod in place, if possible; but it takes the only member away if the pod cannot run with them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TemplateHashes {
    restart: Option<String>,
    /// `None` for a template of an epoch without this hash.
    resources: Option<String>,
}

impl TemplateHashes {
    /// Returns the hashes of the template of a StatefulSet.
    fn of_set(set: &Value) -> Self {
        let annotations = &set["spec"]["template"]["metadata"]["annotations"];
        let hash = |key| annotations[key].as_str().map(str::to_owned);
        Self {
            restart: hash(RESTART_HASH),
            resources: hash(RESOURCES_HASH),
        }
    }

    fn of_pod(pod: &Pod) -> Self {
        let hash = |key| pod.annotations().get(key).cloned();
        Self {
            restart: hash(RESTART_HASH),
            resources: hash(RESOURCES_HASH),
        }
    }

    fn differs(&self, other: &Self) -> bool {
        let resources = self.resources.as_ref().zip(other.resources.as_ref());
        self.restart != other.restart || resources.is_some_and(|(own, other)| own != other)
    }
}

/// Returns the number of trials in a row without a result.
fn losses(cluster: &KubeBrainCluster) -> i32 {
    let rollout = cluster.status.as_ref().and_then(|status| status.rollout.as_ref());
    let same = rollout.filter(|rollout| rollout.generation == cluster.metadata.generation);
    same.and_then(|rollout| rollout.trial_losses).unwrap_or_default()
}

/// Returns true unless a template is known not to take the only member away: there never was a member, the operator last set the number of
/// members to zero, the member already has the template with the hashes `wanted`, or the live template does not run.
fn may_lose_member(
    cluster: &KubeBrainCluster,
    desired: &Desired,
    observed: &Observed,
    live: &DynamicObject,
    wanted: &TemplateHashes,
) -> bool {
    let status = cluster.status.as_ref();
    let member = desired.names.pod(0);
    // A member that serves may be from before this resource was recreated.
    let serves = |pod: &Pod| pod.name_any() == member && is_ready(pod);
    let ever_ran = status.is_some_and(|status| status.version.is_some() || status.current_revision.is_some())
        || observed.pods.iter().any(serves);
    // The live number is not used first, because another client may have set it.
    let told = status.and_then(|status| status.pinned_replicas).map(i64::from);
    let told = told.or_else(|| live.data["spec"]["replicas"].as_i64());
    if !ever_ran || told == Some(0) {
        return false;
    }
    let Some(pod) = observed.pods.iter().find(|pod| pod.name_any() == member) else {
        // The API server refuses every pod of the live template.
        return observed.refused_pods.is_none();
    };
    let own = TemplateHashes::of_pod(pod);
    let is_of_live = own.restart == TemplateHashes::of_set(&live.data).restart;
    own.differs(wanted) && !(is_of_live && does_not_run(pod, observed))
}

/// Returns true if a pod is known not to run: a container cannot start, or ends again and again. A missing node is not the template's
/// fault, and a missing volume may still appear.
pub(super) fn does_not_run(pod: &Pod, observed: &Observed) -> bool {
    let stuck = pod_stuck(pod, observed.now.as_second());
    let waits = sandbox_awaited_since(pod).is_some();
    !is_ready(pod) && !waits && stuck.is_some_and(|stuck| stuck.reason != UNSCHEDULABLE)
}

/// Returns the outcome of the trial in this pod, from its brain and the init containers before it. Other containers must only start: it
/// does not matter how they end after the brain has ended.
fn outcome(pod: &Pod, observed: &Observed) -> TrialOutcome {
    let status = pod.status.clone().unwrap_or_default();
    let sidecars = sidecars(pod);
    let inits = status.init_container_statuses.iter().flatten();
    let deciding: Vec<&ContainerStatus> = inits
        .filter(|init| !sidecars.contains(&init.name))
        .chain(brain(&status))
        .collect();
    for container in deciding {
        let Some(end) = ended(container).filter(|end| end.exit_code != 0) else {
            continue;
        };
        // The kubelet ends the other containers when it removes the pod.
        if status.reason.is_some() {
            return TrialOutcome::Lost(taken(&status));
        }
        let reported = BrainRefusal::of_container(end).map(|refusal| refusal.message);
        let why = reported.or(end.message.clone()).unwrap_or_default();
        if container.name == BRAIN_CONTAINER && why.starts_with(NO_CHECK_MESSAGE) {
            return TrialOutcome::Untestable;
        }
        let why = match (why.is_empty(), &end.reason) {
            (true, Some(reason)) => reason.clone(),
            _ => why,
        };
        return TrialOutcome::Failed(format!(
            "{} ends with exit code {}: {why}",
            container.name, end.exit_code
        ));
    }
    let all = status.init_container_statuses.iter().chain(&status.container_statuses);
    for container in all.flatten() {
        let end = ended(container).filter(|_| status.reason.is_none());
        if let Some(end) = end.filter(|end| {
            end.reason
                .as_deref()
                .is_some_and(|reason| NEVER_RAN[..2].contains(&reason))
        }) {
            let why = end.message.clone().unwrap_or_default();
            return TrialOutcome::Failed(format!("{} does not start: {why}", container.name));
        }
    }
    if let Some(stuck) = pod_stuck(&without_started(pod, &sidecars), observed.now.as_second()) {
        return TrialOutcome::Failed(stuck.message);
    }
    let is_done = brain(&status).and_then(ended).is_some();
    let has_begun = |container: &ContainerStatus| has_started(container) || container.name == BRAIN_CONTAINER;
    let others = status.container_statuses.iter().flatten();
    match status.phase.as_deref() {
        _ if is_done && others.into_iter().all(has_begun) => TrialOutcome::Passed,
        Some("Failed" | "Succeeded") => TrialOutcome::Lost(taken(&status)),
        _ => TrialOutcome::Open,
    }
}

fn brain(status: &PodStatus) -> Option<&ContainerStatus> {
    let mut containers = status.container_statuses.iter().flatten();
    containers.find(|container| container.name == BRAIN_CONTAINER)
}

fn ended(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    container.state.as_ref()?.terminated.as_ref()
}

/// Returns the names of the init containers that keep running beside the others.
fn sidecars(pod: &Pod) -> Vec<String> {
    let inits = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let sidecars = inits.filter(|init| init.restart_policy.as_deref() == Some("Always"));
    sidecars.map(|sidecar| sidecar.name.clone()).collect()
}

/// Returns true if a container runs or has run.
fn has_started(container: &ContainerStatus) -> bool {
    let ran = |end: &ContainerStateTerminated| !end.reason.as_deref().is_some_and(|why| NEVER_RAN.contains(&why));
    let runs = |state: &ContainerState| state.running.is_some() || state.terminated.as_ref().is_some_and(ran);
    container.state.as_ref().is_some_and(runs) || container.last_state.as_ref().is_some_and(runs)
}

/// Returns the pod without the states of the other containers that have started: how they end does not count.
fn without_started(pod: &Pod, sidecars: &[String]) -> Pod {
    let mut pod = pod.clone();
    if let Some(status) = &mut pod.status {
        if let Some(containers) = &mut status.container_statuses {
            containers.retain(|container| container.name == BRAIN_CONTAINER || !has_started(container));
        }
        if let Some(inits) = &mut status.init_container_statuses {
            inits.retain(|init| !sidecars.contains(&init.name) || !has_started(init));
        }
    }
    pod
}

/// Returns the reason why a pod was removed, in the kubelet's words.
fn taken(status: &PodStatus) -> String {
    let words = [status.reason.as_deref(), status.message.as_deref()];
    let words: Vec<&str> = words.into_iter().flatten().collect();
    if words.is_empty() {
        "the kubelet gives no reason".to_owned()
    } else {
        words.join(": ").chars().take(512).collect()
    }
}
