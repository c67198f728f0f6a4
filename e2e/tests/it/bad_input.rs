//! Bad input to a brain: flags, certificates, directories, requests, clients.
//!
//! A start that cannot work ends at once with one line that says what is wrong, and changes nothing.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use pb::kv_client::KvClient;
use programs::server::{self, Program, Server};
use tempfile::TempDir;
use tokio::time::Instant;
use tonic::Code;
use tonic::transport::Channel;
use wire::etcdserverpb as pb;

use crate::harness::deadline;

mod clients;
mod directory;
mod disk;
mod objects;
mod requests;

const EXIT_TIMEOUT: Duration = Duration::from_secs(20);

/// A directory for one test, the flags of a member in it, and what happens with more of them.
struct Attempt {
    home: TempDir,
    flags: Vec<String>,
}

impl Attempt {
    fn new() -> Self {
        let home = TempDir::new().unwrap();
        let ports = server::free_ports().unwrap();
        let flags = server::arguments(&home.path().join("data"), ports.client, ports.peer);
        Self { home, flags }
    }

    fn data(&self) -> PathBuf {
        self.home.path().join("data")
    }

    /// Starts the brain with these flags too, which must end with a complaint of one line that holds all of `words`, and
    /// must leave the home as it was.
    fn refused(&self, flags: &[&str], words: &[&str]) {
        let before = contents(self.home.path());
        let mut command = server::command(&Program::kubebrain().unwrap());
        command.args(&self.flags).args(flags);
        let output = self.home.path().join("output");
        let file = fs::File::create(&output).unwrap();
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file);
        let mut child = server::spawn(command).unwrap();
        let began = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if began.elapsed() > EXIT_TIMEOUT {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("it runs with {flags:?}: {}", fs::read_to_string(&output).unwrap());
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let said = fs::read_to_string(&output).unwrap();
        fs::remove_file(&output).unwrap();
        assert!(!status.success(), "{flags:?} ended well: {said}");
        assert!(status.code().is_some(), "{flags:?} ended by a signal: {status}: {said}");
        let line = said.lines().last().unwrap_or_default();
        for word in words {
            assert!(line.contains(word), "{flags:?}: no {word:?} in: {said}");
        }
        assert!(!said.contains("panicked"), "{said}");
        assert_eq!(contents(self.home.path()), before, "{flags:?} changed something");
    }
}

/// Every file and directory below, with its length and a number for what is in it. The lock names its last owner, and the
/// log counts how often it was opened.
fn contents(dir: &Path) -> BTreeMap<PathBuf, (usize, u64)> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(contents(&path));
            all.insert(path, (0, 0));
        } else if !["LOCK", "control"]
            .iter()
            .any(|name| path.file_name().unwrap() == *name)
        {
            let bytes = fs::read(&path).unwrap();
            let mut hasher = DefaultHasher::new();
            bytes.hash(&mut hasher);
            all.insert(path, (bytes.len(), hasher.finish()));
        }
    }
    all
}

fn brain(flags: &[&str]) -> Server {
    Server::start(&Program::kubebrain().unwrap(), flags).unwrap()
}

async fn kv(server: &Server) -> KvClient<Channel> {
    KvClient::new(server.connect().await.unwrap()).max_decoding_message_size(usize::MAX)
}

fn put(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> pb::PutRequest {
    pb::PutRequest {
        key: key.into().into(),
        value: value.into().into(),
        ..pb::PutRequest::default()
    }
}

fn get(key: &str) -> pb::RangeRequest {
    pb::RangeRequest {
        key: key.as_bytes().to_vec().into(),
        ..pb::RangeRequest::default()
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Result<T, tonic::Status>, code: Code, message: &str) {
    let status = answer.unwrap_err();
    assert_eq!((status.code(), status.message()), (code, message));
}

#[test]
fn flags_that_make_no_sense_are_named() {
    let _deadline = deadline();
    let attempt = Attempt::new();
    attempt.refused(&["--no-such-flag"], &["no-such-flag"]);
    attempt.refused(&["--quota-backend-bytes=many"], &["quota-backend-bytes", "many"]);
    attempt.refused(&["--listen-client-urls=nonsense"], &["listen-client-urls", "nonsense"]);
    attempt.refused(
        &["--watch-progress-notify-interval=soon"],
        &["watch-progress-notify-interval", "soon"],
    );
    attempt.refused(&["--max-request-bytes=-1"], &["max-request-bytes", "-1"]);
    attempt.refused(&["surplus"], &["surplus"]);
}

#[test]
fn missing_and_mismatched_certificates_are_named() {
    let _deadline = deadline();
    let attempt = Attempt::new();
    let file = |name: &str, text: &str| {
        let path = attempt.home.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (one, other) = (pair("one"), pair("other"));
    let (cert, key) = (file("one.crt", &one.0), file("one.key", &one.1));
    let (other_key, nonsense) = (file("other.key", &other.1), file("nonsense", "nonsense"));
    let port = server::free_ports().unwrap().client;
    let url = format!("--listen-client-urls=https://127.0.0.1:{port}");
    let advertise = format!("--advertise-client-urls=https://127.0.0.1:{port}");
    let with = |flags: &[(&str, &str)], words: &[&str]| {
        let flags: Vec<String> = flags.iter().map(|(name, value)| format!("--{name}={value}")).collect();
        let all = [url.as_str(), advertise.as_str()]
            .into_iter()
            .chain(flags.iter().map(String::as_str));
        attempt.refused(&all.collect::<Vec<_>>(), words);
    };
    with(&[], &["cert-file"]);
    with(&[("cert-file", &cert)], &["key-file"]);
    with(&[("cert-file", "/no/such.crt"), ("key-file", &key)], &["/no/such.crt"]);
    with(&[("cert-file", &cert), ("key-file", "/no/such.key")], &["/no/such.key"]);
    with(&[("cert-file", &nonsense), ("key-file", &key)], &[&nonsense]);
    with(&[("cert-file", &cert), ("key-file", &nonsense)], &[&nonsense]);
    with(
        &[("cert-file", &cert), ("key-file", &other_key)],
        &["one.crt", "other.key"],
    );
    with(
        &[("cert-file", &cert), ("key-file", &key), ("trusted-ca-file", "/no/ca")],
        &["/no/ca"],
    );
    with(
        &[("cert-file", &cert), ("key-file", &key), ("client-cert-auth", "true")],
        &["trusted-ca-file"],
    );
}

/// A certificate and its key.
fn pair(name: &str) -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let cert = rcgen::CertificateParams::new(vec![name.to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    (cert.pem(), key.serialize_pem())
}
