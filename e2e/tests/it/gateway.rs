//! The JSON gateway: a brain answers HTTP requests and WebSockets as etcd does.

use std::fmt::Debug;
use std::time::Duration;

use bytes::Bytes;
use differential::FLAGS;
use futures::{SinkExt as _, StreamExt as _};
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use programs::progress::Progress;
use programs::server::{Program, Server};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use crate::harness::deadline;
use script::{MALFORMED, REQUESTS};

mod script;
mod streams;

/// The time for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Between two looks at a page of metrics.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Fields whose values belong to one server.
const SERVER_FIELDS: [&str; 10] = [
    "cluster_id",
    "member_id",
    "raft_term",
    "leader",
    "raftIndex",
    "raftTerm",
    "raftAppliedIndex",
    "peerURLs",
    "clientURLs",
    "hash",
];

/// Fields that say how much space a store takes.
const SIZE_FIELDS: [&str; 2] = ["dbSize", "dbSizeInUse"];

/// The answer to a request, without what belongs to one server.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    content_type: Option<String>,
    metadata: Option<String>,
    lines: Vec<Result<Value, String>>,
}

struct Gateway {
    client: Client<HttpConnector, Full<Bytes>>,
    base: String,
}

impl Gateway {
    fn of(server: &Server) -> Self {
        Self {
            client: Client::builder(TokioExecutor::new()).build_http(),
            base: server.endpoint().to_owned(),
        }
    }

    async fn send(&self, method: &Method, path: &str, body: &str) -> Response<Incoming> {
        let request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        let request = request.body(Full::from(body.to_owned())).unwrap();
        let answer = timeout(ANSWER_TIMEOUT, self.client.request(request));
        answer.await.expect("an answer in time").unwrap()
    }

    async fn ask(&self, method: &Method, path: &str, body: &str) -> Answer {
        let (head, body) = self.send(method, path, body).await.into_parts();
        let body = timeout(ANSWER_TIMEOUT, body.collect())
            .await
            .expect("the end of an answer");
        let text = String::from_utf8(body.unwrap().to_bytes().to_vec()).unwrap();
        let header = |name| head.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        Answer {
            status: head.status.as_u16(),
            content_type: header("content-type"),
            metadata: header("grpc-metadata-content-type"),
            lines: text.lines().map(canonical).collect(),
        }
    }

    /// The first lines of a stream.
    async fn lines(&self, path: &str, body: &str, count: usize) -> Vec<Result<Value, String>> {
        let mut body = self.send(&Method::POST, path, body).await.into_body();
        next_lines(&mut body, count).await
    }
}

/// The next `count` lines of an open stream, or more if they arrive together.
async fn next_lines(stream: &mut Incoming, count: usize) -> Vec<Result<Value, String>> {
    let mut text = String::new();
    while text.lines().count() < count || !text.ends_with('\n') {
        let frame = timeout(ANSWER_TIMEOUT, stream.frame()).await.expect("the next line");
        let data = frame.expect("the stream goes on").unwrap().into_data().unwrap();
        text.push_str(std::str::from_utf8(&data).unwrap());
    }
    text.lines().map(canonical).collect()
}

/// A line of JSON without what belongs to one server; else the line.
fn canonical(line: &str) -> Result<Value, String> {
    let mut value = serde_json::from_str(line).map_err(|_| line.to_owned())?;
    mask(&mut value);
    Ok(value)
}

fn mask(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            // Of a member; that of a lease is the client's.
            if fields.contains_key("peerURLs") {
                fields.remove("ID");
            }
            for (name, value) in fields {
                if SERVER_FIELDS.contains(&name.as_str()) || SIZE_FIELDS.contains(&name.as_str()) {
                    *value = json!("masked");
                }
                mask(value);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask),
        _ => {}
    }
}

fn start() -> (Server, Server) {
    let etcd = Server::start(&Program::etcd(&Progress::stderr()).unwrap(), FLAGS).unwrap();
    let brain = Server::start(&Program::kubebrain().unwrap(), FLAGS).unwrap();
    (etcd, brain)
}

/// Asks an etcd and a brain, and compares what they answer. Returns it.
async fn same_of_both<A: PartialEq + Debug>(ask: impl AsyncFn(&Server) -> A) -> A {
    let (etcd, brain) = start();
    let (expected, found) = (ask(&etcd).await, ask(&brain).await);
    assert_eq!(found, expected);
    etcd.stop().unwrap();
    brain.stop().unwrap();
    expected
}

