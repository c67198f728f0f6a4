//! The program itself: one way to start it, for all tests.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use etcd_types::pb::etcdserverpb as pb;
use pb::kv_client::KvClient;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

use crate::grpc::Grpc;
use crate::wire::{Answer, Request, Target as _};

/// Timeout of each step of a test.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// It logs this when it serves.
pub(crate) const READY_MESSAGE: &str = "ready to serve client requests";

/// The program, with nothing to read and no level of logs from outside.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubebrain"));
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// A running `kubebrain` and what it has logged. It is killed when this is dropped.
pub(crate) struct Process {
    child: Child,
    pub(crate) url: String,
    said: watch::Receiver<Vec<String>>,
    _reader: JoinSet<()>,
}

impl Process {
    /// Starts one with these flags, which make it serve clients at `url`.
    pub(crate) fn begin(flags: &[String], url: String) -> Process {
        Self::spawn(command(), flags, url)
    }

    /// The same, and it kills itself at a named point.
    pub(crate) fn doomed(flags: &[String], kill_at: &str) -> Process {
        let mut command = command();
        command.env("KUBEBRAIN_KILL_AT", kill_at);
        Self::spawn(command, flags, String::new())
    }

    fn spawn(command: Command, flags: &[String], url: String) -> Process {
        let mut child = tokio::process::Command::from(command)
            .args(flags)
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (lines_said, said) = watch::channel(Vec::new());
        let mut reader = JoinSet::new();
        reader.spawn(async move {
            while let Some(line) = lines.next_line().await.unwrap() {
                // Shown by the test harness when the test fails.
                eprintln!("{line}");
                lines_said.send_modify(|said: &mut Vec<String>| said.push(line));
            }
        });
        Process {
            child,
            url,
            said,
            _reader: reader,
        }
    }

    /// Waits until a line of its log holds the text.
    pub(crate) async fn says(&self, text: &str) {
        self.says_often(text, 1).await;
    }

    /// Waits until `times` lines of its log contain the text.
    pub(crate) async fn says_often(&self, text: &str, times: usize) {
        self.says_within(text, times, STEP_TIMEOUT).await;
    }

    /// The same with another timeout.
    pub(crate) async fn says_within(&self, text: &str, times: usize, limit: Duration) {
        let mut said = self.said.clone();
        let has_said = said.wait_for(|lines| lines.iter().filter(|line| line.contains(text)).count() >= times);
        let heard = timeout(limit, has_said).await.map(|heard| heard.is_ok());
        assert_eq!(heard, Ok(true), "it never said {text:?}");
    }

    /// Lines of its log so far.
    pub(crate) fn log(&self) -> Vec<String> {
        self.said.borrow().clone()
    }

    /// Returns the number of lines of its log that contain the text so far.
    pub(crate) fn said(&self, text: &str) -> usize {
        self.said.borrow().iter().filter(|line| line.contains(text)).count()
    }

    /// Waits for its end; returns the exit code and its whole log.
    pub(crate) async fn ended(&mut self) -> (Option<i32>, String) {
        let status = timeout(STEP_TIMEOUT, self.child.wait())
            .await
            .expect("it goes on")
            .unwrap();
        let mut said = self.said.clone();
        // The writing side is gone when everything is read.
        while said.changed().await.is_ok() {}
        (status.code(), said.borrow().join("\n"))
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.child.id().expect("it runs")).unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// Stops it in order.
    pub(crate) async fn stop(mut self) {
        self.signal(rustix::process::Signal::TERM);
        let (code, said) = self.ended().await;
        assert_eq!(code, Some(0), "{said}");
    }

