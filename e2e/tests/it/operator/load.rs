//! Writers of new keys, one through each member, and what was acknowledged to them.
//!
//! A writer does as clients of etcd do: it keeps one connection until the member closes it, and goes to another member then. A request that was never sent is sent elsewhere; one that was sent and failed is a failed write.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pb::kv_client::KvClient;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tonic::transport::Channel;
use tonic::{ConnectError, Status};
use wire::etcdserverpb as pb;

use super::brains::{Brains, Credentials};
use super::client;
use super::kit::{POLL_INTERVAL, STATE_TIMEOUT};
use super::pods::{History, Watched, address, serves};

/// Between two writes of one writer.
const WRITE_INTERVAL: Duration = Duration::from_millis(10);
/// For a connection to be made, and for a member to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Messages in errors of requests that were never sent, but for those whose connection could not be made.
const NOT_SENT_MESSAGES: [&str; 4] = [
    // the connection was closed before the request was put on it
    "operation was canceled",
    "channel closed",
    // the server closes the connection, and has not taken the stream any more
    "refused stream",
    "not a result of an error",
];

/// Source of members and credentials for writers.
struct Target {
    namespace: String,
    name: String,
    load: u32,
    members: Arc<Mutex<History>>,
    credentials: Mutex<Credentials>,
}

impl Target {
    /// A connection to the member of this number if it serves, or else to another one that does; never to `but`.
    async fn connect(&self, number: usize, but: Option<&str>) -> Option<Connection> {
        let own = format!("{}-{number}", self.name);
        let mut serving: Vec<(String, String)> = {
            let members = self.members.lock().unwrap();
            let serving = members.now.iter().filter(|(_, pod)| serves(pod));
            serving
                .filter_map(|(name, pod)| Some((name.clone(), address(pod)?)))
                .collect()
        };
        serving.sort_by_key(|(name, _)| (*name != own, Some(name.as_str()) == but));
        for (name, address) in serving {
            let host = format!("{name}.{}-headless.{}.svc", self.name, self.namespace);
            let endpoint = client::endpoint(&address, host, &self.credentials.lock().unwrap());
            if let Ok(Ok(channel)) = timeout(CONNECT_TIMEOUT, endpoint.connect()).await {
                let is_own = name == own;
                return Some(Connection {
                    pod: name,
                    is_own,
                    writes: 0,
                    kv: KvClient::new(channel),
                });
            }
        }
        None
    }

    /// Returns true if a client would stay on the connection: it leads to the member that it prefers, or that one does not serve.
    fn is_good(&self, connection: &Connection, number: usize) -> bool {
        let members = self.members.lock().unwrap();
        let own = members.now.get(&format!("{}-{number}", self.name));
        connection.is_own || !own.is_some_and(serves)
    }
}

struct Connection {
    pod: String,
    is_own: bool,
    writes: usize,
    kv: KvClient<Channel>,
}

/// Result of the writes.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Numbers of the acknowledged writes, by writer.
    acknowledged: Vec<BTreeSet<u64>>,
    /// Errors of failed writes, and the time of each since the beginning.
    pub(super) failed: Vec<String>,
    /// Writes that were sent through another member than first chosen, before they reached any.
    pub(super) moved: usize,
    /// Epochs of the leaders that acknowledged.
    pub(super) epochs: BTreeSet<u64>,
    /// The longest time from the wish to write until it was acknowledged, and which write that was.
    pub(super) longest: (Duration, String),
    /// Writes acknowledged through the member that they were meant for.
    pub(super) through_own: Vec<usize>,
}

impl Outcome {
    /// Returns the number of acknowledged writes.
    pub(super) fn written(&self) -> usize {
        self.acknowledged.iter().map(BTreeSet::len).sum()
    }
}

