//! Replacing outdated pods: what serves nobody first, then followers, the leader last, and one at a time.

use crds::KubeBrainCluster;
use crds::cluster::update_strategy::UpdateStrategyType;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::{Plan, Step};
use crate::objects::{Key, Kind};
use crate::observe::{Observed, is_ready, ready_since};
use crate::spec::Desired;

/// How far a roll-out has come.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Rollout {
    /// Whether the StatefulSet exists and its controller has seen its newest version.
    pub(crate) adopted: bool,
    /// Pods that exist and are not on their way out.
    pub(crate) pods: usize,
    /// Pods on their way out.
    pub(crate) terminating: usize,
    /// Pods that are ready.
    pub(crate) ready: usize,
    /// Pods of the newest template.
    pub(crate) updated: usize,
    /// Pods of an older template.
    pub(crate) outdated: Vec<String>,
    /// Revision of the newest template.
    pub(crate) revision: Option<String>,
    /// Why an outdated pod is not replaced yet.
    pub(crate) waiting: Option<String>,
}

pub(super) fn plan(plan: &mut Plan, cluster: &KubeBrainCluster, desired: &Desired, observed: &Observed) {
    let key = Key::new(Kind::StatefulSet, &desired.names.cluster);
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
        plan.rollout = rollout;
        return;
    };
    let status = set.status.unwrap_or_default();
    rollout.adopted = status.observed_generation >= set.metadata.generation && !plan.changes_pods();
    rollout.revision = status.update_revision.clone();
    let (updated, outdated): (Vec<&Pod>, Vec<&Pod>) = staying
        .into_iter()
        .partition(|pod| revision(pod) == status.update_revision.as_deref());
    rollout.updated = updated.len();
    rollout.outdated = outdated.iter().map(|pod| pod.name_any()).collect();
    if rollout.adopted && !outdated.is_empty() && !plan.is_blocked() {
        match choose(cluster, desired, observed, &rollout, &updated, &outdated) {
            Ok((pod, why)) => plan.steps.extend(replace(pod, why)),
            Err(waiting) => rollout.waiting = Some(waiting),
        }
    }
    plan.rollout = rollout;
}

/// The pod to replace now, and why; or why none.
fn choose<'a>(
    cluster: &KubeBrainCluster,
    desired: &Desired,
    observed: &Observed,
    rollout: &Rollout,
    updated: &[&Pod],
    outdated: &[&'a Pod],
) -> Result<(&'a Pod, &'static str), String> {
    let update = cluster.spec.strategy();
    if update.type_ == UpdateStrategyType::OnDelete {
        return Err(format!(
            "update.type is OnDelete: waiting for {} to be deleted",
            rollout.outdated.join(", ")
        ));
    }
    if rollout.terminating > 0 {
        return Err("a pod is being deleted".to_owned());
    }
    // Replacing a pod that serves nobody costs nothing, and mends a roll-out that went wrong.
    if let Some(pod) = outdated.iter().find(|pod| !is_ready(pod)) {
        return Ok((pod, "it is outdated and not ready"));
    }
    let settled = observed.now.as_second() - i64::from(update.min_ready_seconds);
    if let Some(pod) = updated
        .iter()
        .find(|pod| ready_since(pod).is_none_or(|since| since > settled))
    {
        return Err(format!(
            "{} is not ready for {} s yet",
            pod.name_any(),
            update.min_ready_seconds
        ));
    }
    let (replicas, spare) = (i64::from(desired.replicas), i64::from(update.max_unavailable));
    let ready = i64::try_from(rollout.ready).unwrap_or(i64::MAX);
    if ready - 1 < replicas - spare {
        return Err("too few members are ready".to_owned());
    }
    let leads = |pod: &&&Pod| matches!(observed.probes.get(&pod.name_any()), Some(Ok(answer)) if answer.is_leader());
    let followers = outdated.iter().filter(|pod| !leads(pod));
    let next = followers.max_by_key(|pod| ordinal(pod)).or(outdated.first());
    next.map(|pod| (*pod, "it is outdated"))
        .ok_or_else(|| "no pod is outdated".to_owned())
}

fn replace(pod: &Pod, why: &str) -> Option<Step> {
    let version = pod.resource_version()?;
    Some(Step::Replace {
        pod: pod.name_any(),
        uid: pod.uid()?,
        version,
        why: why.to_owned(),
    })
}

/// Revision of the template that a pod was made from.
pub(crate) fn revision(pod: &Pod) -> Option<&str> {
    pod.labels().get("controller-revision-hash").map(String::as_str)
}

fn ordinal(pod: &Pod) -> u32 {
    let name = pod.name_any();
    name.rsplit_once('-')
        .and_then(|(_, number)| number.parse().ok())
        .unwrap_or_default()
}
