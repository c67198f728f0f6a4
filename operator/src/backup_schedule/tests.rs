use fake_api::{CLUSTERS, FakeApi, ScriptedReply, failure};
use kube::runtime::reflector::store::Writer;
use plan::testing::{BEGIN, cluster};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::installation::Installation;
use crate::testing::Rig;

const BACKUPS: &str = "/apis/kubebrain.io/v1alpha1/namespaces/brains/kubebrainbackups";
const SCHEDULES: &str = "/apis/kubebrain.io/v1alpha1/namespaces/brains/kubebrainbackupschedules";

/// A server with the schedule `nightly`, created at [`BEGIN`]; `change` may change it.
fn server(api: FakeApi, change: impl FnOnce(&mut Value)) -> FakeApi {
    let mut schedule = json!({
        "apiVersion": "kubebrain.io/v1alpha1",
        "kind": "KubeBrainBackupSchedule",
        "metadata": {"name": "nightly", "namespace": "brains", "uid": "schedule-uid", "generation": 1, "creationTimestamp": BEGIN},
        "spec": {
            "schedule": "0 3 * * *",
            "retention": {"keepLast": 2},
            "template": {"spec": {
                "clusterName": "dev", "deletionPolicy": "Delete", "destination": {"persistentVolumeClaim": {"claimName": "backups"}},
            }},
        },
    });
    change(&mut schedule);
    api.put(&format!("{SCHEDULES}/nightly"), schedule);
    api
}

/// Runs a pass at a time of November.
async fn pass(rig: &Rig, time: &str) -> Option<Duration> {
    let now = format!("2026-11-{time}Z").parse().unwrap();
    Box::pin(reconcile(&rig.context, "brains", "nightly", now))
        .await
        .unwrap()
}

fn stored(rig: &Rig) -> Value {
    rig.api.get(&format!("{SCHEDULES}/nightly")).unwrap()
}

/// Returns a condition as `Status Reason: message`.
fn condition(rig: &Rig, type_: &str) -> String {
    let stored = stored(rig);
    let conditions = stored["status"]["conditions"].as_array().unwrap();
    let found = conditions.iter().find(|condition| condition["type"] == type_).unwrap();
    let text = |field: &str| found[field].as_str().unwrap().to_owned();
    format!("{} {}: {}", text("status"), text("reason"), text("message"))
}

/// Ends the backup of this day, as its own passes do.
fn end(rig: &Rig, day: u32, condition: &str) {
    let path = format!("{BACKUPS}/nightly-202611{day}030000");
    let mut backup = rig.api.get(&path).unwrap();
    let time = format!("2026-11-{day}T03:05:00Z");
    backup["status"] = json!({
        "clusterID": "1f", "completionTime": (condition == "Complete").then_some(&time),
        "conditions": [{"type": condition, "status": "True", "reason": "R", "message": "no space", "lastTransitionTime": time}],
    });
    rig.api.put(&path, backup);
}

/// Returns the days of the backups that exist.
fn days(rig: &Rig) -> Vec<u32> {
    let exists = |day: &u32| rig.api.get(&format!("{BACKUPS}/nightly-202611{day}030000")).is_some();
    (20..31).filter(exists).collect()
}

#[tokio::test(start_paused = true)]
async fn backup_is_made_at_each_time_and_old_ones_are_deleted() {
    let rig = Rig::new(server(FakeApi::new(), |_| {})).await;
    assert_eq!(pass(&rig, "21T02:00:00").await, Some(Duration::from_secs(3600)));
    assert_eq!(days(&rig), Vec::<u32>::new());
    assert_eq!(stored(&rig)["status"]["nextScheduleTime"], "2026-11-21T03:00:00Z");
    assert_eq!(
        condition(&rig, "Ready"),
        "True Scheduled: backups are made at 0 3 * * *, Etc/UTC"
    );
    for day in 21..24 {
        assert_eq!(
            pass(&rig, &format!("{day}T03:00:00")).await,
            Some(Duration::from_secs(10))
        );
        let name = format!("nightly-202611{day}030000");
        let status = stored(&rig)["status"].clone();
        assert_eq!(
            (&status["active"], &status["lastBackup"]),
            (&json!([name]), &json!(name))
        );
        let backup = rig.api.get(&format!("{BACKUPS}/{name}")).unwrap();
        assert_eq!(
            backup["metadata"]["labels"],
            json!({"kubebrain.io/schedule": "nightly"})
        );
        assert_eq!(
            backup["metadata"]["ownerReferences"],
            Value::Null,
            "it would go with its schedule"
        );
        assert_eq!(backup["spec"]["deletionPolicy"], "Delete");
        rig.api.forget_requests();
        pass(&rig, &format!("{day}T03:00:10")).await;
        assert!(rig.api.writes().is_empty(), "{:?}", rig.api.writes());
        end(&rig, day, "Complete");
        pass(&rig, &format!("{day}T03:06:00")).await;
        assert_eq!(stored(&rig)["status"]["lastSuccessfulBackup"], json!(name));
    }
    assert_eq!(days(&rig), [22, 23]);
    let told = rig.api.events();
    assert_eq!(
        told.iter().filter(|reason| *reason == "BackupExpired").count(),
        1,
        "{told:?}"
    );
    rig.api.forget_requests();
    assert_eq!(pass(&rig, "23T03:07:00").await, Some(Duration::from_secs(3600)));
    assert!(rig.api.writes().is_empty(), "{:?}", rig.api.writes());
}

