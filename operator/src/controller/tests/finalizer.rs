//! The deletion of a cluster whose keys in TiKV are wiped.

use k8s_openapi::jiff::Timestamp;

use super::*;

const BATCH: &str = "/apis/batch/v1/namespaces/brains/jobs";
const SETS: &str = "/apis/apps/v1/namespaces/brains/statefulsets";

fn spec(when_deleted: &str) -> Value {
    let tls = json!({"caSecretRef": {"name": "tikv-ca", "key": "ca.pem"}, "clientSecretRef": {"name": "tikv-client"}});
    let tikv = json!({"pdEndpoints": ["pd:2379"], "clusterID": "7", "whenDeleted": when_deleted, "tls": tls});
    json!({"replicas": 3, "storage": {"type": "TiKV", "embedded": null, "tikv": tikv}})
}

fn finalizers(rig: &Rig) -> Value {
    rig.api.get(&format!("{CLUSTERS}/dev")).unwrap()["metadata"]["finalizers"].clone()
}

/// Returns a server with a cluster that is being deleted, which has a StatefulSet and a pod.
fn leaving(when_deleted: &str) -> FakeApi {
    let api = FakeApi::new();
    let mut leaving = serde_json::to_value(cluster(spec(when_deleted))).unwrap();
    leaving["metadata"]["deletionTimestamp"] = json!(plan::testing::BEGIN);
    leaving["metadata"]["finalizers"] = json!(["kubebrain.io/wipe-storage"]);
    api.put(&format!("{CLUSTERS}/dev"), leaving);
    let owner = json!({
        "apiVersion": "kubebrain.io/v1alpha1", "kind": "KubeBrainCluster", "name": "dev", "uid": "cluster-uid", "controller": true,
    });
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "dev", "namespace": "brains", "ownerReferences": [owner]},
    });
    let uid = api.put(&format!("{SETS}/dev"), set)["metadata"]["uid"].clone();
    let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "dev", "uid": uid, "controller": true});
    let labels = json!({"kubebrain.io/cluster": "dev"});
    let pod = |name: &str, owner: Value| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {
            "name": name, "namespace": "brains", "labels": labels, "ownerReferences": [owner],
        }})
    };
    api.put(&format!("{NAMESPACE}/pods/dev-0"), pod("dev-0", owner));
    let foreign = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "x", "controller": true});
    api.put(&format!("{NAMESPACE}/pods/planted"), pod("planted", foreign));
    api
}

fn message(rig: &Rig, type_: &str) -> String {
    let found = condition(&stored_status(rig), type_).clone();
    format!(
        "{} {}: {}",
        found["status"].as_str().unwrap(),
        found["reason"].as_str().unwrap(),
        found["message"].as_str().unwrap()
    )
}

/// Runs a pass, and waits until the stores show its writes.
async fn next(rig: &Rig) -> Option<crate::pass::PassOutcome> {
    rig.sync().await;
    let ended = pass(rig).await.unwrap();
    rig.sync().await;
    ended
}

/// Runs passes until the Job exists; the brains are gone by then.
async fn job(rig: &Rig) -> Value {
    next(rig).await.unwrap();
    rig.api.remove(&format!("{NAMESPACE}/pods/dev-0"));
    next(rig).await.unwrap();
    rig.api.get(&format!("{BATCH}/dev-wipe")).unwrap()
}

/// Runs a pass that removes the finalizer, and one that has nothing left to do.
async fn released(rig: &Rig) {
    assert!(next(rig).await.is_some());
    assert_eq!(finalizers(rig), json!([]));
    assert_eq!(next(rig).await, None);
}

/// Ends the Job with this condition.
fn end(rig: &Rig, type_: &str, at: &str) {
    let path = format!("{BATCH}/dev-wipe");
    let mut job = rig.api.get(&path).unwrap();
    let ended =
        json!({"type": type_, "status": "True", "reason": "x", "message": "too many tries", "lastTransitionTime": at});
    job["status"] = json!({"conditions": [ended]});
    rig.api.put(&path, job);
}

