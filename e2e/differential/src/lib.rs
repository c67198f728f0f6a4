//! The same random requests to two servers; every field of every answer must be equal.
//!
//! The parts that may differ are left out on both sides, and only those: ids of cluster and members, raft's numbers, sizes, hashes,
//! ids of leases that the server chose (they get the same name on both sides), remaining times, the order of ties in a
//! sort, and how events are spread over messages. Watches are compared event by event whenever the script reaches a
//! point where a progress message confirms that all have come.
//!
//! The generator learns from the reference's answers (revisions, leases, watchers), so a seed and a reference determine
//! the script. A script that shows a difference is made as short as it can be ([`shrink`]) and printed as text ([`text`]), which can
//! be run again.
//!
//! Both servers are reached over the network only: it must not depend on a crate of the brain, or on Kubernetes.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use programs::members::status;
use programs::progress::Progress;
use programs::server::Server;

pub mod answer;
pub mod client;
pub mod difference;
pub mod gateway;
pub mod json;
pub mod request;
pub mod revisions;
pub mod script;
pub mod shrink;
pub mod text;
pub mod watching;

use answer::Answer;
use client::Client;
use difference::Differences;
use request::{Request, Step};
use revisions::{Ran, Rebase};
use script::Script;

/// Both servers run with these: timed progress messages are sent in the time of a test, and passwords take little of it.
pub const FLAGS: &[&str] = &["--watch-progress-notify-interval=1s", "--bcrypt-cost=4"];

const REQUESTS_PER_REPORT: usize = 5_000;

/// etcd looks every five seconds.
const ALARM_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

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
    /// The script up to the first difference; empty if there is none.
    pub script: Vec<Ran>,
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
            ..
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
    let mut pair = Pair::new(reference, subject).await?;
    let (mut events, mut steps, mut revision) = (0, Vec::new(), 1);
    while let Some(step) = script.next(pair.index >= requests) {
        let is_equal = pair.differences.is_empty();
        let taken = Box::pin(pair.take(&step, script.compacted())).await;
        let taken = taken.with_context(|| format!("seed {seed}"))?;
        events += taken.expected.events();
        script.learn(&step.request, &taken.expected);
        let before = revision;
        revision = revision.max(taken.expected.revision().unwrap_or(0));
        if is_equal {
            steps.push(Ran {
                step,
                around: Some((before, revision)),
            });
        }
        if taken.apart {
            break;
        }
        if pair.index.is_multiple_of(REQUESTS_PER_REPORT) {
            progress.say(format_args!(
                "  {} requests, {events} events, revision {}",
                pair.index,
                script.revision()
            ));
        }
    }
    if pair.differences.is_empty() {
        steps.clear();
    }
    Ok(Report {
        seed,
        requests: pair.index,
        events,
        differences: pair.differences,
        script: steps,
    })
}

/// Sends a script to both and compares, up to the first difference.
///
/// Streams are settled where the store is then, not where it was when the script was written.
///
/// # Errors
///
/// As [`compare`].
pub async fn replay(reference: &Server, subject: &Server, steps: &[Step]) -> anyhow::Result<Differences> {
    let steps: Vec<Ran> = steps.iter().cloned().map(Ran::from).collect();
    Ok(Box::pin(run_again(reference, subject, &steps)).await?.differences)
}

/// Result of sending the steps of an earlier run again.
#[derive(Debug)]
pub(crate) struct Rerun {
    pub(crate) differences: Differences,
    /// The steps as they were sent, up to the first difference.
    pub(crate) ran: Vec<Ran>,
}

/// As [`replay`], with steps of an earlier run. Their revisions are adjusted to name the same moments as in that run, even if other steps
/// are left out.
pub(crate) async fn run_again(reference: &Server, subject: &Server, steps: &[Ran]) -> anyhow::Result<Rerun> {
    let mut pair = Pair::new(reference, subject).await?;
    let (mut revision, mut compacted) = (1, 0);
    let (mut rebase, mut ran) = (Rebase::default(), Vec::new());
    for Ran { step, around: earlier } in steps {
        let mut step = step.clone();
        if let Request::Settle { revision: until, .. } = &mut step.request {
            *until = revision;
        }
        if let Some((before, _)) = earlier {
            rebase.apply(&mut step.request, (*before, revision));
        }
        let taken = Box::pin(pair.take(&step, compacted)).await?;
        let before = revision;
        revision = revision.max(taken.expected.revision().unwrap_or(0));
        if let Some(earlier) = earlier {
            rebase.learn(*earlier, (before, revision));
        }
        if let (Request::Compact(compact), Answer::Compact(_)) = (&step.request, &taken.expected) {
            compacted = compact.revision;
        }
        ran.push(Ran {
            step,
            around: Some((before, revision)),
        });
        if !pair.differences.is_empty() {
            break;
        }
    }
    Ok(Rerun {
        differences: pair.differences,
        ran,
    })
}

/// Both servers under one script.
struct Pair<'a> {
    reference: &'a Server,
    one: Client<'a>,
    other: Client<'a>,
    index: usize,
    differences: Differences,
}

/// Outcome of a step.
struct Taken {
    expected: Answer,
    /// True if the two are no longer in the same state.
    apart: bool,
}

impl<'a> Pair<'a> {
    async fn new(reference: &'a Server, subject: &'a Server) -> anyhow::Result<Self> {
        Ok(Self {
            reference,
            one: Client::new(reference).await?,
            other: Client::new(subject).await?,
            index: 0,
            differences: Differences::default(),
        })
    }

    async fn take(&mut self, step: &Step, compacted: i64) -> anyhow::Result<Taken> {
        let (expected, got) = tokio::join!(self.one.call(step), self.other.call(step));
        let index = self.index;
        let expected = expected.with_context(|| format!("request {index}, {step:?}"))?;
        ensure!(
            !is_gone(&expected),
            "request {index}, {step:?}: the reference is gone: {expected:?}\n{}",
            self.reference.last_lines()
        );
        let got = got.unwrap_or_else(|error| Answer::Broken(format!("{error:#}")));
        let apart = self
            .differences
            .compare(index, &step.request, expected.clone(), got, compacted);
        self.index += 1;
        Ok(Taken { expected, apart })
    }
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
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(ALARM_TIMEOUT, raised).await.with_context(|| {
        format!(
            "{} did not raise its storage version in {ALARM_TIMEOUT:?}",
            server.name()
        )
    })?
}

/// Returns true if there was an answer at all: these texts are the client's own.
fn is_gone(answer: &Answer) -> bool {
    matches!(answer, Answer::Error { message, .. } if message == "transport error" || message == "tcp connect error")
}