#[tokio::test(start_paused = true)]
async fn operator_that_ends_in_between_makes_no_second_backup() {
    let api = FakeApi::scripted(|asked| match asked.path.ends_with("nightly/status") {
        true => ScriptedReply::With(500, failure(500, "InternalError", "it").1),
        false => ScriptedReply::Pass,
    });
    let rig = Rig::new(server(api, |_| {})).await;
    let now = "2026-11-21T03:00:00Z".parse().unwrap();
    for _ in 0..2 {
        assert!(
            Box::pin(reconcile(&rig.context, "brains", "nightly", now))
                .await
                .is_err()
        );
    }
    let creations = rig.api.writes().iter().filter(|write| write.path == BACKUPS).count();
    assert_eq!(
        (creations, days(&rig)),
        (1, vec![21]),
        "the second pass sees the backup of the first one"
    );
    // A list that is older than the backup.
    let backup = rig.api.get(&format!("{BACKUPS}/nightly-20261121030000")).unwrap();
    let schedule = serde_json::from_value(stored(&rig)).unwrap();
    let backup = serde_json::from_value(backup).unwrap();
    assert!(create(&rig.context, &schedule, &backup).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn backup_of_another_owner_is_left_alone() {
    let rig = Rig::new(server(FakeApi::new(), |_| {})).await;
    let path = format!("{BACKUPS}/nightly-20261121030000");
    let foreign = json!({"apiVersion": "kubebrain.io/v1alpha1", "kind": "KubeBrainBackup",
        "metadata": {"name": "nightly-20261121030000", "namespace": "brains"}, "spec": stored(&rig)["spec"]["template"]["spec"]});
    let foreign = rig.api.put(&path, foreign);
    pass(&rig, "21T03:00:00").await;
    assert_eq!(
        condition(&rig, "Reconciling"),
        "True OwnershipConflict: KubeBrainBackup nightly-20261121030000 is not of this schedule: delete it"
    );
    assert_eq!(rig.api.get(&path).unwrap(), foreign);
    assert_eq!(stored(&rig)["status"]["lastScheduleTime"], Value::Null);
    pass(&rig, "22T03:00:00").await;
    assert_eq!(days(&rig), [21, 22]);
    assert!(condition(&rig, "Reconciling").starts_with("False Scheduled"));
}

#[tokio::test(start_paused = true)]
async fn schedule_that_is_deleted_leaves_its_backups() {
    let rig = Rig::new(server(FakeApi::new(), |schedule| {
        schedule["metadata"]["deletionTimestamp"] = json!(BEGIN);
    }))
    .await;
    assert_eq!(pass(&rig, "25T03:00:00").await, None);
    assert!(rig.api.writes().is_empty(), "{:?}", rig.api.writes());
}

#[tokio::test(start_paused = true)]
async fn schedule_of_another_installation_is_left_alone() {
    let api = server(FakeApi::new(), |_| {});
    let mut dev = serde_json::to_value(cluster(json!({}))).unwrap();
    dev["metadata"]["annotations"]["kubebrain.io/managed-by"] = json!("elsewhere/kubebrain-operator");
    api.put(&format!("{CLUSTERS}/dev"), dev);
    let lease = "/apis/coordination.k8s.io/v1/namespaces/elsewhere/leases/kubebrain-operator";
    let spec = json!({"holderIdentity": "x", "leaseDurationSeconds": 3600, "renewTime": Timestamp::now().to_string()});
    api.put(lease, json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "kubebrain-operator"}, "spec": spec}));
    let mut rig = Rig::new(api).await;
    rig.context.installation =
        Installation::new(rig.context.client.clone(), Some("here/kubebrain-operator".to_owned()));
    assert_eq!(pass(&rig, "25T03:00:00").await, Some(ELSEWHERE_INTERVAL));
    assert!(rig.api.writes().is_empty(), "{:?}", rig.api.writes());
}

