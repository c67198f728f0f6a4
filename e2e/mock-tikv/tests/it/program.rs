//! The program and its commands over HTTP.

use std::process::Stdio;

use serde_json::{Value, json};
use tikv_client::TransactionClient;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::client::{get, insert, scan};

struct Program {
    child: Child,
    ready: Value,
}

impl Program {
    async fn start(flags: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_mock-tikv"))
            .args(["--control-listen", "127.0.0.1:0"])
            .args(flags)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .await
            .unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
        Self { child, ready }
    }

    fn address(&self, name: &str) -> &str {
        self.ready[name].as_str().unwrap()
    }

    async fn connect(&self) -> TransactionClient {
        TransactionClient::new(vec![self.address("pd")]).await.unwrap()
    }

    /// Code and JSON of an answer.
    async fn call(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let mut stream = TcpStream::connect(self.address("control")).await.unwrap();
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: control\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        (code, serde_json::from_str(body).unwrap_or_else(|_| json!(body)))
    }

    async fn ok(&self, method: &str, path: &str, body: Value) -> Value {
        let (code, answer) = self.call(method, path, Some(body)).await;
        assert_eq!(code, 200, "{path}: {answer}");
        answer
    }
}

#[tokio::test]
async fn everything_can_be_commanded_over_http() {
    let program = Program::start(&["--stores", "2", "--cluster-id", "42"]).await;
    let client = program.connect().await;
    insert(&client, "a", "1").await.unwrap();
    program.ok("POST", "/split", json!({"key": "6b"})).await;
    program.ok("POST", "/move", json!({"key": "6b", "store": 2})).await;
    let status = program.ok("GET", "/status", json!(null)).await;
    assert_eq!(
        (&status["cluster_id"], &status["sizes"]["keys"]),
        (&json!(42), &json!(1))
    );
    assert_eq!(
        (&status["regions"][1]["start"], &status["regions"][1]["leader"]),
        (&json!("6b"), &json!(2))
    );
    insert(&client, "k", "2").await.unwrap();
    program.ok("POST", "/merge", json!({"key": "6b"})).await;
    let fault = json!({"rpc": "prewrite", "action": {"kind": "duplicate"}, "key_prefix": "6c", "count": 1});
    let id = program.ok("POST", "/faults", fault).await["id"].clone();
    insert(&client, "l", "3").await.unwrap();
    assert_eq!(program.ok("GET", "/faults", json!(null)).await[0]["happened"], 1);
    assert_eq!(
        program.ok("POST", "/deliver", json!(null)).await,
        json!({"delivered": 1})
    );
    assert_eq!(
        program.ok("DELETE", &format!("/faults/{id}"), json!(null)).await["happened"],
        1
    );
    program.ok("DELETE", "/faults", json!(null)).await;
    program.ok("POST", "/pause", json!({"process": 1})).await;
    program.ok("POST", "/resume", json!({"process": 1})).await;
    program
        .ok("POST", "/silence", json!({"key": "6b", "silent": true}))
        .await;
    program
        .ok("POST", "/silence", json!({"key": "6b", "silent": false}))
        .await;
    program.ok("POST", "/kill", json!({"process": 2})).await;
    program.ok("POST", "/elect", json!(null)).await;
    program.ok("POST", "/revive", json!({"process": 2})).await;
    program.ok("POST", "/kill", json!({"process": 0})).await;
    assert!(TransactionClient::new(vec![program.address("pd")]).await.is_err());
    program.ok("POST", "/revive", json!({"process": 0})).await;
    program.ok("DELETE", "/requests", json!(null)).await;
    let client = program.connect().await;
    assert_eq!(scan(&client, "a".to_owned().., 10).await, ["a=1", "k=2", "l=3"]);
    let requests = program.ok("GET", "/requests", json!(null)).await;
    assert_eq!((&requests["scan"], &requests["prewrite"]), (&json!(1), &json!(null)));
}

#[tokio::test]
async fn wrong_commands_are_refused_with_a_reason() {
    let program = Program::start(&[]).await;
    for (method, path, body, code, reason) in [
        ("POST", "/split", json!({"key": "xx"}), 422, "hexadecimal"),
        ("POST", "/split", json!({"key": ""}), 409, "bound already"),
        ("POST", "/move", json!({"key": "", "store": 9}), 409, "no store 9"),
        ("POST", "/kill", json!({"process": 9}), 404, "no process 9"),
        ("POST", "/restart", json!({"tail": "half"}), 422, "half"),
        ("POST", "/faults", json!({"rpc": "get"}), 422, "action"),
        (
            "POST",
            "/faults",
            json!({"rpc": "tso", "action": {"kind": "late"}}),
            400,
            "stream",
        ),
        ("DELETE", "/faults/9", json!(null), 404, "no fault 9"),
    ] {
        let (answered, answer) = program.call(method, path, Some(body)).await;
        let error = answer["error"].as_str().unwrap_or_else(|| panic!("{path}: {answer}"));
        assert!(answered == code && error.contains(reason), "{path}: {answered} {error}");
    }
}

#[tokio::test]
async fn a_killed_program_goes_on_from_its_file_at_the_same_ports() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("data");
    let file = file.to_str().unwrap();
    let mut first = Program::start(&["--data-file", file, "--stores", "2"]).await;
    let client = first.connect().await;
    insert(&client, "a", "1").await.unwrap();
    first.child.kill().await.unwrap();
    let stores = [&first.ready["stores"]["1"], &first.ready["stores"]["2"]].map(|store| store.as_str().unwrap());
    let flags = ["--data-file", file, "--pd-listen", first.address("pd")];
    let second =
        Program::start(&[&flags[..], &["--store-listen", stores[0], "--store-listen", stores[1]]].concat()).await;
    assert_eq!(
        (&second.ready["pd"], &second.ready["stores"]),
        (&first.ready["pd"], &first.ready["stores"])
    );
    let client = second.connect().await;
    assert_eq!(get(&client, "a").await.as_deref(), Some("1"));
    second.ok("POST", "/sync", json!({"hold": true})).await;
    insert(&client, "b", "2").await.unwrap();
    second.ok("POST", "/restart", json!({"tail": "drop"})).await;
    assert_eq!(get(&second.connect().await, "b").await, None);
}

#[tokio::test]
async fn the_help_says_what_it_is_and_wrong_flags_end_it() {
    let run = async |flags: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_mock-tikv"))
            .args(flags)
            .output()
            .await
            .unwrap()
    };
    let help = run(&["--help"]).await;
    assert!(String::from_utf8_lossy(&help.stdout).contains("TEST PROGRAM"));
    for flags in [
        &["--commit-latency", "3"][..],
        &["--stores", "0"],
        &["--ca", "x"],
        &["--seed", "x"],
    ] {
        let refused = run(flags).await;
        assert!(!refused.status.success() && refused.stdout.is_empty(), "{flags:?}");
    }
    let refused = run(&["--data-file", "/proc/nowhere/data"]).await;
    assert!(String::from_utf8_lossy(&refused.stderr).contains("/proc/nowhere/data"));
}
