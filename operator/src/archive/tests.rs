use fake_api::{CLUSTERS, FakeApi, ScriptedReply, failure};
use plan::testing::FakeCluster;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::*;
use crate::testing::Rig;

const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/brains/deployments/dev-archive";
const NAMESPACE: &str = "/api/v1/namespaces/brains";

/// A server with a settled cluster whose archive goes to the claim `backups`, which exists.
fn server(api: FakeApi, change: impl FnOnce(&mut Value)) -> FakeApi {
    let mut fake = FakeCluster::settled(json!({}));
    let mut spec = json!({"backup": {
        "destination": {"persistentVolumeClaim": {"claimName": "backups"}}, "archive": {},
    }});
    change(&mut spec);
    fake.edit(spec);
    fake.settle();
    api.load(&fake);
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "backups", "namespace": "brains"}});
    api.put(&format!("{NAMESPACE}/persistentvolumeclaims/backups"), claim);
    api
}

/// Changes the cluster, as a user would.
async fn edit(rig: &Rig, change: impl FnOnce(&mut Value)) {
    let mut cluster = rig.api.get(&format!("{CLUSTERS}/dev")).unwrap();
    change(&mut cluster);
    let generation = cluster["metadata"]["generation"].as_i64().unwrap() + 1;
    cluster["metadata"]["generation"] = json!(generation);
    rig.api.put(&format!("{CLUSTERS}/dev"), cluster);
    rig.sync().await;
}

async fn pass(rig: &Rig) -> Option<Duration> {
    let again = Box::pin(reconcile(&rig.context, &rig.cluster())).await.unwrap();
    publish(rig).await;
    again
}

/// Writes what is known into the status, as a pass over the cluster does.
async fn publish(rig: &Rig) {
    let cluster = rig.cluster();
    let known = rig.context.backups.archive(&cluster);
    let mut status = cluster.status.clone().unwrap();
    let before = status.conditions.clone().unwrap_or_default();
    status.backup = plan::archive::status(&cluster, &known, None);
    let mut conditions: Vec<_> = before.clone();
    conditions.retain(|condition| condition.type_ != plan::archive::CONDITION);
    let update = plan::archive::condition(&before, &known);
    let now = k8s_openapi::jiff::Timestamp::now();
    conditions.extend(plan::status::merge(&before, &Vec::from_iter(update), None, now));
    status.conditions = Some(conditions);
    let mut object = rig.api.get(&format!("{CLUSTERS}/dev")).unwrap();
    object["status"] = serde_json::to_value(status).unwrap();
    rig.api.put(&format!("{CLUSTERS}/dev"), object);
    rig.sync().await;
}

/// Returns the condition as `Status Reason: message`, or nothing.
fn said(rig: &Rig) -> String {
    said_by(&rig.api)
}

fn said_by(api: &FakeApi) -> String {
    let status = api.get(&format!("{CLUSTERS}/dev")).unwrap()["status"].clone();
    let mut conditions = status["conditions"].as_array().unwrap().iter();
    let found = conditions.find(|condition| condition["type"] == "Archiving");
    let text = |field: &str| {
        found
            .map(|it| it[field].as_str().unwrap().to_owned())
            .unwrap_or_default()
    };
    format!("{} {}: {}", text("status"), text("reason"), text("message"))
}

/// Puts a pod of the Deployment, with this status.
fn pod(rig: &Rig, status: &Value) {
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "dev-archive-1", "uid": "set", "controller": true});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {
        "name": "dev-archive-1-a", "namespace": "brains", "labels": {"kubebrain.io/archive": "dev"}, "ownerReferences": [owner],
        "creationTimestamp": "2026-11-21T00:00:00Z",
    }, "status": status});
    rig.api.put(&format!("{NAMESPACE}/pods/dev-archive-1-a"), pod);
}

/// The answer of an archive whose destination fails.
const NOT_READY: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 15\r\n\r\nno such bucket\n";

/// Serves this answer to each connection that asks for metrics, and returns the address.
async fn serve(answer: String, tasks: &mut JoinSet<()>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tasks.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 1024];
            let length = stream.read(&mut head).await.unwrap();
            let head = String::from_utf8_lossy(&head[..length]).into_owned();
            let answer = match head.split("\r\nhost: 127.0.0.1:").next() {
                Some("GET /metrics HTTP/1.1") => answer.as_str(),
                Some("GET /readyz HTTP/1.1") => NOT_READY,
                _ => panic!("{head}"),
            };
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    address
}

