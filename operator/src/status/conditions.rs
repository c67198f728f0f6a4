//! The judgement: one condition per question, each from the facts alone.
//!
//! Types and reasons are part of the API and stay as they are. Messages say what a person needs, and change only with the facts.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::Change;
use super::facts::{Facts, Trust, Volumes};
use crate::spec::Refusal;

/// How long members may be missing before that is called degraded.
const GRACE: Duration = Duration::from_secs(30);

/// Every condition that always exists. `Stalled` exists only while it is true.
pub(super) const ALWAYS: [&str; 6] = [
    "Ready",
    "Available",
    "Progressing",
    "Degraded",
    "CertificatesReady",
    "StorageReady",
];

/// Status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    True,
    False,
    Unknown,
}

impl Verdict {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// One condition, without its history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Judgement {
    pub(crate) type_: &'static str,
    pub(crate) verdict: Verdict,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Judgement {
    pub(crate) fn new(type_: &'static str, verdict: Verdict, reason: &str, message: impl Into<String>) -> Self {
        Self {
            type_,
            verdict,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

/// Before anything was seen.
pub(super) fn first() -> Vec<Judgement> {
    let unknown = |type_| Judgement::new(type_, Verdict::Unknown, "Creating", "the operator has not looked yet");
    ALWAYS.map(unknown).to_vec()
}

/// For a spec that cannot be acted on. What was known of the running members stays.
pub(super) fn refused(refusal: &Refusal, previous: &[Condition]) -> Vec<Judgement> {
    let say = |type_, verdict| Judgement::new(type_, verdict, refusal.reason, refusal.message.as_str());
    let mut judgements = vec![
        say("Ready", Verdict::False),
        say("Progressing", Verdict::False),
        say("Degraded", Verdict::True),
        say("Stalled", Verdict::True),
    ];
    for type_ in ["Available", "CertificatesReady", "StorageReady"] {
        let before = previous
            .iter()
            .find(|condition| condition.type_ == type_ && condition.status != Verdict::Unknown.as_str());
        judgements.push(before.map_or_else(
            || say(type_, Verdict::Unknown),
            |before| {
                let verdict = if before.status == "True" {
                    Verdict::True
                } else {
                    Verdict::False
                };
                Judgement::new(type_, verdict, &before.reason, before.message.as_str())
            },
        ));
    }
    judgements
}

/// Every condition of a cluster that was seen.
pub(super) fn judge(facts: &Facts) -> Vec<Judgement> {
    let mut judgements = vec![
        ready(facts),
        available(facts),
        progressing(facts),
        degraded(facts),
        certificates(facts),
        storage(facts),
    ];
    judgements.extend(stalled(facts));
    judgements
}

fn ready(facts: &Facts) -> Judgement {
    let no = |reason: &str, message: String| Judgement::new("Ready", Verdict::False, reason, message);
    if let Some(obstacle) = &facts.obstacle {
        return no(obstacle.reason, obstacle.message.clone());
    }
    match &facts.trust {
        // A new cluster gets its certificates first of all.
        Trust::Missing(_) if facts.change == Change::Creating => {}
        Trust::Expired(why) | Trust::Missing(why) => return no("CertificateError", why.clone()),
        _ => {}
    }
    if let Trust::Broken(problem) = &facts.trust {
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
    match &facts.change {
        Change::None | Change::Resizing(_) => {}
        change => return no(change.reason(), in_flight(facts)),
    }
    let available = available(facts);
    if available.verdict != Verdict::True {
        return no(&available.reason, available.message);
    }
    if facts.ready < facts.replicas {
        return no("MembersUnhealthy", members(facts));
    }
    Judgement::new("Ready", Verdict::True, "AsExpected", members(facts))
}

fn available(facts: &Facts) -> Judgement {
    let no = |reason: &str, message: String| Judgement::new("Available", Verdict::False, reason, message);
    if facts.replicas == 0 {
        return no("Suspended", "spec.replicas is 0".to_owned());
    }
    if let Some(alarm) = &facts.alarm {
        return no("NoSpace", format!("the brains take no writes: {alarm}"));
    }
    match (&facts.leader, &facts.volumes) {
        (Some(leader), _) => Judgement::new("Available", Verdict::True, "LeaderElected", format!("{leader} leads")),
        (None, Volumes::Pending(claim)) => no("StorageUnreachable", format!("no volume is bound to {claim}")),
        (None, Volumes::Lost(claim)) => no("StorageUnreachable", format!("the volume of {claim} is gone")),
        (None, Volumes::Unreachable(why) | Volumes::MissingSecret(why)) => no("StorageUnreachable", why.clone()),
        (None, _) => no(
            "NoLeader",
            facts.trouble.clone().unwrap_or("no member leads".to_owned()),
        ),
    }
}

fn progressing(facts: &Facts) -> Judgement {
    let say = |verdict, reason: &str, message: String| Judgement::new("Progressing", verdict, reason, message);
    if let Some(obstacle) = &facts.obstacle {
        return say(Verdict::False, obstacle.reason, obstacle.message.clone());
    }
    if facts.paused {
        return say(Verdict::False, "Paused", "spec.paused is true".to_owned());
    }
    if facts.overdue {
        let message = format!("took longer than update.progressDeadlineSeconds: {}", in_flight(facts));
        return say(Verdict::False, "DeadlineExceeded", message);
    }
    match (&facts.change, &facts.trust) {
        (Change::None, Trust::Due(why) | Trust::Missing(why) | Trust::Rotating(why)) => {
            say(Verdict::True, "RotatingCertificates", why.clone())
        }
        (Change::None, _) => say(Verdict::False, "Reconciled", "nothing is being changed".to_owned()),
        (Change::ByHand(why), _) => say(Verdict::False, "RollingUpdate", why.clone()),
        (change, _) => say(Verdict::True, change.reason(), in_flight(facts)),
    }
}

fn degraded(facts: &Facts) -> Judgement {
    let yes = |reason: &str, message: String| Judgement::new("Degraded", Verdict::True, reason, message);
    if let Some(obstacle) = &facts.obstacle {
        return yes(obstacle.reason, obstacle.message.clone());
    }
    if let Some(failure) = &facts.failure {
        return yes("ReconcileError", failure.clone());
    }
    if facts.overdue {
        return yes("DeadlineExceeded", in_flight(facts));
    }
    if let Some(alarm) = &facts.alarm {
        return yes("NoSpace", format!("the brains take no writes: {alarm}"));
    }
    if let Trust::Expired(why) = &facts.trust {
        return yes("CertificateError", why.clone());
    }
    if let Trust::Broken(problem) = &facts.trust {
        return yes("CertificateError", problem.message.clone());
    }
    let settled = matches!(facts.change, Change::None | Change::Resizing(_));
    if settled && facts.replicas > 0 && !facts.is_serving() && facts.unready_for > GRACE {
        return yes(
            "MembersUnhealthy",
            facts.trouble.clone().unwrap_or_else(|| members(facts)),
        );
    }
    Judgement::new("Degraded", Verdict::False, "AsExpected", "nothing is wrong")
}

fn certificates(facts: &Facts) -> Judgement {
    let say = |verdict, reason: &str, message: &str| Judgement::new("CertificatesReady", verdict, reason, message);
    match &facts.trust {
        Trust::Disabled => say(Verdict::True, "Disabled", "tls.mode is Disabled"),
        Trust::Good => say(Verdict::True, "Issued", "every certificate is valid"),
        Trust::Rotating(why) => say(Verdict::True, "RotatingCertificates", why),
        Trust::Missing(why) => say(Verdict::False, "SecretMissing", why),
        Trust::Due(why) => say(Verdict::False, "Renewing", why),
        Trust::Expired(why) => say(Verdict::False, "Expired", why),
        Trust::Broken(problem) => say(Verdict::False, problem.reason, &problem.message),
    }
}

fn storage(facts: &Facts) -> Judgement {
    let say = |verdict, reason: &str, message: String| Judgement::new("StorageReady", verdict, reason, message);
    match &facts.volumes {
        Volumes::Bound => say(Verdict::True, "Bound", "every volume is bound".to_owned()),
        Volumes::None => say(Verdict::Unknown, "Creating", "there is no volume yet".to_owned()),
        Volumes::Pending(claim) => say(
            Verdict::False,
            "PendingVolume",
            format!("no volume is bound to {claim}"),
        ),
        Volumes::Lost(claim) => say(Verdict::False, "VolumeLost", format!("the volume of {claim} is gone")),
        Volumes::NotExpandable(why) => say(Verdict::False, "NotExpandable", why.clone()),
        Volumes::ResizeFailed(why) => say(Verdict::False, "ResizeFailed", why.clone()),
        Volumes::Reachable => say(Verdict::True, "Reachable", "TiKV answers".to_owned()),
        Volumes::Unreachable(why) => say(Verdict::False, unreachable_reason(why), why.clone()),
        Volumes::MissingSecret(why) => say(Verdict::False, "SecretMissing", why.clone()),
        Volumes::Unknown => say(
            Verdict::Unknown,
            "Creating",
            "no member has said whether TiKV answers".to_owned(),
        ),
    }
}

/// Why TiKV cannot be used, by what the brain says.
fn unreachable_reason(why: &str) -> &'static str {
    if why.contains("the key prefix belongs to") {
        "PrefixTaken"
    } else if why.contains("addresses of PD lead to cluster") {
        "ClusterIDChanged"
    } else {
        "Unreachable"
    }
}

/// Only a change by a person helps.
fn stalled(facts: &Facts) -> Option<Judgement> {
    if let Some(obstacle) = &facts.obstacle {
        return Some(Judgement::new(
            "Stalled",
            Verdict::True,
            obstacle.reason,
            obstacle.message.as_str(),
        ));
    }
    facts
        .overdue
        .then(|| Judgement::new("Stalled", Verdict::True, "DeadlineExceeded", in_flight(facts)))
}

/// What is being changed, and what it waits for.
fn in_flight(facts: &Facts) -> String {
    let what = match &facts.change {
        Change::None => "nothing is being changed".to_owned(),
        Change::Creating => "the members are being made".to_owned(),
        Change::Rolling(None) => "members are being replaced".to_owned(),
        Change::Rolling(Some(why)) => format!("members are being replaced: {why}"),
        Change::Scaling => format!("the number of members is changing to {}", facts.replicas),
        Change::ByHand(why) | Change::Resizing(why) | Change::Waiting(why) => why.clone(),
    };
    match &facts.trouble {
        Some(trouble) => format!("{what}; {trouble}"),
        None => what,
    }
}

fn members(facts: &Facts) -> String {
    let leader = facts
        .leader
        .as_ref()
        .map_or("no member leads".to_owned(), |leader| format!("{leader} leads"));
    format!("{} of {} members are ready; {leader}", facts.ready, facts.replicas)
}
