//! Members of a cluster as processes of their own, on a mock for TiKV whose days are bad.

use std::process::Stdio;
use std::time::Duration;

use brain::pb::etcdserverpb as pb;
use mock_tikv::MockTikv;
use pb::kv_client::KvClient;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

mod about;
mod auth;
mod certificates;
mod garbage;
mod idle;
mod large;
mod membership;
mod metrics;
mod outage;
mod refusals;
mod shared_prefix;
mod starting;
mod streams;
mod wipe;

/// Timeout of each step of a test.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// A TiKV cluster, and the ports of the members that run on it.
pub(crate) struct Site {
    pub(crate) tikv: MockTikv,
    ports: Vec<(u16, u16)>,
}

impl Site {
    /// A new one for so many members.
    pub(crate) async fn new(members: usize) -> Site {
        let options = mock_tikv::Options::default().with_stores(3);
        Self::on(MockTikv::start(options).await.unwrap(), members)
    }

    pub(crate) fn on(tikv: MockTikv, members: usize) -> Site {
        let ports = (0..members).map(|_| (free_port(), free_port())).collect();
        Site { tikv, ports }
    }

    pub(crate) fn client_url(&self, member: usize) -> String {
        format!("http://127.0.0.1:{}", self.ports[member].0)
    }

    pub(crate) fn peer_url(&self, member: usize) -> String {
        format!("http://127.0.0.1:{}", self.ports[member].1)
    }

    /// The `--initial-cluster` of the first members.
    pub(crate) fn cluster(&self, members: usize) -> String {
        let all: Vec<String> = (0..members)
            .map(|member| format!("b{member}={}", self.peer_url(member)))
            .collect();
        all.join(",")
    }

    /// The flags of a member of a cluster of so many.
    pub(crate) fn flags(&self, member: usize, members: usize) -> Vec<String> {
        vec![
            "--storage=tikv".to_owned(),
            format!("--tikv-pd-endpoints={}", self.tikv.pd()),
            format!("--name=b{member}"),
            format!("--listen-client-urls={}", self.client_url(member)),
            format!("--advertise-client-urls={}", self.client_url(member)),
            format!("--listen-peer-urls={}", self.peer_url(member)),
            format!("--initial-advertise-peer-urls={}", self.peer_url(member)),
            format!("--initial-cluster={}", self.cluster(members)),
        ]
    }

    /// Starts the only member, and waits until it serves.
    pub(crate) async fn lone(&self) -> Member {
        self.start(0, 1, &[]).await
    }

    /// Starts a member, with more flags than usual, and waits until it serves.
    pub(crate) async fn start(&self, member: usize, members: usize, more: &[&str]) -> Member {
        let started = self.begin(member, members, more);
        started.says("ready to serve client requests").await;
        started
    }

    /// Starts a member.
    pub(crate) fn begin(&self, member: usize, members: usize, more: &[&str]) -> Member {
        let mut flags = self.flags(member, members);
        flags.extend(more.iter().map(ToString::to_string));
        Member::begin(&flags, self.client_url(member))
    }

    /// The key that a kind of stored things has in TiKV, behind the default prefix.
    pub(crate) fn key(kind: u8, rest: &[u8]) -> Vec<u8> {
        [b"\x09kubebrain", &[kind][..], rest].concat()
    }
}

/// A running member. It is killed when this is dropped.
pub(crate) struct Member {
    pub(crate) child: Child,
    url: String,
    said: watch::Receiver<Vec<String>>,
    _reader: JoinSet<()>,
}

impl Member {
    /// Starts one with these flags.
    pub(crate) fn begin(flags: &[String], url: String) -> Member {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kubebrain"))
            .args(flags)
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
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
        Member {
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

    /// Waits until so many lines of its log hold the text.
    pub(crate) async fn says_often(&self, text: &str, times: usize) {
        let mut said = self.said.clone();
        let has_said = said.wait_for(|lines| lines.iter().filter(|line| line.contains(text)).count() >= times);
        let heard = timeout(STEP_TIMEOUT, has_said).await.map(|heard| heard.is_ok());
        assert_eq!(heard, Ok(true), "it never said {text:?}");
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
        let address = self.url.split("://").nth(1).unwrap();
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

fn free_port() -> u16 {
    testkit::ports::reserve().unwrap()
}
