use std::collections::VecDeque;
use std::sync::Mutex;

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::Timestamp;

/// The next expected request to the API server, and its answer.
struct Exchange {
    method: Method,
    answer: StatusCode,
    body: Value,
}

/// An API server that answers by a script and records the requests.
#[derive(Clone, Default)]
struct Server {
    script: Arc<Mutex<VecDeque<Exchange>>>,
    sent: Arc<Mutex<Vec<Value>>>,
}

impl Server {
    fn expect(&self, method: Method, answer: u16, body: Value) {
        let answer = StatusCode::from_u16(answer).unwrap();
        self.script.lock().unwrap().push_back(Exchange { method, answer, body });
    }

    fn lock(&self) -> LeaseLock {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { server.answer(request).await }
        });
        LeaseLock::new(Client::new(service, "default"), "ns", "brain")
    }

    async fn answer(&self, request: Request<Body>) -> Result<Response<Body>, tower::BoxError> {
        let (parts, body) = request.into_parts();
        let expected = self
            .script
            .lock()
            .unwrap()
            .pop_front()
            .expect("a request that was not expected");
        assert_eq!(parts.method, expected.method);
        let base = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";
        let path = if parts.method == Method::POST {
            base.to_owned()
        } else {
            format!("{base}/brain")
        };
        assert_eq!(parts.uri.path(), path);
        let bytes = body.collect().await?.to_bytes();
        if !bytes.is_empty() {
            self.sent.lock().unwrap().push(serde_json::from_slice(&bytes)?);
        }
        Ok(Response::builder()
            .status(expected.answer)
            .body(Body::from(serde_json::to_vec(&expected.body)?))?)
    }

    fn last_sent(&self) -> Value {
        self.sent.lock().unwrap().last().unwrap().clone()
    }
}

fn status(code: u16, reason: &str, kind: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "code": code,
        "reason": reason, "details": {"kind": kind, "name": "brain", "group": "coordination.k8s.io"}})
}

fn lease(version: &str) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "brain", "namespace": "ns", "uid": format!("uid-{version}"), "resourceVersion": version,
            "labels": {"keep": "me"}},
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "acquireTime": "2026-01-02T03:04:05.000001Z",
            "renewTime": "2026-01-02T03:04:06.000002Z", "leaseTransitions": 3, "strategy": "OldestEmulationVersion"}})
}

fn record() -> Record {
    Record {
        holder_identity: "a".to_owned(),
        lease_duration: Duration::from_secs(15),
        acquire_time: Some("2026-01-02T03:04:05.000001Z".parse::<Timestamp>().unwrap()),
        renew_time: Some("2026-01-02T03:04:06.000002Z".parse::<Timestamp>().unwrap()),
        leader_transitions: 3,
    }
}

#[tokio::test]
async fn a_lease_reads_as_a_record_and_a_missing_one_as_none() {
    let server = Server::default();
    server.expect(Method::GET, 200, lease("41"));
    server.expect(Method::GET, 404, status(404, "NotFound", "leases"));
    let lock = server.lock();
    assert_eq!(lock.get().await.unwrap().unwrap().0, record());
    assert!(lock.get().await.unwrap().is_none());
}

#[tokio::test]
async fn an_update_carries_the_version_that_was_read_and_keeps_the_rest() {
    let server = Server::default();
    server.expect(Method::GET, 200, lease("41"));
    server.expect(Method::PUT, 200, lease("42"));
    server.expect(Method::PUT, 409, status(409, "Conflict", "leases"));
    let lock = server.lock();
    let (_, version) = lock.get().await.unwrap().unwrap();
    let renewed = Record {
        leader_transitions: 4,
        lease_duration: Duration::from_millis(2_001),
        ..record()
    };
    let next = lock.update(&renewed, &version).await.unwrap();
    let sent = server.last_sent();
    assert_eq!(sent["metadata"]["resourceVersion"], "41");
    assert_eq!(sent["metadata"]["labels"]["keep"], "me");
    assert_eq!(sent["spec"]["strategy"], "OldestEmulationVersion");
    assert_eq!(
        sent["spec"]["leaseDurationSeconds"], 3,
        "part of a second counts as one"
    );
    assert_eq!(sent["spec"]["leaseTransitions"], 4);
    assert_eq!(sent["spec"]["renewTime"], "2026-01-02T03:04:06.000002Z");

    assert!(matches!(lock.update(&record(), &next).await, Err(LockError::Conflict)));
    assert_eq!(server.last_sent()["metadata"]["resourceVersion"], "42");
}