    /// Kills it.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Status and body of a page.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        self.get_at(&self.url, path).await
    }

    /// The same at another of its URLs.
    pub(crate) async fn get_at(&self, url: &str, path: &str) -> (u16, String) {
        let address = url.split("://").nth(1).unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: brain\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// Bytes that it has in memory.
    pub(crate) fn rss(&self) -> u64 {
        let pid = self.child.id().expect("it runs");
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() * 1024
    }

    /// Leaves everything in rows, out of memory, and history from that revision on.
    pub(crate) async fn compact(&self, revision: i64) {
        let request = pb::CompactionRequest {
            revision,
            physical: true,
        };
        let mut kv = KvClient::new(self.connect().await);
        kv.compact(request).await.unwrap();
    }

    /// A new connection.
    pub(crate) async fn connect(&self) -> Channel {
        Endpoint::new(self.url.clone()).unwrap().connect().await.unwrap()
    }
}

/// A lone server on a directory, and a client of it.
pub(crate) struct Kubebrain {
    process: Process,
    pub(crate) client: Grpc,
    pub(crate) url: String,
}

impl Kubebrain {
    /// Starts it on `dir`, and waits until it serves.
    pub(crate) async fn start(dir: &Path) -> Self {
        Self::start_with(dir, &[]).await
    }

    /// The same with more flags.
    pub(crate) async fn start_with(dir: &Path, more: &[String]) -> Self {
        let (mut flags, url) = lone(dir);
        flags.extend_from_slice(more);
        let process = Process::begin(&flags, url.clone());
        process.says(READY_MESSAGE).await;
        Self {
            process,
            client: Grpc::connect(url.clone()).await,
            url,
        }
    }

    /// Waits until a line of its log holds the text.
    pub(crate) async fn says(&self, text: &str) {
        self.process.says(text).await;
    }

    /// Waits until `times` lines of its log contain the text.
    pub(crate) async fn says_often(&self, text: &str, times: usize) {
        self.process.says_often(text, times).await;
    }

    /// Lines of its log so far.
    pub(crate) fn log(&self) -> Vec<String> {
        self.process.log()
    }

    /// SIGKILL at once or some time `after` a request was handed to the connection. Answers the request's answer, if it arrived.
    pub(crate) async fn kill_during(mut self, request: Request, after: Option<Duration>) -> Option<Answer> {
        let kill = async {
            if let Some(after) = after {
                tokio::time::sleep(after).await;
            }
            self.process.kill().await;
        };
        let (answer, ()) = tokio::join!(self.client.call(request), kill);
        match answer {
            Err(refusal) if !refusal.text.starts_with("etcdserver: ") => None, // the connection broke
            answer => Some(answer),
        }
    }

    /// SIGTERM, and waits for its end: everything acknowledged is flushed.
    pub(crate) async fn stop(self) {
        self.process.stop().await;
    }

    /// SIGKILL.
    pub(crate) async fn kill(self) {
        self.process.kill().await;
    }
}

/// The flags of a lone server on `dir`, and the URL at which it serves clients.
pub(crate) fn lone(dir: &Path) -> (Vec<String>, String) {
    let url = format!("http://127.0.0.1:{}", free_port());
    let peer_url = format!("http://127.0.0.1:{}", free_port());
    let flags = vec![
        format!("--data-dir={}", dir.display()),
        format!("--listen-client-urls={url}"),
        format!("--advertise-client-urls={url}"),
        format!("--listen-peer-urls={peer_url}"),
        format!("--initial-advertise-peer-urls={peer_url}"),
        format!("--initial-cluster=default={peer_url}"),
    ];
    (flags, url)
}

/// The last line that it prints when it does not start on `dir`.
pub(crate) async fn refusal(dir: &Path) -> String {
    let (flags, url) = lone(dir);
    let (code, log) = Process::begin(&flags, url).ended().await;
    let last = log.lines().last().unwrap_or_default().to_owned();
    assert_eq!(code, Some(1), "{last}");
    assert!(!log.contains(READY_MESSAGE), "it started");
    last
}

pub(crate) fn free_port() -> u16 {
    testkit::ports::reserve().unwrap()
}
