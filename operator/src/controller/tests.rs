//! Passes with an API server in memory: conflicts, lost watches, late stores, missing answers.

use fake_api::{CLUSTERS, FakeApi, RecordedRequest, ScriptedReply, failure};
use plan::testing::{FakeCluster, cluster};
use serde_json::{Value, json};

use super::*;
use crate::testing::Rig;

mod authority;
mod epochs;
mod finalizer;
mod fleet;
mod foreign;
mod installations;
mod leader;
mod lock;
mod others;
mod templates;
mod trial;
mod watches;

const NAMESPACE: &str = "/api/v1/namespaces/brains";

/// A server with the cluster of `world` and nothing else.
fn bare(api: FakeApi) -> FakeApi {
    api.put(
        &format!("{CLUSTERS}/dev"),
        serde_json::to_value(cluster(json!({}))).unwrap(),
    );
    api
}

/// A server with a settled cluster that has no members.
fn settled(api: FakeApi) -> FakeApi {
    let mut fake = FakeCluster::settled(json!({}));
    fake.edit(json!({"replicas": 0}));
    fake.settle();
    api.load(&fake);
    api
}

fn refuse(code: u16, reason: &str) -> ScriptedReply {
    let (code, status) = failure(code, reason, "it");
    ScriptedReply::With(code, status)
}

async fn pass(rig: &Rig) -> Result<Option<crate::pass::PassOutcome>, PassError> {
    reconcile(&rig.context, &rig.cluster(), 0).await
}

/// The first pass of a new cluster creates its authority; the second one creates the objects that depend on it.
async fn authority(rig: &Rig) {
    pass(rig).await.unwrap();
    rig.sync().await;
}

fn condition<'a>(status: &'a Value, type_: &str) -> &'a Value {
    let all = status["conditions"].as_array().unwrap();
    all.iter().find(|condition| condition["type"] == type_).unwrap()
}

fn stored_status(rig: &Rig) -> Value {
    rig.api.get(&format!("{CLUSTERS}/dev")).unwrap()["status"].clone()
}

#[tokio::test(start_paused = true)]
async fn the_first_write_of_all_are_the_conditions() {
    let rig = Rig::new(bare(FakeApi::new())).await;
    pass(&rig).await.unwrap();
    let writes = rig.api.writes();
    assert_eq!(writes[0].path, format!("{CLUSTERS}/dev/status"));
    assert_eq!(condition(&writes[0].body["status"], "Ready")["status"], "Unknown");
    let last = writes.last().unwrap();
    assert_eq!(last.path, format!("{CLUSTERS}/dev/status"));
    assert_eq!(condition(&last.body["status"], "Ready")["reason"], "Creating");
    let paths: Vec<&String> = writes.iter().map(|write| &write.path).collect();
    assert_eq!(writes.len(), 2 + 7, "{paths:?}");
}

