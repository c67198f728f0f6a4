use std::sync::{Arc, Mutex};

use fake_api::{CLUSTERS, FakeApi};
use plan::testing::{BEGIN, STORE, cluster};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::reconcile::reconcile;
use crate::testing::Rig;

const BACKUPS: &str = "/apis/kubebrain.io/v1alpha1/namespaces/brains/kubebrainbackups";
const JOB: &str = "/apis/batch/v1/namespaces/brains/jobs/dev-bootstrap";
const SET: &str = "/apis/apps/v1/namespaces/brains/statefulsets/dev";
const CLAIMS: &str = "/api/v1/namespaces/brains/persistentvolumeclaims";
const PODS: &str = "/api/v1/namespaces/brains/pods";

/// A server with a cluster that begins with this backup, or this file or this etcd if it is one, and the claim `backups`.
fn server(from: Value, more: Value) -> FakeApi {
    let api = FakeApi::new();
    let mut dev = serde_json::to_value(cluster(more)).unwrap();
    dev["spec"]["tls"] = json!({"mode": "Disabled"});
    let kind = if from["path"].is_string() {
        json!({"fromSnapshot": {"persistentVolumeClaim": from}})
    } else if from["endpoints"].is_array() {
        json!({"fromEtcd": from})
    } else {
        json!({"fromBackup": from})
    };
    dev["spec"]["bootstrap"] = kind;
    api.put(&format!("{CLUSTERS}/dev"), dev);
    claim(&api, "backups", json!({}));
    api
}

fn claim(api: &FakeApi, name: &str, labels: Value) {
    let metadata = json!({"name": name, "namespace": "brains", "labels": labels});
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata});
    api.put(&format!("{CLAIMS}/{name}"), claim);
}

fn on_claim(name: &str) -> Value {
    json!({"destination": {"persistentVolumeClaim": {"claimName": name}}})
}

async fn pass(rig: &Rig) {
    rig.sync().await;
    reconcile(&rig.context, &rig.cluster(), 0).await.unwrap();
    rig.sync().await;
}

fn status(rig: &Rig) -> Value {
    rig.api.get(&format!("{CLUSTERS}/dev")).unwrap()["status"].clone()
}

/// Returns the condition as `Status Reason: message`.
fn bootstrapped(rig: &Rig) -> String {
    let status = status(rig);
    let mut conditions = status["conditions"].as_array().unwrap().iter();
    let found = conditions
        .find(|condition| condition["type"] == "Bootstrapped")
        .unwrap();
    let text = |field: &str| found[field].as_str().unwrap().to_owned();
    format!("{} {}: {}", text("status"), text("reason"), text("message"))
}

/// Ends the Job with this condition, and gives it a pod that ended with this code and message.
fn end(rig: &Rig, type_: &str, (code, message): (i32, &str)) {
    let mut job = rig.api.get(JOB).unwrap();
    let ended = json!({"type": type_, "status": "True", "lastTransitionTime": BEGIN});
    job["status"] = json!({"conditions": [ended], "completionTime": "2026-11-29T18:00:00Z"});
    let job = rig.api.put(JOB, job);
    let owner = json!({
        "apiVersion": "batch/v1", "kind": "Job", "name": "dev-bootstrap", "uid": job["metadata"]["uid"], "controller": true,
    });
    let state = json!({"terminated": {"exitCode": code, "message": message}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "dev-bootstrap-x", "namespace": "brains", "labels": {"batch.kubernetes.io/job-name": "dev-bootstrap"},
            "ownerReferences": [owner],
        },
        "status": {"containerStatuses": [{"name": "bootstrap", "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": state}]},
    });
    rig.api.put(&format!("{PODS}/dev-bootstrap-x"), pod);
}

