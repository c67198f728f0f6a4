//! Replaces outdated pods: first those that do not serve, then followers, as many at a time as may be unavailable, and the leader last and
//! alone, after it has handed over. One step per pass.
//!
//! `status.rollout` holds the state between passes, so a restarted operator continues where the former one stopped.

use crds::KubeBrainCluster;
use crds::cluster::status::HandOver;
use crds::cluster::update_strategy::UpdateStrategyType;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::Value;

use super::leadership::LeaderState;
use super::{Plan, PlanStep, resize, store, trial};
use crate::drift;
use crate::names::RESTART_HASH;
use crate::objects::{ObjectKey, ObjectKind};
use crate::observed::{Observed, is_ready};
use crate::spec::Desired;
use crate::spec::is_external;
use crate::status::whole_seconds;

mod choose;
mod transfer;

use choose::{ComparedMembers, RolloutChoice};
pub use transfer::LeaderTransfer;

/// Progress of a roll-out.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Rollout {
    /// True if the StatefulSet exists and its controller has seen its newest version.
    pub adopted: bool,
    /// Number of pods that exist and are not being deleted.
    pub pods: usize,
    /// Number of pods that are being deleted.
    pub terminating: usize,
    /// Number of pods that are ready.
    pub ready: usize,
    /// Number of pods of the newest template.
    pub updated: usize,
    /// Pods of an older template.
    pub outdated: Vec<String>,
    /// Revision of the newest template.
    pub revision: Option<String>,
    /// Reason why an outdated pod is not replaced yet.
    pub waiting: Option<String>,
    /// True if that is because no maintenance window is open.
    pub is_outside_window: bool,
    /// The present step, such as `ReplaceFollower`.
    pub step: Option<&'static str>,
    /// The hand-over in progress.
    pub hand_over: Option<HandOver>,
    /// The request for another leader that this pass handles.
    pub transfer: Option<LeaderTransfer>,
}

