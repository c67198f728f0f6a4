//! Events for users: what the operator did, as `kubectl describe` shows it. Pure; `events` publishes them.

use crds::cluster::tls::TlsMode;
use crds::{KubeBrainCluster, KubeBrainClusterStatus};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// An Event to publish.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterEvent {
    pub reason: &'static str,
    pub note: String,
    pub action: String,
    pub warning: bool,
    pub about: Option<ObjectReference>,
}

impl ClusterEvent {
    pub fn normal(reason: &'static str, action: impl Into<String>, note: String) -> Self {
        Self {
            reason,
            note,
            action: action.into(),
            warning: false,
            about: None,
        }
    }

    pub fn warning(reason: &'static str, action: impl Into<String>, note: String) -> Self {
        Self {
            warning: true,
            ..Self::normal(reason, action, note)
        }
    }

    /// Sets the second object that the event is about.
    pub fn about(mut self, object: ObjectReference) -> Self {
        self.about = Some(object);
        self
    }
}

/// Returns the events to publish when the conditions of `cluster` change to those of `status`.
pub fn of_flips(cluster: &KubeBrainCluster, status: &KubeBrainClusterStatus) -> Vec<ClusterEvent> {
    let before = cluster.status.as_ref().and_then(|status| status.conditions.as_deref());
    let before = before.unwrap_or_default();
    let flips = status.conditions.iter().flatten().filter_map(|condition| {
        let former = before.iter().find(|former| former.type_ == condition.type_);
        of_flip(former, condition, cluster.spec.tls.mode)
    });
    flips.collect()
}