#[tokio::test(start_paused = true)]
async fn finalizer_is_there_before_anything_is_made_and_only_for_delete() {
    let api = FakeApi::new();
    api.put(
        &format!("{CLUSTERS}/dev"),
        serde_json::to_value(cluster(spec("Delete"))).unwrap(),
    );
    let rig = Rig::new(api).await;
    pass(&rig).await.unwrap();
    assert_eq!(finalizers(&rig), json!(["kubebrain.io/wipe-storage"]));
    let writes = rig.api.writes();
    assert_eq!(writes[1].path, format!("{CLUSTERS}/dev"), "{writes:?}");
    assert!(writes[1].query.contains("fieldManager=kubebrain-operator-finalizer"));
    assert!(writes[1].body["spec"].is_null());
    let mut kept = rig.api.get(&format!("{CLUSTERS}/dev")).unwrap();
    kept["spec"]["storage"]["tikv"]["whenDeleted"] = json!("Retain");
    rig.api.put(&format!("{CLUSTERS}/dev"), kept);
    next(&rig).await.unwrap();
    assert_eq!(finalizers(&rig), json!([]));

    let rig = Rig::new(bare(FakeApi::new())).await;
    pass(&rig).await.unwrap();
    assert_eq!(finalizers(&rig), Value::Null);
}

#[tokio::test(start_paused = true)]
async fn brains_end_before_their_keys_are_wiped_and_the_cluster_goes_last() {
    let rig = Rig::new(leaving("Delete")).await;
    next(&rig).await.unwrap();
    assert_eq!(rig.api.get(&format!("{SETS}/dev")), None, "the StatefulSet goes first");
    assert_eq!(
        message(&rig, "StorageReady"),
        "False Wiping: waiting for the end of dev-0"
    );
    assert_eq!(rig.api.get(&format!("{BATCH}/dev-wipe")), None);
    let job = job(&rig).await;
    let pod = &job["spec"]["template"]["spec"];
    let args: Vec<&str> = pod["containers"][0]["args"]
        .as_array()
        .unwrap()
        .iter()
        .map(|arg| arg.as_str().unwrap())
        .collect();
    assert_eq!(
        args,
        [
            "wipe",
            "--yes",
            "--storage=tikv",
            "--tikv-pd-endpoints=pd:2379",
            "--tikv-key-prefix=brains/dev",
            "--tikv-ca=/etc/kubebrain/tikv/ca.crt",
            "--tikv-cert=/etc/kubebrain/tikv/tls.crt",
            "--tikv-key=/etc/kubebrain/tikv/tls.key",
            "--tikv-cluster-id=7",
            "--initial-cluster-token=brains/dev",
        ]
    );
    assert_eq!(pod["volumes"].as_array().unwrap().len(), 1);
    assert_eq!(
        pod["containers"][0]["volumeMounts"][0]["mountPath"],
        "/etc/kubebrain/tikv"
    );
    assert_eq!(pod["restartPolicy"], "Never");
    assert_eq!(job["metadata"]["ownerReferences"][0]["uid"], "cluster-uid");
    let labels = &job["spec"]["template"]["metadata"]["labels"];
    assert!(
        labels["kubebrain.io/cluster"].is_null(),
        "a Service would take it for a brain: {labels}"
    );
    next(&rig).await.unwrap();
    assert_eq!(message(&rig, "StorageReady"), "False Wiping: Job dev-wipe is running");
    assert_eq!(finalizers(&rig), json!(["kubebrain.io/wipe-storage"]));
    end(&rig, "Complete", plan::testing::BEGIN);
    released(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn failed_wipe_is_named_and_tried_again() {
    let rig = Rig::new(leaving("Delete")).await;
    job(&rig).await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "dev-wipe-x", "namespace": "brains", "labels": {"batch.kubernetes.io/job-name": "dev-wipe"},
            "ownerReferences": [of_job(&rig)],
        },
        "status": {"containerStatuses": [{"name": "wipe", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 1, "message": "{\"code\":\"StorageUnreachable\",\"message\":\"PD does not answer\"}"}}}]},
    });
    rig.api.put(&format!("{NAMESPACE}/pods/dev-wipe-x"), pod);
    end(&rig, "Failed", &Timestamp::now().to_string());
    next(&rig).await.unwrap();
    assert_eq!(message(&rig, "StorageReady"), "False WipeFailed: PD does not answer");
    assert_eq!(message(&rig, "Degraded"), "True WipeFailed: PD does not answer");
    assert!(
        rig.api.get(&format!("{BATCH}/dev-wipe")).is_some(),
        "it is not tried at once"
    );
    end(&rig, "Failed", plan::testing::BEGIN);
    next(&rig).await.unwrap();
    assert_eq!(rig.api.get(&format!("{BATCH}/dev-wipe")), None);
    next(&rig).await.unwrap();
    assert!(rig.api.get(&format!("{BATCH}/dev-wipe")).is_some());
}

