//! Passes beside an API server in memory: conflicts, lost watches, late stores, silence.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::*;
use crate::fake_api::{Asked, CLUSTERS, FakeApi, Reply, Rig, failure};
use crate::world::{World, cluster};

mod leader;

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
    let mut world = World::settled(json!({}));
    world.edit(json!({"replicas": 0}));
    world.settle();
    api.load(&world);
    api
}

fn refuse(code: u16, reason: &str) -> Reply {
    let (code, status) = failure(code, reason, "it");
    Reply::With(code, status)
}

async fn pass(rig: &Rig) -> Result<Option<crate::reconcile::Ended>, Error> {
    reconcile(&rig.context, &rig.cluster(), 0).await
}

/// The first pass of a new cluster makes its authority; the second one makes what depends on that.
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
    assert_eq!(writes.len(), 2 + 6, "{paths:?}");
}

#[tokio::test(start_paused = true)]
async fn settled_pass_makes_no_request() {
    let rig = Rig::new(settled(FakeApi::new())).await;
    // Versions of the fake's objects differ from those of the world that made the status: one pass may write.
    pass(&rig).await.unwrap();
    rig.sync().await;
    rig.api.forget_requests();
    for _ in 0..3 {
        let ended = pass(&rig).await.unwrap().unwrap();
        assert_eq!(ended.outcome, Outcome::Done);
    }
    let asked = rig.api.asked();
    assert!(asked.is_empty(), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_seen_is_written_by_its_uid() {
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
    assert_eq!((ended.outcome, rig.api.writes().len()), (Outcome::Behind, written));
    // After a while they are not waited for: what they lack is read, and not written again.
    tokio::time::sleep(Duration::from_secs(11)).await;
    rig.api.forget_requests();
    let ended = pass(&rig).await.unwrap().unwrap();
    assert_eq!(ended.outcome, Outcome::Done);
    let made_again: Vec<Asked> = rig
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
    assert_eq!(pass(&rig).await.unwrap().unwrap().outcome, Outcome::Done);
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
    let problem = pass(&rig).await.unwrap_err();
    assert_eq!(problem.class(), Class::Conflict);
    assert!(
        condition(&stored_status(&rig), "Degraded")["status"] != "True",
        "one refusal is not told"
    );
    rig.sync().await;
    pass(&rig).await.unwrap();
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
    // Out of the way, it is looked for once more, and the operator's own is made.
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
        _ => Reply::Pass,
    });
    let rig = Rig::new(bare(api)).await;
    authority(&rig).await;
    let problem = pass(&rig).await.unwrap_err();
    assert_eq!(
        problem.to_string(),
        "could not issue the certificate dev-peer-tls: it was changed by somebody else meanwhile"
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
            _ => Reply::Pass,
        });
        let rig = Rig::new(bare(api)).await;
        authority(&rig).await;
        let problem = reconcile(&rig.context, &rig.cluster(), failures).await.unwrap_err();
        assert_eq!(
            problem.words(),
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
        false => Reply::Pass,
    });
    let rig = Rig::new(bare(api)).await;
    authority(&rig).await;
    let ended = pass(&rig).await.unwrap().unwrap();
    assert_eq!(ended.outcome, Outcome::Stalled);
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
    leaving["metadata"]["deletionTimestamp"] = json!(crate::world::BEGIN);
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

#[tokio::test(start_paused = true)]
async fn an_api_server_that_never_answers_costs_one_pass_and_more_patience_each_time() {
    let api = FakeApi::scripted(|asked| if asked.writes() { Reply::Never } else { Reply::Pass });
    let rig = Rig::new(bare(api)).await;
    let guarded = Arc::new(Guarded {
        context: rig.context.clone(),
        failures: Failures::default(),
    });
    for failures in 1..=3 {
        let began = Instant::now();
        let problem = guard(rig.cluster(), guarded.clone()).await.unwrap_err();
        assert!(matches!(problem, Error::Timeout(_)), "{problem}");
        let told = problem.class().is_told(failures);
        assert_eq!(began.elapsed().as_secs(), PATIENCE.as_secs() * if told { 2 } else { 1 });
        assert_eq!(guarded.failures.of(&ObjectRef::from_obj(&*rig.cluster())), failures);
    }
}

#[tokio::test]
async fn a_panic_is_an_error_of_its_pass_alone() {
    async fn careless() -> Result<(), Error> {
        panic!("said the pass")
    }
    let problem = contain(careless()).await.unwrap_err();
    assert_eq!(problem.to_string(), "the pass panicked: said the pass");
}