#[tokio::test]
async fn the_uid_is_that_of_the_last_answer_and_can_be_asked_for() {
    let server = Server::default();
    let lock = server.lock();
    assert_eq!(lock.uid(), None);
    server.expect(Method::GET, 200, lease("41"));
    let (_, version) = lock.get().await.unwrap().unwrap();
    assert_eq!(lock.clone().uid().as_deref(), Some("uid-41"));
    server.expect(Method::PUT, 200, lease("42"));
    lock.update(&record(), &version).await.unwrap();
    assert_eq!(lock.uid().as_deref(), Some("uid-42"));
    server.expect(Method::POST, 201, lease("1"));
    lock.create(&record()).await.unwrap();
    assert_eq!(lock.uid().as_deref(), Some("uid-1"));

    server.expect(Method::GET, 200, lease("43"));
    assert_eq!(lock.ask_uid().await.unwrap().as_deref(), Some("uid-43"));
    server.expect(Method::GET, 404, status(404, "NotFound", "leases"));
    assert_eq!(lock.ask_uid().await.unwrap(), None);
    server.expect(Method::GET, 503, status(503, "Unavailable", "leases"));
    assert!(matches!(lock.ask_uid().await, Err(LockError::Failed(_))));
}

#[tokio::test]
async fn a_kubeconfig_that_cannot_be_used_is_named_and_so_is_its_absence() {
    let refused = async |kubeconfig: Option<&Path>| {
        let connected = LeaseLock::connect(kubeconfig, None, "brain", Duration::from_secs(5)).await;
        format!("{:#}", connected.unwrap_err())
    };
    let error = refused(Some(Path::new("/no/such/kubeconfig"))).await;
    assert!(error.contains("/no/such/kubeconfig"), "{error}");
    let error = refused(None).await;
    assert!(error.contains("find the API server of this pod"), "{error}");
}

#[tokio::test]
async fn a_race_is_a_conflict_and_a_missing_namespace_is_not() {
    let server = Server::default();
    let lock = server.lock();
    server.expect(Method::POST, 409, status(409, "AlreadyExists", "leases"));
    assert!(matches!(lock.create(&record()).await, Err(LockError::Conflict)));
    assert_eq!(server.last_sent()["metadata"].get("resourceVersion"), None);

    server.expect(Method::POST, 404, status(404, "NotFound", "namespaces"));
    assert!(matches!(lock.create(&record()).await, Err(LockError::Failed(_))));

    server.expect(Method::GET, 200, lease("41"));
    let (_, version) = lock.get().await.unwrap().unwrap();
    server.expect(Method::PUT, 404, status(404, "NotFound", "leases"));
    assert!(
        matches!(lock.update(&record(), &version).await, Err(LockError::Conflict)),
        "deleted since"
    );
}

#[tokio::test]
async fn other_failures_say_what_was_tried() {
    for (code, reason) in [
        (403, "Forbidden"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, "Unavailable"),
    ] {
        let server = Server::default();
        server.expect(Method::POST, code, status(code, reason, "leases"));
        let Err(LockError::Failed(error)) = server.lock().create(&record()).await else {
            panic!("{code} is no failure");
        };
        assert_eq!(error.to_string(), "create the lease");
    }
}

#[tokio::test]
async fn a_lease_that_cannot_be_compared_or_counted_is_refused() {
    let mut backwards = lease("1");
    backwards["spec"]["leaseDurationSeconds"] = json!(-1);
    for bad in [lease(""), backwards] {
        let server = Server::default();
        server.expect(Method::GET, 200, bad);
        assert!(matches!(server.lock().get().await, Err(LockError::Failed(_))));
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_costs_the_call_timeout_and_is_not_asked_twice() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let client = client(kube::Config::new(url), Duration::from_secs(5)).unwrap();
    let lock = LeaseLock::new(client, "ns", "brain");
    let began = tokio::time::Instant::now();
    let accepted = async {
        let mut streams = Vec::new();
        loop {
            streams.push(listener.accept().await.unwrap());
            assert_eq!(streams.len(), 1, "the client tried again by itself");
        }
    };
    let answer = tokio::select! {
        answer = lock.get() => answer,
        () = accepted => panic!("ended"),
    };
    assert!(matches!(answer, Err(LockError::Failed(_))));
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_overloaded_is_not_asked_twice_by_one_call() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let lock = LeaseLock::new(
        client(kube::Config::new(url), Duration::from_secs(5)).unwrap(),
        "ns",
        "brain",
    );
    let refusals = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 4096];
        for asked in 1.. {
            assert!(stream.read(&mut request).await.unwrap() > 0);
            assert_eq!(asked, 1, "the client tried again by itself");
            stream
                .write_all(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")
                .await
                .unwrap();
        }
    };
    let answer = tokio::select! {
        answer = lock.get() => answer,
        () = refusals => panic!("ended"),
    };
    assert!(matches!(answer, Err(LockError::Failed(_))));
}
