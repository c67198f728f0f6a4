//! A Lease must not live in the API server whose objects the store of those holds who compete for it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use cluster::self_hosted_lease::{SelfHosted, SelfHostedLease};
use election::{LeaseLock, Lock as _};
use engine::log::MemLog;
use engine::rows::mem::MemRows;
use runtime::tasks::Owned;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::counted::{Counted, Reads};
use crate::engine::Engine;

/// Returns a kubeconfig for an API server.
pub(crate) fn kubeconfig(url: &str) -> Value {
    json!({
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
        "current-context": "c",
    })
}

/// An API server that knows one Lease, by its UID, or answers nothing but an error.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<Option<&'static str>>>);

impl Server {
    fn set(&self, uid: Option<&'static str>) {
        *self.0.lock().unwrap() = uid;
    }

    /// The lock on the Lease `ns`/`brain`.
    async fn lock(&self) -> (LeaseLock, TempDir, Owned<()>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path: PathBuf = dir.path().join("kubeconfig");
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::fs::write(&path, kubeconfig(&url).to_string()).unwrap();
        let router = axum::Router::new().fallback(answer).with_state(self.clone());
        let serving = Owned::start(async move { axum::serve(listener, router).await.unwrap() });
        let lock = LeaseLock::connect(Some(&path), None, "brain", Duration::from_secs(5)).await;
        (lock.unwrap(), dir, serving)
    }
}

async fn answer(State(server): State<Server>) -> (StatusCode, Json<Value>) {
    match *server.0.lock().unwrap() {
        None => (
            StatusCode::SERVICE_UNAVAILABLE,
            Json(json!({"kind": "Status", "status": "Failure", "code": 503, "message": "no store"})),
        ),
        Some(uid) => (
            StatusCode::OK,
            Json(
                json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {},
                "metadata": {"name": "brain", "namespace": "ns", "uid": uid, "resourceVersion": "1"}}),
            ),
        ),
    }
}

const OURS: &str = "0a3e4ed2-ours";
const OTHERS: &str = "0a3e4ed2-others";

/// A store of an API server that has a Lease of the same name.
async fn store() -> Engine {
    let mut engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    engine.puts(20).await;
    let lease = format!("k8s\0 lease {OURS} ");
    for (key, value) in [
        ("/registry/leases/ns/brain-2", lease.as_str()),
        ("/registry/leases/other/brain", lease.as_str()),
        ("/any/prefix/leases/ns/brain", lease.as_str()),
    ] {
        engine.put(key.as_bytes(), value.as_bytes()).await.unwrap();
    }
    engine
}

fn names_all(error: &str) {
    for part in ["lease ns/brain", "/any/prefix/leases/ns/brain", "--election storage"] {
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn the_very_lease_is_refused_and_another_of_its_name_is_not() {
    let (engine, server) = (store().await, Server::default());
    let (lock, _dir, _serving) = server.lock().await;
    let self_hosted_lease = SelfHostedLease::new(lock.clone());
    server.set(Some(OTHERS));
    self_hosted_lease.check_before(&engine.store.state).await.unwrap();
    self_hosted_lease.check_leading(&engine.store.state).await.unwrap();
    lock.get().await.unwrap();
    self_hosted_lease.check_leading(&engine.store.state).await.unwrap();

    server.set(Some(OURS));
    let error = self_hosted_lease.check_before(&engine.store.state).await.unwrap_err();
    assert!(error.is::<SelfHosted>());
    names_all(&error.to_string());
    // Decided by what the lock learned when it was won: the API server is not asked.
    lock.get().await.unwrap();
    server.set(None);
    let error = self_hosted_lease.check_leading(&engine.store.state).await.unwrap_err();
    names_all(&error.to_string());
    engine.stop().await.unwrap();
}

#[tokio::test]
async fn a_silent_server_is_waited_for_only_if_the_name_is_stored_here() {
    let (engine, server) = (store().await, Server::default());
    let (lock, _dir, _serving) = server.lock().await;
    let self_hosted_lease = SelfHostedLease::new(lock);
    let empty = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    self_hosted_lease.check_before(&empty.store.state).await.unwrap();
    let later = async {
        tokio::task::yield_now().await;
        server.set(Some(OTHERS));
    };
    let (checked, ()) = tokio::join!(self_hosted_lease.check_before(&engine.store.state), later);
    checked.unwrap();
    empty.stop().await.unwrap();
    engine.stop().await.unwrap();
}

#[tokio::test]
async fn looking_for_the_lease_reads_few_keys_however_many_there_are() {
    let rows = Counted::new(MemRows::new(), Reads::default());
    let reads = rows.hooks.clone();
    let mut engine = Engine::start(MemLog::new(), rows).await.unwrap();
    for n in 0..1_000 {
        let kind = ["pods", "leases", "events"][n % 3];
        let key = format!("/registry/{kind}/namespace-{}/object-{n}", n % 7);
        engine.put(key.as_bytes(), b"k8s").await.unwrap();
    }
    engine.put(b"/registry/leases/ns/brain", OURS.as_bytes()).await.unwrap();
    engine.compact().await;
    let server = Server::default();
    let (lock, _dir, _serving) = server.lock().await;
    server.set(Some(OURS));
    reads.take();
    let error = SelfHostedLease::new(lock)
        .check_before(&engine.store.state)
        .await
        .unwrap_err();
    assert!(error.is::<SelfHosted>());
    let (calls, rows) = reads.take();
    assert!(
        calls < 50 && rows < 50,
        "{calls} reads of {rows} rows for three kinds of objects"
    );
    engine.stop().await.unwrap();
}
