//! Members of a cluster as processes of their own, on a mock for TiKV whose days are bad.

use mock_tikv::MockTikv;

use crate::program::{Process, READY_MESSAGE, free_port};

mod about;
mod auth;
pub(crate) mod certificates;
mod garbage;
mod hashes;
mod idle;
mod large;
mod membership;
mod metrics;
mod outage;
mod refusals;
mod shared_prefix;
mod slow;
mod starting;
mod streams;
mod transfer;
mod wipe;

/// A TiKV cluster, and the ports of the members that run on it.
pub(crate) struct Site {
    pub(crate) tikv: MockTikv,
    ports: Vec<(u16, u16)>,
}

impl Site {
    /// Creates a site for this number of members.
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

    /// Returns the flags of a member in a cluster of `members` members.
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
    pub(crate) async fn lone(&self) -> Process {
        self.start(0, 1, &[]).await
    }

    /// Starts a member, with more flags than usual, and waits until it serves.
    pub(crate) async fn start(&self, member: usize, members: usize, more: &[&str]) -> Process {
        let started = self.begin(member, members, more);
        started.says(READY_MESSAGE).await;
        started
    }

    /// Starts a member.
    pub(crate) fn begin(&self, member: usize, members: usize, more: &[&str]) -> Process {
        let mut flags = self.flags(member, members);
        flags.extend(more.iter().map(ToString::to_string));
        Process::begin(&flags, self.client_url(member))
    }

    /// Returns the key in TiKV of an item of this kind, below the default prefix.
    pub(crate) fn key(kind: u8, rest: &[u8]) -> Vec<u8> {
        [b"\x09kubebrain", &[kind][..], rest].concat()
    }
}