#[tokio::test(start_paused = true)]
async fn controller_makes_the_immediate_backup_and_reports_refusals() {
    let discovery = json!({"kind": "APIResourceList", "groupVersion": "kubebrain.io/v1alpha1", "resources": [
        {"name": "kubebrainbackupschedules", "singularName": "", "namespaced": true, "kind": "KubeBrainBackupSchedule", "verbs": []},
    ]});
    let api = FakeApi::scripted(move |asked| match asked.path.as_str() {
        "/apis/kubebrain.io/v1alpha1" => ScriptedReply::With(200, discovery.clone()),
        BACKUPS if asked.writes() && asked.body["metadata"]["labels"]["bad"].is_string() => {
            ScriptedReply::With(422, failure(422, "Invalid", "it").1)
        }
        _ => ScriptedReply::Pass,
    });
    let created = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let api = server(api, |schedule| {
        schedule["spec"]["immediate"] = json!(true);
        schedule["spec"]["schedule"] = json!("@yearly");
        schedule["metadata"]["creationTimestamp"] = json!(created);
    });
    let rig = Rig::new(api).await;
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    let writer = Writer::<KubeBrainBackupSchedule>::default();
    let store = writer.as_reader();
    running.spawn(passes::run(rig.context.clone(), None, writer, stop.clone()));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let name = stored(&rig)["status"]["lastBackup"].as_str().unwrap().to_owned();
    assert!(rig.api.get(&format!("{BACKUPS}/{name}")).is_some());
    assert_eq!(store.state().len(), 1, "metrics are made of the store");

    let mut bad = stored(&rig);
    bad["metadata"]["name"] = json!("bad");
    bad["metadata"]["uid"] = json!("bad-uid");
    bad["spec"]["template"]["metadata"] = json!({"labels": {"bad": "!"}});
    bad.as_object_mut().unwrap().remove("status");
    rig.api.put(&format!("{SCHEDULES}/bad"), bad);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let bad = rig.api.get(&format!("{SCHEDULES}/bad")).unwrap();
    let reconciling = &bad["status"]["conditions"][1];
    assert_eq!(
        (&reconciling["status"], &reconciling["reason"]),
        (&json!("True"), &json!("ReconcileError"))
    );
    assert!(
        reconciling["message"]
            .as_str()
            .unwrap()
            .starts_with("creating the backup failed: "),
        "{reconciling}"
    );
    stop.cancel();
    running.join_next().await.unwrap().unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn newest_backup_is_verified_when_that_is_due() {
    let rig = Rig::new(server(FakeApi::new(), |schedule| {
        schedule["spec"]["verify"] = json!("Weekly")
    }))
    .await;
    pass(&rig, "21T03:00:00").await;
    end(&rig, 21, "Complete");
    let path = format!("{BACKUPS}/nightly-20261121030000");
    let mut backup = rig.api.get(&path).unwrap();
    backup["status"]["backupName"] = json!("b");
    rig.api.put(&path, backup);
    rig.api.forget_requests();
    pass(&rig, "21T03:06:00").await;
    let request = || rig.api.get(&path).unwrap()["metadata"]["annotations"]["kubebrain.io/verify"].clone();
    assert_eq!(request(), "2026-11-21T03:06:00Z");
    pass(&rig, "21T03:07:00").await;
    assert_eq!(request(), "2026-11-21T03:06:00Z", "it was not handled yet");
    let mut backup = rig.api.get(&path).unwrap();
    backup["status"]["verification"] =
        json!({"handled": "2026-11-21T03:06:00Z", "time": "2026-11-21T03:08:00Z", "result": "Verified", "message": ""});
    rig.api.put(&path, backup);
    pass(&rig, "21T03:09:00").await;
    assert_eq!(stored(&rig)["status"]["lastVerificationTime"], "2026-11-21T03:08:00Z");
    assert_eq!(request(), "2026-11-21T03:06:00Z");
    pass(&rig, "28T03:08:00").await;
    assert_eq!(request(), "2026-11-28T03:08:00Z");
}