fn metrics(revision: i64, lag: i64) -> String {
    answer(&figures(revision, lag))
}

fn figures(revision: i64, lag: i64) -> String {
    format!(
        "kubebrain_archive_last_revision {revision}\nkubebrain_archive_lag_seconds {lag}\nkubebrain_archive_gaps_total 0\n"
    )
}

fn answer(text: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len())
}

fn ready(address: &str) -> Value {
    json!({"podIP": address, "conditions": [{"type": "Ready", "status": "True"}]})
}

#[tokio::test]
async fn archive_runs_after_the_status_says_so_and_reports_how_far_it_is() {
    let rig = Rig::new(server(FakeApi::new(), |_| {})).await;
    pass(&rig).await;
    assert_eq!(said(&rig), "False Creating: creating the Deployment");
    assert_eq!(rig.api.get(DEPLOYMENT), None);
    rig.api.forget_requests();
    pass(&rig).await;
    let made = rig.api.get(DEPLOYMENT).unwrap();
    assert_eq!(made["spec"]["replicas"], 1);
    assert_eq!(said(&rig), "False Creating: the pod starts");
    assert_eq!(rig.api.events(), ["Created"]);

    let mut tasks = JoinSet::new();
    pod(&rig, &ready(&serve(metrics(42, 3), &mut tasks).await));
    assert_eq!(pass(&rig).await, Some(KEEPING_UP_INTERVAL));
    assert_eq!(said(&rig), "True Archiving: all changes older than 120 s are stored");
    let status = rig.api.get(&format!("{CLUSTERS}/dev")).unwrap()["status"].clone();
    assert_eq!(status["backup"]["archivedRevision"], 42);
    // A pod that is gone for a moment is no news.
    rig.api.remove(&format!("{NAMESPACE}/pods/dev-archive-1-a"));
    assert_eq!(pass(&rig).await, Some(PROGRESS_INTERVAL));
    assert!(said(&rig).starts_with("True Archiving: "));
    rig.api.forget_requests();
    pass(&rig).await;
    assert!(rig.api.writes().is_empty(), "{:?}", rig.api.writes());

    let failing = answer(&(figures(42, 3) + "kubebrain_archive_failing 1\n"));
    pod(&rig, &ready(&serve(failing, &mut tasks).await));
    assert_eq!(pass(&rig).await, Some(PROGRESS_INTERVAL));
    let text = said(&rig);
    assert!(
        text.starts_with("False DestinationFailed: changes since ") && text.ends_with(": no such bucket"),
        "{text}"
    );
    pod(&rig, &ready(&serve(metrics(42, 500), &mut tasks).await));
    pass(&rig).await;
    assert!(said(&rig).starts_with("False Behind: changes since "), "{}", said(&rig));
    pod(
        &rig,
        &ready(&serve("HTTP/1.1 503 no\r\ncontent-length: 0\r\n\r\n".to_owned(), &mut tasks).await),
    );
    pass(&rig).await;
    assert_eq!(
        said(&rig),
        "Unknown Unreachable: the pod does not answer the operator: it answered 503"
    );
    let ended = json!({"terminated": {"exitCode": 1, "message": "{}\nkubebrain: no such bucket"}});
    pod(
        &rig,
        &json!({"containerStatuses": [
            {"name": "archive", "image": "x", "imageID": "", "ready": false, "restartCount": 3, "lastState": ended, "state": {}},
        ]}),
    );
    pass(&rig).await;
    let text = said(&rig);
    assert!(
        text.starts_with("False NotRunning: ") && text.contains("no such bucket"),
        "{text}"
    );
}

