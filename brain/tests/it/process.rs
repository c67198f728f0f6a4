//! The program itself: the command lines people start it with, what it prints, and how it ends.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rcgen::{CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

fn kubebrain() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubebrain"));
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// A running server; killed when dropped.
struct Server {
    child: Child,
    log: BufReader<std::process::ChildStderr>,
    urls: Vec<String>,
    warnings: Vec<String>,
}

impl Server {
    /// Starts it and waits for the line that says that clients are served.
    fn start(args: &[String]) -> Server {
        let mut child = kubebrain().args(args).stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut server = Server {
            child,
            log,
            urls: Vec::new(),
            warnings: Vec::new(),
        };
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(server.log.read_line(&mut line).unwrap(), 0, "{args:?} ended: {seen}");
            seen.push_str(&line);
            let entry: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
            if entry["level"] == "warn" {
                server.warnings.push(line.clone());
            }
            if line.contains("ready to serve client requests") {
                server.urls = entry["urls"].as_str().unwrap().split(',').map(str::to_owned).collect();
                return server;
            }
        }
    }

    fn get(&self, url: usize, path: &str) -> String {
        let mut client = TcpStream::connect(self.urls[url].split("://").nth(1).unwrap()).unwrap();
        write!(
            client,
            "GET {path} HTTP/1.1\r\nhost: brain\r\nconnection: close\r\n\r\n"
        )
        .unwrap();
        let mut reply = String::new();
        client.read_to_string(&mut reply).unwrap();
        reply
    }

    /// Sends SIGTERM; answers the exit code and the rest of the log.
    fn stop(mut self) -> (Option<i32>, String) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let mut rest = String::new();
        self.log.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // After `stop` both find that it has ended already.
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("kubebrain was not ended: {error}");
        }
    }
}

/// Writes a CA, a server's and a peer's certificate as kubeadm lays them out.
fn write_pki(dir: &Path) {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::<String>::new()).unwrap();
    ca.distinguished_name.push(DnType::CommonName, "etcd-ca");
    ca.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    fs::write(dir.join("ca.crt"), ca.self_signed(&ca_key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(ca, ca_key);
    for name in ["server", "peer"] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        fs::write(
            dir.join(format!("{name}.crt")),
            params.signed_by(&key, &issuer).unwrap().pem(),
        )
        .unwrap();
        fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

#[test]
fn the_command_line_of_kubeadm_starts_it_and_sigterm_ends_it() {
    let temp = TempDir::new().unwrap();
    write_pki(temp.path());
    let pki = temp.path().display();
    let args: Vec<String> = [
        "--advertise-client-urls=https://127.0.0.1:2379".to_owned(),
        format!("--cert-file={pki}/server.crt"),
        "--client-cert-auth=true".to_owned(),
        format!("--data-dir={pki}/etcd"),
        "--feature-gates=InitialCorruptCheck=true".to_owned(),
        "--initial-advertise-peer-urls=https://127.0.0.1:2380".to_owned(),
        "--initial-cluster=node=https://127.0.0.1:2380".to_owned(),
        format!("--key-file={pki}/server.key"),
        "--listen-client-urls=https://127.0.0.1:0".to_owned(),
        "--listen-metrics-urls=http://127.0.0.1:0".to_owned(),
        "--listen-peer-urls=https://127.0.0.1:2380".to_owned(),
        "--name=node".to_owned(),
        format!("--peer-cert-file={pki}/peer.crt"),
        "--peer-client-cert-auth=true".to_owned(),
        format!("--peer-key-file={pki}/peer.key"),
        format!("--peer-trusted-ca-file={pki}/ca.crt"),
        "--snapshot-count=10000".to_owned(),
        format!("--trusted-ca-file={pki}/ca.crt"),
        "--watch-progress-notify-interval=5s".to_owned(),
    ]
    .into();
    let server = Server::start(&args);
    assert_eq!(server.warnings, Vec::<String>::new());
    for (path, body) in [
        ("/livez", "ok\n"),
        ("/readyz", "ok\n"),
        ("/health?serializable=true", r#"{"health":"true","reason":""}"#),
    ] {
        let reply = server.get(1, path);
        assert!(
            reply.starts_with("HTTP/1.1 200 OK") && reply.ends_with(body),
            "{path}: {reply}"
        );
    }
    assert!(server.get(1, "/metrics").contains("\netcd_server_has_leader 1\n"));

    let second = kubebrain().args(&args).output().unwrap();
    let told = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1), "{told}");
    assert!(told.lines().last().unwrap().contains("is in use by process"), "{told}");

    let (code, rest) = server.stop();
    assert_eq!(code, Some(0), "{rest}");
    let (code, rest) = Server::start(&args).stop();
    assert_eq!(code, Some(0), "{rest}");
}

#[test]
fn a_bad_start_is_one_line_and_an_exit_code() {
    let temp = TempDir::new().unwrap();
    let foreign = temp.path().join("foreign");
    fs::create_dir_all(foreign.join("member")).unwrap();
    let foreign = foreign.display().to_string();
    let missing = "--cert-file=/no/such.crt --key-file=/no/such.key --listen-client-urls=https://127.0.0.1:0";
    for (args, code, reason) in [
        ("--no-such-flag".to_owned(), 2, "unknown flag --no-such-flag"),
        (
            "--quota-backend-bytes=much".to_owned(),
            2,
            "--quota-backend-bytes is not valid",
        ),
        (missing.to_owned(), 1, "/no/such.crt: cannot be read"),
        (
            format!("--listen-client-urls=http://127.0.0.1:0 --data-dir={foreign}"),
            1,
            "it holds data of etcd",
        ),
        (
            "--listen-client-urls=http://192.0.2.1:7".to_owned(),
            1,
            "cannot listen on http://192.0.2.1:7",
        ),
    ] {
        let output = kubebrain()
            .current_dir(&temp)
            .args(args.split(' '))
            .arg("--log-level=error")
            .output()
            .unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), told.lines().count()),
            (Some(code), 1),
            "{args}: {told}"
        );
        assert!(
            told.starts_with("kubebrain: ") && told.contains(reason),
            "{args}: {told}"
        );
    }
    let left: Vec<_> = fs::read_dir(&temp)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["foreign"]);
}

#[test]
fn versions_are_printed_in_etcds_shape() {
    let output = kubebrain().arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && text.starts_with("etcd Version: 3.6."),
        "{text}"
    );
    assert!(text.contains("\nkubebrain Version: "), "{text}");
}