pub(super) fn plan(plan: &mut Plan, cluster: &KubeBrainCluster, desired: &Desired, observed: &Observed) {
    let key = ObjectKey::new(ObjectKind::StatefulSet, &desired.names.cluster);
    let live = observed
        .objects
        .get(&key)
        .filter(|_| !plan.foreign.contains(&key) && !plan.former.contains(&key));
    let set: Option<StatefulSet> = live.and_then(|live| live.clone().try_parse().ok());
    let (leaving, staying): (Vec<&Pod>, Vec<&Pod>) = observed
        .pods
        .iter()
        .partition(|pod| pod.metadata.deletion_timestamp.is_some());
    let mut rollout = Rollout {
        pods: staying.len(),
        terminating: leaving.len(),
        ready: staying.iter().filter(|pod| is_ready(pod)).count(),
        ..Rollout::default()
    };
    let Some(set) = set else {
        if is_external(cluster) {
            // The owner of the pods replaces them, so only the version that their members report can be compared.
            let is_expected = |pod: &&&Pod| match observed.probes.get(&pod.name_any()) {
                Some(Ok(answer)) => answer.version == cluster.spec.version,
                _ => false,
            };
            rollout.adopted = true;
            rollout.updated = staying.iter().filter(is_expected).count();
        }
        let external = rollout.adopted && desired.refusal().is_none() && !plan.is_blocked();
        plan.rollout = rollout;
        if external {
            let members = ComparedMembers {
                cluster,
                desired,
                observed,
                lead: plan.lead.clone(),
                updated: staying,
                outdated: Vec::new(),
                leaving,
            };
            transfer::plan(plan, &members);
        }
        return;
    };
    let status = set.status.clone().unwrap_or_default();
    let hash = set
        .spec
        .as_ref()
        .and_then(|spec| spec.template.metadata.as_ref()?.annotations.as_ref()?.get(RESTART_HASH));
    rollout.revision = status.update_revision.clone();
    let resources = live.and_then(|live| Some((resize::wanted(&live.data)?, &live.data)));
    let blocker = |pod: &Pod| {
        let resized = resources.and_then(|(wanted, set)| {
            let runs = !trial::does_not_run(pod, observed);
            resize::blocker(pod, wanted, set, (desired.replicas == 1, runs))
        });
        resized.or_else(|| store::waits_for_lost(pod, desired))
    };
    let (updated, outdated): (Vec<&Pod>, Vec<&Pod>) = staying.into_iter().partition(|pod| {
        is_updated(pod, hash.map(String::as_str), status.update_revision.as_deref()) && blocker(pod).is_none()
    });
    plan.stays = updated.iter().find_map(|pod| resize::waits(pod));
    rollout.updated = updated.len();
    rollout.outdated = outdated.iter().map(|pod| pod.name_any()).collect();
    plan.rollout = rollout;
    if desired.refusal().is_some() {
        return;
    }
    let members = ComparedMembers {
        cluster,
        desired,
        observed,
        lead: plan.lead.clone(),
        updated,
        outdated,
        leaving,
    };
    let held_back = hold_back_scaling(plan, &members, live.map(|live| &live.data));
    plan.rollout.adopted = status.observed_generation >= set.metadata.generation && !plan.changes_pods();
    if held_back || plan.is_blocked() || !plan.rollout.adopted {
        return note_window(plan, &members, held_back);
    }
    if members.outdated.is_empty() {
        transfer::plan(plan, &members);
        return;
    }
    let choice = match choose::choose(&members) {
        RolloutChoice::Replace { pod, step, why } => RolloutChoice::Replace {
            pod,
            step,
            why: blocker(pod).map_or(why, str::to_owned),
        },
        other => other,
    };
    let blocker = members
        .outdated
        .iter()
        .find_map(|pod| Some((pod.name_any(), blocker(pod)?)));
    act(plan, &members, choice);
    if let (Some((pod, why)), Some(waiting)) = (blocker, &mut plan.rollout.waiting) {
        *waiting = format!("{waiting}; {pod} must be replaced: {why}");
    }
}

/// Notes that outdated members wait for a window, in a pass that replaces none anyway.
fn note_window(plan: &mut Plan, members: &ComparedMembers<'_>, held_back: bool) {
    let closed = members.desired.windows.closed(members.observed.now);
    if let Some(why) = closed.filter(|_| !held_back && !members.outdated.is_empty()) {
        plan.rollout.waiting = Some(why);
        plan.rollout.is_outside_window = true;
    }
}

fn act(plan: &mut Plan, members: &ComparedMembers<'_>, choice: RolloutChoice<'_>) {
    match choice {
        RolloutChoice::Wait(why) => plan.rollout.waiting = Some(why),
        RolloutChoice::WaitForWindow(why) => {
            plan.rollout.is_outside_window = true;
            // That may take days, and a request for another leader does not wait for the roll-out so long.
            transfer::plan(plan, members);
            plan.rollout.waiting = Some(match plan.rollout.waiting.take() {
                Some(transfer) => format!("{why}; {transfer}"),
                None => why,
            });
        }
        RolloutChoice::Replace { pod, step, why } => {
            plan.rollout.step = Some(step);
            // A replacement is the only step for its pod: other writes to the pod in this pass would only interfere.
            let name = pod.name_any();
            plan.steps
                .retain(|step| !matches!(step, PlanStep::Label { pod, .. } if *pod == name));
            plan.steps.extend(replace(pod, why));
        }
        RolloutChoice::HandOver { from, to, epoch } => hand_over(plan, members, LeadershipMove { from, to, epoch }),
    }
}

/// A change of the leader.
struct LeadershipMove<'a> {
    from: &'a Pod,
    to: &'a Pod,
    /// Of `from` as the leader.
    epoch: i64,
}

