use fake_api::{CLUSTERS, FakeApi, ScriptedReply, failure};
use kube::runtime::reflector::store::Writer;
use plan::testing::{BEGIN, cluster};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::reconcile::reconcile;
use super::*;
use crate::testing::Rig;

const BACKUPS: &str = "/apis/kubebrain.io/v1alpha1/namespaces/brains/kubebrainbackups";
const JOBS: &str = "/apis/batch/v1/namespaces/brains/jobs";
const NAMESPACE: &str = "/api/v1/namespaces/brains";

/// A server with a backup to the claim `backups`, which exists; `change` may change it.
fn server(api: FakeApi, change: impl FnOnce(&mut Value)) -> FakeApi {
    let mut backup = json!({
        "apiVersion": "kubebrain.io/v1alpha1",
        "kind": "KubeBrainBackup",
        "metadata": {"name": "nightly", "namespace": "brains", "uid": "backup-uid", "generation": 1},
        "spec": {"clusterName": "dev", "destination": {"persistentVolumeClaim": {"claimName": "backups"}}},
    });
    change(&mut backup);
    api.put(&format!("{BACKUPS}/nightly"), backup);
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "backups", "namespace": "brains"}});
    api.put(&format!("{NAMESPACE}/persistentvolumeclaims/backups"), claim);
    api
}

/// Adds the cluster, with a leader.
fn with_cluster(api: FakeApi) -> FakeApi {
    let mut dev = serde_json::to_value(cluster(json!({}))).unwrap();
    let available = json!({
        "type": "Available", "status": "True", "reason": "LeaderElected", "message": "", "lastTransitionTime": BEGIN,
    });
    dev["status"] = json!({"conditions": [available], "image": "brain:1"});
    api.put(&format!("{CLUSTERS}/dev"), dev);
    api
}

async fn pass(rig: &Rig) -> Option<Duration> {
    Box::pin(reconcile(&rig.context, "brains", "nightly")).await.unwrap()
}

fn stored(rig: &Rig) -> Value {
    rig.api.get(&format!("{BACKUPS}/nightly")).unwrap()
}

/// Returns a condition as `Status Reason: message`.
fn condition(rig: &Rig, type_: &str) -> String {
    let stored = stored(rig);
    let conditions = stored["status"]["conditions"].as_array().unwrap();
    let found = conditions.iter().find(|condition| condition["type"] == type_).unwrap();
    let text = |field: &str| found[field].as_str().unwrap().to_owned();
    format!("{} {}: {}", text("status"), text("reason"), text("message"))
}

/// Ends a Job with this condition, and gives it a pod that ended with this code and message.
fn end(rig: &Rig, job: &str, type_: &str, (code, message): (i32, &str)) {
    let path = format!("{JOBS}/{job}");
    let mut object = rig.api.get(&path).unwrap();
    let ended = json!({"type": type_, "status": "True", "reason": "BackoffLimitExceeded", "message": "too many", "lastTransitionTime": BEGIN});
    object["status"] = json!({"conditions": [ended], "completionTime": "2026-11-29T18:00:00Z"});
    let object = rig.api.put(&path, object);
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": object["metadata"]["uid"], "controller": true});
    let state = json!({"terminated": {"exitCode": code, "message": message}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("{job}-x"), "namespace": "brains", "labels": {"batch.kubernetes.io/job-name": job}, "ownerReferences": [owner],
        },
        "status": {"containerStatuses": [{"name": "backup", "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": state}]},
    });
    rig.api.put(&format!("{NAMESPACE}/pods/{job}-x"), pod);
}

fn result() -> String {
    json!({
        "name": "20261129T113542.123Z-0000000000000000042", "revision": 42, "clusterId": "1f", "snapshotBytes": 4096, "sha256": "ab",
        "storedBytes": 1024, "verified": false,
    })
    .to_string()
}