#[tokio::test(start_paused = true)]
async fn deletion_goes_on_without_a_wipe_where_that_is_asked_for_or_nothing_is_ours() {
    for change in [
        |cluster: &mut Value| cluster["metadata"]["annotations"] = json!({"kubebrain.io/skip-wipe": "true"}),
        |cluster: &mut Value| cluster["spec"]["storage"]["tikv"]["whenDeleted"] = json!("Retain"),
        |cluster: &mut Value| {
            let since = plan::testing::BEGIN;
            let taken = json!({"type": "StorageReady", "status": "False", "reason": "PrefixTaken", "message": "x", "lastTransitionTime": since});
            cluster["status"] = json!({"conditions": [taken]});
        },
    ] {
        let rig = Rig::new(leaving("Delete")).await;
        let path = format!("{CLUSTERS}/dev");
        let mut cluster = rig.api.get(&path).unwrap();
        change(&mut cluster);
        rig.api.put(&path, cluster);
        released(&rig).await;
        assert_eq!(rig.api.get(&format!("{BATCH}/dev-wipe")), None);
    }
}

#[tokio::test(start_paused = true)]
async fn namespace_that_is_deleted_is_not_held_up_by_a_wipe() {
    let api = leaving("Delete");
    api.remove(&format!("{NAMESPACE}/pods/dev-0"));
    api.remove(&format!("{SETS}/dev"));
    let api = api.answering(|asked| {
        if asked.path != BATCH {
            return ScriptedReply::Pass;
        }
        let (code, mut status) = failure(403, "Forbidden", "dev-wipe");
        status["details"]["causes"] =
            json!([{"reason": "NamespaceTerminating", "message": "it ends", "field": "metadata.namespace"}]);
        ScriptedReply::With(code, status)
    });
    let rig = Rig::new(api).await;
    released(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn job_of_somebody_else_is_left_alone() {
    let rig = Rig::new(leaving("Delete")).await;
    let foreign = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "dev-wipe", "namespace": "brains"},
        "status": {"conditions": [{"type": "Complete", "status": "True"}]}});
    let foreign = rig.api.put(&format!("{BATCH}/dev-wipe"), foreign);
    assert_eq!(job(&rig).await, foreign);
    assert!(message(&rig, "StorageReady").contains("not owned by this cluster"));
    assert_eq!(finalizers(&rig), json!(["kubebrain.io/wipe-storage"]));
}

/// Checks a cluster with these finalizers whose StatefulSet has this metadata: it is removed, and its members and keys stay.
async fn orphans(finalizers_before: Value, metadata: Value, finalizers_left: Value) {
    let rig = Rig::new(leaving("Delete")).await;
    let (path, set_path) = (format!("{CLUSTERS}/dev"), format!("{SETS}/dev"));
    let mut cluster = rig.api.get(&path).unwrap();
    cluster["metadata"]["finalizers"] = finalizers_before;
    rig.api.put(&path, cluster);
    let mut set = rig.api.get(&set_path).unwrap();
    for (key, value) in metadata.as_object().unwrap() {
        set["metadata"][key] = value.clone();
    }
    let set = rig.api.put(&set_path, set);
    next(&rig).await;
    assert_eq!(finalizers(&rig), finalizers_left);
    assert_eq!(next(&rig).await, None);
    assert_eq!(rig.api.get(&set_path), Some(set), "the members go on");
    assert_eq!(rig.api.get(&format!("{BATCH}/dev-wipe")), None);
    assert_eq!(rig.api.events(), ["WipeSkipped"]);
}

#[tokio::test(start_paused = true)]
async fn cluster_that_is_deleted_without_its_objects_keeps_members_and_keys() {
    let finalizers = json!(["orphan", "kubebrain.io/wipe-storage"]);
    orphans(finalizers, json!({}), json!(["orphan"])).await;
}

#[tokio::test(start_paused = true)]
async fn members_that_the_garbage_collector_let_go_keep_their_keys() {
    let labels = json!({"kubebrain.io/cluster": "dev", "app.kubernetes.io/managed-by": "kubebrain-operator"});
    let let_go = json!({"labels": labels, "ownerReferences": []});
    orphans(json!(["kubebrain.io/wipe-storage"]), let_go, json!([])).await;
}

