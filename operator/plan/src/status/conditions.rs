//! The conditions: one per question, each computed from the facts alone.
//!
//! Types and reasons are part of the API and do not change. Messages contain what a user needs, and change only with the facts.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::ChangeInProgress;
use super::facts::{CertificateState, ConditionFacts, VolumeState};
use crate::steps::claims;

/// Time that members may be missing before the cluster is degraded.
const DEGRADED_GRACE_PERIOD: Duration = Duration::from_secs(30);

/// Every condition that always exists. `Stalled` exists only while it is true.
pub(super) const PERMANENT_CONDITIONS: [&str; 6] = [
    "Ready",
    "Available",
    "Progressing",
    "Degraded",
    "CertificatesReady",
    "StorageReady",
];

/// Status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

impl ConditionStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// One condition, without its history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionUpdate {
    pub type_: &'static str,
    pub status: ConditionStatus,
    pub reason: String,
    pub message: String,
}

impl ConditionUpdate {
    pub fn new(type_: &'static str, status: ConditionStatus, reason: &str, message: impl Into<String>) -> Self {
        Self {
            type_,
            status,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }

    /// Returns a condition as it was before.
    pub fn kept(type_: &'static str, before: &Condition) -> Self {
        let status = match before.status.as_str() {
            "True" => ConditionStatus::True,
            "False" => ConditionStatus::False,
            _ => ConditionStatus::Unknown,
        };
        Self::new(type_, status, &before.reason, before.message.as_str())
    }
}

/// Returns the conditions before the first observation.
pub(super) fn first() -> Vec<ConditionUpdate> {
    let unknown = |type_| {
        ConditionUpdate::new(
            type_,
            ConditionStatus::Unknown,
            "Creating",
            "the operator has not reconciled it yet",
        )
    };
    PERMANENT_CONDITIONS.map(unknown).to_vec()
}

/// Returns the conditions of a deleted cluster whose keys are wiped. The conditions of its certificates stay unchanged.
pub(super) fn deleting(message: &str, trouble: bool, previous: &[Condition]) -> Vec<ConditionUpdate> {
    let reason = if trouble { "WipeFailed" } else { "Wiping" };
    let say = |type_, status, reason| ConditionUpdate::new(type_, status, reason, message);
    let degraded = if trouble {
        ConditionStatus::True
    } else {
        ConditionStatus::False
    };
    let mut updates = vec![
        say("Ready", ConditionStatus::False, "Deleting"),
        say("Available", ConditionStatus::False, "Deleting"),
        say("Progressing", ConditionStatus::True, "Deleting"),
        say("Degraded", degraded, if trouble { reason } else { "Deleting" }),
        say("StorageReady", ConditionStatus::False, reason),
    ];
    let certificates = previous.iter().find(|condition| condition.type_ == "CertificatesReady");
    updates.extend(certificates.map(|before| ConditionUpdate::kept("CertificatesReady", before)));
    updates
}

/// Returns every condition of an observed cluster.
pub(super) fn judge(facts: &ConditionFacts) -> Vec<ConditionUpdate> {
    let mut updates = vec![
        ready(facts),
        available(facts),
        progressing(facts),
        degraded(facts),
        certificates(facts),
        storage(facts),
    ];
    updates.extend(stalled(facts));
    if let Some(blocker) = facts.blocker.as_ref().filter(|_| facts.refused) {
        for update in updates.iter_mut().filter(|update| is_unseen(update, facts)) {
            let (reason, message) = (blocker.reason, blocker.message.as_str());
            *update = ConditionUpdate::new(update.type_, ConditionStatus::Unknown, reason, message);
        }
    }
    updates
}

/// Returns true if a condition describes objects that were never created, because the spec was refused from the beginning.
fn is_unseen(update: &ConditionUpdate, facts: &ConditionFacts) -> bool {
    match update.type_ {
        "Available" => facts.pods == 0 && facts.replicas > 0,
        "CertificatesReady" => matches!(facts.trust, CertificateState::Missing(_)) && facts.pods == 0,
        "StorageReady" => update.status == ConditionStatus::Unknown,
        _ => false,
    }
}

fn ready(facts: &ConditionFacts) -> ConditionUpdate {
    let no = |reason: &str, message: String| ConditionUpdate::new("Ready", ConditionStatus::False, reason, message);
    if let Some(blocker) = &facts.blocker {
        return no(blocker.reason, blocker.message.clone());
    }
    match &facts.trust {
        // A new cluster gets its certificates before anything else.
        CertificateState::Missing(_) if facts.change == ChangeInProgress::Creating => {}
        CertificateState::Expired(why) | CertificateState::Missing(why) => return no("CertificateError", why.clone()),
        _ => {}
    }
    if let CertificateState::Broken(problem) = &facts.trust {
        return no("CertificateError", problem.message.clone());
    }
    if facts.paused && facts.pending {
        return no(
            "Paused",
            "spec.paused is true and the spec is not fully rolled out".to_owned(),
        );
    }
    if facts.replicas == 0 {
        return no("Suspended", "spec.replicas is 0".to_owned());
    }
    if let Some(refused) = &facts.refused_pods {
        return no(refused.reason, refused.message.clone());
    }
    match &facts.change {
        ChangeInProgress::None | ChangeInProgress::Resizing(_) | ChangeInProgress::OutsideWindow(_) => {}
        change => return no(change.reason(), in_flight(facts)),
    }
    let available = available(facts);
    if available.status != ConditionStatus::True {
        return no(&available.reason, available.message);
    }
    if facts.ready < facts.replicas {
        return no("MembersUnhealthy", members(facts));
    }
    ConditionUpdate::new("Ready", ConditionStatus::True, "AsExpected", members(facts))
}

fn available(facts: &ConditionFacts) -> ConditionUpdate {
    let no = |reason: &str, message: String| ConditionUpdate::new("Available", ConditionStatus::False, reason, message);
    if facts.replicas == 0 {
        return no("Suspended", "spec.replicas is 0".to_owned());
    }
    if let Some(alarm) = &facts.alarm {
        return no("NoSpace", format!("the brains refuse writes: {alarm}"));
    }
    if let Some(refused) = facts.refused_pods.as_ref().filter(|_| facts.leader.is_none()) {
        // Volumes wait for pods that are not created.
        return no(refused.reason, refused.message.clone());
    }
    match (&facts.leader, &facts.volumes) {
        (Some(leader), _) => {
            let lock = facts.lock.as_ref().map(|lock| format!("; {lock}")).unwrap_or_default();
            let message = format!("{leader} leads{lock}");
            ConditionUpdate::new("Available", ConditionStatus::True, "LeaderElected", message)
        }
        (None, VolumeState::Pending(claim)) => no("StorageUnreachable", format!("no volume is bound to {claim}")),
        (None, VolumeState::Lost(claim)) => no("StorageUnreachable", format!("the volume of {claim} is gone")),
        (
            None,
            VolumeState::Unreachable(why) | VolumeState::MissingSecret(why) | VolumeState::Refused { message: why, .. },
        ) => no("StorageUnreachable", why.clone()),
        (None, _) if facts.lead_unknown => ConditionUpdate::new(
            "Available",
            ConditionStatus::Unknown,
            "LeaderUnknown",
            lead_unknown(facts),
        ),
        (None, _) => {
            let reason = facts.refused_pods.as_ref().map_or("NoLeader", |refused| refused.reason);
            no(reason, facts.trouble.clone().unwrap_or("no member leads".to_owned()))
        }
    }
}

fn progressing(facts: &ConditionFacts) -> ConditionUpdate {
    let say = |status, reason: &str, message: String| ConditionUpdate::new("Progressing", status, reason, message);
    if let Some(blocker) = &facts.blocker {
        return say(ConditionStatus::False, blocker.reason, blocker.message.clone());
    }
    if facts.paused {
        return say(ConditionStatus::False, "Paused", "spec.paused is true".to_owned());
    }
    if facts.overdue {
        let message = format!(
            "took longer than updateStrategy.progressDeadlineSeconds: {}",
            in_flight(facts)
        );
        return say(ConditionStatus::False, "DeadlineExceeded", message);
    }
    match (&facts.change, &facts.trust) {
        (
            ChangeInProgress::None,
            CertificateState::Due(why) | CertificateState::Missing(why) | CertificateState::Rotating(why),
        ) => say(ConditionStatus::True, "RotatingCertificates", why.clone()),
        (ChangeInProgress::None, _) => {
            let notes = [&facts.image_waits, &facts.ignored];
            let notes: String = notes.into_iter().flatten().map(|why| format!("; {why}")).collect();
            let message = format!("nothing is being changed{notes}");
            say(ConditionStatus::False, "Reconciled", message)
        }
        (change @ (ChangeInProgress::ByHand(why) | ChangeInProgress::OutsideWindow(why)), _) => {
            say(ConditionStatus::False, change.reason(), why.clone())
        }
        (change, _) => say(ConditionStatus::True, change.reason(), in_flight(facts)),
    }
}

fn degraded(facts: &ConditionFacts) -> ConditionUpdate {
    let yes = |reason: &str, message: String| ConditionUpdate::new("Degraded", ConditionStatus::True, reason, message);
    if let Some(blocker) = &facts.blocker {
        return yes(blocker.reason, blocker.message.clone());
    }
    if let Some(failure) = &facts.failure {
        return yes("ReconcileError", failure.clone());
    }
    if let Some(contested) = &facts.contested {
        return yes("FieldConflict", contested.clone());
    }
    if let Some(alarm) = &facts.alarm {
        return yes("NoSpace", format!("the brains refuse writes: {alarm}"));
    }
    if let CertificateState::Expired(why) = &facts.trust {
        return yes("CertificateError", why.clone());
    }
    if let Some(stuck) = facts.stuck.as_ref().filter(|_| !facts.is_serving()) {
        return yes(stuck.reason, stuck.message.clone());
    }
    if facts.overdue {
        return yes("DeadlineExceeded", in_flight(facts));
    }
    if let Some(refused) = &facts.refused_pods {
        return yes(refused.reason, refused.message.clone());
    }
    if let CertificateState::Broken(problem) = &facts.trust {
        return yes("CertificateError", problem.message.clone());
    }
    let settled = matches!(
        facts.change,
        ChangeInProgress::None | ChangeInProgress::Resizing(_) | ChangeInProgress::OutsideWindow(_)
    );
    let lasting = settled && facts.replicas > 0 && !facts.is_serving() && facts.unready_for > DEGRADED_GRACE_PERIOD;
    if lasting && facts.lead_unknown && facts.ready >= facts.replicas {
        return yes("LeaderUnknown", lead_unknown(facts));
    }
    if lasting {
        return yes(
            "MembersUnhealthy",
            facts.trouble.clone().unwrap_or_else(|| members(facts)),
        );
    }
    ConditionUpdate::new("Degraded", ConditionStatus::False, "AsExpected", "nothing is wrong")
}

fn certificates(facts: &ConditionFacts) -> ConditionUpdate {
    let say = |status, reason: &str, message: &str| ConditionUpdate::new("CertificatesReady", status, reason, message);
    match &facts.trust {
        CertificateState::Disabled => say(ConditionStatus::True, "Disabled", "tls.mode is Disabled"),
        CertificateState::Good => say(ConditionStatus::True, "Issued", "every certificate is valid"),
        CertificateState::Rotating(why) => say(ConditionStatus::True, "RotatingCertificates", why),
        CertificateState::AuthorityExpires(why) => say(ConditionStatus::True, "AuthorityExpires", why),
        CertificateState::Missing(why) => say(ConditionStatus::False, "SecretMissing", why),
        CertificateState::Due(why) => say(ConditionStatus::False, "Renewing", why),
        CertificateState::Expired(why) => say(ConditionStatus::False, "Expired", why),
        CertificateState::Broken(problem) => say(ConditionStatus::False, problem.reason, &problem.message),
    }
}

fn storage(facts: &ConditionFacts) -> ConditionUpdate {
    let say = |status, reason: &str, message: String| ConditionUpdate::new("StorageReady", status, reason, message);
    match &facts.volumes {
        VolumeState::Bound => say(ConditionStatus::True, "Bound", "every volume is bound".to_owned()),
        VolumeState::None => say(
            ConditionStatus::Unknown,
            "Creating",
            "there is no volume yet".to_owned(),
        ),
        VolumeState::Pending(claim) => say(
            ConditionStatus::False,
            "PendingVolume",
            format!("no volume is bound to {claim}"),
        ),
        VolumeState::Lost(claim) => say(
            ConditionStatus::False,
            "VolumeLost",
            format!("the volume of {claim} is gone"),
        ),
        VolumeState::Terminating(why) => say(ConditionStatus::False, claims::VOLUME_TERMINATING, why.clone()),
        VolumeState::NotExpandable(why) => say(ConditionStatus::False, "NotExpandable", why.clone()),
        VolumeState::ResizeFailed(why) => say(ConditionStatus::False, "ResizeFailed", why.clone()),
        VolumeState::Reachable => say(ConditionStatus::True, "Reachable", "TiKV answers".to_owned()),
        VolumeState::Serving => say(
            ConditionStatus::True,
            "Reachable",
            "a member serves from its data directory".to_owned(),
        ),
        VolumeState::Unreachable(why) => say(ConditionStatus::False, "Unreachable", why.clone()),
        VolumeState::Refused { reason, message } => say(ConditionStatus::False, reason, message.clone()),
        VolumeState::MissingSecret(why) => say(ConditionStatus::False, "SecretMissing", why.clone()),
        VolumeState::Unknown => say(
            ConditionStatus::Unknown,
            "Creating",
            "no member has reported whether it reaches its storage".to_owned(),
        ),
    }
}

/// Returns the condition Stalled if only a change by a user helps.
fn stalled(facts: &ConditionFacts) -> Option<ConditionUpdate> {
    if let Some(blocker) = &facts.blocker {
        return Some(ConditionUpdate::new(
            "Stalled",
            ConditionStatus::True,
            blocker.reason,
            blocker.message.as_str(),
        ));
    }
    facts
        .overdue
        .then(|| ConditionUpdate::new("Stalled", ConditionStatus::True, "DeadlineExceeded", in_flight(facts)))
}

/// Returns the change in progress, with the reason why it waits.
fn in_flight(facts: &ConditionFacts) -> String {
    let what = match &facts.change {
        ChangeInProgress::None => "nothing is being changed".to_owned(),
        ChangeInProgress::Creating => "the members are being created".to_owned(),
        ChangeInProgress::Rolling(None) => "members are being replaced".to_owned(),
        ChangeInProgress::Rolling(Some(why)) => format!("members are being replaced: {why}"),
        ChangeInProgress::Scaling => format!("the number of members is changing to {}", facts.replicas),
        ChangeInProgress::ByHand(why)
        | ChangeInProgress::OutsideWindow(why)
        | ChangeInProgress::Resizing(why)
        | ChangeInProgress::Waiting(why)
        | ChangeInProgress::Bootstrapping(why) => why.clone(),
    };
    match &facts.trouble {
        Some(trouble) => format!("{what}; {trouble}"),
        None => what,
    }
}

fn lead_unknown(facts: &ConditionFacts) -> String {
    let why = facts.trouble.as_deref().unwrap_or("too few members answer");
    format!("the leader is unknown: {why}")
}

fn members(facts: &ConditionFacts) -> String {
    let leader = match &facts.leader {
        Some(leader) => format!("{leader} leads"),
        None if facts.lead_unknown => "the leader is unknown".to_owned(),
        None => "no member leads".to_owned(),
    };
    format!("{} of {} members are ready; {leader}", facts.ready, facts.replicas)
}