fn of_flip(former: Option<&Condition>, condition: &Condition, tls: TlsMode) -> Option<ClusterEvent> {
    let was = former.map(|former| former.status.as_str());
    let flipped = was != Some(&condition.status);
    // A new reason for the same status is an event of its own if no other event explains the cause.
    let is_news = flipped || former.is_some_and(|former| former.reason != condition.reason);
    let note = format!("{}: {}", condition.reason, condition.message);
    // Events with the same reason and action are counted as one, with the note of the first. So another cause is another action.
    let warning = |reason| Some(ClusterEvent::warning(reason, condition.reason.clone(), note.clone()));
    let normal = |reason| Some(ClusterEvent::normal(reason, condition.reason.clone(), note.clone()));
    match (condition.type_.as_str(), condition.status.as_str()) {
        ("Ready", "True") if flipped => normal("Ready"),
        ("Ready", "False") if was == Some("True") => warning("NotReady"),
        ("Stalled", "True") if is_news => warning("Stalled"),
        // Stalled reports the same problem.
        ("Degraded", "True") if is_news && condition.reason != "InvalidSpec" => warning("Degraded"),
        ("StorageReady", "True") if was == Some("False") => normal("StorageReady"),
        ("CertificatesReady", "True") if was == Some("False") => normal("CertificatesReady"),
        // A new volume is bound when its pod is scheduled, and Kubernetes itself reports what prevents that.
        ("StorageReady", "False") if is_news && (condition.reason != "PendingVolume" || was == Some("True")) => {
            warning("StorageNotReady")
        }
        ("Archiving", "True") if is_news && condition.reason == "HasGap" => warning("ArchiveHasGap"),
        ("Archiving", "True") if flipped => normal("Archiving"),
        ("Archiving", "False") if is_news && condition.reason == "Suspended" => normal("ArchiveSuspended"),
        // An archive that begins is no trouble yet.
        ("Archiving", "False" | "Unknown")
            if is_news && !["Creating", "WaitingForCluster"].contains(&condition.reason.as_str()) =>
        {
            warning("NotArchiving")
        }
        ("Bootstrapped", "True") if flipped && condition.reason == "AlreadyStored" => warning("BootstrapSkipped"),
        ("Bootstrapped", "True") if flipped => normal("BootstrapCompleted"),
        ("Bootstrapped", "False") if is_news && condition.reason == "Following" => normal("BootstrapFollowing"),
        ("Bootstrapped", "False") if is_news && condition.reason == "CuttingOver" => normal("CutoverStarted"),
        ("Bootstrapped", "False")
            if condition.reason == "Bootstrapping" && former.is_some_and(|former| former.reason == "Following") =>
        {
            warning("BootstrapInterrupted")
        }
        ("Bootstrapped", "False") if is_news && condition.reason == "Bootstrapping" => normal("BootstrapStarted"),
        // Stalled reports the same problem, but not that it is the restore that failed.
        ("Bootstrapped", "False") if is_news && condition.reason == "BootstrapFailed" => warning("BootstrapFailed"),
        ("Bootstrapped", "False") if is_news => normal("BootstrapWaiting"),
        // The operator's own certificates are missing for the moment until they are issued.
        ("CertificatesReady", "False")
            if is_news && (condition.reason != "SecretMissing" || tls == TlsMode::Secret || was == Some("True")) =>
        {
            warning("CertificatesNotReady")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Builds conditions from `Type=Status/Reason`.
    fn status(conditions: &[&str]) -> KubeBrainClusterStatus {
        let conditions = conditions.iter().map(|text| {
            let (type_, rest) = text.split_once('=').unwrap();
            let (status, reason) = rest.split_once('/').unwrap();
            json!({
                "type": type_, "status": status, "reason": reason, "message": "why", "lastTransitionTime": crate::testing::BEGIN,
            })
        });
        serde_json::from_value(json!({"conditions": conditions.collect::<Vec<_>>()})).unwrap()
    }

    #[track_caller]
    fn check(tls: &str, before: &[&str], after: &[&str], expected: &[&str]) {
        let mut cluster = crate::testing::cluster(json!({"tls": {"mode": tls}}));
        cluster.status = Some(status(before));
        let events = of_flips(&cluster, &status(after));
        let events: Vec<String> = events
            .iter()
            .map(|event| {
                format!(
                    "{} {} {}",
                    if event.warning { "Warning" } else { "Normal" },
                    event.reason,
                    event.note
                )
            })
            .collect();
        assert_eq!(events, expected, "{before:?} to {after:?}");
    }

    #[test]
    fn flips_of_conditions_are_events() {
        let check = |before: &str, after: &str, expected: &[&str]| check("Operator", &[before], &[after], expected);
        check("Ready=Unknown/Creating", "Ready=False/Creating", &[]);
        check(
            "Ready=False/Creating",
            "Ready=True/AsExpected",
            &["Normal Ready AsExpected: why"],
        );
        check(
            "Ready=True/AsExpected",
            "Ready=False/NoLeader",
            &["Warning NotReady NoLeader: why"],
        );
        check("Ready=False/NoLeader", "Ready=False/NoSpace", &[]);
        check(
            "Degraded=False/AsExpected",
            "Degraded=True/NoSpace",
            &["Warning Degraded NoSpace: why"],
        );
        check(
            "Degraded=True/NoSpace",
            "Degraded=True/QuotaExceeded",
            &["Warning Degraded QuotaExceeded: why"],
        );
        check("Degraded=True/NoSpace", "Degraded=True/NoSpace", &[]);
        check(
            "Stalled=False/X",
            "Stalled=True/InvalidSpec",
            &["Warning Stalled InvalidSpec: why"],
        );
    }

    #[test]
    fn archive_that_fails_or_continues_is_an_event() {
        let check = |before: &str, after: &str, expected: &[&str]| check("Operator", &[before], &[after], expected);
        let archiving = "Archiving=True/Archiving";
        check("Archiving=False/WaitingForCluster", "Archiving=False/Creating", &[]);
        check(
            "Archiving=False/Creating",
            archiving,
            &["Normal Archiving Archiving: why"],
        );
        check(archiving, archiving, &[]);
        check(
            archiving,
            "Archiving=True/HasGap",
            &["Warning ArchiveHasGap HasGap: why"],
        );
        check("Archiving=True/HasGap", archiving, &[]);
        check(
            archiving,
            "Archiving=False/Behind",
            &["Warning NotArchiving Behind: why"],
        );
        check(
            "Archiving=False/Behind",
            "Archiving=Unknown/Unreachable",
            &["Warning NotArchiving Unreachable: why"],
        );
        check(
            archiving,
            "Archiving=False/Suspended",
            &["Normal ArchiveSuspended Suspended: why"],
        );
    }

    #[test]
    fn copy_that_follows_or_ends_is_an_event() {
        let check = |before: &str, after: &str, expected: &[&str]| check("Operator", &[before], &[after], expected);
        let reason = |reason: &str| format!("Bootstrapped=False/{reason}");
        let (running, following, ending) = (reason("Bootstrapping"), reason("Following"), reason("CuttingOver"));
        check(&running, &following, &["Normal BootstrapFollowing Following: why"]);
        check(&following, &following, &[]);
        check(
            &following,
            &running,
            &["Warning BootstrapInterrupted Bootstrapping: why"],
        );
        check(&following, &ending, &["Normal CutoverStarted CuttingOver: why"]);
        let copied = "Bootstrapped=True/Copied";
        check(&ending, copied, &["Normal BootstrapCompleted Copied: why"]);
    }

    #[test]
    fn causes_of_one_condition_are_different_events() {
        let cluster = crate::testing::cluster(json!({}));
        let event = |after: &str| of_flips(&cluster, &status(&[after])).remove(0);
        let (missing, unreachable) = (
            event("StorageReady=False/SecretMissing"),
            event("StorageReady=False/Unreachable"),
        );
        assert_eq!(missing.reason, unreachable.reason);
        assert_ne!(
            missing.action, unreachable.action,
            "the second would be counted as the first"
        );
    }

    #[test]
    fn storage_and_certificates_of_a_new_cluster_are_events_when_they_fail() {
        let (storage, certificates) = ("StorageReady=Unknown/Creating", "CertificatesReady=Unknown/Creating");
        let on = |tls: &str, before: &str, after: &str, expected: &[&str]| check(tls, &[before], &[after], expected);
        let down = "StorageReady=False/Unreachable";
        on("Operator", storage, down, &["Warning StorageNotReady Unreachable: why"]);
        on("Operator", down, down, &[]);
        on(
            "Operator",
            down,
            "StorageReady=False/PrefixTaken",
            &["Warning StorageNotReady PrefixTaken: why"],
        );
        on(
            "Operator",
            down,
            "StorageReady=True/Reachable",
            &["Normal StorageReady Reachable: why"],
        );
        on("Operator", storage, "StorageReady=True/Reachable", &[]);
        on("Operator", storage, "StorageReady=False/PendingVolume", &[]);
        on(
            "Operator",
            "StorageReady=True/Bound",
            "StorageReady=False/PendingVolume",
            &["Warning StorageNotReady PendingVolume: why"],
        );
        let missing = "CertificatesReady=False/SecretMissing";
        on("Operator", certificates, missing, &[]);
        on(
            "Secret",
            certificates,
            missing,
            &["Warning CertificatesNotReady SecretMissing: why"],
        );
        on(
            "Operator",
            "CertificatesReady=True/Issued",
            missing,
            &["Warning CertificatesNotReady SecretMissing: why"],
        );
        on(
            "Secret",
            missing,
            "CertificatesReady=True/Issued",
            &["Normal CertificatesReady Issued: why"],
        );
    }
}
