//! Changes the leader on request of an annotation. A time alone, as older actions of Argo CD write it, means any other leader.
//!
//! A request is recorded in the status, and not read again, once the requested member leads or it is clear that it never can. Until then
//! the request remains.

use crds::wishes::{Successor, TRANSFER_LEADER};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::choose::ComparedMembers;
use super::{LeadershipMove, hand_over};
use crate::event::ClusterEvent;
use crate::steps::Plan;
use crate::steps::leadership::LeaderState;

/// A request for another leader, and its outcome in this pass.
#[derive(Debug, Clone, PartialEq)]
pub struct LeaderTransfer {
    /// The annotation's value.
    pub wish: String,
    outcome: TransferOutcome,
}

#[derive(Debug, Clone, PartialEq)]
enum TransferOutcome {
    /// The leader is asked to hand over.
    Asked,
    /// The wanted member leads.
    Done(String),
    /// The wanted member can never lead.
    Impossible(String),
}

impl LeaderTransfer {
    /// Returns true if the request is handled, given whether the leader that was asked has handed over.
    pub fn is_handled(&self, handed_over: bool) -> bool {
        handed_over || self.outcome != TransferOutcome::Asked
    }

    /// Returns its Event; a hand-over has an Event of its own.
    pub fn event(&self) -> Option<ClusterEvent> {
        match &self.outcome {
            TransferOutcome::Asked => None,
            TransferOutcome::Done(note) => Some(ClusterEvent::normal("LeaderTransferred", "HandOver", note.clone())),
            TransferOutcome::Impossible(note) => {
                Some(ClusterEvent::warning("TransferImpossible", "HandOver", note.clone()))
            }
        }
    }
}

pub(super) fn plan(plan: &mut Plan, members: &ComparedMembers<'_>) {
    let Some(wish) = members
        .cluster
        .annotations()
        .get(TRANSFER_LEADER)
        .filter(|wish| !wish.is_empty())
    else {
        return;
    };
    let status = members.cluster.status.as_ref();
    if status.and_then(|status| status.last_handled_transfer.as_ref()) == Some(wish) {
        return;
    }
    let LeaderState::Held { pod: leader, epoch } = &members.lead else {
        plan.rollout.waiting = Some("the requested transfer waits because the leader is unknown".to_owned());
        return;
    };
    let name = match Successor::of(wish) {
        Successor::Pod(name) if name.parse::<Timestamp>().is_err() => Some(name),
        Successor::Pod(_) | Successor::Any => None,
    };
    let mut end = |outcome| {
        plan.rollout.transfer = Some(LeaderTransfer {
            wish: wish.clone(),
            outcome,
        });
    };
    if name == Some(leader) {
        return end(TransferOutcome::Done(format!("{leader} already leads")));
    }
    // It was requested before and succeeded, although the answer was lost.
    let asked = status.and_then(|status| status.rollout.as_ref()?.hand_over.as_ref());
    if let Some(asked) = asked.filter(|asked| asked.epoch < *epoch && asked.from != *leader && name.is_none()) {
        return end(TransferOutcome::Done(format!(
            "{leader} leads instead of {}",
            asked.from
        )));
    }
    if let Some(why) = never(members, name) {
        let wanted = name.unwrap_or("any");
        return end(TransferOutcome::Impossible(format!("no transfer to {wanted}: {why}")));
    }
    let candidates = members
        .all()
        .filter(|pod| name.is_none_or(|name| pod.name_any() == name));
    let from = members.all().find(|pod| pod.name_any() == *leader);
    match (from, members.successor(candidates)) {
        (Some(from), Some(to)) => {
            end(TransferOutcome::Asked);
            hand_over(
                plan,
                members,
                LeadershipMove {
                    from,
                    to,
                    epoch: *epoch,
                },
            );
        }
        _ => {
            plan.rollout.waiting = Some(match name {
                Some(name) => format!("{name} cannot lead now"),
                None => format!("no member can lead instead of {leader}"),
            });
        }
    }
}

/// Returns the reason why the requested member can never lead unless the spec changes.
fn never(members: &ComparedMembers<'_>, name: Option<&str>) -> Option<&'static str> {
    let (names, replicas) = (&members.desired.names, members.desired.replicas);
    match name {
        None if replicas < 2 && members.all().count() < 2 => Some("the cluster has one member"),
        Some(name)
            if !(0..replicas).any(|ordinal| names.pod(ordinal) == name)
                && !members.all().any(|pod| pod.name_any() == name) =>
        {
            Some("the cluster has no such member")
        }
        _ => None,
    }
}