#[tokio::test(start_paused = true)]
async fn backup_waits_then_runs_a_job_and_records_its_result() {
    let rig = Rig::new(server(FakeApi::new(), |_| {})).await;
    assert_eq!(pass(&rig).await, Some(PROGRESS_INTERVAL));
    assert_eq!(
        condition(&rig, "Reconciling"),
        "True WaitingForCluster: KubeBrainCluster dev does not exist"
    );
    assert!(rig.api.writes().iter().all(|write| !write.path.contains("/jobs")));
    with_cluster(rig.api.clone());
    rig.sync().await;
    rig.api.forget_requests();
    pass(&rig).await;
    let writes: Vec<String> = rig.api.writes().iter().map(|write| write.path.clone()).collect();
    assert_eq!(
        writes,
        [
            format!("{BACKUPS}/nightly/status"),
            JOBS.to_owned(),
            format!("{BACKUPS}/nightly/status")
        ],
        "the start is recorded first"
    );
    assert_eq!(stored(&rig)["status"]["runtime"]["image"], "brain:1");
    assert_eq!(
        condition(&rig, "Reconciling"),
        "True Running: created Job nightly-backup"
    );
    let started = stored(&rig)["status"]["startTime"].clone();
    assert!(started.is_string());

    pass(&rig).await;
    assert_eq!(
        condition(&rig, "Reconciling"),
        "True Running: Job nightly-backup is running"
    );
    rig.api.forget_requests();
    pass(&rig).await;
    assert!(rig.api.writes().is_empty(), "{:?}", rig.api.writes());
    end(&rig, "nightly-backup", "Complete", (0, &result()));
    pass(&rig).await;
    assert_eq!(
        condition(&rig, "Complete"),
        "True Completed: backup 20261129T113542.123Z-0000000000000000042 of revision 42 was made"
    );
    let status = stored(&rig)["status"].clone();
    assert_eq!(
        (&status["startTime"], &status["completionTime"]),
        (&started, &json!("2026-11-29T18:00:00Z"))
    );
    assert_eq!(
        (&status["revision"], &status["location"]),
        (&json!(42), &json!("pvc://backups"))
    );
    assert_eq!(rig.api.events().last().unwrap(), "BackupCompleted");
    assert_eq!(pass(&rig).await, None, "a settled backup needs no pass");
}

#[tokio::test(start_paused = true)]
async fn failed_job_is_reported_in_the_words_of_the_program_and_not_run_again() {
    let rig = Rig::new(with_cluster(server(FakeApi::new(), |_| {}))).await;
    pass(&rig).await;
    end(
        &rig,
        "nightly-backup",
        "Failed",
        (1, "{}\nkubebrain: cannot access manifests: no space"),
    );
    pass(&rig).await;
    assert_eq!(
        condition(&rig, "Failed"),
        "True BackupFailed: cannot access manifests: no space"
    );
    assert_eq!(
        condition(&rig, "Stalled"),
        "True BackupFailed: cannot access manifests: no space"
    );
    rig.api.forget_requests();
    assert_eq!(pass(&rig).await, None);
    assert!(rig.api.writes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn objects_of_clusters_may_not_be_named() {
    let refused = async |api: FakeApi, destination: Value| {
        let change = |backup: &mut Value| backup["spec"]["destination"] = destination;
        let rig = Rig::new(with_cluster(server(api, change))).await;
        pass(&rig).await;
        let jobs = rig.api.writes().iter().filter(|write| write.path == JOBS).count();
        (condition(&rig, "Reconciling"), jobs)
    };
    let s3 = |name: &str| json!({"s3": {"bucket": "b", "credentialsSecretRef": {"name": name}}});
    let secret = |name: &str, labels: Value| {
        let api = FakeApi::new();
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "brains", "labels": labels}});
        api.put(&format!("{NAMESPACE}/secrets/{name}"), secret);
        api
    };
    let message = "destination.s3.credentialsSecretRef: Secret dev-ca belongs to the cluster dev";
    assert_eq!(
        refused(FakeApi::new(), s3("dev-ca")).await,
        (format!("False InvalidSpec: {message}"), 0)
    );
    let former = json!({"app.kubernetes.io/managed-by": "kubebrain-operator", "kubebrain.io/cluster": "gone"});
    let (said, jobs) = refused(secret("former", former), s3("former")).await;
    assert!(said.ends_with("Secret former belongs to the cluster gone"), "{said}");
    assert_eq!(jobs, 0);
    let (said, jobs) = refused(FakeApi::new(), s3("missing")).await;
    assert_eq!(
        said,
        "True WaitingForObject: destination.s3.credentialsSecretRef: Secret missing does not exist"
    );
    assert_eq!(jobs, 0);
    assert_eq!(refused(secret("mine", json!({})), s3("mine")).await.1, 1);
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {
        "name": "data-other-0", "namespace": "brains", "labels": {"kubebrain.io/cluster": "other"},
    }});
    let api = FakeApi::new();
    api.put(&format!("{NAMESPACE}/persistentvolumeclaims/data-other-0"), claim);
    let (said, jobs) = refused(api, json!({"persistentVolumeClaim": {"claimName": "data-other-0"}})).await;
    assert!(
        said.ends_with("PersistentVolumeClaim data-other-0 belongs to the cluster other"),
        "{said}"
    );
    assert_eq!(jobs, 0);
}

