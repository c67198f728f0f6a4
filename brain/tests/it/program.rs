//! The program itself, started on a directory and killed without a word.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::grpc::Grpc;
use crate::wire::{Answer, Request, Target};

const START: Duration = Duration::from_secs(60);

/// A running `kubebrain`. It is killed when this is dropped.
pub(crate) struct Kubebrain {
    child: Child,
    pub(crate) client: Grpc,
    pub(crate) url: String,
    /// Reads what it says, so that it does not stop at a full pipe.
    _said: JoinSet<()>,
}

impl Kubebrain {
    /// Starts it on `dir`, and waits until it serves.
    pub(crate) async fn start(dir: &Path) -> Self {
        Self::start_with(dir, &[]).await
    }

    /// The same with more flags.
    pub(crate) async fn start_with(dir: &Path, flags: &[String]) -> Self {
        let (mut command, client_url) = command(dir);
        command.args(flags);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        timeout(START, until_ready(&mut lines))
            .await
            .expect("kubebrain did not get ready");
        let mut said = JoinSet::new();
        said.spawn(async move {
            while let Some(line) = lines.next_line().await.unwrap() {
                // Shown by the test harness when the test fails.
                eprintln!("{line}");
            }
        });
        Self {
            child,
            client: Grpc::connect(client_url.clone()).await,
            url: client_url,
            _said: said,
        }
    }

    /// SIGKILL at once or some time `after` a request was handed to the connection. Answers the request's answer, if it arrived.
    pub(crate) async fn kill_during(mut self, request: Request, after: Option<Duration>) -> Option<Answer> {
        let kill = async {
            if let Some(after) = after {
                tokio::time::sleep(after).await;
            }
            self.child.start_kill().unwrap();
        };
        let (answer, ()) = tokio::join!(self.client.call(request), kill);
        self.child.wait().await.unwrap();
        match answer {
            Err(refusal) if !refusal.text.starts_with("etcdserver: ") => None, // the connection broke
            answer => Some(answer),
        }
    }

    /// SIGTERM, and waits for its end: everything acknowledged is flushed.
    pub(crate) async fn stop(mut self) {
        let pid = self
            .child
            .id()
            .and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()));
        rustix::process::kill_process(pid.unwrap(), rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().await.unwrap().success());
    }

    /// SIGKILL.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

/// The command that starts it on `dir`, and the address that clients reach it at.
fn command(dir: &Path) -> (Command, String) {
    let (client, peer) = (free_port(), free_port());
    let client_url = format!("http://127.0.0.1:{client}");
    let peer_url = format!("http://127.0.0.1:{peer}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubebrain"));
    command
        .arg("--data-dir")
        .arg(dir)
        .args([
            "--listen-client-urls",
            &client_url,
            "--advertise-client-urls",
            &client_url,
        ])
        .args([
            "--listen-peer-urls",
            &peer_url,
            "--initial-advertise-peer-urls",
            &peer_url,
        ])
        .arg(format!("--initial-cluster=default={peer_url}"))
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    (command, client_url)
}

/// The last line that it prints when it does not start on `dir`.
pub(crate) async fn refusal(dir: &Path) -> String {
    let mut child = command(dir).0.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut last = String::new();
    let ended = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            assert!(!line.contains("ready to serve client requests"), "it started");
            last = line;
        }
        child.wait().await.unwrap()
    };
    let status = timeout(START, ended).await.expect("kubebrain did not end");
    assert_eq!(status.code(), Some(1), "{last}");
    last
}

async fn until_ready(lines: &mut Lines<BufReader<ChildStderr>>) {
    let mut said = String::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        if line.contains("ready to serve client requests") {
            return;
        }
        said.push_str(&line);
        said.push('\n');
    }
    panic!("kubebrain ended:\n{said}");
}

fn free_port() -> u16 {
    testkit::ports::reserve().unwrap()
}