#[tokio::test(start_paused = true)]
async fn changes_of_children_start_a_pass_and_those_of_the_status_do_not() {
    let rig = Rig::new(settled(FakeApi::new())).await;
    let named = async |rig: &Rig| {
        rig.sync().await;
        let mut names = Vec::new();
        let mut stream = std::pin::pin!(rig.triggers.clone().stream());
        while let Some(Some(cluster)) = stream.next().now_or_never() {
            names.push(cluster.name);
        }
        names
    };
    named(&rig).await;
    let edit = |path: &str, change: fn(&mut Value)| {
        let mut object = rig.api.get(path).unwrap();
        change(&mut object);
        rig.api.put(path, object);
    };
    let own = format!("{CLUSTERS}/dev");
    edit(&own, |cluster| cluster["status"]["version"] = json!("9.9.9"));
    assert_eq!(named(&rig).await, Vec::<String>::new());
    edit(&own, |cluster| {
        cluster["metadata"]["annotations"] = json!({"kubebrain.io/restart": "1"})
    });
    assert_eq!(named(&rig).await, ["dev"]);
    edit(&format!("{NAMESPACE}/services/dev-client"), |service| {
        service["spec"]["x"] = json!(1)
    });
    assert_eq!(named(&rig).await, ["dev"]);
    edit(&format!("{NAMESPACE}/services/dev-client"), |service| {
        service["spec"]["renewTime"] = json!("2026-11-21T00:00:01.000000Z");
    });
    assert_eq!(named(&rig).await, Vec::<String>::new());
    let pod = json!({"metadata": {"name": "dev-0", "namespace": "brains", "labels": {"kubebrain.io/cluster": "dev"}}});
    rig.api.put(&format!("{NAMESPACE}/pods/dev-0"), pod);
    assert_eq!(named(&rig).await, ["dev"]);
    rig.api.remove(&format!("{NAMESPACE}/pods/dev-0"));
    assert_eq!(named(&rig).await, ["dev"]);
}

#[tokio::test(start_paused = true)]
async fn pods_of_somebody_else_are_found_by_the_selector() {
    let api = FakeApi::new();
    let mut external = serde_json::to_value(cluster(json!({}))).unwrap();
    external["spec"]["workload"] = json!({"type": "External", "selector": {"matchLabels": {"app": "apiserver"}}});
    api.put(&format!("{CLUSTERS}/dev"), external);
    let pod = |name: &str, app: &str| {
        let path = format!("{NAMESPACE}/pods/{name}");
        api.put(
            &path,
            json!({"metadata": {"name": name, "namespace": "brains", "labels": {"app": app}}}),
        );
        path
    };
    let first = pod("apiserver-1", "apiserver");
    pod("another", "other");
    let rig = Rig::new(api.clone()).await;
    let names = async |rig: &Rig| {
        let pods = rig.context.external_pods.of(&rig.cluster()).await.unwrap();
        pods.iter().map(|pod| pod.name_any()).collect::<Vec<_>>()
    };
    assert_eq!(names(&rig).await, ["apiserver-1"]);
    pod("apiserver-2", "apiserver");
    api.remove(&first);
    rig.sync().await;
    assert_eq!(names(&rig).await, ["apiserver-2"]);
    let watches = api
        .asked()
        .iter()
        .filter(|asked| asked.query.contains("app%3Dapiserver") && asked.query.contains("watch=true"))
        .count();
    assert_eq!(watches, 1);
    // The watch ends with the cluster.
    let gone = rig.cluster();
    api.remove(&format!("{CLUSTERS}/dev"));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(rig.context.external_pods.watched(), 0, "{gone:?}");
}

#[tokio::test(start_paused = true)]
async fn managed_fields_are_not_kept() {
    let api = bare(FakeApi::new());
    let mut pod =
        json!({"metadata": {"name": "dev-0", "namespace": "brains", "labels": {"kubebrain.io/cluster": "dev"}}});
    pod["metadata"]["managedFields"] = json!([{"manager": "kubelet", "operation": "Update"}]);
    api.put(&format!("{NAMESPACE}/pods/dev-0"), pod);
    let rig = Rig::new(api).await;
    let kept = rig.context.stores.pod("brains", "dev-0").unwrap();
    assert_eq!(kept.metadata.managed_fields, None);
}