#[tokio::test(start_paused = true)]
async fn job_of_another_owner_is_left_alone() {
    let rig = Rig::new(with_cluster(server(FakeApi::new(), |_| {}))).await;
    let foreign =
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "nightly-backup", "namespace": "brains"}});
    let foreign = rig.api.put(&format!("{JOBS}/nightly-backup"), foreign);
    pass(&rig).await;
    assert!(condition(&rig, "Reconciling").starts_with("True OwnershipConflict: Job nightly-backup is not owned"));
    assert_eq!(rig.api.get(&format!("{JOBS}/nightly-backup")).unwrap(), foreign);
}

/// Returns a backup that was made, and whose resource is deleted.
async fn leaving(api: FakeApi, policy: &str) -> Rig {
    let rig = Rig::new(with_cluster(server(api, |backup| {
        backup["spec"]["deletionPolicy"] = json!("Delete")
    })))
    .await;
    pass(&rig).await;
    assert_eq!(
        stored(&rig)["metadata"]["finalizers"],
        json!(["kubebrain.io/delete-backup"])
    );
    let mut backup = stored(&rig);
    backup["metadata"]["deletionTimestamp"] = json!(BEGIN);
    backup["spec"]["deletionPolicy"] = json!(policy);
    rig.api.put(&format!("{BACKUPS}/nightly"), backup);
    rig.api.remove(&format!("{CLUSTERS}/dev"));
    rig.sync().await;
    rig.api.forget_requests();
    rig
}