#[tokio::test(start_paused = true)]
async fn cluster_starts_after_its_restore_and_never_restores_again() {
    let rig = Rig::new(server(on_claim("backups"), json!({}))).await;
    pass(&rig).await;
    assert!(rig.api.get(JOB).is_some() && rig.api.get(&format!("{CLAIMS}/data-dev-0")).is_some());
    assert_eq!(bootstrapped(&rig), "False Bootstrapping: creating Job dev-bootstrap");
    pass(&rig).await;
    assert_eq!(bootstrapped(&rig), "False Bootstrapping: Job dev-bootstrap is running");
    rig.api.forget_requests();
    pass(&rig).await;
    assert!(rig.api.writes().is_empty(), "{:?}", rig.api.writes());
    let result = json!({"existed": false, "clusterId": STORE, "name": "b", "revision": 42}).to_string();
    end(&rig, "Complete", (0, &result));
    pass(&rig).await;
    assert_eq!(rig.api.get(SET), None, "the status comes first");
    assert_eq!(
        bootstrapped(&rig),
        "True Restored: restored the backup b; the store begins at revision 42"
    );
    let said = status(&rig);
    assert_eq!(
        (&said["bootstrap"]["phase"], &said["bootstrap"]["revision"]),
        (&json!("Complete"), &json!(42))
    );
    assert_eq!(said["storage"]["storeID"], STORE);
    assert_eq!(
        rig.api.events().iter().filter(|it| it.starts_with("Bootstrap")).count(),
        1
    );
    pass(&rig).await;
    assert!(rig.api.get(SET).is_some());

    // From then on the Job does not matter, and is not read.
    rig.api.remove(JOB);
    rig.api.forget_requests();
    pass(&rig).await;
    pass(&rig).await;
    assert_eq!(rig.api.get(JOB), None);
    let asked = rig.api.asked();
    assert!(asked.iter().all(|it| !it.path.contains("/jobs")), "{asked:?}");
    assert_eq!(status(&rig)["bootstrap"], said["bootstrap"]);
}

#[tokio::test(start_paused = true)]
async fn failed_restore_is_reported_in_the_words_of_the_program_and_tried_again_without_its_job() {
    let rig = Rig::new(server(on_claim("backups"), json!({}))).await;
    pass(&rig).await;
    end(&rig, "Failed", (1, "{}\nkubebrain: the destination has no backup"));
    pass(&rig).await;
    assert_eq!(
        bootstrapped(&rig),
        "False BootstrapFailed: the destination has no backup"
    );
    assert_eq!(status(&rig)["bootstrap"]["message"], "the destination has no backup");
    assert!(rig.api.events().contains(&"BootstrapFailed".to_owned()));
    assert_eq!(rig.api.get(SET), None);
    rig.api.remove(JOB);
    rig.api.remove(&format!("{PODS}/dev-bootstrap-x"));
    pass(&rig).await;
    assert!(rig.api.get(JOB).is_some());
    assert_eq!(bootstrapped(&rig), "False Bootstrapping: creating Job dev-bootstrap");
}

#[tokio::test(start_paused = true)]
async fn restore_without_a_node_degrades_the_cluster_until_its_pod_runs() {
    let rig = Rig::new(server(on_claim("backups"), json!({}))).await;
    pass(&rig).await;
    let put = |state: &str, scheduled: &str| {
        let job = rig.api.get(JOB).unwrap();
        let owner = json!({
            "apiVersion": "batch/v1", "kind": "Job", "name": "dev-bootstrap", "uid": job["metadata"]["uid"], "controller": true,
        });
        let condition =
            json!({"type": "PodScheduled", "status": scheduled, "reason": "Unschedulable", "message": "no cpu"});
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "dev-bootstrap-x", "namespace": "brains", "labels": {"batch.kubernetes.io/job-name": "dev-bootstrap"},
                "ownerReferences": [owner], "creationTimestamp": BEGIN,
            },
            "status": {"phase": state, "conditions": [condition]},
        });
        rig.api.put(&format!("{PODS}/dev-bootstrap-x"), pod);
    };
    let said = || {
        let status = status(&rig);
        let mut conditions = status["conditions"].as_array().unwrap().iter();
        let found = conditions.find(|condition| condition["type"] == "Degraded").unwrap();
        (found["status"].clone(), found["reason"].clone())
    };
    let fine = (json!("False"), json!("AsExpected"));
    put("Pending", "False");
    pass(&rig).await;
    assert_eq!(said(), (json!("True"), json!("Unschedulable")));
    put("Running", "True");
    pass(&rig).await;
    assert_eq!(said(), fine);
    // One that has ended is followed by another one.
    put("Failed", "False");
    pass(&rig).await;
    assert_eq!(said(), fine);
}

/// Puts a pod of the Job in this phase.
fn put_pod(rig: &Rig, name: &str, created: &str, phase: &str, is_ready: bool) {
    let job = rig.api.get(JOB).unwrap();
    let owner = json!({
        "apiVersion": "batch/v1", "kind": "Job", "name": "dev-bootstrap", "uid": job["metadata"]["uid"], "controller": true,
    });
    let ready = json!({"type": "Ready", "status": if is_ready { "True" } else { "False" }});
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "brains", "labels": {"batch.kubernetes.io/job-name": "dev-bootstrap"},
            "ownerReferences": [owner], "creationTimestamp": created,
        },
        "status": {"phase": phase, "conditions": [ready]},
    });
    rig.api.put(&format!("{PODS}/{name}"), pod);
}