#[tokio::test(flavor = "multi_thread")]
async fn gateway_answers_as_that_of_etcd() {
    let _deadline = deadline();
    let (etcd, brain) = start();
    let (there, here) = (Gateway::of(&etcd), Gateway::of(&brain));
    for &(method, path, body) in REQUESTS {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let expected = there.ask(&method, path, body).await;
        assert_eq!(here.ask(&method, path, body).await, expected, "{method} {path} {body}");
    }
    // The texts of errors in values are the parser's; what a client reacts to is the same.
    for body in MALFORMED {
        let expected = there.ask(&Method::POST, "/v3/kv/range", body).await;
        let found = here.ask(&Method::POST, "/v3/kv/range", body).await;
        let code = |answer: &Answer| answer.lines[0].as_ref().map(|error| error["code"].clone()).unwrap();
        assert_eq!(
            (found.status, code(&found)),
            (expected.status, code(&expected)),
            "{body}"
        );
        assert_eq!(found.status, 400, "{body}");
    }
    etcd.stop().unwrap();
    brain.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_through_the_gateway_streams_lines() {
    let _deadline = deadline();
    let (lines, _) = same_of_both(async |server| {
        let gateway = Gateway::of(server);
        for value in ["djE=", "djI="] {
            let put = json!({"key": "dw==", "value": value}).to_string();
            assert_eq!(gateway.ask(&Method::POST, "/v3/kv/put", &put).await.status, 200);
        }
        let watch = json!({"create_request": {"key": "dw==", "start_revision": "2", "prev_kv": true}}).to_string();
        let lines = gateway.lines("/v3/watch", &watch, 2).await;
        let compact = json!({"revision": "3"}).to_string();
        assert_eq!(
            gateway.ask(&Method::POST, "/v3/kv/compaction", &compact).await.status,
            200
        );
        (lines, gateway.lines("/v3/watch", &watch, 2).await)
    })
    .await;
    let events = &lines[1].as_ref().unwrap()["result"]["events"];
    assert_eq!(events.as_array().map(Vec::len), Some(2), "{lines:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_through_a_web_socket_sends_messages() {
    let _deadline = deadline();
    let (etcd, brain) = start();
    let mut answers = Vec::new();
    for server in [&etcd, &brain] {
        let url = server.endpoint().replace("http://", "ws://") + "/v3/watch";
        let (mut socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
        let mut found = Vec::new();
        for request in [
            json!({"create_request": {"key": "dw==", "watch_id": "7"}}),
            json!({"progress_request": {}}),
            json!({"create_request": {"key": "dw==", "watch_id": "7"}}),
            json!({"cancel_request": {"watch_id": "7"}}),
        ] {
            socket.send(Message::text(request.to_string())).await.unwrap();
            let message = timeout(ANSWER_TIMEOUT, socket.next()).await.expect("a message in time");
            let text = message.expect("the WebSocket is open").unwrap().into_text().unwrap();
            found.push(canonical(&text));
        }
        socket.close(None).await.unwrap();
        answers.push(found);
    }
    assert_eq!(answers[1], answers[0]);
    assert_eq!(answers[0][0].as_ref().unwrap()["result"]["created"], json!(true));
    etcd.stop().unwrap();
    brain.stop().unwrap();
}

/// Ends with the client: a stream of the gateway is not held for one who left.
#[tokio::test(flavor = "multi_thread")]
async fn stream_ends_with_its_client() {
    let _deadline = deadline();
    let brain = Server::start(&Program::kubebrain().unwrap(), &[]).unwrap();
    let gateway = Gateway::of(&brain);
    let watch = json!({"create_request": {"key": "dw=="}}).to_string();
    let body = gateway.send(&Method::POST, "/v3/watch", &watch).await;
    let watchers = async || {
        let page = gateway
            .send(&Method::GET, "/metrics", "")
            .await
            .into_body()
            .collect()
            .await
            .unwrap();
        let page = String::from_utf8(page.to_bytes().to_vec()).unwrap();
        page.lines().any(|line| line == "etcd_debugging_mvcc_watcher_total 1")
    };
    let watched = async |wanted: bool| {
        while watchers().await != wanted {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    timeout(ANSWER_TIMEOUT, watched(true)).await.expect("it watches");
    drop(body);
    timeout(ANSWER_TIMEOUT, watched(false))
        .await
        .expect("it watches no more");
    brain.stop().unwrap();
}
