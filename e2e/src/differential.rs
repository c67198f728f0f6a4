//! The same random requests to two servers; every field of every answer must be equal.
//!
//! The parts that may differ are left out on both sides, and only those: ids of cluster and members, raft's numbers, sizes, hashes,
//! ids of leases that the server chose (they get the same name on both sides), remaining times, the order of ties in a
//! sort, and how events are spread over messages. Watches are compared event by event whenever the script reaches a
//! point where a progress message confirms that all have come.
//!
//! The generator learns from the reference's answers (revisions, leases, watchers), so a seed and a reference determine
//! the script.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::members::status;
use crate::progress::Progress;
use crate::server::Server;

pub mod answer;
pub mod client;
pub mod difference;
pub mod request;
pub mod script;
pub mod watching;

use answer::Answer;
use client::Client;
use difference::Differences;
use script::Script;

/// Both servers run with these, so that timed progress messages are sent in the time of a test.
pub const FLAGS: &[&str] = &["--watch-progress-notify-interval=1s"];

const SAY_EVERY: usize = 5_000;

/// etcd looks every five seconds.
const RAISED: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

/// Result of a run.
#[derive(Debug)]
pub struct Report {
    /// The seed that makes it happen again.
    pub seed: u64,
    /// Number of requests that were sent to each.
    pub requests: usize,
    /// Events that watchers of the reference received.
    pub events: usize,
    /// Differences that were found.
    pub differences: Differences,
}

impl Report {
    /// Returns true if every answer was equal.
    pub fn equal(&self) -> bool {
        self.differences.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            requests,
            events,
            differences,
        } = self;
        write!(f, "seed {seed}: {requests} requests, {events} events, {differences}")
    }
}

/// Sends `requests` random ones to both and compares.
///
/// Goes on after a difference, to find others, until the states of the two are no longer the same.
///
/// # Errors
///
/// The reference does not answer as any etcd would, so the subject cannot be judged.
pub async fn compare(
    reference: &Server,
    subject: &Server,
    seed: u64,
    requests: usize,
    progress: &Progress,
) -> anyhow::Result<Report> {
    settled(reference).await?;
    settled(subject).await?;
    let mut script = Script::new(seed);
    let (mut one, mut other) = (Client::new(reference).await?, Client::new(subject).await?);
    let mut differences = Differences::default();
    let (mut index, mut events) = (0, 0);
    while let Some(request) = script.next(index >= requests) {
        let (expected, got) = tokio::join!(one.call(&request), other.call(&request));
        let expected = expected.with_context(|| format!("seed {seed}, request {index}, {request:?}"))?;
        ensure!(
            !is_gone(&expected),
            "seed {seed}, request {index}, {request:?}: the reference is gone: {expected:?}"
        );
        let got = got.unwrap_or_else(|error| Answer::Broken(format!("{error:#}")));
        events += expected.events();
        script.learn(&request, &expected);
        let apart = differences.compare(index, &request, expected, got, script.compacted());
        index += 1;
        if apart {
            break;
        }
        if index.is_multiple_of(SAY_EVERY) {
            progress.say(format_args!(
                "  {index} requests, {events} events, revision {}",
                script.revision()
            ));
        }
    }
    Ok(Report {
        seed,
        requests: index,
        events,
        differences,
    })
}

/// Waits until a server names the storage version of its own release: an etcd among others raises it in the background.
async fn settled(server: &Server) -> anyhow::Result<()> {
    let raised = async {
        loop {
            let status = status(server.endpoint()).await?;
            let storage = status.storage_version.rsplit_once('.').map(|(minor, _)| minor);
            if storage.is_some_and(|minor| status.version.starts_with(&format!("{minor}."))) {
                return anyhow::Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::time::timeout(RAISED, raised)
        .await
        .with_context(|| format!("{} did not raise its storage version in {RAISED:?}", server.name()))?
}

/// Returns true if there was an answer at all: these texts are the client's own.
fn is_gone(answer: &Answer) -> bool {
    matches!(answer, Answer::Error { message, .. } if message == "transport error" || message == "tcp connect error")
}