/// Asks for another leader. The status records the time only if the leader was really asked: a pause holds the step back.
fn hand_over(plan: &mut Plan, members: &ComparedMembers<'_>, moved: LeadershipMove<'_>) {
    let LeadershipMove { from, to, epoch } = moved;
    let known = members.hand_over_under_way(from, epoch);
    let since = known.map_or(Time(whole_seconds(members.observed.now)), |known| known.since.clone());
    let asked = HandOver {
        from: from.name_any(),
        to: to.name_any(),
        epoch,
        since,
    };
    let address = |pod: &Pod| pod.status.as_ref().and_then(|status| status.pod_ip.clone());
    let target = match members.observed.probes.get(&asked.to) {
        Some(Ok(answer)) => Some(answer.member),
        _ => None,
    };
    if let (Some(address), Some(target)) = (address(from), target) {
        plan.steps.push(PlanStep::HandOver {
            from: asked.from.clone(),
            address,
            to: asked.to.clone(),
            target,
        });
    }
    plan.rollout.step = Some("HandOver");
    plan.rollout.waiting = Some(format!("transferring leadership to {} from {}", asked.to, asked.from));
    plan.rollout.hand_over = Some(asked);
}

/// A leader that scaling would remove hands over first: until then, or until the timeout, the StatefulSet keeps its size.
fn hold_back_scaling(plan: &mut Plan, members: &ComparedMembers<'_>, live: Option<&Value>) -> bool {
    let LeaderState::Held { pod: leader, epoch } = &members.lead else {
        return false;
    };
    let replicas = members.desired.replicas;
    let goes = |pod: &Pod| i64::from(choose::ordinal(pod)) >= i64::from(replicas);
    let Some(from) = members.all().find(|pod| pod.name_any() == *leader && goes(pod)) else {
        return false;
    };
    if replicas == 0 || members.hand_over_is_overdue(from, *epoch) {
        return false;
    }
    let Some(to) = members.successor(members.all().filter(|pod| !goes(pod))) else {
        return false;
    };
    let size = live.and_then(|live| live["spec"].get("replicas")).cloned();
    let Some(size) = size.filter(|size| size.as_i64() > Some(i64::from(replicas))) else {
        return false;
    };
    for step in &mut plan.steps {
        if let PlanStep::Apply { object, .. } = step
            && object.key.kind == ObjectKind::StatefulSet
        {
            object.body["spec"]["replicas"] = size.clone();
            object.stamp();
        }
    }
    // The rest of the change may be empty.
    plan.steps.retain(|step| match (step, live) {
        (PlanStep::Apply { object, .. }, Some(live)) if object.key.kind == ObjectKind::StatefulSet => {
            !drift::is_within(&object.body["spec"], &live["spec"]) && !members.observed.is_as_admitted(object)
        }
        _ => true,
    });
    hand_over(
        plan,
        members,
        LeadershipMove {
            from,
            to,
            epoch: *epoch,
        },
    );
    true
}

fn replace(pod: &Pod, why: String) -> Option<PlanStep> {
    Some(PlanStep::Replace {
        pod: pod.name_any(),
        uid: pod.uid()?,
        version: pod.resource_version()?,
        why,
    })
}

/// Returns true if a pod matches the newest template in everything that needs a restart. Pods from before the hash existed are compared by
/// revision.
fn is_updated(pod: &Pod, hash: Option<&str>, newest: Option<&str>) -> bool {
    match (pod.annotations().get(RESTART_HASH), hash) {
        (Some(own), Some(wanted)) => own == wanted,
        _ => revision(pod) == newest,
    }
}

/// Returns the revision of the template that a pod was created from.
pub fn revision(pod: &Pod) -> Option<&str> {
    pod.labels().get("controller-revision-hash").map(String::as_str)
}

/// Returns true if the spec leaves the replacement of pods to the user.
fn is_by_hand(cluster: &KubeBrainCluster) -> bool {
    cluster.spec.strategy().type_ == UpdateStrategyType::OnDelete
}