fn annotation(rig: &Rig, pod: &str) -> Value {
    let pod = rig.api.get(&format!("{PODS}/{pod}")).unwrap();
    pod["metadata"]["annotations"]["kubebrain.io/cutover"].clone()
}

#[tokio::test(start_paused = true)]
async fn copy_follows_until_its_cutover_is_requested() {
    let etcd = json!({"endpoints": ["http://etcd:2379"]});
    let rig = Rig::new(server(etcd, json!({}))).await;
    pass(&rig).await;
    assert!(rig.api.get(JOB).is_some());
    put_pod(&rig, "dev-bootstrap-abcde", BEGIN, "Running", true);
    pass(&rig).await;
    let said = bootstrapped(&rig);
    assert!(
        said.starts_with("False Following: the copy of http://etcd:2379 follows its source: stop"),
        "{said}"
    );
    assert_eq!(status(&rig)["bootstrap"]["phase"], "Following");
    assert!(rig.api.events().contains(&"BootstrapFollowing".to_owned()));
    rig.api.forget_requests();
    pass(&rig).await;
    assert!(rig.api.writes().is_empty(), "{:?}", rig.api.writes());

    let mut dev = rig.api.get(&format!("{CLUSTERS}/dev")).unwrap();
    dev["metadata"]["annotations"]["kubebrain.io/cutover"] = json!("true");
    rig.api.put(&format!("{CLUSTERS}/dev"), dev);
    // Pods that are gone or have ended need nothing.
    put_pod(&rig, "dev-bootstrap-00000", BEGIN, "Failed", false);
    pass(&rig).await;
    assert_eq!(annotation(&rig, "dev-bootstrap-abcde"), "true");
    assert_eq!(annotation(&rig, "dev-bootstrap-00000"), Value::Null);
    let said = bootstrapped(&rig);
    let ending = "False CuttingOver: the copy is brought to the last revision of its source and compared; it does not end while clients write there";
    assert_eq!(said, ending);
    rig.api.forget_requests();
    pass(&rig).await;
    assert!(rig.api.writes().is_empty(), "{:?}", rig.api.writes());
    assert!(
        !rig.api.asked().is_empty(),
        "no pass waits for a store that has these pods"
    );

    rig.api.remove(&format!("{PODS}/dev-bootstrap-abcde"));
    put_pod(&rig, "dev-bootstrap-bcdef", BEGIN, "Pending", false);
    pass(&rig).await;
    assert_eq!(annotation(&rig, "dev-bootstrap-bcdef"), "true");
    assert_eq!(rig.api.get(SET), None);
    rig.api.remove(&format!("{PODS}/dev-bootstrap-bcdef"));
    let result = json!({"existed": false, "clusterId": STORE, "revision": 42}).to_string();
    end(&rig, "Complete", (0, &result));
    pass(&rig).await;
    let said = bootstrapped(&rig);
    assert_eq!(
        said,
        "True Copied: copied the etcd, and compared both; the store begins at revision 42"
    );
    pass(&rig).await;
    assert!(rig.api.get(SET).is_some());
}

/// Serves metrics of a copy, with these revisions, to each connection; returns the address.
async fn serve_metrics(revisions: Arc<Mutex<(i64, i64)>>, tasks: &mut JoinSet<()>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tasks.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _head = stream.read(&mut [0; 1024]).await.unwrap();
            let (own, source) = *revisions.lock().unwrap();
            let text = format!("kubebrain_import_revision {own}\nkubebrain_import_source_revision {source}\n");
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", text.len());
            stream.write_all((head + &text).as_bytes()).await.unwrap();
        }
    });
    address
}

/// Gives a pod this address.
fn put_address(rig: &Rig, name: &str, address: &str) {
    let path = format!("{PODS}/{name}");
    let mut pod = rig.api.get(&path).unwrap();
    pod["status"]["podIP"] = json!(address);
    rig.api.put(&path, pod);
}