/// Writers that run until they are ended.
pub(super) struct Load<'a> {
    brains: Brains<'a>,
    target: Arc<Target>,
    outcome: Arc<Mutex<Outcome>>,
    written: watch::Sender<usize>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl<'a> Load<'a> {
    /// Starts one writer for each of `members`, which learns of the pods from `watched`. With `connections_of`, a writer leaves each
    /// connection after that many writes, for a new one with the certificates that are current then.
    pub(super) async fn start(
        brains: &Brains<'a>,
        members: usize,
        watched: &Watched,
        connections_of: Option<usize>,
    ) -> Load<'a> {
        let target = Arc::new(Target {
            namespace: brains.kit.namespace.clone(),
            name: brains.name.clone(),
            load: rand::random(),
            members: watched.shared(),
            credentials: Mutex::new(brains.credentials().await),
        });
        let outcome = Outcome {
            acknowledged: vec![BTreeSet::new(); members],
            through_own: vec![0; members],
            ..Outcome::default()
        };
        let outcome = Arc::new(Mutex::new(outcome));
        let (stop, written) = (watch::Sender::new(false), watch::Sender::new(0));
        let mut tasks = JoinSet::new();
        for number in 0..members {
            let writer = Writer {
                number,
                target: Arc::clone(&target),
                outcome: Arc::clone(&outcome),
                written: written.clone(),
                connections_of,
                began: Instant::now(),
            };
            tasks.spawn(writer.run(stop.subscribe()));
        }
        let load = Self {
            brains: brains.clone(),
            target,
            outcome,
            written,
            stop,
            tasks,
        };
        load.acknowledge(10 * members).await;
        load
    }

    /// Waits for this many more acknowledged writes.
    pub(super) async fn acknowledge(&self, more: usize) {
        let mut written = self.written.subscribe();
        let enough = *written.borrow() + more;
        let waited = timeout(STATE_TIMEOUT, written.wait_for(|written| *written >= enough))
            .await
            .is_ok();
        if !waited {
            let failed = self.outcome.lock().unwrap().failed.clone();
            panic!(
                "not {more} more writes after {STATE_TIMEOUT:?}: {failed:#?}\n{}",
                Box::pin(self.brains.kit.describe()).await
            );
        }
    }

    /// Has later connections made with the certificates that are published now.
    pub(super) async fn follow_certificates(&self) {
        let credentials = self.brains.credentials().await;
        *self.target.credentials.lock().unwrap() = credentials;
    }

    /// Ends the writers; what was acknowledged to them can be looked for later.
    pub(super) async fn pause(mut self) -> Paused {
        self.stop_writers().await;
        Paused {
            target: Arc::clone(&self.target),
            acknowledged: std::mem::take(&mut self.outcome.lock().unwrap().acknowledged),
        }
    }

    async fn stop_writers(&mut self) {
        self.stop.send_replace(true);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }

    /// Ends the writers, and checks that every acknowledged write is stored.
    pub(super) async fn end(mut self) -> Outcome {
        self.stop_writers().await;
        let outcome = std::mem::take(&mut *self.outcome.lock().unwrap());
        self.target.check(&outcome.acknowledged).await;
        self.brains.kit.say(format_args!(
            "{} writes acknowledged, {} failed, {} moved before they were sent; the longest took {} ms: {}",
            outcome.written(),
            outcome.failed.len(),
            outcome.moved,
            outcome.longest.0.as_millis(),
            outcome.longest.1,
        ));
        outcome
    }
}

/// Acknowledged writes of writers that have ended.
pub(super) struct Paused {
    target: Arc<Target>,
    acknowledged: Vec<BTreeSet<u64>>,
}

impl Paused {
    /// Has later connections made with the certificates that are published now.
    pub(super) async fn follow_certificates(&self, brains: &Brains<'_>) {
        let credentials = brains.credentials().await;
        *self.target.credentials.lock().unwrap() = credentials;
    }

    /// Checks that all of them are stored.
    pub(super) async fn check(&self) {
        self.target.check(&self.acknowledged).await;
    }
}

impl Target {
    /// Checks that every acknowledged write is stored.
    async fn check(&self, acknowledged: &[BTreeSet<u64>]) {
        for (number, acknowledged) in acknowledged.iter().enumerate() {
            let there = self.written_by(number).await;
            let lost: Vec<_> = acknowledged.difference(&there).take(5).collect();
            assert!(lost.is_empty(), "writer {number}: acknowledged and not there: {lost:?}");
        }
    }

    fn prefix(&self, number: usize) -> String {
        format!("load/{:08x}/{number}/", self.load)
    }

    /// Numbers of the writes of one writer that are stored.
    async fn written_by(&self, number: usize) -> BTreeSet<u64> {
        let prefix = self.prefix(number);
        let end = format!("load/{:08x}/{number}0", self.load); // 0 is what follows /
        let deadline = Instant::now() + STATE_TIMEOUT;
        loop {
            let request = pb::RangeRequest {
                key: prefix.clone().into(),
                range_end: end.clone().into(),
                keys_only: true,
                ..pb::RangeRequest::default()
            };
            let listed = match self.connect(number, None).await {
                Some(mut connection) => connection.kv.range(request).await.map_err(|error| chain(&error)),
                None => Err("no member can be connected to".to_owned()),
            };
            match listed {
                Ok(listed) => {
                    let key = |kv: &wire::mvccpb::KeyValue| {
                        let key = String::from_utf8(kv.key.to_vec()).unwrap();
                        key[prefix.len()..].parse().unwrap()
                    };
                    return listed.into_inner().kvs.iter().map(key).collect();
                }
                Err(error) => assert!(Instant::now() < deadline, "list {prefix}: {error}"),
            }
            tokio::time::sleep(POLL_INTERVAL).await; // between attempts
        }
    }
}

