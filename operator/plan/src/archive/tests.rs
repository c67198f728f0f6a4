use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::*;
use crate::status::{ConditionStatus, ConditionUpdate};
use crate::testing::{BEGIN, FakeCluster, cluster, settings};

/// Returns a spec with an archive on a volume; `more` is merged over `spec.backup`, `archive` over the archive.
fn spec(more: &Value, archive: &Value) -> Value {
    let mut backup = json!({"destination": {"persistentVolumeClaim": {"claimName": "backups", "path": "dev"}}});
    backup["archive"] = archive.clone();
    backup
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    json!({"backup": backup})
}

fn rendered(spec: Value) -> Value {
    let cluster = cluster(spec);
    deployment(&cluster, wanted(&cluster).unwrap(), &settings()).unwrap()
}

fn args(deployment: &Value) -> Vec<&str> {
    let args = &deployment["spec"]["template"]["spec"]["containers"][0]["args"];
    args.as_array()
        .unwrap()
        .iter()
        .map(|arg| arg.as_str().unwrap())
        .collect()
}

fn live(rendered: &Value) -> Deployment {
    serde_json::from_value(rendered.clone()).unwrap()
}

#[test]
fn deployment_archives_the_whole_cluster_and_has_no_more_rights_than_brains() {
    let s3 = json!({
        "destination": {"s3": {"bucket": "b", "prefix": "dev", "storageClass": "STANDARD_IA", "credentialsSecretRef": {"name": "s3"}}},
        "encryption": {"keySecretRef": {"name": "k"}}, "userSecretRef": {"name": "root"},
    });
    let made = rendered(spec(&s3, &json!({"interval": "30s"})));
    assert_eq!(
        args(&made),
        [
            "backup",
            "archive",
            "--destination=s3://b/dev",
            "--destination-explicit-credentials",
            "--destination-credentials-dir=/etc/kubebrain/credentials",
            "--storage-class=STANDARD_IA",
            "--encryption-key-file=/etc/kubebrain/encryption/key",
            "--endpoints=https://dev-client.brains.svc:2379",
            "--cacert=/etc/kubebrain/cluster/ca.crt",
            "--cert=/etc/kubebrain/cluster/tls.crt",
            "--key=/etc/kubebrain/cluster/tls.key",
            "--user=$(BACKUP_USER)",
            "--archive-interval=30s",
            "--listen-metrics-urls=http://[::]:2381",
        ]
    );
    assert_eq!(made["metadata"]["name"], "dev-archive");
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "cluster-uid");
    let spec = &made["spec"];
    assert_eq!(
        (&spec["replicas"], &spec["strategy"]["type"]),
        (&json!(1), &json!("Recreate"))
    );
    let pod = &spec["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    let container = &pod["containers"][0];
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(container["livenessProbe"]["httpGet"]["path"], "/metrics");
    let credentials = pod["volumes"].as_array().unwrap();
    let credentials = credentials
        .iter()
        .find(|volume| volume["name"] == "credentials")
        .unwrap();
    let source = &credentials["projected"]["sources"][0]["secret"];
    assert_eq!((&source["name"], &source["optional"]), (&json!("s3"), &json!(true)));
    let keys: Vec<_> = source["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["key"])
        .collect();
    assert_eq!(
        keys,
        ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"]
    );
    assert_eq!(container["env"].as_array().unwrap().len(), 2, "those of the user");
    assert_eq!(
        container["ports"][0]["name"], "metrics",
        "a PodMonitor would not find it"
    );
    let labels = &spec["template"]["metadata"]["labels"];
    assert_eq!(spec["selector"]["matchLabels"], json!({"kubebrain.io/archive": "dev"}));
    assert_eq!(labels["kubebrain.io/archive"], "dev");
    assert_eq!(
        labels["kubebrain.io/cluster"],
        Value::Null,
        "a Service would take it for a brain"
    );
}

#[test]
fn defaults_and_settings_of_the_cluster_reach_the_pod() {
    let mut given = spec(
        &json!({}),
        &json!({"pod": {"nodeSelector": {"zone": "a"}, "resources": {"limits": {"memory": "1Gi"}}}}),
    );
    given["imagePullSecrets"] = json!([{"name": "pull"}]);
    given["inheritedMetadata"] = json!({"labels": {"team": "x"}, "annotations": {"note": "y"}});
    given["tls"] = json!({"mode": "Disabled"});
    let made = rendered(given.clone());
    assert_eq!(
        args(&made)[2..],
        [
            "--destination=file:///backups/dev",
            "--endpoints=http://dev-client.brains.svc:2379",
            "--archive-interval=10s",
            "--listen-metrics-urls=http://[::]:2381",
        ]
    );
    let template = &made["spec"]["template"];
    assert_eq!(template["spec"]["nodeSelector"]["zone"], "a");
    assert_eq!(template["spec"]["imagePullSecrets"], json!([{"name": "pull"}]));
    assert_eq!(
        template["spec"]["containers"][0]["resources"]["limits"]["memory"],
        "1Gi"
    );
    assert_eq!(template["metadata"]["labels"]["team"], "x");
    assert_eq!(made["metadata"]["annotations"]["note"], "y");
    given["replicas"] = json!(0);
    assert_eq!(rendered(given)["spec"]["replicas"], 0, "it would fail without members");
}

#[test]
fn deployment_is_applied_again_if_the_spec_or_another_client_changes_it() {
    let made = rendered(spec(&json!({}), &json!({})));
    assert!(is_applied(&made, &live(&made)).unwrap());
    let other = rendered(spec(&json!({}), &json!({"interval": "1m"})));
    assert!(!is_applied(&other, &live(&made)).unwrap());
    let mut drifted = made.clone();
    drifted["spec"]["replicas"] = json!(2);
    assert!(
        !is_applied(&made, &live(&drifted)).unwrap(),
        "two would write one archive"
    );
    let mut restarted = made.clone();
    restarted["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] = json!(BEGIN);
    assert!(is_applied(&made, &live(&restarted)).unwrap());
}

#[test]
fn suspended_archive_is_not_wanted_and_one_that_may_run_is_of_concern() {
    let concerned = |spec: Value| {
        let cluster = cluster(spec);
        (wanted(&cluster).is_some(), is_configured(&cluster), concerns(&cluster))
    };
    assert_eq!(concerned(json!({})), (false, false, false));
    assert_eq!(concerned(spec(&json!({}), &json!({}))), (true, true, true));
    assert_eq!(
        concerned(spec(&json!({}), &json!({"suspend": true}))),
        (false, true, true)
    );
    let mut without = spec(&json!({}), &json!({}));
    without["backup"].as_object_mut().unwrap().remove("archive");
    assert_eq!(concerned(without), (false, false, false));
    let mut removed = cluster(json!({}));
    let condition =
        json!({"type": CONDITION, "status": "True", "reason": "Archiving", "message": "", "lastTransitionTime": BEGIN});
    removed.status = serde_json::from_value(json!({"conditions": [condition]})).unwrap();
    assert!(concerns(&removed), "its Deployment would stay");
}

#[test]
fn only_pods_of_the_deployment_are_asked() {
    let is_known = |label: &str, kind: &str, owner: &str| {
        let owner = json!({"apiVersion": "apps/v1", "kind": kind, "name": owner, "uid": "u", "controller": true});
        let pod =
            json!({"metadata": {"name": "x", "labels": {"kubebrain.io/archive": label}, "ownerReferences": [owner]}});
        is_pod_of(&serde_json::from_value::<Pod>(pod).unwrap(), "dev")
    };
    assert!(is_known("dev", "ReplicaSet", "dev-archive-5c7"));
    assert!(!is_known("other", "ReplicaSet", "dev-archive-5c7"));
    assert!(!is_known("dev", "ReplicaSet", "other-archive-5c7"));
    assert!(!is_known("dev", "StatefulSet", "dev-archive-5c7"));
}

#[test]
fn metrics_of_anything_but_an_archive_are_refused() {
    let text = "# HELP kubebrain_archive_lag_seconds x\nkubebrain_archive_lag_seconds 7\nkubebrain_archive_gaps_total 1\n\
        kubebrain_archive_last_revision 42\nkubebrain_archive_last_revision_other 1\n";
    let figures = ArchiveFigures {
        revision: 42,
        lag: Some(7),
        gaps: 1,
        is_failing: false,
        lacks_backup: false,
    };
    assert_eq!(ArchiveFigures::parse(text), Some(figures));
    let failing = text.to_owned() + "kubebrain_archive_failing 1\n";
    let failed = ArchiveFigures {
        is_failing: true,
        ..figures
    };
    assert_eq!(ArchiveFigures::parse(&failing), Some(failed));
    let begins = text.replace("seconds 7", "seconds -1");
    assert_eq!(
        ArchiveFigures::parse(&begins),
        Some(ArchiveFigures { lag: None, ..figures })
    );
    assert_eq!(ArchiveFigures::parse(&text.replace("gaps", "holes")), None);
    assert_eq!(
        ArchiveFigures::parse(&text.replace("revision 42", "revision many")),
        None
    );
    assert_eq!(ArchiveFigures::parse(""), None);
}

fn begin() -> Timestamp {
    BEGIN.parse().unwrap()
}

fn after(seconds: i64) -> Timestamp {
    begin() + SignedDuration::from_secs(seconds)
}

fn answered(revision: i64, lag: i64) -> ArchiveState {
    ArchiveState::Answered(ArchiveFigures {
        revision,
        lag: (lag >= 0).then_some(lag),
        gaps: 0,
        is_failing: false,
        lacks_backup: false,
    })
}

/// Returns the condition as `Status/Reason`, and checks that the reason is documented.
fn said(condition: &ConditionUpdate) -> String {
    crate::status::documented_reasons::check(&condition.reason);
    format!("{}/{}", condition.status.as_str(), condition.reason)
}

#[test]
fn condition_follows_the_lag_and_not_the_pod() {
    let check = |state: ArchiveState, before: Option<ArchivePosition>, expected: &str| {
        assert_eq!(
            said(&observed(&state, (before, false), begin()).condition),
            expected,
            "{state:?} after {before:?}"
        );
    };
    let at = |seconds: i64| {
        Some(ArchivePosition {
            revision: 9,
            until: after(-seconds),
        })
    };
    check(answered(9, 120), None, "True/Archiving");
    check(answered(9, 121), None, "False/Behind");
    check(answered(0, -1), None, "False/Creating");
    check(answered(0, -1), at(60), "True/Archiving");
    check(ArchiveState::Missing(None), None, "False/Creating");
    check(ArchiveState::Missing(Some("why".to_owned())), None, "False/NotRunning");
    // A pod that is replaced is no trouble until the archive is behind.
    check(ArchiveState::Missing(Some("why".to_owned())), at(120), "True/Archiving");
    check(
        ArchiveState::Missing(Some("why".to_owned())),
        at(121),
        "False/NotRunning",
    );
    check(ArchiveState::Missing(None), at(121), "False/NotRunning");
    check(ArchiveState::Silent("why".to_owned()), at(60), "True/Archiving");
    check(ArchiveState::Silent("why".to_owned()), at(121), "Unknown/Unreachable");
    check(ArchiveState::Silent("why".to_owned()), None, "Unknown/Unreachable");
    let gap = ArchiveFigures {
        revision: 9,
        lag: Some(1),
        gaps: 1,
        is_failing: false,
        lacks_backup: false,
    };
    // A destination that fails is said before the archive is behind.
    let failing = |is_failing| {
        let figures = ArchiveFigures {
            is_failing,
            lacks_backup: !is_failing,
            ..gap
        };
        ArchiveState::Failing(figures, "no such bucket".to_owned())
    };
    check(failing(false), None, "False/NoBackup");
    let message = observed(&failing(false), (None, false), begin()).condition.message;
    assert_eq!(
        message,
        "there is no backup that the archive begins with: no such bucket"
    );
    let failing = failing(true);
    check(failing.clone(), None, "False/DestinationFailed");
    let message = observed(&failing, (None, false), begin()).condition.message;
    assert!(
        message.starts_with("changes since ") && message.ends_with("are not stored: no such bucket"),
        "{message}"
    );
    // Its pod ends, or is replaced: that is no recovery.
    for (state, expected) in [
        (ArchiveState::Missing(None), "False/NotRunning"),
        (ArchiveState::Silent("why".to_owned()), "Unknown/Unreachable"),
        (answered(9, 60), "True/Archiving"),
    ] {
        assert_eq!(
            said(&observed(&state, (at(60), true), begin()).condition),
            expected,
            "{state:?}"
        );
    }
    check(ArchiveState::Answered(gap), None, "True/HasGap");
    check(
        ArchiveState::Answered(ArchiveFigures { lag: Some(500), ..gap }),
        None,
        "False/Behind",
    );
    for reason in [
        "Paused",
        "WaitingForCluster",
        "WaitingForObject",
        "OwnershipConflict",
        "Suspended",
        "ReconcileError",
    ] {
        assert_eq!(said(&waiting(reason, "", None).condition), format!("False/{reason}"));
    }
}

/// Runs a pass over the cluster in which this is known, and returns `status.backup`.
fn published(fake: &mut FakeCluster, state: &ArchiveState) -> Value {
    let before = ArchivePosition::of(&fake.cluster);
    let report = observed(state, (before, false), fake.seen.now);
    let archive = ObservedArchive::Reported(Box::new(report));
    let news = is_news(&fake.cluster, &archive);
    fake.seen.archive = archive;
    let written = fake.cluster.status.clone();
    fake.pass();
    assert_eq!(news, written != fake.cluster.status, "{state:?}");
    assert!(!is_news(&fake.cluster, &fake.seen.archive));
    serde_json::to_value(fake.cluster.status.clone().unwrap().backup).unwrap()
}

#[test]
fn figures_are_written_once_a_minute_or_with_a_change() {
    let mut fake = FakeCluster::settled(spec(&json!({}), &json!({})));
    let start = fake.seen.now;
    let first = published(&mut fake, &answered(7, 5));
    assert_eq!(
        (&first["archivedRevision"], &first["lagSeconds"]),
        (&json!(7), &json!(60))
    );
    assert_eq!(fake.condition(CONDITION), "True/Archiving");
    fake.wait(30);
    assert_eq!(published(&mut fake, &answered(8, 5)), first);
    fake.wait(29);
    assert_eq!(published(&mut fake, &answered(9, 9)), first);
    fake.wait(1);
    let second = published(&mut fake, &answered(9, 5));
    assert_eq!(second["archivedRevision"], 9);
    assert_eq!(
        second["archivedUntil"],
        (start + SignedDuration::from_secs(55)).to_string()
    );
    // The condition says that it is behind, and figures are written as they grow, ever more rarely.
    let mut written = Vec::new();
    for _ in 0..60 {
        fake.wait(30);
        let lag = fake
            .seen
            .now
            .duration_since(start + SignedDuration::from_secs(55))
            .as_secs();
        written.push(published(&mut fake, &answered(9, lag))["lagSeconds"].as_i64().unwrap());
    }
    written.dedup();
    assert_eq!(written, [60, 120, 240, 480, 960, 1920]);
    assert_eq!(fake.condition(CONDITION), "False/Behind");
    assert_eq!(
        fake.condition("Ready"),
        "True/AsExpected",
        "an archive is not the cluster"
    );
    // It stores all of it again.
    let last = published(&mut fake, &answered(99, 3));
    assert_eq!(
        (&last["archivedRevision"], &last["lagSeconds"]),
        (&json!(99), &json!(60))
    );
    fake.seen.archive = ObservedArchive::Unknown;
    fake.pass();
    assert_eq!(
        fake.condition(CONDITION),
        "True/Archiving",
        "a new operator knows nothing yet"
    );
    fake.seen.archive = ObservedArchive::Absent;
    assert!(is_news(&fake.cluster, &fake.seen.archive));
    fake.pass();
    assert_eq!(fake.condition(CONDITION), "absent");
    assert_eq!(fake.cluster.status.clone().unwrap().backup, None);
}

#[test]
fn newest_backup_stays_in_the_status() {
    let mut fake = FakeCluster::settled(json!({}));
    fake.cluster.metadata.creation_timestamp = serde_json::from_value(json!(BEGIN)).unwrap();
    let mut last = |name: &str, time: &str| {
        let backup = json!({"name": name, "completionTime": time});
        fake.seen.last_backup = serde_json::from_value(backup).unwrap();
        fake.pass();
        let backup = fake.cluster.status.clone().unwrap().backup;
        backup.and_then(|backup| backup.last_backup).map(|last| last.name)
    };
    assert_eq!(
        last("former", "2026-11-20T00:00:00Z"),
        None,
        "it is of a deleted cluster"
    );
    assert_eq!(last("a", "2026-11-22T00:00:00Z").as_deref(), Some("a"));
    assert_eq!(last("b", "2026-11-23T00:00:00Z").as_deref(), Some("b"));
    // After a restart the operator first hears of an older one.
    assert_eq!(last("a", "2026-11-22T00:00:00Z").as_deref(), Some("b"));
}

#[test]
fn archive_has_a_monitor_of_its_own() {
    let mut given = spec(&json!({}), &json!({}));
    given["monitoring"] = json!({"podMonitor": {"enabled": true}});
    let monitors = |spec: &Value| -> Vec<(String, Value)> {
        let mut fake = FakeCluster::new(spec.clone());
        fake.seen.pod_monitors = true;
        let desired = fake.desired();
        let all = crate::objects::Renderer::new(&fake.cluster, &desired)
            .all(true)
            .unwrap();
        let all = all
            .into_iter()
            .filter(|object| object.key.kind == crate::objects::ObjectKind::PodMonitor);
        all.map(|object| (object.key.name, object.body["spec"]["selector"]["matchLabels"].clone()))
            .collect()
    };
    let own = ("dev.archive".to_owned(), json!({"kubebrain.io/archive": "dev"}));
    let found = monitors(&given);
    assert_eq!((found.len(), &found[1]), (2, &own));
    given["backup"]["archive"]["suspend"] = json!(true);
    assert_eq!(monitors(&given).len(), 1);
}

#[test]
fn status_of_a_condition_is_kept_while_nothing_is_known() {
    let before = json!([{"type": CONDITION, "status": "Unknown", "reason": "Unreachable", "message": "m", "lastTransitionTime": BEGIN}]);
    let before: Vec<_> = serde_json::from_value(before).unwrap();
    let kept = condition(&before, &ObservedArchive::Unknown);
    assert_eq!(
        kept,
        Some(ConditionUpdate::new(
            CONDITION,
            ConditionStatus::Unknown,
            "Unreachable",
            "m"
        ))
    );
    assert_eq!(condition(&[], &ObservedArchive::Unknown), None);
}