#[tokio::test(start_paused = true)]
async fn kind_that_is_installed_later_is_found() {
    let installed = Arc::<AtomicUsize>::default();
    let there = installed.clone();
    let api = FakeApi::scripted(move |asked| {
        if asked.path != "/apis/monitoring.coreos.com/v1" || there.load(Ordering::SeqCst) == 0 {
            return Reply::Pass;
        }
        let resource = json!({"name": "podmonitors", "singularName": "podmonitor", "namespaced": true, "kind": "PodMonitor", "verbs": ["list"]});
        let list =
            json!({"kind": "APIResourceList", "groupVersion": "monitoring.coreos.com/v1", "resources": [resource]});
        Reply::With(200, list)
    });
    let rig = Rig::new(bare(api)).await;
    let looks = |rig: &Rig| {
        let asked = rig.api.asked();
        asked
            .iter()
            .filter(|asked| asked.path == "/apis/monitoring.coreos.com/v1")
            .count()
    };
    let knows = |rig: &Rig| rig.context.stores.knows(crate::objects::Kind::PodMonitor);
    pass(&rig).await.unwrap();
    assert_eq!((knows(&rig), looks(&rig)), (false, 1));
    installed.store(1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!((knows(&rig), looks(&rig)), (true, 2));
    installed.store(0, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(400)).await;
    assert!(!knows(&rig));
}

#[tokio::test(start_paused = true)]
async fn kinds_that_cannot_be_looked_for_keep_nobody_waiting() {
    let api = FakeApi::scripted(|asked| match asked.path.as_str() {
        "/apis/monitoring.coreos.com/v1" => refuse(503, "ServiceUnavailable"),
        "/apis/core.pingcap.com/v1alpha1" => Reply::Never,
        _ => Reply::Pass,
    });
    let rig = Rig::new(bare(api)).await;
    assert!(!rig.context.stores.knows(crate::objects::Kind::PodMonitor));
    pass(&rig).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_lost_its_place_begins_again() {
    let lists = Arc::<AtomicUsize>::default();
    let counted = lists.clone();
    let api = FakeApi::scripted(move |asked| {
        if asked.path != "/apis/kubebrain.io/v1alpha1/kubebrainclusters" {
            return Reply::Pass;
        }
        if asked.query.contains("watch=true") {
            // The history before this version is gone.
            let gone =
                json!({"kind": "Status", "status": "Failure", "reason": "Expired", "message": "too old", "code": 410});
            return Reply::With(200, json!({"type": "ERROR", "object": gone}));
        }
        counted.fetch_add(1, Ordering::SeqCst);
        Reply::Pass
    });
    let rig = Rig::new(bare(api)).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(lists.load(Ordering::SeqCst) >= 3, "{:?}", rig.api.asked());
}

#[tokio::test(start_paused = true)]
async fn passes_begin_when_every_store_is_filled() {
    let slow = Arc::<tokio::sync::Notify>::default();
    let waited = slow.clone();
    let api = FakeApi::scripted(move |asked| match asked.path.as_str() {
        "/api/v1/secrets" if !asked.query.contains("watch=true") => Reply::After(waited.clone()),
        _ => Reply::Pass,
    });
    let stop = CancellationToken::new();
    let mut running = tokio::task::JoinSet::new();
    let scope = crate::fake_api::scope(&bare(api.clone()), crate::leadership::Leadership::Alone);
    running.spawn(run(scope, stop.clone()));
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(api.writes().len(), 0);
    slow.notify_one();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(api.get("/apis/apps/v1/namespaces/brains/statefulsets/dev").is_some());
    stop.cancel();
    running.join_next().await.unwrap().unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_definition_is_waited_for() {
    let asked_so_far = Arc::<AtomicUsize>::default();
    let counted = asked_so_far.clone();
    let api = FakeApi::scripted(move |_| match counted.fetch_add(1, Ordering::SeqCst) {
        0..=2 => refuse(404, "NotFound"),
        _ => Reply::Pass,
    });
    let client = api.client(
        crate::leadership::Leadership::Alone,
        &crate::metrics::Metrics::new(),
        &crate::ledger::Ledger::default(),
    );
    let stop = CancellationToken::new();
    assert_eq!(wait_for_definition(&Api::all(client), &stop).await.unwrap(), Some(()));
    assert_eq!(asked_so_far.load(Ordering::SeqCst), 4);
}

#[test]
fn pauses_double_up_to_five_minutes() {
    let seconds = [1, 2, 3, 9, 10, 40, u32::MAX].map(|n| pause(Class::Transient, n).as_secs());
    assert_eq!(seconds, [1, 2, 4, 256, 300, 300, 300]);
    let millis = [1, 2, 8, u32::MAX].map(|n| pause(Class::Conflict, n).as_millis());
    assert_eq!(millis, [100, 200, 10_000, 10_000]);
}

#[tokio::test(start_paused = true)]
async fn claim_that_may_not_grow_is_a_reason_of_its_own_and_fails_no_pass() {
    let message = "persistentvolumeclaims \"data-dev-0\" is forbidden: only dynamically provisioned pvc can be resized and the \
                   storageclass that provisions the pvc must support resize";
    let script = move |asked: &Asked| {
        if asked.writes() && asked.path.ends_with("/persistentvolumeclaims/data-dev-0") {
            let (code, mut status) = failure(403, "Forbidden", "data-dev-0");
            status["message"] = json!(message);
            return Reply::With(code, status);
        }
        Reply::Pass
    };
    let rig = Rig::new(settled(FakeApi::scripted(script))).await;
    pass(&rig).await.unwrap();
    let path = format!("{CLUSTERS}/dev");
    let mut cluster = rig.api.get(&path).unwrap();
    cluster["spec"]["storage"]["embedded"]["size"] = json!("20Gi");
    rig.api.put(&path, cluster);
    rig.sync().await;
    assert_eq!(pass(&rig).await.unwrap().unwrap().outcome, Outcome::Done);
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
        move |asked: &Asked| match asked.writes() && asked.path == path {
            true => Reply::With(200, live.lock().unwrap().clone()),
            false => Reply::Pass,
        }
    };
    let rig = Rig::new(settled(FakeApi::scripted(script))).await;
    pass(&rig).await.unwrap();
    // Admission that always puts its own port in the place of ours.
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