#[tokio::test(start_paused = true)]
async fn finalizer_that_another_manager_owns_is_removed_also_after_a_conflict() {
    let changed = std::sync::atomic::AtomicBool::new(false);
    let api = leaving("Retain");
    let server = api.clone();
    let api = api.answering(move |asked| {
        let path = format!("{CLUSTERS}/dev");
        if asked.path == path && asked.writes() && !changed.swap(true, std::sync::atomic::Ordering::Relaxed) {
            let mut cluster = server.get(&path).unwrap();
            cluster["metadata"]["finalizers"] = json!(["example.org/other", "kubebrain.io/wipe-storage"]);
            server.put(&path, cluster);
        }
        ScriptedReply::Pass
    });
    let rig = Rig::new(api).await;
    assert!(next(&rig).await.is_some(), "it is tried again");
    next(&rig).await;
    assert_eq!(finalizers(&rig), json!(["example.org/other"]));
    assert_eq!(next(&rig).await, None);
}

/// Returns the owner reference of a pod to the Job.
fn of_job(rig: &Rig) -> Value {
    let job = rig.api.get(&format!("{BATCH}/dev-wipe")).unwrap();
    json!({"apiVersion": "batch/v1", "kind": "Job", "name": "dev-wipe", "uid": job["metadata"]["uid"], "controller": true})
}

/// Puts a pod of the Job whose container has been in this state for a long time.
fn put_pod(rig: &Rig, state: &Value) {
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "dev-wipe-x", "namespace": "brains", "labels": {"batch.kubernetes.io/job-name": "dev-wipe"},
            "creationTimestamp": plan::testing::BEGIN, "ownerReferences": [of_job(rig)],
        },
        "status": {"containerStatuses": [
            {"name": "wipe", "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": state},
        ]},
    });
    rig.api.put(&format!("{NAMESPACE}/pods/dev-wipe-x"), pod);
}

/// A cluster on its way out whose spec is refused: its flags contradict it.
fn refused() -> FakeApi {
    let api = leaving("Delete");
    let path = format!("{CLUSTERS}/dev");
    let mut cluster = api.get(&path).unwrap();
    cluster["spec"]["flags"] = json!({"no-such-flag": "1"});
    api.put(&path, cluster);
    api.remove(&format!("{NAMESPACE}/pods/dev-0"));
    api.remove(&format!("{SETS}/dev"));
    api
}

#[tokio::test(start_paused = true)]
async fn cluster_whose_spec_was_refused_from_the_first_day_can_be_deleted() {
    let rig = Rig::new(refused()).await;
    released(&rig).await;
    assert_eq!(rig.api.get(&format!("{BATCH}/dev-wipe")), None);
    assert_eq!(rig.api.events(), ["WipeSkipped"]);
}

#[tokio::test(start_paused = true)]
async fn keys_of_a_spec_that_is_refused_by_now_are_wiped_where_they_were_pinned() {
    let api = refused();
    let path = format!("{CLUSTERS}/dev");
    let mut cluster = api.get(&path).unwrap();
    cluster["status"]["storage"] = json!({"type": "TiKV", "keyPrefix": "pinned", "pdEndpoints": ["old:2379"]});
    api.put(&path, cluster);
    let rig = Rig::new(api).await;
    next(&rig).await.unwrap();
    let job = rig.api.get(&format!("{BATCH}/dev-wipe")).unwrap().to_string();
    assert!(
        job.contains("--tikv-key-prefix=pinned") && job.contains("--tikv-pd-endpoints=old:2379"),
        "{job}"
    );
    end(&rig, "Complete", plan::testing::BEGIN);
    released(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn pod_of_the_wipe_that_cannot_start_is_named() {
    let rig = Rig::new(leaving("Delete")).await;
    let made = job(&rig).await;
    assert_eq!(made["spec"]["activeDeadlineSeconds"], 3600);
    put_pod(
        &rig,
        &json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}}),
    );
    next(&rig).await.unwrap();
    let why = "ImagePullFailed: dev-wipe-x: ErrImagePull: no such image";
    assert_eq!(message(&rig, "StorageReady"), format!("False WipeFailed: {why}"));
    assert_eq!(message(&rig, "Degraded"), format!("True WipeFailed: {why}"));
    // A spec with another image has the Job made anew at once.
    let path = format!("{CLUSTERS}/dev");
    let mut cluster = rig.api.get(&path).unwrap();
    cluster["spec"]["image"] = json!({"repository": "example.org/right"});
    rig.api.put(&path, cluster);
    next(&rig).await.unwrap();
    rig.api.remove(&format!("{NAMESPACE}/pods/dev-wipe-x"));
    next(&rig).await.unwrap();
    let job = rig.api.get(&format!("{BATCH}/dev-wipe")).unwrap();
    let image = &job["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(*image, "example.org/right:0.1.0");
}