#[tokio::test]
async fn deployment_follows_the_spec() {
    let rig = Rig::new(server(FakeApi::new(), |_| {})).await;
    pass(&rig).await;
    pass(&rig).await;
    let made = rig.api.get(DEPLOYMENT).unwrap();
    edit(&rig, |cluster| {
        cluster["spec"]["backup"]["archive"]["interval"] = json!("30s")
    })
    .await;
    pass(&rig).await;
    let changed = rig.api.get(DEPLOYMENT).unwrap();
    assert_eq!(changed["metadata"]["uid"], made["metadata"]["uid"]);
    let args = changed["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
    assert!(args.contains("--archive-interval=30s"), "{args}");

    edit(&rig, |cluster| {
        cluster["spec"]["paused"] = json!(true);
        cluster["spec"]["backup"]["archive"]["suspend"] = json!(true);
    })
    .await;
    pass(&rig).await;
    assert!(said(&rig).starts_with("False Paused: "), "{}", said(&rig));
    assert!(rig.api.get(DEPLOYMENT).is_some());

    edit(&rig, |cluster| cluster["spec"]["paused"] = json!(false)).await;
    pass(&rig).await;
    assert_eq!(rig.api.get(DEPLOYMENT), None);
    assert_eq!(pass(&rig).await, None);
    assert_eq!(said(&rig), "False Suspended: spec.backup.archive.suspend is true");

    edit(&rig, |cluster| {
        cluster["spec"]["backup"]["archive"]["suspend"] = json!(false);
        cluster["spec"]["replicas"] = json!(0);
    })
    .await;
    pass(&rig).await;
    assert_eq!(rig.api.get(DEPLOYMENT).unwrap()["spec"]["replicas"], 0);
    assert_eq!(said(&rig), "False Suspended: spec.replicas is 0");

    edit(&rig, |cluster| {
        drop(cluster["spec"].as_object_mut().unwrap().remove("backup"))
    })
    .await;
    pass(&rig).await;
    assert_eq!(rig.api.get(DEPLOYMENT), None);
    assert_eq!(pass(&rig).await, None);
    assert_eq!(said(&rig), " : ", "nothing is left");
    rig.api.forget_requests();
    assert_eq!(pass(&rig).await, None);
    let asked: Vec<_> = rig
        .api
        .asked()
        .into_iter()
        .filter(|asked| !asked.path.starts_with(CLUSTERS))
        .collect();
    assert!(asked.is_empty(), "{asked:?}");
}

/// Writes a Deployment as a real API server does: it omits empty texts, and writes quantities in its own way.
fn as_the_api_server_writes(path: &str, object: &mut Value) {
    if path != DEPLOYMENT {
        return;
    }
    let pod = &mut object["spec"]["template"]["spec"];
    for toleration in pod["tolerations"].as_array_mut().into_iter().flatten() {
        toleration.as_object_mut().unwrap().retain(|_, value| *value != "");
    }
    let cpu = &mut pod["containers"][0]["resources"]["requests"]["cpu"];
    if *cpu == "1e0" {
        *cpu = json!("1");
    }
}

#[tokio::test]
async fn deployment_that_the_api_server_writes_differently_is_not_applied_again() {
    let api = server(FakeApi::new().admitting(as_the_api_server_writes), |spec| {
        spec["backup"]["archive"]["pod"] = json!({
            "tolerations": [{"key": "", "operator": "Exists", "effect": ""}],
            "resources": {"requests": {"cpu": "1e0"}},
        });
    });
    let rig = Rig::new(api).await;
    for _ in 0..3 {
        pass(&rig).await;
    }
    let written = rig.api.get(DEPLOYMENT).unwrap();
    let pod = &written["spec"]["template"]["spec"];
    assert_eq!(pod["tolerations"], json!([{"operator": "Exists"}]));
    assert_eq!(pod["containers"][0]["resources"]["requests"]["cpu"], "1");
    rig.api.forget_requests();
    pass(&rig).await;
    let applied = |api: &FakeApi| api.writes().iter().filter(|write| write.path == DEPLOYMENT).count();
    assert_eq!(applied(&rig.api), 0, "{:?}", rig.api.writes());

    // Changes by another client are still reverted.
    let mut changed = written.clone();
    changed["spec"]["template"]["spec"]["tolerations"] = json!([]);
    rig.api.put(DEPLOYMENT, changed);
    pass(&rig).await;
    assert_eq!(applied(&rig.api), 1, "{:?}", rig.api.writes());
    assert_eq!(rig.api.get(DEPLOYMENT).unwrap()["spec"], written["spec"]);
}

#[tokio::test]
async fn archive_waits_for_a_leader_and_for_what_the_spec_names() {
    let api = server(FakeApi::new(), |spec| {
        spec["backup"]["encryption"] = json!({"keySecretRef": {"name": "key"}});
    });
    let rig = Rig::new(api).await;
    pass(&rig).await;
    assert_eq!(
        said(&rig),
        "False WaitingForObject: backup.encryption.keySecretRef: Secret key does not exist"
    );
    let key = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key", "namespace": "brains"}});
    rig.api.put(&format!("{NAMESPACE}/secrets/key"), key);
    edit(&rig, |cluster| {
        let mut conditions = cluster["status"]["conditions"].as_array_mut().unwrap().iter_mut();
        let available = conditions.find(|condition| condition["type"] == "Available").unwrap();
        available["status"] = json!("False");
    })
    .await;
    pass(&rig).await;
    assert!(
        said(&rig).starts_with("False WaitingForCluster: KubeBrainCluster dev is not available"),
        "{}",
        said(&rig)
    );
    assert_eq!(rig.api.get(DEPLOYMENT), None);
}

#[tokio::test]
async fn objects_of_clusters_and_of_others_are_left_alone() {
    let refused = async |api: FakeApi, destination: Value| {
        let rig = Rig::new(server(api, |spec| spec["backup"]["destination"] = destination)).await;
        pass(&rig).await;
        pass(&rig).await;
        (said(&rig), rig.api.get(DEPLOYMENT))
    };
    let s3 = json!({"s3": {"bucket": "b", "credentialsSecretRef": {"name": "dev-ca"}}});
    let (text, made) = refused(FakeApi::new(), s3).await;
    assert_eq!(
        text,
        "False InvalidSpec: backup.destination.s3.credentialsSecretRef: Secret dev-ca belongs to the cluster dev"
    );
    assert_eq!(made, None);
    let claim = json!({"persistentVolumeClaim": {"claimName": "data-dev-0"}});
    let (text, made) = refused(FakeApi::new(), claim).await;
    assert!(
        text.ends_with("PersistentVolumeClaim data-dev-0 belongs to the cluster dev"),
        "{text}"
    );
    assert_eq!(made, None);
    let api = FakeApi::new();
    let foreign = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "dev-archive", "namespace": "brains"}, "spec": {"selector": {}, "template": {}}});
    let foreign = api.put(DEPLOYMENT, foreign);
    let (text, found) = refused(api, json!({"persistentVolumeClaim": {"claimName": "backups"}})).await;
    assert!(
        text.starts_with("False OwnershipConflict: Deployment dev-archive is not owned"),
        "{text}"
    );
    assert_eq!(found, Some(foreign));
}