#[tokio::test]
async fn copy_reports_how_far_it_is() {
    let rig = Rig::new(server(json!({"endpoints": ["http://etcd:2379"]}), json!({}))).await;
    pass(&rig).await;
    let name = "dev-bootstrap-abcde";
    put_pod(&rig, name, BEGIN, "Running", false);
    // Nothing listens there.
    put_address(&rig, name, "127.0.0.1:1");
    pass(&rig).await;
    assert_eq!(bootstrapped(&rig), "False Bootstrapping: Job dev-bootstrap is running");
    assert_eq!(status(&rig)["bootstrap"]["progress"], Value::Null);

    let (mut tasks, revisions) = (JoinSet::new(), Arc::new(Mutex::new((30, 50))));
    let address = serve_metrics(revisions.clone(), &mut tasks).await;
    put_address(&rig, name, &address);
    pass(&rig).await;
    let progress = status(&rig)["bootstrap"]["progress"].clone();
    let figures = |progress: &Value| {
        let of = |field: &str| progress[field].as_i64().unwrap();
        (of("revision"), of("sourceRevision"), of("lagRevisions"))
    };
    assert_eq!(figures(&progress), (30, 50, 20));
    *revisions.lock().unwrap() = (87, 100);
    rig.api.forget_requests();
    pass(&rig).await;
    assert!(rig.api.writes().is_empty(), "{:?}", rig.api.writes());

    put_pod(&rig, name, BEGIN, "Running", true);
    put_address(&rig, name, &address);
    pass(&rig).await;
    let said = bootstrapped(&rig);
    let expected = "False Following: the copy of http://etcd:2379 follows its source and lacks 13 revisions: stop";
    assert!(said.starts_with(expected), "{said}");
    assert_eq!(figures(&status(&rig)["bootstrap"]["progress"]), (87, 100, 13));

    // A minute later it is asked again, and a pod that is silent then is no trouble.
    let later = |seen_at: &str| {
        let path = format!("{CLUSTERS}/dev");
        let mut dev = rig.api.get(&path).unwrap();
        dev["status"]["bootstrap"]["progress"]["seenAt"] = json!(seen_at);
        rig.api.put(&path, dev);
    };
    *revisions.lock().unwrap() = (100, 100);
    later("2026-11-20T00:00:00Z");
    pass(&rig).await;
    assert_eq!(figures(&status(&rig)["bootstrap"]["progress"]), (100, 100, 0));
    later("2026-11-20T00:00:00Z");
    put_address(&rig, name, "127.0.0.1:1");
    pass(&rig).await;
    assert_eq!(figures(&status(&rig)["bootstrap"]["progress"]), (100, 100, 0));
    assert!(bootstrapped(&rig).starts_with("False Following: "));
}

#[tokio::test(start_paused = true)]
async fn pod_that_follows_is_found_among_many_that_failed() {
    let rig = Rig::new(server(json!({"endpoints": ["http://etcd:2379"]}), json!({}))).await;
    pass(&rig).await;
    for failed in 0..40 {
        let created = format!("2026-11-20T00:00:{failed:02}Z");
        put_pod(&rig, &format!("dev-bootstrap-a{failed}"), &created, "Failed", false);
    }
    put_pod(&rig, "dev-bootstrap-z", BEGIN, "Running", true);
    pass(&rig).await;
    let said = bootstrapped(&rig);
    assert!(said.starts_with("False Following: "), "{said}");
    let job = serde_json::from_value(rig.api.get(JOB).unwrap()).unwrap();
    let found = crate::jobs::pods(&rig.context.client, "brains", &job).await.unwrap();
    let names: Vec<&str> = found.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect();
    assert_eq!(names.len(), 17);
    assert_eq!(
        (names[0], names[15], names[16]),
        ("dev-bootstrap-a24", "dev-bootstrap-a39", "dev-bootstrap-z")
    );
}

