//! Which pod is replaced next, or what that waits for.

use std::time::Duration;

use crds::KubeBrainCluster;
use crds::cluster::status::HandOver;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::is_by_hand;
use crate::observe::{Observed, is_ready, ready_since};
use crate::plan::leadership::Lead;
use crate::spec::Desired;

/// The members, by how they stand to the newest template.
pub(super) struct Members<'a> {
    pub(super) cluster: &'a KubeBrainCluster,
    pub(super) desired: &'a Desired,
    pub(super) observed: &'a Observed,
    pub(super) lead: Lead,
    pub(super) updated: Vec<&'a Pod>,
    pub(super) outdated: Vec<&'a Pod>,
    pub(super) leaving: Vec<&'a Pod>,
}

/// What comes next.
pub(super) enum Choice<'a> {
    /// This pod is replaced.
    Replace {
        pod: &'a Pod,
        step: &'static str,
        why: String,
    },
    /// The leader is asked to hand over.
    HandOver { from: &'a Pod, to: &'a Pod, epoch: i64 },
    /// Nothing, for this reason.
    Wait(String),
}

impl<'a> Members<'a> {
    /// The hand-over of this leader in this epoch that the status remembers.
    pub(super) fn hand_over_under_way(&self, from: &Pod, epoch: i64) -> Option<&'a HandOver> {
        let known = self.cluster.status.as_ref()?.rollout.as_ref()?.hand_over.as_ref()?;
        (known.from == from.name_any() && known.epoch == epoch).then_some(known)
    }

    /// Whether this leader was asked to hand over and has not done so in time.
    pub(super) fn hand_over_is_overdue(&self, from: &Pod, epoch: i64) -> bool {
        let limit = self.cluster.spec.strategy().leader_transfer_timeout_seconds;
        let limit = Duration::from_secs(u64::try_from(limit).unwrap_or_default());
        let Some(known) = self.hand_over_under_way(from, epoch) else {
            return false;
        };
        let since = known.since.0;
        Duration::try_from(self.observed.now.duration_since(since)).is_ok_and(|taken| taken >= limit)
    }

    /// Who shall lead next: a ready follower that nobody is about to disrupt, the one that lags least behind.
    pub(super) fn successor(&self, candidates: impl Iterator<Item = &'a Pod>) -> Option<&'a Pod> {
        let able = candidates.filter(|pod| is_ready(pod) && !is_disrupted(pod));
        let answered = able.filter_map(|pod| match self.observed.probes.get(&pod.name_any()) {
            Some(Ok(answer)) if answer.ready && !answer.is_leader() => Some((answer.revision, pod)),
            _ => None,
        });
        // The lowest ordinal of those that are as far: it is replaced last next time.
        let best = answered.max_by_key(|(revision, pod)| (*revision, std::cmp::Reverse(ordinal(pod))));
        best.map(|(_, pod)| pod)
    }

    fn leads(&self, pod: &Pod) -> bool {
        self.lead.pod() == Some(pod.name_any().as_str())
    }
}