#[tokio::test(start_paused = true)]
async fn controllers_work_together_and_failures_concern_the_archive_alone() {
    let api = FakeApi::scripted(|asked| {
        if asked.writes() && asked.path == DEPLOYMENT {
            let (code, status) = failure(403, "Forbidden", "dev-archive");
            return ScriptedReply::With(code, status);
        }
        ScriptedReply::Pass
    });
    let api = server(api, |spec| spec["replicas"] = json!(0));
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    let scope = crate::testing::scope(&api, crate::leadership::Leadership::Alone);
    let archives = run(scope.context.clone(), stop.clone());
    let clusters = crate::controller::run(scope, stop.clone());
    // One task, as in the operator: a store wakes only the task that waits for it last.
    running.spawn(async { drop(tokio::join!(archives, clusters)) });
    tokio::time::sleep(Duration::from_secs(30)).await;
    let text = said_by(&api);
    assert!(
        text.starts_with("False ReconcileError: "),
        "{text}: {:#?}",
        api.writes()
    );
    let asked = api.asked().len();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let more = api.asked().len() - asked;
    assert!(more < 60, "{more} requests in a minute");
    stop.cancel();
    while running.join_next().await.is_some() {}
}

#[tokio::test(start_paused = true)]
async fn newest_backup_is_told_to_its_cluster() {
    let rig = Rig::new(server(FakeApi::new(), |_| {})).await;
    let backup = |name: &str, cluster: &str, time: &str, is_complete: bool| {
        let complete = json!({
            "type": "Complete", "status": if is_complete { "True" } else { "False" }, "reason": "Completed", "message": "",
            "lastTransitionTime": time,
        });
        let backup = json!({
            "apiVersion": "kubebrain.io/v1alpha1", "kind": "KubeBrainBackup", "metadata": {"name": name, "namespace": "brains"},
            "spec": {"clusterName": cluster, "destination": {"persistentVolumeClaim": {"claimName": "backups"}}},
            "status": {"completionTime": time, "conditions": [complete]},
        });
        rig.context.backups.backed_up(&serde_json::from_value(backup).unwrap());
        rig.context.backups.last_backup(&rig.cluster()).map(|last| last.name)
    };
    assert_eq!(backup("a", "dev", "2026-11-22T00:00:00Z", false), None);
    assert_eq!(backup("b", "other", "2026-11-22T00:00:00Z", true), None);
    assert_eq!(backup("a", "dev", "2026-11-22T00:00:00Z", true).as_deref(), Some("a"));
    assert_eq!(backup("c", "dev", "2026-11-21T00:00:00Z", true).as_deref(), Some("a"));
    assert_eq!(backup("d", "dev", "2026-11-23T00:00:00Z", true).as_deref(), Some("d"));
}
