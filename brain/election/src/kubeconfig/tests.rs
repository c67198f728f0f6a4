use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::{LeaseLock, Lock as _};

const CERTIFICATE: &str = include_str!("certificate.pem");
const KEY: &str = include_str!("key.pem");

/// Answers one request on a connection of its own that there is no such Lease; returns the request's head.
async fn answer(api_server: &TcpListener) -> String {
    let (mut stream, _) = api_server.accept().await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let status = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}"#;
    let answer = format!(
        "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{status}",
        status.len()
    );
    stream.write_all(answer.as_bytes()).await.unwrap();
    String::from_utf8(head).unwrap()
}

async fn sent(lock: &LeaseLock, api_server: &TcpListener) -> String {
    let answered = async { Ok(answer(api_server).await) };
    let (found, head) = tokio::try_join!(lock.get(), answered).unwrap();
    assert!(found.is_none());
    head.to_lowercase()
}

fn kubeconfig(url: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: '{url}'}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u, namespace: there}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
    )
}

#[tokio::test]
async fn files_that_change_are_used_and_bad_ones_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let api_server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", api_server.local_addr().unwrap());
    let path = dir.path().join("kubeconfig");
    let write = |user: &str| fs::write(&path, kubeconfig(&url, user)).unwrap();
    write("token: first");
    let lock = LeaseLock::connect(Some(&path), None, "brain", Duration::from_secs(5)).await;
    let lock = lock.unwrap();
    assert_eq!(lock.place(), ("there", "brain"));
    assert!(sent(&lock, &api_server).await.contains("bearer first"));
    write("token: second");
    assert!(
        sent(&lock, &api_server).await.contains("bearer first"),
        "not looked at yet"
    );
    pass().await;
    assert!(sent(&lock, &api_server).await.contains("bearer second"));
    for bad in ["token: [", "client-certificate: no-such-file, client-key: no-such-file"] {
        write(bad);
        pass().await;
        assert!(sent(&lock, &api_server).await.contains("bearer second"));
    }
    write("tokenFile: token");
    fs::write(dir.path().join("token"), "of-a-file").unwrap();
    pass().await;
    assert!(sent(&lock, &api_server).await.contains("bearer of-a-file"));
    fs::write(dir.path().join("token"), "second").unwrap();
    pass().await;
    assert!(sent(&lock, &api_server).await.contains("bearer second"));
    // A certificate beside it.
    write("token: third, client-certificate: certificate.pem, client-key: key.pem");
    fs::write(dir.path().join("key.pem"), KEY).unwrap();
    pass().await;
    assert!(sent(&lock, &api_server).await.contains("bearer second"));
    fs::write(dir.path().join("certificate.pem"), CERTIFICATE).unwrap();
    pass().await;
    assert!(sent(&lock, &api_server).await.contains("bearer third"));
}

async fn pass() {
    tokio::time::pause();
    tokio::time::advance(RELOAD_INTERVAL).await;
    tokio::time::resume();
}

/// As client-go, which is what other programs read the file with.
#[tokio::test]
async fn forms_are_read_as_by_client_go() {
    let dir = tempfile::tempdir().unwrap();
    let api_server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", api_server.local_addr().unwrap());
    let path = dir.path().join("kubeconfig");
    fs::write(dir.path().join("token"), "of-the-file\n").unwrap();
    fs::write(dir.path().join("empty"), "\n").unwrap();
    for (user, expected) in [
        ("token: inline, tokenFile: token", "bearer of-the-file"),
        ("token: inline, tokenFile: no-such-file", "bearer inline"),
        ("token: inline, tokenFile: ''", "bearer inline"),
        ("token: inline, tokenFile: empty", "bearer inline"),
        ("tokenFile: token", "bearer of-the-file"),
        ("username: me, password: secret", "basic bwu6c2vjcmv0"),
    ] {
        fs::write(&path, kubeconfig(&url, user)).unwrap();
        let lock = LeaseLock::connect(Some(&path), None, "brain", Duration::from_secs(5)).await;
        let head = sent(&lock.unwrap(), &api_server).await;
        assert!(head.contains(expected), "{user}: {head}");
    }
    // The output of `base64` has line breaks.
    let broken = |pem: &str| {
        let data = STANDARD.encode(pem);
        let lines = data.as_bytes().chunks(76);
        lines
            .map(|line| format!("{}\\r\\n", String::from_utf8_lossy(line)))
            .collect::<String>()
    };
    let user = format!(
        "token: t, client-certificate-data: \"{}\", client-key-data: \"{}\"",
        broken(CERTIFICATE),
        broken(KEY)
    );
    fs::write(&path, kubeconfig(&url, &user)).unwrap();
    let lock = LeaseLock::connect(Some(&path), None, "brain", Duration::from_secs(5)).await;
    assert!(sent(&lock.unwrap(), &api_server).await.contains("bearer t"));
}