#[tokio::test(start_paused = true)]
async fn etcd_waits_for_its_secrets_and_gets_none_of_a_cluster() {
    let said = async |more: Value| {
        let mut etcd = json!({"endpoints": ["https://etcd:2379"]});
        etcd.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let api = server(etcd, json!({}));
        let labels = json!({"kubebrain.io/cluster": "other", "app.kubernetes.io/managed-by": "kubebrain-operator"});
        let metadata = json!({"name": "other-client-tls", "namespace": "brains", "labels": labels});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata});
        api.put("/api/v1/namespaces/brains/secrets/other-client-tls", secret);
        let rig = Rig::new(api).await;
        pass(&rig).await;
        assert_eq!(rig.api.get(JOB), None);
        assert_eq!(rig.api.get(SET), None);
        bootstrapped(&rig)
    };
    for (more, expected) in [
        (
            json!({"tls": {"clientSecretRef": {"name": "other-client-tls"}}}),
            "False InvalidSpec: bootstrap: fromEtcd.tls.clientSecretRef: Secret other-client-tls belongs to the cluster other",
        ),
        (
            json!({"userSecretRef": {"name": "other-client-tls"}}),
            "False InvalidSpec: bootstrap: fromEtcd.userSecretRef: Secret other-client-tls belongs to the cluster other",
        ),
        (
            json!({"tls": {"caBundleRef": {"kind": "ConfigMap", "name": "cas"}}}),
            "False WaitingForObject: fromEtcd.tls.caBundleRef: ConfigMap cas does not exist",
        ),
        (
            json!({"userSecretRef": {"name": "root"}}),
            "False WaitingForObject: fromEtcd.userSecretRef: Secret root does not exist",
        ),
    ] {
        assert_eq!(said(more).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn backup_of_a_resource_is_waited_for() {
    let rig = Rig::new(server(json!({"backup": {"name": "nightly"}}), json!({}))).await;
    pass(&rig).await;
    let message = "KubeBrainBackup nightly does not exist";
    assert_eq!(bootstrapped(&rig), format!("False WaitingForBackup: {message}"));
    let condition = json!({
        "type": "Complete", "status": "True", "reason": "Completed", "message": "", "lastTransitionTime": BEGIN,
    });
    let name = "20261129T113542.123Z-0000000000000000042";
    let backup = json!({
        "apiVersion": "kubebrain.io/v1alpha1", "kind": "KubeBrainBackup", "metadata": {"name": "nightly", "namespace": "brains"},
        "spec": {"clusterName": "old", "destination": {"persistentVolumeClaim": {"claimName": "backups"}}},
        "status": {"conditions": [condition], "completionTime": BEGIN, "backupName": name},
    });
    rig.api.put(&format!("{BACKUPS}/nightly"), backup);
    pass(&rig).await;
    let job = rig.api.get(JOB).unwrap();
    let args = job["spec"]["template"]["spec"]["containers"][0]["args"].clone();
    assert!(args.as_array().unwrap().contains(&json!(name)), "{args}");
}

#[tokio::test(start_paused = true)]
async fn objects_of_clusters_and_foreign_accounts_may_not_be_named() {
    let said = async |from: Value| {
        let api = server(from, json!({}));
        claim(&api, "data-other-0", json!({"kubebrain.io/cluster": "other"}));
        let mut rig = Rig::new(api).await;
        rig.context.settings.allow_unsafe_pods = false;
        pass(&rig).await;
        assert_eq!(rig.api.get(JOB), None);
        assert_eq!(rig.api.get(SET), None);
        bootstrapped(&rig)
    };
    let other = said(on_claim("data-other-0")).await;
    assert!(
        other.starts_with("False InvalidSpec: bootstrap: ") && other.ends_with("belongs to the cluster other"),
        "{other}"
    );
    let own = said(on_claim("data-dev-0")).await;
    assert!(own.ends_with("belongs to the cluster dev"), "{own}");
    let file = said(json!({"claimName": "data-dev-0", "path": "a.db"})).await;
    assert!(
        file.contains("InvalidSpec") && file.ends_with("belongs to the cluster dev"),
        "{file}"
    );
    let missing = said(json!({"claimName": "missing", "path": "a.db"})).await;
    assert!(missing.starts_with("False WaitingForObject: ") && missing.ends_with("missing does not exist"));
    let missing = said(on_claim("missing")).await;
    assert!(missing.starts_with("False WaitingForObject: ") && missing.ends_with("missing does not exist"));
    let account = json!({"destination": {"s3": {"bucket": "b"}}, "serviceAccountName": "admin"});
    let account = said(account).await;
    assert!(
        account.contains("InvalidSpec") && account.contains("--allow-unsafe-pods"),
        "{account}"
    );
}

#[tokio::test(start_paused = true)]
async fn keys_of_a_deleted_cluster_are_wiped_after_the_restore_has_ended() {
    let tikv = json!({"pdEndpoints": ["pd:2379"], "clusterID": "7", "whenDeleted": "Delete"});
    let storage = json!({"storage": {"type": "TiKV", "embedded": null, "tikv": tikv}});
    let rig = Rig::new(server(on_claim("backups"), storage)).await;
    pass(&rig).await;
    assert!(rig.api.get(JOB).is_some());
    let mut leaving = rig.api.get(&format!("{CLUSTERS}/dev")).unwrap();
    leaving["metadata"]["deletionTimestamp"] = json!(BEGIN);
    rig.api.put(&format!("{CLUSTERS}/dev"), leaving);
    pass(&rig).await;
    let wipe = JOB.replace("bootstrap", "wipe");
    assert_eq!(
        (rig.api.get(JOB), rig.api.get(&wipe)),
        (None, None),
        "the pods end first"
    );
    let deleted = rig
        .api
        .writes()
        .into_iter()
        .find(|write| write.method == http::Method::DELETE);
    assert_eq!(deleted.unwrap().body["propagationPolicy"], "Foreground");
    pass(&rig).await;
    assert!(rig.api.get(&wipe).is_some());
}
