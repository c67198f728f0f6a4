//! Forms of HTTP requests, and etcd's answers to them: Go's server, its `ServeMux`, grpc-gateway and `protojson`.

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::program::{Process, READY_MESSAGE, STEP_TIMEOUT, lone};

/// Sends bytes on a connection of their own. Returns the status, the head and the body of the answer.
async fn send(server: &Process, request: &str) -> (u16, String, String) {
    let address = server.url.split("://").nth(1).unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut reply = String::new();
    let read = timeout(STEP_TIMEOUT, stream.read_to_string(&mut reply)).await;
    read.expect("it answers").unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_default(), head.to_owned(), body.to_owned())
}

fn post(path: &str, headers: &str, body: &str) -> String {
    let len = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{headers}Content-Length: {len}\r\n\r\n{body}")
}

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
}

#[tokio::test]
async fn forms_of_requests_are_answered_as_by_etcd() {
    let temp = TempDir::new().unwrap();
    let (flags, url) = lone(temp.path());
    let server = Process::begin(&flags, url);
    server.says(READY_MESSAGE).await;
    let range = r#"{"key":"Zm9v"}"#;
    let chunked = |chunks: &str| {
        format!(
            "POST /v3/kv/range HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"
        )
    };
    for (request, status, part) in [
        (post("/v3/kv/range", "", range), 200, "\"header\""),
        (
            post("/v3/kv/range", "", r#"{"key":"Zm9v\r\nZm9v","limit":"1.0"}"#),
            200,
            "",
        ),
        (
            post("/v3/kv/range", "", r#"{"key":"Zg=","limit":"1e2"}"#),
            400,
            "bytes field key",
        ),
        (post("/v3/kv/range", "", r#"{"limit":"01"}"#), 400, "int64 field limit"),
        (
            post("/v3/kv/range", "", r#"{"range_end":"AA==","rangeEnd":"AA=="}"#),
            400,
            "duplicate field",
        ),
        (post("/v3/kv/range", "", ""), 400, "etcdserver: key is not provided"),
        (post("/v3/kv/r%61nge", "", range), 200, "\"header\""),
        (post("/v3/kv%2Frange", "", range), 200, "\"header\""),
        (post("/v3//kv/range", "", range), 307, ""),
        (post("/v3/kv/nothing", "", range), 404, "Not Found"),
        (
            post("/v3/kv/range", "Grpc-Timeout: 5\r\n", range),
            400,
            "invalid grpc-timeout: 5",
        ),
        (post("/v3/kv/range", "Grpc-Timeout: 99999999999m\r\n", range), 200, ""),
        (post("/v3/kv/range", "Grpc-Timeout: -1S\r\n", range), 504, "\"code\":4"),
        (
            post("/v3/kv/range", "Grpc-Metadata-X-Bin: %\r\n", range),
            400,
            "invalid binary header Grpc-Metadata-X-Bin",
        ),
        (post("/v3/kv/range", "Grpc-Metadata-X-Bin: Zg==\r\n", range), 200, ""),
        (chunked("e\r\n{\"key\":\"Zm9v\"}\r\n0\r\n\r\n"), 200, "\"header\""),
        (chunked("xyz\r\n"), 400, ""),
        (get("//health"), 307, "<a href=\"/health\">Temporary Redirect</a>."),
        (get("/v3"), 307, "/v3/"),
        (get("/he%61lth"), 200, "\"health\":\"true\""),
        (get("/%zz"), 400, "400 Bad Request"),
        (get("/nothing"), 404, "404 page not found"),
        (get("/debug/vars"), 200, "\"cmdline\""),
        (
            "GET /health HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(),
            400,
            "missing required Host header",
        ),
        (
            "GET /health HTTP/1.1\r\nHost: a b\r\nConnection: close\r\n\r\n".to_owned(),
            400,
            "malformed Host header",
        ),
        ("GET /health HTTP/1.0\r\n\r\n".to_owned(), 200, "\"health\":\"true\""),
    ] {
        let (found, head, body) = send(&server, &request).await;
        assert_eq!(found, status, "{request}\n{head}\n{body}");
        assert!(body.contains(part), "{request}\n{head}\n{body}");
    }
    let (_, head, _) = send(&server, &get("//health?serializable=true")).await;
    let location = "location: /health?serializable=true";
    assert!(head.to_lowercase().contains(location), "{head}");
    server.stop().await;
}

#[tokio::test]
async fn short_secret_of_tokens_is_warned_of_at_the_start() {
    let temp = TempDir::new().unwrap();
    let secret = temp.path().join("secret");
    std::fs::write(&secret, "x").unwrap();
    let (mut flags, url) = lone(&temp.path().join("data"));
    flags.push(format!(
        "--auth-token=jwt,sign-method=HS256,priv-key={}",
        secret.display()
    ));
    let server = Process::begin(&flags, url);
    server.says(READY_MESSAGE).await;
    let line = "the secret of --auth-token jwt has 1 bytes, but HS256 needs 32 or more";
    assert_eq!(server.said(line), 1);
    server.stop().await;
}