/// The next step of a roll-out. One thing at a time: whatever is in flight is waited for.
pub(super) fn choose<'a>(members: &Members<'a>) -> Choice<'a> {
    let strategy = members.cluster.spec.strategy();
    let names = |pods: &[&Pod]| pods.iter().map(|pod| pod.name_any()).collect::<Vec<_>>().join(", ");
    if is_by_hand(members.cluster) {
        let outdated = names(&members.outdated);
        return Choice::Wait(format!(
            "updateStrategy.type is OnDelete: waiting for {outdated} to be deleted"
        ));
    }
    if !members.leaving.is_empty() {
        return Choice::Wait("a pod is being deleted".to_owned());
    }
    let all = members.updated.iter().chain(&members.outdated);
    if let Some(pod) = all.copied().find(|pod| is_disrupted(pod)) {
        return Choice::Wait(format!("{} is being evicted", pod.name_any()));
    }
    // Replacing a pod that serves nobody costs nothing, and mends a roll-out that went wrong. What cannot even run comes first.
    let unready = || {
        members
            .outdated
            .iter()
            .copied()
            .filter(|pod| !is_ready(pod) && !members.leads(pod))
    };
    if let Some(pod) = unready().find(|pod| is_dead(pod)) {
        return Choice::Replace {
            pod,
            step: "ReplaceDead",
            why: "it is outdated and does not run".to_owned(),
        };
    }
    // One that runs may lead without being ready; as long as that is not known, it is left alone, unless nobody serves anyway.
    let mut all = members.updated.iter().chain(&members.outdated);
    let harmless = members.lead != Lead::Unknown || !all.any(|pod| is_ready(pod));
    if let Some(pod) = unready().next().filter(|_| harmless) {
        return Choice::Replace {
            pod,
            step: "ReplaceUnready",
            why: "it is outdated and not ready".to_owned(),
        };
    }
    let settled = members.observed.now.as_second() - i64::from(strategy.min_ready_seconds);
    let young = |pod: &&&Pod| ready_since(pod).is_none_or(|since| since > settled);
    if let Some(pod) = members.updated.iter().find(young) {
        return Choice::Wait(format!(
            "{} is not ready for {} s yet",
            pod.name_any(),
            strategy.min_ready_seconds
        ));
    }
    let ready = members
        .updated
        .iter()
        .chain(&members.outdated)
        .filter(|pod| is_ready(pod));
    let ready = i64::try_from(ready.count()).unwrap_or(i64::MAX);
    let (replicas, spare) = (i64::from(members.desired.replicas), i64::from(strategy.max_unavailable));
    if ready - 1 < replicas - spare {
        return Choice::Wait("too few members are ready".to_owned());
    }
    if members.desired.replicas > 1 && members.lead == Lead::Unknown {
        return Choice::Wait("it is not known who leads".to_owned());
    }
    if members.desired.replicas > 1 && members.lead == Lead::Nobody {
        return Choice::Wait("nobody leads".to_owned());
    }
    let mut answers = members.observed.probes.values().flatten().peekable();
    if answers.peek().is_some() && !answers.any(|answer| answer.storage.reachable) {
        return Choice::Wait("no member reaches its storage".to_owned());
    }
    let followers = members.outdated.iter().copied().filter(|pod| !members.leads(pod));
    if let Some(pod) = followers.max_by_key(|pod| ordinal(pod)) {
        return Choice::Replace {
            pod,
            step: "ReplaceFollower",
            why: "it is outdated".to_owned(),
        };
    }
    match members.outdated.first().copied() {
        Some(leader) => the_leader(members, leader),
        None => Choice::Wait("no pod is outdated".to_owned()),
    }
}

/// Only the leader is left: it hands over, and is a follower like the others then.
fn the_leader<'a>(members: &Members<'a>, leader: &'a Pod) -> Choice<'a> {
    let replace = |why: &str| Choice::Replace {
        pod: leader,
        step: "ReplaceLeader",
        why: why.to_owned(),
    };
    let Lead::Held { epoch, .. } = members.lead else {
        return replace("it is outdated");
    };
    let Some(to) = members.successor(members.updated.iter().copied()) else {
        if members.updated.is_empty() {
            return replace("it is outdated");
        }
        return Choice::Wait(format!("no member can lead instead of {}", leader.name_any()));
    };
    if members.hand_over_is_overdue(leader, epoch) {
        return replace("it is outdated and did not hand over in time");
    }
    Choice::HandOver {
        from: leader,
        to,
        epoch,
    }
}

/// Whether somebody is about to take the pod away: an eviction, a drain, a preemption.
fn is_disrupted(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "DisruptionTarget" && condition.status == "True")
}

/// Whether a container ended or cannot even start.
fn is_dead(pod: &Pod) -> bool {
    const STUCK: [&str; 5] = [
        "CrashLoopBackOff",
        "ImagePullBackOff",
        "ErrImagePull",
        "InvalidImageName",
        "CreateContainerConfigError",
    ];
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref());
    statuses.into_iter().flatten().any(|container| {
        let state = container.state.as_ref();
        let waiting = state.and_then(|state| state.waiting.as_ref()?.reason.as_deref());
        let ended = state.is_some_and(|state| state.terminated.is_some());
        ended || waiting.is_some_and(|reason| STUCK.contains(&reason))
    })
}

/// The number at the end of a pod's name.
pub(super) fn ordinal(pod: &Pod) -> u32 {
    let name = pod.name_any();
    name.rsplit_once('-')
        .and_then(|(_, number)| number.parse().ok())
        .unwrap_or_default()
}
