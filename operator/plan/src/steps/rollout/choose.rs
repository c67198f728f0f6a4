//! Chooses the pod to replace next, or returns what the replacement waits for.

use std::time::Duration;

use crds::KubeBrainCluster;
use crds::cluster::status::HandOver;
use k8s_openapi::api::core::v1::{ContainerState, Pod};
use kube::ResourceExt;

use super::is_by_hand;
use crate::member::BrainRefusal;
use crate::observed::{Observed, is_ready, ready_since, unready_since};
use crate::spec::Desired;
use crate::steps::leadership::LeaderState;

/// Seconds after which a pod that is not ready is replaced outside of the maintenance windows.
const UNREADY_GRACE_SECONDS: i64 = 60;

/// The members, grouped by how they compare with the newest template.
pub(super) struct ComparedMembers<'a> {
    pub cluster: &'a KubeBrainCluster,
    pub desired: &'a Desired,
    pub observed: &'a Observed,
    pub lead: LeaderState,
    pub updated: Vec<&'a Pod>,
    pub outdated: Vec<&'a Pod>,
    pub leaving: Vec<&'a Pod>,
}

/// The next step.
pub(super) enum RolloutChoice<'a> {
    /// Replace this pod.
    Replace {
        pod: &'a Pod,
        step: &'static str,
        why: String,
    },
    /// Ask the leader to hand over.
    HandOver { from: &'a Pod, to: &'a Pod, epoch: i64 },
    /// Do nothing, for this reason.
    Wait(String),
    /// Do nothing before a maintenance window begins.
    WaitForWindow(String),
}

impl<'a> ComparedMembers<'a> {
    /// Returns the hand-over of this leader in this epoch that the status records.
    pub(super) fn hand_over_under_way(&self, from: &Pod, epoch: i64) -> Option<&'a HandOver> {
        let known = self.cluster.status.as_ref()?.rollout.as_ref()?.hand_over.as_ref()?;
        (known.from == from.name_any() && known.epoch == epoch).then_some(known)
    }

    /// Returns true if this leader was asked to hand over and has not done so in time.
    pub(super) fn hand_over_is_overdue(&self, from: &Pod, epoch: i64) -> bool {
        let limit = self.cluster.spec.strategy().leader_transfer_timeout();
        let Some(known) = self.hand_over_under_way(from, epoch) else {
            return false;
        };
        let since = known.since.0;
        Duration::try_from(self.observed.now.duration_since(since)).is_ok_and(|taken| taken >= limit)
    }

    /// Returns the next leader: the ready follower with the least lag that is not about to be disrupted.
    pub(super) fn successor(&self, candidates: impl Iterator<Item = &'a Pod>) -> Option<&'a Pod> {
        let able = candidates.filter(|pod| is_ready(pod) && !is_disrupted(pod));
        let answered = able.filter_map(|pod| match self.observed.probes.get(&pod.name_any()) {
            Some(Ok(answer)) if answer.ready && !answer.is_leader() => Some((answer.revision, pod)),
            _ => None,
        });
        // Choose the lowest ordinal of those with the same revision: it is replaced last next time.
        let best = answered.max_by_key(|(revision, pod)| (*revision, std::cmp::Reverse(ordinal(pod))));
        best.map(|(_, pod)| pod)
    }

    /// Returns all members that are not being deleted.
    pub(super) fn all(&self) -> impl Iterator<Item = &'a Pod> {
        self.updated.iter().chain(&self.outdated).copied()
    }

    fn leads(&self, pod: &Pod) -> bool {
        self.lead.pod() == Some(pod.name_any().as_str())
    }
}

/// Members that are unavailable, or count as unavailable.
struct UnavailableMembers<'a> {
    leaving: usize,
    evicted: Vec<&'a Pod>,
    /// Updated pods that have not been ready for long enough.
    young: Vec<&'a Pod>,
    min_ready: i32,
}