/// Writes through the member of one number.
struct Writer {
    number: usize,
    target: Arc<Target>,
    outcome: Arc<Mutex<Outcome>>,
    written: watch::Sender<usize>,
    connections_of: Option<usize>,
    began: Instant,
}

impl Writer {
    async fn run(self, stop: watch::Receiver<bool>) {
        let mut pace = interval(WRITE_INTERVAL);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut connection = None;
        for write in 0.. {
            pace.tick().await;
            if *stop.borrow() {
                return;
            }
            self.write(write, &mut connection, &stop).await;
        }
    }

    /// One write, until it is acknowledged or has failed.
    async fn write(&self, write: u64, connection: &mut Option<Connection>, stop: &watch::Receiver<bool>) {
        let began = Instant::now();
        let mut left = None;
        while !*stop.borrow() {
            let used_up = |connection: &Connection| self.connections_of.is_some_and(|of| connection.writes >= of);
            if connection
                .as_ref()
                .is_some_and(|it| !self.target.is_good(it, self.number) || used_up(it))
            {
                *connection = None;
            }
            if connection.is_none() {
                *connection = self.target.connect(self.number, left.as_deref()).await;
            }
            let Some(to) = connection else {
                tokio::time::sleep(WRITE_INTERVAL).await; // no member serves
                continue;
            };
            let request = pb::PutRequest {
                key: format!("{}{write:08}", self.target.prefix(self.number)).into(),
                value: "x".repeat(100).into(),
                ..pb::PutRequest::default()
            };
            let answered = timeout(ANSWER_TIMEOUT, to.kv.put(request)).await;
            let (error, is_sent) = match answered {
                Ok(Ok(answer)) => {
                    to.writes += 1;
                    let epoch = answer.into_inner().header.map_or(0, |header| header.raft_term);
                    self.acknowledged(write, began, epoch, to);
                    return;
                }
                Ok(Err(status)) => (chain(&status), is_sent(&status)),
                Err(_) => (format!("no answer within {ANSWER_TIMEOUT:?}"), true),
            };
            left = connection.take().map(|connection| connection.pod);
            if !is_sent {
                self.outcome.lock().unwrap().moved += 1;
                continue;
            }
            let at = self.began.elapsed().as_secs_f32();
            let through = left.unwrap_or_default();
            let failed = format!(
                "after {at:.1} s and {} ms of its own, write {write} of writer {} through {through}: {error}",
                began.elapsed().as_millis(),
                self.number
            );
            self.outcome.lock().unwrap().failed.push(failed);
            return;
        }
    }

    fn acknowledged(&self, write: u64, began: Instant, epoch: u64, by: &Connection) {
        let took = began.elapsed();
        let mut outcome = self.outcome.lock().unwrap();
        outcome.acknowledged[self.number].insert(write);
        outcome.through_own[self.number] += usize::from(by.is_own);
        outcome.epochs.insert(epoch);
        if took > outcome.longest.0 {
            let at = self.began.elapsed().as_secs_f32();
            let which = format!(
                "after {at:.1} s, writer {} through {}, epoch {epoch}",
                self.number, by.pod
            );
            outcome.longest = (took, which);
        }
        drop(outcome);
        self.written.send_modify(|written| *written += 1);
    }
}

/// Returns false if the request was never sent: a channel makes its connection again with the next request.
fn is_sent(status: &Status) -> bool {
    let mut below = std::error::Error::source(status);
    while let Some(error) = below {
        if error.is::<ConnectError>() {
            return false;
        }
        below = error.source();
    }
    let error = chain(status);
    !NOT_SENT_MESSAGES.iter().any(|text| error.contains(text))
}

/// An error with all that is below it.
fn chain(status: &Status) -> String {
    let mut text = format!("{:?}: {}", status.code(), status.message());
    let mut below = std::error::Error::source(status);
    while let Some(error) = below {
        write!(text, ": {error}").unwrap();
        below = error.source();
    }
    text
}