#[tokio::test(start_paused = true)]
async fn quota_that_refuses_the_pod_of_the_wipe_is_named() {
    let rig = Rig::new(leaving("Delete")).await;
    let made = job(&rig).await;
    let uid = made["metadata"]["uid"].clone();
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "dev-wipe.1", "namespace": "brains"},
        "involvedObject": {"uid": uid}, "reason": "FailedCreate", "message": "exceeded quota: small",
        "lastTimestamp": Timestamp::now().to_string(),
    });
    rig.api.put(&format!("{NAMESPACE}/events/dev-wipe.1"), event);
    next(&rig).await.unwrap();
    assert_eq!(message(&rig, "Degraded"), "True WipeFailed: exceeded quota: small");
}

#[tokio::test(start_paused = true)]
async fn wipe_runs_where_the_pod_template_has_brains_run() {
    let api = leaving("Delete");
    let path = format!("{CLUSTERS}/dev");
    let mut cluster = api.get(&path).unwrap();
    cluster["spec"]["podTemplate"] = json!({
        "metadata": {"annotations": {"sidecar.istio.io/inject": "false"}, "labels": {"team": "a"}},
        "spec": {
            "nodeSelector": {"disk": "fast"}, "tolerations": [{"key": "dedicated", "operator": "Exists"}],
            "containers": [{"name": "brain", "resources": {"limits": {"memory": "1Gi"}}}, {"name": "side", "image": "x"}],
        },
    });
    api.put(&path, cluster);
    let rig = Rig::new(api).await;
    let template = job(&rig).await["spec"]["template"].clone();
    assert_eq!(template["spec"]["nodeSelector"], json!({"disk": "fast"}));
    assert_eq!(template["spec"]["tolerations"][0]["key"], "dedicated");
    assert_eq!(
        template["spec"]["containers"].as_array().unwrap().len(),
        1,
        "another one would not end"
    );
    assert_eq!(
        template["spec"]["containers"][0]["resources"]["limits"]["memory"],
        "1Gi"
    );
    assert_eq!(template["metadata"]["annotations"]["sidecar.istio.io/inject"], "false");
    assert_eq!(template["metadata"]["labels"]["team"], "a");
    assert!(
        !template["metadata"].to_string().contains("kubebrain.io/"),
        "{}",
        template["metadata"]
    );
}

#[tokio::test(start_paused = true)]
async fn ending_namespace_is_told_what_stays_in_tikv() {
    let api = leaving("Delete");
    api.remove(&format!("{NAMESPACE}/pods/dev-0"));
    api.remove(&format!("{SETS}/dev"));
    let api = api.answering(|asked| {
        if asked.path != BATCH {
            return ScriptedReply::Pass;
        }
        let (code, mut status) = failure(403, "Forbidden", "dev-wipe");
        status["details"]["causes"] = json!([{"reason": "NamespaceTerminating", "message": "it ends"}]);
        ScriptedReply::With(code, status)
    });
    let rig = Rig::new(api).await;
    released(&rig).await;
    let about = rig.api.events_about("Namespace");
    assert_eq!(about.len(), 1, "{about:?}");
    assert!(
        about[0].contains("KubeBrainCluster dev: the keys remain in TiKV"),
        "{about:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn pods_of_others_with_the_labels_of_a_wipe_are_not_believed() {
    let rig = Rig::new(leaving("Delete")).await;
    job(&rig).await;
    for number in 0..100 {
        let labels = json!({"batch.kubernetes.io/job-name": "dev-wipe", "kubebrain.io/cluster": "dev"});
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "x", "controller": true});
        let name = format!("decoy-{number}");
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "brains", "labels": labels, "ownerReferences": [owner]},
            "status": {"containerStatuses": [{"name": "wipe", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": 1, "message": "{\"code\":\"\",\"message\":\"believe me\"}"}}}]},
        });
        rig.api.put(&format!("{NAMESPACE}/pods/{name}"), pod);
    }
    next(&rig).await.unwrap();
    assert_eq!(message(&rig, "StorageReady"), "False Wiping: Job dev-wipe is running");
}