impl<'a> UnavailableMembers<'a> {
    fn of(members: &ComparedMembers<'a>) -> Self {
        let min_ready = members.cluster.spec.strategy().min_ready_seconds;
        let settled = members.observed.now.as_second() - i64::from(min_ready);
        let young = |pod: &&Pod| !is_disrupted(pod) && ready_since(pod).is_none_or(|since| since > settled);
        Self {
            leaving: members.leaving.len(),
            evicted: members.all().filter(|pod| is_disrupted(pod)).collect(),
            young: members.updated.iter().copied().filter(young).collect(),
            min_ready,
        }
    }

    /// Returns the number of members that are being deleted or evicted.
    fn going(&self) -> usize {
        self.leaving + self.evicted.len()
    }

    fn count(&self) -> usize {
        self.going() + self.young.len()
    }

    /// Returns the reason for waiting, in words.
    fn message(&self) -> String {
        match (self.leaving, self.evicted.first(), self.young.first()) {
            (0, Some(pod), _) => format!("{} is being evicted", pod.name_any()),
            (0, None, Some(pod)) => format!("{} is not ready for {} s yet", pod.name_any(), self.min_ready),
            _ => "a pod is being deleted".to_owned(),
        }
    }
}

/// Returns the next step of a roll-out: at most one pod, and only as many unavailable at a time as the spec allows.
pub(super) fn choose<'a>(members: &ComparedMembers<'a>) -> RolloutChoice<'a> {
    let strategy = members.cluster.spec.strategy();
    if is_by_hand(members.cluster) {
        let outdated: Vec<String> = members.outdated.iter().map(|pod| pod.name_any()).collect();
        let outdated = outdated.join(", ");
        return RolloutChoice::Wait(format!(
            "updateStrategy.type is OnDelete: waiting for {outdated} to be deleted"
        ));
    }
    let (away, spare) = (
        UnavailableMembers::of(members),
        usize::try_from(strategy.max_unavailable).unwrap_or(1),
    );
    let closed = members.desired.windows.closed(members.observed.now);
    if away.going() >= spare {
        return closed.map_or_else(|| RolloutChoice::Wait(away.message()), RolloutChoice::WaitForWindow);
    }
    if let Some(choice) = unready(members, spare, closed.is_some()) {
        return choice;
    }
    if let Some(why) = closed {
        return RolloutChoice::WaitForWindow(why);
    }
    if away.count() >= spare {
        return RolloutChoice::Wait(away.message());
    }
    let young = |pod: &Pod| away.young.iter().any(|young| young.name_any() == pod.name_any());
    let available = members
        .all()
        .filter(|pod| is_ready(pod) && !is_disrupted(pod) && !young(pod))
        .count();
    let replicas = usize::try_from(members.desired.replicas).unwrap_or_default();
    if available + spare < replicas + 1 {
        return RolloutChoice::Wait("too few members are ready".to_owned());
    }
    if members.desired.replicas > 1 && members.lead == LeaderState::Unknown {
        return RolloutChoice::Wait("the leader is unknown".to_owned());
    }
    if members.desired.replicas > 1 && members.lead == LeaderState::Nobody {
        return RolloutChoice::Wait("no member leads".to_owned());
    }
    if is_storage_away(members) {
        return RolloutChoice::Wait("no member reaches its storage".to_owned());
    }
    let followers = members.outdated.iter().copied();
    let followers = followers.filter(|pod| !members.leads(pod) && !is_disrupted(pod));
    if let Some(pod) = followers.max_by_key(|pod| ordinal(pod)) {
        return RolloutChoice::Replace {
            pod,
            step: "ReplaceFollower",
            why: "it is outdated".to_owned(),
        };
    }
    match members.outdated.first().copied() {
        Some(_) if away.count() > 0 => RolloutChoice::Wait(away.message()),
        Some(_) if available < replicas => RolloutChoice::Wait("too few members are ready".to_owned()),
        Some(leader) => the_leader(members, leader),
        None => RolloutChoice::Wait("no pod is outdated".to_owned()),
    }
}