#[tokio::test(start_paused = true)]
async fn settled_pass_makes_no_request() {
    let rig = Rig::new(settled(FakeApi::new())).await;
    // Versions of the fake's objects differ from those of the world that wrote the status, so one pass may write.
    pass(&rig).await.unwrap();
    rig.sync().await;
    rig.api.forget_requests();
    for _ in 0..3 {
        let ended = pass(&rig).await.unwrap().unwrap();
        assert_eq!(ended.outcome, ReconcileOutcome::Done);
    }
    let asked = rig.api.asked();
    assert!(asked.is_empty(), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn drifted_object_is_applied_again_by_its_uid() {
    let rig = Rig::new(settled(FakeApi::new())).await;
    pass(&rig).await.unwrap();
    let path = format!("{NAMESPACE}/services/dev-client");
    let mut service = rig.api.get(&path).unwrap();
    service["spec"]["ports"] = json!([]);
    rig.api.put(&path, service);
    rig.sync().await;
    rig.api.forget_requests();
    pass(&rig).await.unwrap();
    let writes = rig.api.writes();
    assert_eq!(writes[0].path, path, "{writes:?}");
    assert!(writes[0].query.contains("force=true"));
    assert!(writes[0].body["metadata"]["uid"].is_string());
    assert_ne!(rig.api.get(&path).unwrap()["spec"]["ports"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn late_stores_hold_the_next_pass_back() {
    let rig = Rig::new(bare(FakeApi::new())).await;
    authority(&rig).await;
    rig.api.hold(true);
    pass(&rig).await.unwrap();
    let written = rig.api.writes().len();
    let ended = pass(&rig).await.unwrap().unwrap();
    assert_eq!(
        (ended.outcome, rig.api.writes().len()),
        (ReconcileOutcome::Behind, written)
    );
    // After a while the pass stops waiting for the stores: missing objects are read, and not written again.
    tokio::time::sleep(Duration::from_secs(11)).await;
    rig.api.forget_requests();
    let ended = pass(&rig).await.unwrap().unwrap();
    assert_eq!(ended.outcome, ReconcileOutcome::Done);
    let made_again: Vec<RecordedRequest> = rig
        .api
        .writes()
        .into_iter()
        .filter(|write| !write.path.ends_with("/status"))
        .collect();
    assert!(made_again.is_empty(), "{made_again:?}");
    assert!(
        rig.api
            .asked()
            .iter()
            .any(|asked| asked.path.ends_with("/statefulsets/dev"))
    );
    rig.api.hold(false);
    rig.sync().await;
    assert_eq!(pass(&rig).await.unwrap().unwrap().outcome, ReconcileOutcome::Done);
    rig.sync().await;
    rig.api.forget_requests();
    pass(&rig).await.unwrap();
    assert!(rig.api.asked().is_empty(), "{:?}", rig.api.asked());
}

#[tokio::test(start_paused = true)]
async fn object_without_the_label_is_found_when_its_name_is_taken() {
    let path = format!("{NAMESPACE}/services/dev-client");
    let foreign =
        json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": "dev-client", "namespace": "brains"}});
    let api = bare(FakeApi::new());
    let foreign = api.put(&path, foreign);
    let rig = Rig::new(api).await;
    pass(&rig).await.unwrap();
    let tried = rig
        .api
        .writes()
        .into_iter()
        .filter(|write| write.path.contains("/services"));
    assert!(
        tried.into_iter().all(|write| write.path != path),
        "it was asked for first"
    );
    let stalled = condition(&stored_status(&rig), "Stalled").clone();
    assert_eq!(
        (&stalled["status"], &stalled["reason"]),
        (&json!("True"), &json!("OwnershipConflict"))
    );
    assert!(
        stalled["message"].as_str().unwrap().contains("Service dev-client"),
        "{stalled}"
    );
    assert_eq!(rig.api.get(&path).unwrap(), foreign);
    // Once the object is removed, the pass checks once more and creates the operator's own.
    rig.api.remove(&path);
    for _ in 0..3 {
        rig.sync().await;
        pass(&rig).await.unwrap();
    }
    assert_eq!(
        rig.api.get(&path).unwrap()["metadata"]["labels"]["kubebrain.io/cluster"],
        "dev"
    );
    rig.sync().await;
    rig.api.forget_requests();
    pass(&rig).await.unwrap();
    assert!(rig.api.asked().is_empty(), "{:?}", rig.api.asked());
}

#[tokio::test(start_paused = true)]
async fn a_conflict_ends_the_pass_in_silence() {
    let api = FakeApi::scripted(|asked| match asked.path.as_str() {
        path if asked.writes() && path.ends_with("secrets/dev-peer-tls") => refuse(409, "Conflict"),
        _ => ScriptedReply::Pass,
    });
    let rig = Rig::new(bare(api)).await;
    authority(&rig).await;
    let problem = pass(&rig).await.unwrap_err();
    assert_eq!(
        problem.to_string(),
        "could not issue the certificate dev-peer-tls: another client changed it at the same time"
    );
    let sets = rig
        .api
        .writes()
        .iter()
        .filter(|write| write.path.contains("statefulsets"))
        .count();
    assert_eq!(sets, 0, "nothing that mounts it was made");
    assert_ne!(condition(&stored_status(&rig), "Degraded")["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn hiccups_are_told_after_three_and_refusals_at_once() {
    for (code, failures, told) in [(500, 0, false), (500, 1, false), (500, 2, true), (403, 0, true)] {
        let api = FakeApi::scripted(move |asked| match asked.path.as_str() {
            path if asked.writes() && path.ends_with("secrets/dev-peer-tls") => refuse(code, "No"),
            _ => ScriptedReply::Pass,
        });
        let rig = Rig::new(bare(api)).await;
        authority(&rig).await;
        let problem = reconcile(&rig.context, &rig.cluster(), failures).await.unwrap_err();
        assert_eq!(
            problem.message(),
            "could not issue the certificate dev-peer-tls: No, said the server"
        );
        let degraded = condition(&stored_status(&rig), "Degraded").clone();
        assert_eq!(
            degraded["status"] == "True",
            told,
            "{code} after {failures}: {degraded}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_the_api_server_calls_invalid_stalls_the_cluster_and_is_no_error() {
    let api = FakeApi::scripted(|asked| match asked.writes() && asked.path.contains("statefulsets") {
        true => refuse(422, "Invalid"),
        false => ScriptedReply::Pass,
    });
    let rig = Rig::new(bare(api)).await;
    authority(&rig).await;
    let ended = pass(&rig).await.unwrap().unwrap();
    assert_eq!(ended.outcome, ReconcileOutcome::Stalled);
    let stalled = condition(&stored_status(&rig), "Stalled").clone();
    assert_eq!(
        (&stalled["status"], &stalled["reason"]),
        (&json!("True"), &json!("InvalidSpec"))
    );
    assert!(
        stalled["message"].as_str().unwrap().contains("StatefulSet dev"),
        "{stalled}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_cluster_on_its_way_out_is_let_go() {
    let api = FakeApi::new();
    let mut leaving = serde_json::to_value(cluster(json!({}))).unwrap();
    leaving["metadata"]["deletionTimestamp"] = json!(plan::testing::BEGIN);
    api.put(&format!("{CLUSTERS}/dev"), leaving);
    let rig = Rig::new(api).await;
    assert_eq!(pass(&rig).await.unwrap(), None);
    assert_eq!(rig.api.writes().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_paused_cluster_gets_its_status_and_nothing_else() {
    let api = FakeApi::new();
    let paused = serde_json::to_value(cluster(json!({"paused": true}))).unwrap();
    api.put(&format!("{CLUSTERS}/dev"), paused);
    let rig = Rig::new(api).await;
    pass(&rig).await.unwrap();
    let writes = rig.api.writes();
    assert!(
        writes.iter().all(|write| write.path.ends_with("/dev/status")),
        "{writes:?}"
    );
    assert_eq!(condition(&stored_status(&rig), "Progressing")["reason"], "Paused");
}

/// Returns a server with a settled cluster whose certificates expired long ago, and whose spec has changed to `spec` since.
fn ended(spec: Value) -> FakeApi {
    let mut fake = FakeCluster::settled(json!({"tls": {"validity": "1h"}}));
    fake.edit(spec);
    let api = FakeApi::new();
    api.load(&fake);
    api
}

#[tokio::test(start_paused = true)]
async fn refused_spec_renews_certificates_and_applies_nothing_of_itself() {
    let refused = json!({
        "flags": {"data-dir": "x"},
        "replicas": 0,
        "version": "9.9.9",
        "tls": {"serverAltNames": ["new.example.com"], "caGeneration": 2, "caAdvance": "Auto"},
        "inheritedMetadata": {"labels": {"team": "new"}},
        "services": {"leader": {"enabled": false}},
        "storage": {"embedded": {"size": "20Gi"}},
    });
    let rig = Rig::new(ended(refused)).await;
    let ended = pass(&rig).await.unwrap().unwrap();
    assert_eq!(ended.outcome, ReconcileOutcome::Stalled);
    let written: Vec<String> = rig.api.writes().into_iter().map(|write| write.path).collect();
    let secret = |name: &str| format!("{NAMESPACE}/secrets/dev-{name}-tls");
    for leaf in ["server", "peer", "operator-client", "apiserver-client"] {
        assert!(written.contains(&secret(leaf)), "{leaf} is not renewed: {written:?}");
        let renewed = rig.api.get(&secret(leaf)).unwrap();
        assert_eq!(renewed["metadata"]["labels"]["team"], Value::Null, "{leaf}");
    }
    let others: Vec<&String> = written
        .iter()
        .filter(|path| !path.ends_with("-tls") && !path.ends_with("/dev/status"))
        .collect();
    assert!(others.is_empty(), "{others:?}");
    let server: kube::core::DynamicObject = serde_json::from_value(rig.api.get(&secret("server")).unwrap()).unwrap();
    let pair = plan::steps::stored_pair(&server, "tls.crt", "tls.key").unwrap();
    let certificate = plan::certificates::InspectedCertificate::read(&pair.certificate).unwrap();
    assert!(!certificate.sans.contains("new.example.com"), "{:?}", certificate.sans);
    let status = stored_status(&rig);
    assert_eq!(condition(&status, "Stalled")["reason"], "InvalidSpec");
    assert_eq!(condition(&status, "CertificatesReady")["reason"], "Issued");
    assert_eq!(status["version"], "0.1.0");
    // The next pass sees the signer of the new certificates.
    rig.sync().await;
    pass(&rig).await.unwrap();
    rig.sync().await;
    rig.api.forget_requests();
    pass(&rig).await.unwrap();
    assert!(rig.api.asked().is_empty(), "{:?}", rig.api.asked());
}

/// Objects that the namespace controller has deleted cannot be created again; the cluster is deleted with the rest.
#[tokio::test(start_paused = true)]
async fn namespace_that_is_deleted_is_no_failure_of_its_clusters() {
    let api = FakeApi::scripted(|asked| {
        if !(asked.writes() && asked.path.ends_with("secrets/dev-peer-tls")) {
            return ScriptedReply::Pass;
        }
        let (code, mut status) = failure(403, "Forbidden", "it ends");
        status["details"]["causes"] = json!([{"reason": "NamespaceTerminating", "message": "it ends"}]);
        ScriptedReply::With(code, status)
    });
    let rig = Rig::new(bare(api)).await;
    authority(&rig).await;
    let problem = reconcile(&rig.context, &rig.cluster(), 50).await.unwrap_err();
    assert_eq!(problem.class(), FailureClass::NamespaceTerminating);
    assert_ne!(condition(&stored_status(&rig), "Degraded")["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_never_answers_costs_one_pass_and_more_patience_each_time() {
    let api = FakeApi::scripted(|asked| {
        if asked.writes() {
            ScriptedReply::Never
        } else {
            ScriptedReply::Pass
        }
    });
    let rig = Rig::new(bare(api)).await;
    let guarded = Arc::new(GuardedReconciler {
        context: rig.context.clone(),
        failures: FailureCounts::default(),
        refusals: Refusals::default(),
    });
    for failures in 1..=3 {
        let began = Instant::now();
        let problem = guard(rig.cluster(), guarded.clone()).await.unwrap_err();
        assert!(matches!(problem, PassError::Timeout(_)), "{problem}");
        let told = problem.class().is_told(failures);
        assert_eq!(
            began.elapsed().as_secs(),
            RECONCILE_TIMEOUT.as_secs() * if told { 2 } else { 1 }
        );
        assert_eq!(guarded.failures.of(&ObjectRef::from_obj(&*rig.cluster())), failures);
    }
}

/// The API server gives this answer if object and status together exceed the request size limit of its store.
#[tokio::test(start_paused = true)]
async fn status_without_room_is_told_by_an_event() {
    let api = FakeApi::scripted(|asked| match asked.path.ends_with("/status") && asked.writes() {
        true => {
            let (code, body) = failure(500, "InternalError: etcdserver: request is too large", "dev");
            ScriptedReply::With(code, body)
        }
        false => ScriptedReply::Pass,
    });
    let rig = Rig::new(bare(api)).await;
    let guarded = Arc::new(GuardedReconciler {
        context: rig.context.clone(),
        failures: FailureCounts::default(),
        refusals: Refusals::default(),
    });
    for _ in 1..=3 {
        assert_eq!(rig.api.events(), Vec::<String>::new());
        guard(rig.cluster(), guarded.clone()).await.unwrap_err();
    }
    assert_eq!(rig.api.events(), ["StatusNotWritten"]);
    let notes = rig.api.events_about("KubeBrainCluster");
    assert!(
        notes[0].starts_with("writing the status failed: ") && notes[0].contains("too large"),
        "{notes:?}"
    );
}

#[tokio::test]
async fn a_panic_is_an_error_of_its_pass_alone() {
    async fn careless() -> Result<(), PassError> {
        panic!("said the pass")
    }
    let problem = contain(careless()).await.unwrap_err();
    assert_eq!(problem.to_string(), "the pass panicked: said the pass");
}

#[tokio::test(start_paused = true)]
async fn pods_that_a_quota_refuses_are_named_until_they_are_made() {
    let fake = FakeCluster::settled(json!({"tls": {"mode": "Disabled"}}));
    let api = FakeApi::new();
    api.load(&fake);
    let path = format!("{CLUSTERS}/dev");
    let mut own = api.get(&path).unwrap();
    for condition in own["status"]["conditions"].as_array_mut().unwrap() {
        if condition["type"] == "Ready" {
            condition["status"] = json!("False");
            condition["lastTransitionTime"] = json!("2026-11-21T00:00:00Z");
        }
    }
    let set = api.get("/apis/apps/v1/namespaces/brains/statefulsets/dev").unwrap();
    api.put(&path, own);
    let event = |name: &str, uid: &Value, reason: &str, at: &str, message: &str| {
        let event = json!({
            "metadata": {"name": name, "namespace": "brains"},
            "involvedObject": {"kind": "StatefulSet", "name": "dev", "namespace": "brains", "uid": uid},
            "reason": reason, "message": message, "lastTimestamp": at,
        });
        api.put(&format!("{NAMESPACE}/events/{name}"), event);
    };
    let uid = &set["metadata"]["uid"];
    event("old", uid, "FailedCreate", "2026-11-20T00:00:00Z", "webhook said no");
    event("other", uid, "SuccessfulCreate", "2026-11-21T02:00:00Z", "create Pod");
    event(
        "foreign",
        &json!("x"),
        "FailedCreate",
        "2026-11-21T02:00:00Z",
        "create Pod",
    );
    let rig = Rig::new(api.clone()).await;
    pass(&rig).await.unwrap();
    assert_eq!(
        condition(&stored_status(&rig), "Degraded")["reason"],
        "MembersUnhealthy"
    );

    let quota = "create Pod dev-0 in StatefulSet dev failed error: pods \"dev-0\" is forbidden: exceeded quota: small";
    event("quota", uid, "FailedCreate", "2026-11-21T01:00:00Z", quota);
    rig.sync().await;
    pass(&rig).await.unwrap();
    let status = stored_status(&rig);
    for type_ in ["Ready", "Available", "Degraded"] {
        let found = condition(&status, type_);
        assert_eq!(
            (&found["reason"], &found["message"]),
            (&json!("QuotaExceeded"), &json!(quota))
        );
    }
    let webhook = "create Pod dev-0 in StatefulSet dev failed error: admission webhook \"policy\" denied the request";
    event("webhook", uid, "FailedCreate", "2026-11-21T02:00:00Z", webhook);
    pass(&rig).await.unwrap();
    assert_eq!(condition(&stored_status(&rig), "Degraded")["reason"], "PodsRefused");

    let mut pod = serde_json::to_value(&fake.seen.pods[0]).unwrap();
    pod["metadata"]["namespace"] = json!("brains");
    rig.api.put(&format!("{NAMESPACE}/pods/dev-0"), pod);
    rig.sync().await;
    pass(&rig).await.unwrap();
    assert_ne!(condition(&stored_status(&rig), "Degraded")["reason"], "PodsRefused");
}

#[test]
fn pauses_double_up_to_five_minutes() {
    let seconds = [1, 2, 3, 9, 10, 40, u32::MAX].map(|n| pause(FailureClass::Transient, n).as_secs());
    assert_eq!(seconds, [1, 2, 4, 256, 300, 300, 300]);
    let millis = [1, 2, 8, u32::MAX].map(|n| pause(FailureClass::Conflict, n).as_millis());
    assert_eq!(millis, [100, 200, 10_000, 10_000]);
}

#[tokio::test(start_paused = true)]
async fn claim_that_may_not_grow_is_a_reason_of_its_own_and_fails_no_pass() {
    let message = "persistentvolumeclaims \"data-dev-0\" is forbidden: only dynamically provisioned pvc can be resized and the \
                   storageclass that provisions the pvc must support resize";
    let script = move |asked: &RecordedRequest| {
        if asked.writes() && asked.path.ends_with("/persistentvolumeclaims/data-dev-0") {
            let (code, mut status) = failure(403, "Forbidden", "data-dev-0");
            status["message"] = json!(message);
            return ScriptedReply::With(code, status);
        }
        ScriptedReply::Pass
    };
    let rig = Rig::new(settled(FakeApi::scripted(script))).await;
    pass(&rig).await.unwrap();
    let path = format!("{CLUSTERS}/dev");
    let mut cluster = rig.api.get(&path).unwrap();
    cluster["spec"]["storage"]["embedded"]["size"] = json!("20Gi");
    rig.api.put(&path, cluster);
    rig.sync().await;
    assert_eq!(pass(&rig).await.unwrap().unwrap().outcome, ReconcileOutcome::Done);
    let status = stored_status(&rig);
    assert_eq!(condition(&status, "StorageReady")["reason"], "NotExpandable");
    assert_eq!(condition(&status, "Degraded")["status"], "False");
    rig.sync().await;
    pass(&rig).await.unwrap();
    assert_eq!(
        stored_status(&rig),
        status,
        "the status is stable while it stays refused"
    );
}

#[tokio::test(start_paused = true)]
async fn apply_that_changes_nothing_is_no_write_and_no_event() {
    let path = format!("{NAMESPACE}/services/dev-client");
    let live = std::sync::Arc::new(std::sync::Mutex::new(Value::Null));
    let script = {
        let (path, live) = (path.clone(), live.clone());
        move |asked: &RecordedRequest| match asked.writes() && asked.path == path {
            true => ScriptedReply::With(200, live.lock().unwrap().clone()),
            false => ScriptedReply::Pass,
        }
    };
    let rig = Rig::new(settled(FakeApi::scripted(script))).await;
    pass(&rig).await.unwrap();
    // Admission always replaces our port by its own.
    let mut service = rig.api.get(&path).unwrap();
    service["spec"]["ports"][0]["port"] = json!(1);
    *live.lock().unwrap() = rig.api.put(&path, service);
    rig.sync().await;
    rig.api.forget_requests();
    let ended = pass(&rig).await.unwrap().unwrap();
    assert!(ended.again > Duration::from_secs(1), "{:?}", ended.again);
    let paths: Vec<String> = rig.api.writes().into_iter().map(|write| write.path).collect();
    assert_eq!(paths, [path]);
}