#[tokio::test(start_paused = true)]
async fn objects_are_deleted_after_the_job_that_stores_them_and_without_the_cluster() {
    let rig = leaving(FakeApi::new(), "Delete").await;
    pass(&rig).await;
    assert_eq!(
        rig.api.get(&format!("{JOBS}/nightly-backup")),
        None,
        "it still stores objects"
    );
    assert_eq!(
        condition(&rig, "Reconciling"),
        "True Deleting: waiting for the end of Job nightly-backup"
    );
    pass(&rig).await;
    let job = rig.api.get(&format!("{JOBS}/nightly-backup-delete")).unwrap();
    let container = &job["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], "brain:1");
    assert_eq!(container["args"][1], "delete");
    end(&rig, "nightly-backup-delete", "Failed", (1, "kubebrain: access denied"));
    pass(&rig).await;
    let said = condition(&rig, "Reconciling");
    assert!(
        said.starts_with("True DeletionFailed: access denied; set deletionPolicy to Keep"),
        "{said}"
    );
    assert_eq!(
        rig.api.get(&format!("{JOBS}/nightly-backup-delete")),
        None,
        "it is not tried again"
    );
    rig.api.remove(&format!("{NAMESPACE}/pods/nightly-backup-delete-x"));
    pass(&rig).await;
    end(&rig, "nightly-backup-delete", "Complete", (0, ""));
    pass(&rig).await;
    assert_eq!(stored(&rig)["metadata"]["finalizers"], json!([]));
    assert_eq!(rig.api.events().last().unwrap(), "BackupDeleted");
    assert_eq!(pass(&rig).await, None);
}

#[tokio::test(start_paused = true)]
async fn deletion_that_is_given_up_keeps_the_objects() {
    let rig = leaving(FakeApi::new(), "Keep").await;
    pass(&rig).await;
    assert_eq!(stored(&rig)["metadata"]["finalizers"], json!([]));
    assert_eq!(rig.api.events(), ["BackupKept"]);
    assert!(rig.api.writes().iter().all(|write| !write.path.contains("/jobs")));
}

#[tokio::test(start_paused = true)]
async fn namespace_that_is_deleted_is_not_held_back() {
    let api = FakeApi::scripted(|asked| {
        if asked.path == JOBS && asked.writes() && asked.body["metadata"]["name"] == "nightly-backup-delete" {
            let (code, mut status) = failure(403, "Forbidden", "it");
            status["details"]["causes"] = json!([{"reason": "NamespaceTerminating", "field": "", "message": ""}]);
            return ScriptedReply::With(code, status);
        }
        ScriptedReply::Pass
    });
    let rig = leaving(api, "Delete").await;
    pass(&rig).await;
    pass(&rig).await;
    assert_eq!(stored(&rig)["metadata"]["finalizers"], json!([]));
    let notes = rig.api.events_about("Namespace");
    assert!(
        notes[0].starts_with("KubeBrainBackup nightly: the objects of the backup remain at pvc://backups"),
        "{notes:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn backup_that_never_began_has_nothing_to_delete() {
    let leave = |backup: &mut Value| {
        backup["spec"]["deletionPolicy"] = json!("Delete");
        backup["metadata"]["finalizers"] = json!(["kubebrain.io/delete-backup"]);
        backup["metadata"]["deletionTimestamp"] = json!(BEGIN);
    };
    let rig = Rig::new(server(FakeApi::new(), leave)).await;
    pass(&rig).await;
    assert_eq!(stored(&rig)["metadata"]["finalizers"], json!([]));
    assert_eq!(rig.api.events(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn policy_of_an_ended_backup_may_change() {
    let rig = Rig::new(with_cluster(server(FakeApi::new(), |_| {}))).await;
    pass(&rig).await;
    end(&rig, "nightly-backup", "Complete", (0, &result()));
    pass(&rig).await;
    let mut backup = stored(&rig);
    backup["spec"]["deletionPolicy"] = json!("Delete");
    backup["metadata"]["generation"] = json!(2);
    rig.api.put(&format!("{BACKUPS}/nightly"), backup);
    pass(&rig).await;
    let backup = stored(&rig);
    assert_eq!(backup["metadata"]["finalizers"], json!(["kubebrain.io/delete-backup"]));
    assert_eq!(
        (&backup["status"]["observedGeneration"], &backup["status"]["revision"]),
        (&json!(2), &json!(42))
    );
    assert_eq!(pass(&rig).await, None);
}

#[tokio::test(start_paused = true)]
async fn controller_makes_a_backup_and_forgets_it() {
    let discovery = json!({"kind": "APIResourceList", "groupVersion": "kubebrain.io/v1alpha1", "resources": [
        {"name": "kubebrainbackups", "singularName": "", "namespaced": true, "kind": "KubeBrainBackup", "verbs": []},
    ]});
    let api = FakeApi::scripted(move |asked| match asked.path.as_str() {
        "/apis/kubebrain.io/v1alpha1" => ScriptedReply::With(200, discovery.clone()),
        _ => ScriptedReply::Pass,
    });
    let rig = Rig::new(with_cluster(server(api, |_| {}))).await;
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    running.spawn(passes::run(
        rig.context.clone(),
        None,
        Writer::<KubeBrainBackup>::default(),
        stop.clone(),
    ));
    tokio::time::sleep(Duration::from_secs(2)).await;
    end(&rig, "nightly-backup", "Complete", (0, &result()));
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert!(condition(&rig, "Complete").starts_with("True Completed"));
    // A backup that has ended is not read again.
    rig.api.forget_requests();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let asked: Vec<_> = rig
        .api
        .asked()
        .into_iter()
        .filter(|asked| asked.path.contains("backups"))
        .collect();
    assert!(asked.is_empty(), "{asked:?}");
    stop.cancel();
    running.join_next().await.unwrap().unwrap().unwrap();
}

/// A server with a complete backup, and a request to verify it.
fn verifying(api: FakeApi, request: &str) -> FakeApi {
    server(api, |backup| {
        backup["metadata"]["annotations"] = json!({"kubebrain.io/verify": request});
        backup["status"] = json!({
            "observedGeneration": 1, "backupName": "b", "startTime": BEGIN, "completionTime": BEGIN, "runtime": {"image": "brain:1"},
            "conditions": [{"type": "Complete", "status": "True", "reason": "Completed", "message": "", "lastTransitionTime": BEGIN}],
        });
    })
}

#[tokio::test(start_paused = true)]
async fn backup_is_verified_by_a_job_even_if_its_cluster_is_gone() {
    let rig = Rig::new(verifying(FakeApi::new(), "1")).await;
    pass(&rig).await;
    assert_eq!(
        condition(&rig, "Verified"),
        "Unknown Verifying: created Job nightly-backup-verify"
    );
    let job = rig.api.get(&format!("{JOBS}/nightly-backup-verify")).unwrap();
    let container = &job["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], "brain:1");
    end(&rig, "nightly-backup-verify", "Complete", (0, ""));
    pass(&rig).await;
    assert_eq!(
        condition(&rig, "Verified"),
        "True Verified: the backup was read, and is as it was written"
    );
    assert!(condition(&rig, "Complete").starts_with("True Completed"));
    let status = stored(&rig)["status"].clone();
    assert_eq!(status["verified"], true);
    assert_eq!(status["verification"]["handled"], "1");
    assert_eq!(status["verification"]["time"], "2026-11-29T18:00:00Z");
    assert_eq!(pass(&rig).await, None, "the request was handled");
    assert!(rig.api.events().contains(&"BackupVerified".to_owned()));

    // Another request is another Job.
    let mut backup = stored(&rig);
    backup["metadata"]["annotations"]["kubebrain.io/verify"] = json!("2");
    rig.api.put(&format!("{BACKUPS}/nightly"), backup);
    pass(&rig).await;
    assert_eq!(rig.api.get(&format!("{JOBS}/nightly-backup-verify")), None);
    pass(&rig).await;
    end(
        &rig,
        "nightly-backup-verify",
        "Failed",
        (3, "kubebrain: parts/b/1 is damaged: its checksum differs"),
    );
    pass(&rig).await;
    assert_eq!(
        condition(&rig, "Verified"),
        "False Damaged: parts/b/1 is damaged: its checksum differs"
    );
    let status = stored(&rig)["status"].clone();
    assert_eq!(status["verified"], false);
    assert_eq!(status["verification"]["result"], "Damaged");
    assert!(rig.api.events().contains(&"BackupDamaged".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn backup_that_cannot_be_read_is_not_called_damaged() {
    let rig = Rig::new(verifying(FakeApi::new(), "1")).await;
    pass(&rig).await;
    end(
        &rig,
        "nightly-backup-verify",
        "Failed",
        (1, "kubebrain: cannot access parts/b/1"),
    );
    pass(&rig).await;
    assert_eq!(
        condition(&rig, "Verified"),
        "Unknown VerificationFailed: cannot access parts/b/1"
    );
    let status = stored(&rig)["status"].clone();
    assert_eq!(
        (&status["verified"], &status["verification"]["result"]),
        (&Value::Null, &json!("Failed"))
    );
}

#[tokio::test(start_paused = true)]
async fn verification_waits_for_objects_and_leaves_jobs_of_others_alone() {
    let rig = Rig::new(verifying(FakeApi::new(), "1")).await;
    rig.api.remove(&format!("{NAMESPACE}/persistentvolumeclaims/backups"));
    pass(&rig).await;
    let text = condition(&rig, "Verified");
    assert!(
        text.starts_with("Unknown WaitingForObject: ") && text.contains("backups does not exist"),
        "{text}"
    );

    let foreign = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "nightly-backup-verify", "namespace": "brains"}});
    let api = verifying(FakeApi::new(), "1");
    api.put(&format!("{JOBS}/nightly-backup-verify"), foreign);
    let rig = Rig::new(api).await;
    pass(&rig).await;
    assert!(condition(&rig, "Verified").starts_with("Unknown OwnershipConflict: "));

    // A failure of a pass does not hide that there is a backup.
    let backup: KubeBrainBackup = serde_json::from_value(stored(&rig)).unwrap();
    backup.report(&rig.context, "no".to_owned()).await.unwrap();
    assert_eq!(condition(&rig, "Verified"), "Unknown ReconcileError: no");
    assert!(condition(&rig, "Complete").starts_with("True Completed"));
}

#[tokio::test(start_paused = true)]
async fn damaged_backups_are_shown_until_they_are_gone() {
    let rig = Rig::new(verifying(FakeApi::new(), "1")).await;
    let shows = || {
        let page = String::from_utf8(rig.context.metrics.render().unwrap()).unwrap();
        page.contains("kubebrain_backup_damaged{name=\"nightly\",namespace=\"brains\"} 1")
    };
    let read = || -> KubeBrainBackup { serde_json::from_value(stored(&rig)).unwrap() };
    read().observed(&rig.context.backups);
    assert!(!shows());
    pass(&rig).await;
    end(&rig, "nightly-backup-verify", "Failed", (3, "kubebrain: damaged"));
    pass(&rig).await;
    read().observed(&rig.context.backups);
    assert!(shows());
    read().gone(&rig.context.backups);
    assert!(!shows());
    read().observed(&rig.context.backups);
    KubeBrainBackup::relisting(&rig.context.backups);
    assert!(!shows());
}