/// Replaces a pod that does not serve, which costs nothing and repairs a failed roll-out. Pods that cannot even start come first, a leader
/// last. A pod that runs may recover by itself, so it waits while as many members of the newest template as may be unavailable are not
/// ready. Outside of the maintenance windows only a pod counts that will hardly recover by itself.
fn unready<'a>(members: &ComparedMembers<'a>, spare: usize, is_outside_window: bool) -> Option<RolloutChoice<'a>> {
    let unready = || {
        let outdated = members.outdated.iter().copied();
        let unready = outdated.filter(|pod| !is_ready(pod) && !is_disrupted(pod));
        unready.filter(|pod| !is_outside_window || has_failed(members, pod))
    };
    let mut followers = unready().filter(|pod| !members.leads(pod));
    let doubtful = is_doubtful(members, spare);
    // A container that ended may run again in a moment.
    let is_lost = if doubtful { cannot_start } else { is_dead };
    if let Some(pod) = followers.clone().find(|pod| is_lost(pod)) {
        return Some(RolloutChoice::Replace {
            pod,
            step: "ReplaceDead",
            why: "it is outdated and does not run".to_owned(),
        });
    }
    // A running member may lead without being ready. While the leader is unknown, such a member is kept, unless no member serves anyway.
    let harmless = members.lead != LeaderState::Unknown || !members.all().any(is_ready);
    if let Some(pod) = followers.next().filter(|_| harmless && !doubtful) {
        return Some(RolloutChoice::Replace {
            pod,
            step: "ReplaceUnready",
            why: "it is outdated and not ready".to_owned(),
        });
    }
    let leader = unready().find(|pod| members.leads(pod))?;
    let to = members.successor(members.updated.iter().copied());
    let to = to.or_else(|| members.successor(members.outdated.iter().copied()));
    let choice = match to {
        None if members.all().any(is_ready) => {
            RolloutChoice::Wait(format!("no member can lead instead of {}", leader.name_any()))
        }
        None => replace_leader(leader, "it is outdated and not ready"),
        Some(to) => hand_over_or_replace(members, leader, to),
    };
    match choice {
        RolloutChoice::Replace { .. } if doubtful && is_hopeless(members) => None,
        choice => Some(choice),
    }
}

/// Returns true if a pod does not run, or has not been ready for a while and not because of the storage. A readiness probe that fails once, a
/// container that is restarted, or a node that is cut off while its brain serves, is not enough.
fn has_failed(members: &ComparedMembers<'_>, pod: &Pod) -> bool {
    if cannot_start(pod) {
        return true;
    }
    if is_storage_away(members) || waits_for_storage(members, pod) {
        return false;
    }
    if states(pod).any(|state| waits_for(state, &["CrashLoopBackOff"])) {
        return true;
    }
    let answer = members.observed.probes.get(&pod.name_any());
    let serves = answer.is_some_and(|answer| answer.as_ref().is_ok_and(|answer| answer.ready));
    // A pod without a node has no such condition.
    let created = || Some(pod.creation_timestamp()?.0.as_second());
    let since = unready_since(pod).or_else(created);
    let grace = members.observed.now.as_second() - UNREADY_GRACE_SECONDS;
    !serves && since.is_some_and(|since| since <= grace)
}

/// Returns true if a brain has no other reason for not serving than its storage, which no other member reaches either.
fn waits_for_storage(members: &ComparedMembers<'_>, pod: &Pod) -> bool {
    let running = members.observed.refusals.get(&pod.name_any()).cloned();
    let refusal = running.or_else(|| BrainRefusal::of_end(pod));
    let mut answers = members.observed.probes.values().flatten();
    refusal.is_some_and(|refusal| refusal.code == "StorageUnreachable")
        && !answers.any(|answer| answer.storage.reachable)
}

