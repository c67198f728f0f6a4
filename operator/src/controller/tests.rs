//! A scripted API server, for what a real one does not do on demand: conflicts, lost watches, silence.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::reconcile::Context;
use crate::world::{World, cluster, settings};

const CLUSTERS: &str = "/apis/kubebrain.io/v1alpha1/namespaces/brains/kubebrainclusters";

/// One request, as the script sees it.
#[derive(Debug, Clone)]
struct Asked {
    method: Method,
    path: String,
    query: String,
    body: Value,
}

/// What the script answers: code and body; `None` for never.
type Answer = Option<(u16, Value)>;

/// What was asked, in order.
type Record = Arc<Mutex<Vec<Asked>>>;

fn scripted(script: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> (Shared, Record) {
    let (script, record) = (Arc::new(script), Record::default());
    let asked = record.clone();
    let client = Client::new(
        service_fn(move |request: Request<Body>| {
            let (script, record) = (script.clone(), record.clone());
            async move { answer(request, &*script, &record).await }
        }),
        "default",
    );
    let context = Context {
        events: Events::new(client.clone(), "test".to_owned()),
        client,
        settings: settings(),
        metrics: Metrics::new(),
    };
    (Arc::new(context), asked)
}

async fn answer(
    request: Request<Body>,
    script: &(dyn Fn(&Asked) -> Answer + Send + Sync),
    record: &Record,
) -> Result<Response<Body>, std::io::Error> {
    let (parts, body) = request.into_parts();
    let bytes = body.collect_bytes().await.map_err(std::io::Error::other)?;
    let asked = Asked {
        method: parts.method,
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        body: serde_json::from_slice(&bytes).unwrap_or_default(),
    };
    record.lock().unwrap().push(asked.clone());
    let Some((code, value)) = script(&asked) else {
        return std::future::pending().await;
    };
    let bytes = serde_json::to_vec(&value).map_err(std::io::Error::other)?;
    Response::builder()
        .status(code)
        .body(Body::from(bytes))
        .map_err(std::io::Error::other)
}

fn failure(code: u16, reason: &str) -> Answer {
    let message = format!("{reason}, said the script");
    Some((
        code,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message, "code": code}),
    ))
}

/// An API server that has the cluster and nothing else, and takes every write.
fn obliging(asked: &Asked) -> Answer {
    let path = asked.path.as_str();
    match asked.method {
        Method::GET if path == format!("{CLUSTERS}/dev") => {
            Some((200, serde_json::to_value(cluster(json!({}))).unwrap()))
        }
        Method::GET if path.ends_with("/pods") || path.ends_with("/persistentvolumeclaims") => {
            Some((200, json!({"metadata": {}, "items": []})))
        }
        Method::GET => failure(404, "NotFound"),
        _ if path.starts_with(CLUSTERS) => Some((200, serde_json::to_value(cluster(json!({}))).unwrap())),
        _ => Some((200, asked.body.clone())),
    }
}

fn writes(record: &Record) -> Vec<Asked> {
    let all = record.lock().unwrap().clone();
    all.into_iter()
        .filter(|asked| asked.method != Method::GET && !asked.path.ends_with("/events"))
        .collect()
}

