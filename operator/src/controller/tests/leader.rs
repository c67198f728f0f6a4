//! A whole operator with an API server and a brain: how soon the label follows the leader, and how many requests that costs.

use std::net::SocketAddr;

use plan::testing::full;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::*;
use crate::leadership::Leadership;
use crate::testing::scope;

const POD: &str = "/api/v1/namespaces/brains/pods/dev-0";

/// State of the only brain: its epoch, and true if it leads.
type Said = watch::Receiver<(i64, bool)>;

/// Runs a brain that delays answers as the contract defines.
async fn brain(said: Said, tasks: &mut JoinSet<()>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            connections.spawn(answer(stream, said.clone()));
        }
    });
    address
}

async fn answer(stream: TcpStream, mut said: Said) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    let Some(Ok((request, mut respond))) = connection.accept().await else {
        return;
    };
    let after = request
        .uri()
        .query()
        .and_then(|query| query.strip_prefix("after=")?.parse::<i64>().ok());
    let send = async {
        if let Some(after) = after {
            said.wait_for(|(epoch, _)| *epoch > after).await.unwrap();
        }
        let (epoch, leads) = *said.borrow();
        let mut body = full();
        body["epoch"] = json!(epoch);
        body["clusterID"] = json!(plan::testing::STORE);
        body["tls"] = json!(null);
        body["alarms"] = json!([]);
        body["role"] = json!(if leads { "Leader" } else { "None" });
        body["leader"] = if leads {
            json!({"name": "dev-0", "memberID": body["memberID"]})
        } else {
            Value::Null
        };
        let mut download = respond.send_response(http::Response::new(()), false).unwrap();
        download.send_data(body.to_string().into(), true).unwrap();
    };
    let drive = async { while connection.accept().await.is_some_and(|accepted| accepted.is_ok()) {} };
    // The operator closes the connection when it has its answer or no longer wants it.
    tokio::select! {
        () = drive => {}
        () = async { send.await; std::future::pending().await } => {}
    }
}

async fn until(what: &str, mut met: impl FnMut() -> bool) {
    let waiting = async {
        while !met() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting)
        .await
        .expect(what);
}

/// Returns a server with a settled cluster of one unlabelled pod, whose brain reports `said`, and whose spec has changed to `spec` since.
async fn settled(spec: Value, said: Said, tasks: &mut JoinSet<()>) -> FakeApi {
    let address = brain(said, tasks).await;
    let mut fake = FakeCluster::settled(json!({"tls": {"mode": "Disabled"}}));
    fake.edit(spec);
    let api = FakeApi::new();
    api.load(&fake);
    let mut pod = serde_json::to_value(&fake.seen.pods[0]).unwrap();
    pod["metadata"]["namespace"] = json!("brains");
    pod["status"]["podIP"] = json!(address.to_string());
    pod["metadata"]["labels"]
        .as_object_mut()
        .unwrap()
        .remove(plan::names::ROLE);
    api.put(POD, pod);
    api
}

#[tokio::test]
async fn refused_spec_keeps_the_leader_labelled_and_its_status_true() {
    let (say, said) = watch::channel((2, false));
    let mut tasks = JoinSet::new();
    let api = settled(json!({"flags": {"data-dir": "x"}, "replicas": 0}), said, &mut tasks).await;
    let stop = CancellationToken::new();
    let scope = scope(&api, Leadership::Alone);
    tasks.spawn({
        let stop = stop.clone();
        async move { run(scope, stop).await.unwrap() }
    });
    let status = || api.get(&format!("{CLUSTERS}/dev")).unwrap()["status"].clone();
    until("the brain was asked", || {
        status()["leader"].is_null() && condition(&status(), "Available")["reason"] == "NoLeader"
    })
    .await;
    say.send((3, true)).unwrap();
    until("the label followed", || {
        api.get(POD).unwrap()["metadata"]["labels"][plan::names::ROLE] == "leader"
    })
    .await;
    until("the status followed", || {
        let status = status();
        status["leader"]["epoch"] == 3
            && condition(&status, "Available")["status"] == "True"
            && condition(&status, "Stalled")["reason"] == "InvalidSpec"
    })
    .await;
    assert_eq!(status()["members"][0]["role"], "Leader");
    stop.cancel();
}

#[tokio::test]
async fn label_follows_the_leader_and_a_settled_cluster_costs_nothing() {
    let (say, said) = watch::channel((2, false));
    let mut tasks = JoinSet::new();
    let api = settled(json!({}), said, &mut tasks).await;
    let scope = scope(&api, Leadership::Alone);
    let mut status = json!({});
    let stop = CancellationToken::new();
    tasks.spawn({
        let stop = stop.clone();
        async move { run(scope, stop).await.unwrap() }
    });

    let role = || api.get(POD).unwrap()["metadata"]["labels"][plan::names::ROLE].clone();
    let ready = || api.get(&format!("{CLUSTERS}/dev")).unwrap()["status"].clone();
    until("the brain was asked", || {
        !ready()["members"].is_null() && ready()["leader"].is_null()
    })
    .await;
    assert_eq!(role(), Value::Null);
    say.send((3, true)).unwrap();
    until("the label followed", || role() == "leader").await;

    // Once the status is settled, no further requests are sent, however long that lasts.
    until("the status settled", || {
        let now = ready();
        let same = now == status && now["leader"]["member"] == "dev-0";
        status = now;
        same
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    api.forget_requests();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(api.asked().is_empty(), "{:?}", api.asked());

    // The next regular pass would start only a minute later.
    say.send((9, true)).unwrap();
    until("the epoch was heard of", || ready()["leader"]["epoch"] == 9).await;
    stop.cancel();
}