/// Returns true if members answer, and none of them reaches its storage.
fn is_storage_away(members: &ComparedMembers<'_>) -> bool {
    let mut answers = members.observed.probes.values().flatten().peekable();
    answers.peek().is_some() && !answers.any(|answer| answer.storage.reachable)
}

/// Returns true if as many members of the newest template as may be unavailable are not ready. While no member serves, only members that do
/// not run count: the others may wait for something that an outdated member holds.
fn is_doubtful(members: &ComparedMembers<'_>, spare: usize) -> bool {
    let replicas = usize::try_from(members.desired.replicas).unwrap_or_default();
    let ready = members.updated.iter().filter(|pod| is_ready(pod)).count();
    let untried = replicas.saturating_sub(members.outdated.len() + ready);
    untried >= spare && (members.all().any(is_ready) || is_hopeless(members))
}

/// Returns true if a member of the newest template does not run.
fn is_hopeless(members: &ComparedMembers<'_>) -> bool {
    members.updated.iter().any(|pod| is_dead(pod))
}

/// Only the leader is left: it hands over and then is a follower like the others.
fn the_leader<'a>(members: &ComparedMembers<'a>, leader: &'a Pod) -> RolloutChoice<'a> {
    if !members.leads(leader) || members.updated.is_empty() {
        return replace_leader(leader, "it is outdated");
    }
    match members.successor(members.updated.iter().copied()) {
        Some(to) => hand_over_or_replace(members, leader, to),
        None => RolloutChoice::Wait(format!("no member can lead instead of {}", leader.name_any())),
    }
}

fn hand_over_or_replace<'a>(members: &ComparedMembers<'a>, from: &'a Pod, to: &'a Pod) -> RolloutChoice<'a> {
    match members.lead {
        LeaderState::Held { epoch, .. } if !members.hand_over_is_overdue(from, epoch) => {
            RolloutChoice::HandOver { from, to, epoch }
        }
        _ => replace_leader(from, "it is outdated and did not transfer leadership in time"),
    }
}

fn replace_leader<'a>(pod: &'a Pod, why: &str) -> RolloutChoice<'a> {
    RolloutChoice::Replace {
        pod,
        step: "ReplaceLeader",
        why: why.to_owned(),
    }
}

/// Returns true if the pod is about to be disrupted by an eviction, a drain or a preemption.
fn is_disrupted(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "DisruptionTarget" && condition.status == "True")
}

/// Returns true if a container ended or cannot even start.
fn is_dead(pod: &Pod) -> bool {
    let ended = |state: &ContainerState| state.terminated.is_some() || waits_for(state, &["CrashLoopBackOff"]);
    cannot_start(pod) || states(pod).any(ended)
}

/// Returns true if a container cannot even start.
fn cannot_start(pod: &Pod) -> bool {
    const STUCK: [&str; 4] = [
        "ImagePullBackOff",
        "ErrImagePull",
        "InvalidImageName",
        "CreateContainerConfigError",
    ];
    states(pod).any(|state| waits_for(state, &STUCK))
}

fn waits_for(state: &ContainerState, reasons: &[&str]) -> bool {
    let reason = state.waiting.as_ref().and_then(|waiting| waiting.reason.as_deref());
    reason.is_some_and(|reason| reasons.contains(&reason))
}

/// States of a pod's containers.
fn states(pod: &Pod) -> impl Iterator<Item = &ContainerState> {
    let status = pod.status.as_ref();
    let statuses = status.and_then(|status| status.container_statuses.as_ref());
    statuses
        .into_iter()
        .flatten()
        .filter_map(|container| container.state.as_ref())
}

/// Returns the number at the end of a pod's name.
pub(super) fn ordinal(pod: &Pod) -> u32 {
    let name = pod.name_any();
    name.rsplit_once('-')
        .and_then(|(_, number)| number.parse().ok())
        .unwrap_or_default()
}