fn condition<'a>(status: &'a Value, type_: &str) -> &'a Value {
    status["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|condition| condition["type"] == type_)
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_first_write_of_all_are_the_conditions() {
    let (context, record) = scripted(obliging);
    reconcile(&context, &cluster(json!({}))).await.unwrap();
    let writes = writes(&record);
    assert_eq!(writes[0].path, format!("{CLUSTERS}/dev/status"));
    assert_eq!(condition(&writes[0].body["status"], "Ready")["status"], "Unknown");
    assert_eq!(writes.last().unwrap().path, format!("{CLUSTERS}/dev/status"));
    assert_eq!(
        condition(&writes.last().unwrap().body["status"], "Ready")["reason"],
        "Creating"
    );
    assert_eq!(
        writes.len(),
        2 + 11,
        "{:?}",
        writes.iter().map(|write| &write.path).collect::<Vec<_>>()
    );
}

#[tokio::test(start_paused = true)]
async fn what_was_not_seen_is_written_without_force_and_what_was_seen_by_its_uid() {
    let (context, record) = scripted(|asked| {
        let service = "/api/v1/namespaces/brains/services/dev-client";
        if asked.method == Method::GET && asked.path == service {
            let mut object = serde_json::to_value(
                &World::settled(json!({})).seen.objects
                    [&crate::objects::Key::new(crate::objects::Kind::Service, "dev-client")],
            )
            .unwrap();
            object["spec"]["ports"] = json!([]);
            return Some((200, object));
        }
        obliging(asked)
    });
    reconcile(&context, &cluster(json!({}))).await.unwrap();
    let applied = writes(&record);
    let find = |name: &str| applied.iter().find(|write| write.path.ends_with(name)).unwrap();
    assert!(find("services/dev-client").query.contains("force=true"));
    assert!(find("services/dev-client").body["metadata"]["uid"].is_string());
    assert!(!find("services/dev-headless").query.contains("force=true"));
    assert!(find("services/dev-headless").body["metadata"]["uid"].is_null());
    assert!(
        applied
            .iter()
            .all(|write| write.query.contains("fieldManager=kubebrain-operator"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_conflict_ends_the_pass_and_shows_in_the_status() {
    let (context, record) = scripted(|asked| match asked.path.as_str() {
        "/api/v1/namespaces/brains/secrets/dev-peer-tls" if asked.method == Method::PATCH => failure(409, "Conflict"),
        _ => obliging(asked),
    });
    let problem = reconcile(&context, &cluster(json!({}))).await.unwrap_err();
    assert_eq!(
        problem.to_string(),
        "could not issue the certificate dev-peer-tls: Conflict, said the script"
    );
    let writes = writes(&record);
    assert!(
        !writes.iter().any(|write| write.path.contains("statefulsets")),
        "nothing that mounts it was made"
    );
    let status = &writes.last().unwrap().body["status"];
    assert_eq!(condition(status, "Degraded")["reason"], "ReconcileError");
    assert!(
        status["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .all(|condition| condition["type"] != "Stalled")
    );
}

#[tokio::test(start_paused = true)]
async fn an_object_that_the_api_server_calls_invalid_stalls_the_cluster_and_is_no_error() {
    let (context, record) = scripted(|asked| match asked.method {
        Method::PATCH if asked.path.contains("statefulsets") => failure(422, "Invalid"),
        _ => obliging(asked),
    });
    let ended = reconcile(&context, &cluster(json!({}))).await.unwrap().unwrap();
    assert_eq!(ended.outcome, Outcome::Stalled);
    let writes = writes(&record);
    let stalled = condition(&writes.last().unwrap().body["status"], "Stalled");
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
async fn a_cluster_that_is_gone_or_on_its_way_out_is_let_go() {
    for code in [404, 200] {
        let (context, record) = scripted(move |asked| {
            if code == 404 {
                return failure(404, "NotFound");
            }
            let (_, mut found) = obliging(asked)?;
            found["metadata"]["deletionTimestamp"] = json!(crate::world::BEGIN);
            Some((200, found))
        });
        assert_eq!(reconcile(&context, &cluster(json!({}))).await.unwrap(), None);
        assert_eq!(writes(&record).len(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_cluster_gets_its_status_and_nothing_else() {
    let (context, record) = scripted(|asked| {
        let (code, mut found) = obliging(asked)?;
        if asked.path == format!("{CLUSTERS}/dev") {
            found["spec"]["paused"] = json!(true);
        }
        Some((code, found))
    });
    reconcile(&context, &cluster(json!({}))).await.unwrap();
    let writes = writes(&record);
    assert!(
        writes.iter().all(|write| write.path.ends_with("/dev/status")),
        "{writes:?}"
    );
    assert_eq!(
        condition(&writes.last().unwrap().body["status"], "Progressing")["reason"],
        "Paused"
    );
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_never_answers_costs_one_pass_and_more_patience_each_time() {
    let (context, _) = scripted(|_| None);
    let guarded = Arc::new(Guarded {
        context,
        failures: Failures::default(),
    });
    let cluster = Arc::new(cluster(json!({})));
    for failures in 1..=TELL_AFTER {
        let began = Instant::now();
        let problem = guard(cluster.clone(), guarded.clone()).await.unwrap_err();
        assert!(matches!(problem, Error::Timeout(_)), "{problem}");
        let told = failures >= TELL_AFTER;
        assert_eq!(began.elapsed().as_secs(), PATIENCE.as_secs() * if told { 2 } else { 1 });
        assert_eq!(
            guarded.failures.in_a_row.lock().unwrap()[&ObjectRef::from_obj(&*cluster)],
            failures
        );
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
async fn a_watch_that_lost_its_place_begins_again() {
    let lists = Arc::new(AtomicUsize::new(0));
    let (counted, stop) = (lists.clone(), CancellationToken::new());
    let stopping = stop.clone();
    let (context, record) = scripted(move |asked| {
        if asked.query.contains("watch=true") {
            // The history before this version is gone.
            if asked.path == "/apis/kubebrain.io/v1alpha1/kubebrainclusters" {
                let gone = json!({"kind": "Status", "status": "Failure", "reason": "Expired", "message": "too old", "code": 410});
                return Some((200, json!({"type": "ERROR", "object": gone})));
            }
            return None;
        }
        if asked.path == "/apis/kubebrain.io/v1alpha1/kubebrainclusters" {
            // One to see whether the definition is there, one to begin with, and one after the watch was lost.
            if counted.fetch_add(1, Ordering::SeqCst) == 2 {
                stopping.cancel();
            }
        }
        let path = asked.path.clone();
        if path.ends_with('s') && !path.contains("/namespaces/") {
            return Some((200, json!({"metadata": {"resourceVersion": "1"}, "items": []})));
        }
        obliging(asked)
    });
    tokio::time::timeout(Duration::from_secs(600), run(context, None, stop, drop))
        .await
        .unwrap()
        .unwrap();
    assert!(lists.load(Ordering::SeqCst) >= 3, "{:?}", record.lock().unwrap());
}

#[tokio::test(start_paused = true)]
async fn the_definition_is_waited_for() {
    let asked_so_far = Arc::new(AtomicUsize::new(0));
    let counted = asked_so_far.clone();
    let (context, _) = scripted(move |_| match counted.fetch_add(1, Ordering::SeqCst) {
        0..=2 => failure(404, "NotFound"),
        _ => Some((200, json!({"metadata": {}, "items": []}))),
    });
    let clusters: Api<KubeBrainCluster> = Api::all(context.client.clone());
    let stop = CancellationToken::new();
    assert_eq!(wait_for_definition(&clusters, &stop).await.unwrap(), Some(()));
    assert_eq!(asked_so_far.load(Ordering::SeqCst), 4);
}

#[test]
fn pauses_double_up_to_five_minutes() {
    let seconds: Vec<u64> = [1, 2, 3, 9, 10, 40, u32::MAX].map(|n| pause(n).as_secs()).to_vec();
    assert_eq!(seconds, [1, 2, 4, 256, 300, 300, 300]);
}
