//! Streams of answers other than watches.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::{SinkExt as _, StreamExt as _};
use http::Method;
use hyper::body::Incoming;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use super::{ANSWER_TIMEOUT, Answer, Gateway, canonical, next_lines, same_of_both};
use crate::harness::deadline;

/// Bytes of a value that make a snapshot too large for one message.
const LARGE_VALUE_BYTES: usize = 100_000;

impl Gateway {
    /// The answer to a request that succeeds.
    async fn succeed(&self, path: &str, body: &Value) -> Value {
        let answer = self.ask(&Method::POST, path, &body.to_string()).await;
        assert_eq!(answer.status, 200, "{path} {body}: {answer:?}");
        answer.lines.into_iter().next().unwrap().unwrap()
    }
}

/// The next line of an open stream. Each line is sent at once.
async fn next_line(stream: &mut Incoming) -> Result<Value, String> {
    let mut lines = next_lines(stream, 1).await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines.remove(0)
}

/// The names of a snapshot's fields, message by message without repetitions.
fn fields_of_whole_snapshot(answer: &mut Answer) -> Vec<Vec<String>> {
    let lines: Vec<Value> = answer.lines.drain(..).map(Result::unwrap).collect();
    let blob = |line: &Value| STANDARD.decode(line["result"]["blob"].as_str().unwrap()).unwrap();
    let (hash, file) = lines.split_last().unwrap();
    let file: Vec<u8> = file.iter().flat_map(blob).collect();
    assert!(
        file.len() > LARGE_VALUE_BYTES && file.len().is_multiple_of(512),
        "{} bytes",
        file.len()
    );
    assert_eq!(blob(hash), Sha256::digest(&file).as_slice());
    let fields = |line: &Value| -> Vec<String> {
        assert_eq!(line["result"]["version"], json!("3.6.0"));
        line["result"].as_object().unwrap().keys().cloned().collect()
    };
    let mut fields: Vec<_> = lines.iter().map(fields).collect();
    fields.dedup();
    fields
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_through_the_gateway_is_whole() {
    let _deadline = deadline();
    let (_, fields) = same_of_both(async |server| {
        let gateway = Gateway::of(server);
        let value = STANDARD.encode(vec![b'v'; LARGE_VALUE_BYTES]);
        gateway
            .succeed("/v3/kv/put", &json!({"key": "dw==", "value": value}))
            .await;
        let mut answer = gateway.ask(&Method::POST, "/v3/maintenance/snapshot", "{}").await;
        let fields = fields_of_whole_snapshot(&mut answer);
        (answer, fields)
    })
    .await;
    assert_eq!(fields.len(), 2, "{fields:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn observer_through_the_gateway_sees_each_leader() {
    let _deadline = deadline();
    let lines = same_of_both(async |server| {
        let gateway = Gateway::of(server);
        for id in ["7", "8"] {
            gateway
                .succeed("/v3/lease/grant", &json!({"ID": id, "TTL": "600"}))
                .await;
        }
        let campaign = async |lease, value| {
            let request = json!({"name": "ZQ==", "lease": lease, "value": value});
            gateway.succeed("/v3/election/campaign", &request).await;
        };
        campaign("7", "b25l").await;
        let request = json!({"name": "ZQ=="}).to_string();
        let response = gateway.send(&Method::POST, "/v3/election/observe", &request).await;
        let mut observed = response.into_body();
        let mut lines = vec![next_line(&mut observed).await];
        let leader = json!({"name": "ZQ==", "key": "ZS83", "rev": "2", "lease": "7"});
        let proclaim = json!({"leader": leader, "value": "bW9yZQ=="});
        gateway.succeed("/v3/election/proclaim", &proclaim).await;
        lines.push(next_line(&mut observed).await);
        gateway.succeed("/v3/election/resign", &json!({"leader": leader})).await;
        campaign("8", "dHdv").await;
        lines.push(next_line(&mut observed).await);
        lines
    })
    .await;
    let values = lines
        .iter()
        .map(|line| &line.as_ref().unwrap()["result"]["kv"]["value"]);
    assert_eq!(values.collect::<Vec<_>>(), ["b25l", "bW9yZQ==", "dHdv"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn keep_alives_through_a_web_socket_are_answered_one_by_one() {
    let _deadline = deadline();
    let found = same_of_both(async |server| {
        let grant = json!({"ID": "7", "TTL": "600"});
        Gateway::of(server).succeed("/v3/lease/grant", &grant).await;
        let url = server.endpoint().replace("http://", "ws://") + "/v3/lease/keepalive";
        let (mut socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
        let mut found = Vec::new();
        for id in ["7", "8", "7"] {
            socket.send(Message::text(json!({"ID": id}).to_string())).await.unwrap();
            let message = timeout(ANSWER_TIMEOUT, socket.next()).await.expect("a message in time");
            let text = message.expect("the WebSocket is open").unwrap().into_text().unwrap();
            found.push(canonical(&text));
        }
        socket.close(None).await.unwrap();
        found
    })
    .await;
    assert_eq!(found[0].as_ref().unwrap()["result"]["TTL"], json!("600"));
}

/// Not as an answer that is no stream: the error is in a line of its own.
#[tokio::test(flavor = "multi_thread")]
async fn refused_streams_have_one_line_as_those_of_etcd() {
    let _deadline = deadline();
    let refused = same_of_both(async |server| {
        let gateway = Gateway::of(server);
        gateway
            .succeed("/v3/auth/user/add", &json!({"name": "root", "password": "p"}))
            .await;
        gateway
            .succeed("/v3/auth/user/grant", &json!({"user": "root", "role": "root"}))
            .await;
        gateway
            .succeed("/v3/lease/grant", &json!({"ID": "7", "TTL": "600"}))
            .await;
        let put = json!({"key": "dw==", "lease": "7"});
        gateway.succeed("/v3/kv/put", &put).await;
        gateway.succeed("/v3/auth/enable", &json!({})).await;
        let mut refused = Vec::new();
        for (path, body) in [("maintenance/snapshot", "{}"), ("lease/keepalive", r#"{"ID": "7"}"#)] {
            refused.push(gateway.ask(&Method::POST, &format!("/v3/{path}"), body).await);
        }
        refused
    })
    .await;
    for answer in &refused {
        assert_eq!(answer.status, 400, "{answer:?}");
        assert_eq!(answer.lines[0].as_ref().unwrap()["error"]["code"], json!(3));
    }
}
