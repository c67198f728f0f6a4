//! The running store of a member, and its terms as leader: the tasks that write, from the barrier to the end of the epoch.
//!
//! Invariant: at most one term is in progress, and its tasks have ended before the next one begins.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::field::Empty;
use tracing::{Instrument as _, Span, instrument};

use crate::clock::since_boot;
use crate::log::frame::Candidate;
use crate::log::writer::{OpenError as LogOpenError, WriteError};
use crate::log::{Log, LogError, Unanswered, WatchedLog};
use crate::metrics::Metrics;
use crate::rows::{Rows, RowsError};
use crate::sequencer::command::QueueOwner;
use crate::sequencer::{Channels, FlushEnded, Options, Sequencer, Space};
use crate::storage::commit_feed::{CommitEvent, CommitFeed};
use crate::storage::flush::Flusher;
use crate::storage::history::LogHistory;
use crate::storage::replica::{Leadership, OpenError, Replica};
use crate::storage::retry::is_transient;
use crate::tasks::Owned;
use crate::watch::{History as _, HistoryError, Hub, PrevKv};

/// The number of memtables on their way to the flush and back. Small, because their bytes are bounded, not their number.
const MEMTABLES: usize = 4;

/// The first and the longest pause before a term that could not begin because of storage is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// The bytes of history that are read for all watchers together when a term begins. Older history is read by each watcher.
const CHUNK: usize = 1 << 20;

/// The time limit of that read: the member does not serve in the meantime.
const AT_ONCE: Duration = Duration::from_secs(1);

/// The reason why a term ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TermEnd {
    /// It was stopped: everything acknowledged is flushed.
    Stopped,
    /// The lock was lost.
    Lost,
    /// Another writer began a later epoch.
    Deposed,
}

/// The claim of a member to lead, by its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockClaim {
    /// The lock that it holds: see [`Candidate::lock`].
    pub lock: u64,
    /// True if it is known that the previous holder of that lock no longer answers reads.
    pub predecessor_expired: bool,
}

/// The channels that report the progress of a term that begins.
#[derive(Debug)]
pub struct TermNotifier {
    /// The barrier is placed: everything that older leaders acknowledged is known.
    pub placed: oneshot::Sender<()>,
    /// Requests are accepted.
    pub begun: oneshot::Sender<()>,
}

/// Announces a new epoch to leaders that hold other locks.
pub type EpochAnnouncer = Arc<dyn Fn(u64) -> BoxFuture<'static, Result<(), LogError>> + Send + Sync>;

/// The running store of a member, which leads or follows.
pub struct Node<L, R: Rows, Q> {
    /// The engine.
    pub engine: (L, R),
    /// The state in memory.
    pub replica: Replica<R>,
    /// The queue of the sequencer, which takes it for the duration of a term.
    pub queue: QueueOwner,
    /// Publishes commits to watchers.
    pub hub: Hub,
    /// Publishes commits to followers.
    pub feed: CommitFeed,
    /// The space quota of the store.
    pub space: Q,
    /// Bounds of the write path.
    pub options: Options,
    /// Announces the epoch once the barrier is placed, before earlier leases are waited out.
    pub announce_epoch: Option<EpochAnnouncer>,
    /// The length of the read lease after a renewal of the lock; zero if no other member can lead.
    pub lease: Duration,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// Requests of this term that the log has not answered yet.
    pub unanswered: Unanswered,
}

impl<L: Log, R: Rows, Q: Space + Clone> Node<L, R, Q> {
    /// Leads until `stop`, then finishes queued requests and, if no other member can lead, flushes; or until `lost`, and then stops
    /// at once. Fails if log or rows fail or are damaged; the member cannot continue then.
    // The epoch is known once the barrier is placed.
    #[instrument(skip_all, fields(epoch = Empty))]
    pub async fn term(
        mut self,
        claim: LockClaim,
        stop: &CancellationToken,
        lost: &CancellationToken,
        TermNotifier { placed, begun }: TermNotifier,
    ) -> anyhow::Result<(Self, TermEnd)> {
        self.unanswered.clear();
        let opened = tokio::select! {
            biased;
            () = lost.cancelled() => return Ok((self, TermEnd::Lost)),
            () = stop.cancelled() => return Ok((self, TermEnd::Stopped)),
            opened = self.begin(claim, placed) => opened,
        };
        let Leadership { writer, manifest, .. } = match opened {
            Ok(leadership) => leadership,
            Err(error) if is_deposed(&error) => return Ok((self, TermEnd::Deposed)),
            Err(error) => return Err(error),
        };
        let (immutable, to_flush) = mpsc::channel(MEMTABLES);
        let (flushed, from_flush) = mpsc::channel(MEMTABLES);
        let channels = Channels {
            commands: self.queue.take(),
            immutable,
            flushed: from_flush,
        };
        // The receiver may be gone.
        let _gone = begun.send(());
        let state = self.replica.state().clone();
        let immutables = self.replica.immutables();
        let background = Flusher::new(
            self.engine.clone(),
            state,
            manifest,
            immutables,
            to_flush,
            flushed,
            (self.metrics.clone(), stop.clone()),
        );
        let publish = {
            let (hub, feed) = (self.hub.clone(), self.feed.clone());
            move |event| {
                if let CommitEvent::Batch(batch) = &event {
                    hub.publish(batch.events.iter().cloned());
                }
                feed.send(event);
            }
        };
        let (log, rows) = self.engine.clone();
        let sequencer = Sequencer::new(
            (WatchedLog::new(log, self.unanswered.clone()), rows),
            (self.replica, writer),
            channels,
            publish,
            self.space.clone(),
            (self.options.clone(), self.metrics.clone()),
        );
        // The end of the background task ends the sequencer, too.
        let over = lost.child_token();
        let mut sequencer = Owned::start(sequencer.run(stop.clone(), over.clone()).in_current_span());
        let mut background = Owned::start(background.run().in_current_span());
        let mut failed = None;
        let (replica, ended) = loop {
            tokio::select! {
                biased;
                ended = sequencer.end() => break ended.context("the sequencer")?,
                ended = background.end(), if failed.is_none() => {
                    failed = Some(ended.context("the flush")?);
                    over.cancel();
                }
            }
        };
        self.replica = replica;
        self.queue.leave();
        // After an orderly stop everything acknowledged is flushed, if no other member can lead. Otherwise the next leader flushes
        // it.
        let in_order = ended.is_ok() && failed.is_none() && !lost.is_cancelled();
        let flushed = match failed {
            Some(ended) => ended,
            None if in_order && self.lease.is_zero() => tokio::select! {
                biased;
                ended = background.end() => ended.context("the flush")?,
                // The next start reads from the log what the rows lack.
                () = lost.cancelled() => Ok(()),
            },
            None if ended.as_ref().is_err_and(|error| error.is::<FlushEnded>()) => {
                background.end().await.context("the flush")?
            }
            None => {
                background.abort().await;
                Ok(())
            }
        };
        // The error of the flush takes precedence: the sequencer ends when the flush does.
        match flushed.context("the flush").and(ended.context("the sequencer")) {
            Ok(()) if in_order => Ok((self, TermEnd::Stopped)),
            Ok(()) => Ok((self, TermEnd::Lost)),
            Err(error) if is_deposed(&error) => {
                tracing::info!(reason = format!("{error:#}"), "deposed");
                Ok((self, TermEnd::Deposed))
            }
            Err(error) => Err(error),
        }
    }

    /// Becomes the only writer, with retries as long as storage is unreachable, and publishes to watchers what was committed in the
    /// meantime.
    async fn begin(&mut self, claim: LockClaim, placed: oneshot::Sender<()>) -> anyhow::Result<Leadership> {
        let (mut placed, mut pause) = (Some(placed), RETRY.0);
        loop {
            match self.try_begin(claim, &mut placed).await {
                Err(error) if is_transient(&error) => {
                    tracing::warn!(error = format!("{error:#}"), again_in = ?pause, "the term cannot begin yet");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(RETRY.1);
                }
                outcome => return outcome,
            }
        }
    }

    async fn try_begin(
        &mut self,
        claim: LockClaim,
        placed: &mut Option<oneshot::Sender<()>>,
    ) -> anyhow::Result<Leadership> {
        let (log, rows) = &self.engine;
        let log = &WatchedLog::new(log.clone(), self.unanswered.clone());
        let candidate = Candidate {
            member: self.options.member,
            lease: self.lease,
            lock: claim.lock,
        };
        let mut leadership = loop {
            match self
                .replica
                .lead(log, rows, (candidate, claim.predecessor_expired))
                .await
            {
                // The slots missing in the log are in rows by now.
                Err(OpenError::Destroyed) => self.replica.reset_from_snapshot(log, rows).await?,
                outcome => break outcome?,
            }
        };
        Span::current().record("epoch", self.replica.state().epoch());
        if let Some(placed) = placed.take() {
            // The receiver may be gone.
            let _gone = placed.send(());
        }
        if let Some(announce_epoch) = &self.announce_epoch {
            announce_epoch(self.replica.state().epoch()).await?;
        }
        if !leadership.wait.is_zero() {
            // An older leader whose lease was not seen to expire may still serve reads.
            tracing::info!(wait = ?leadership.wait, "waiting for an older leader's right to end");
            tokio::time::sleep(leadership.wait).await;
            leadership.waited(rows).await?;
        }
        self.replica.state().leases().promote(since_boot());
        self.show_missed().await;
        Ok(leadership)
    }
}

impl<L: Log, R: Rows, Q> Node<L, R, Q> {
    /// Publishes to watchers the commits in the log that they have not received, if these can be read at once; otherwise each
    /// watcher reads those that concern it.
    pub(crate) async fn show_missed(&self) {
        let newest = self.replica.revision();
        if self.hub.revision() >= newest {
            return;
        }
        let history = LogHistory::new(self.engine.0.clone(), self.replica.state().clone());
        let read = history.read(self.hub.revision() + 1, CHUNK, PrevKv::Included);
        match tokio::time::timeout(AT_ONCE, read).await {
            Ok(Ok(missed)) if missed.last().is_some_and(|last| last.revision == newest) => {
                return self.hub.publish(missed);
            }
            Ok(Ok(_) | Err(HistoryError::Compacted(_))) => {}
            Ok(Err(HistoryError::Unavailable(error))) => {
                tracing::debug!(
                    error = format!("{error:#}"),
                    "cannot read for all watchers what they missed"
                );
            }
            Err(_) => tracing::debug!(limit = ?AT_ONCE, "reading for all watchers what they missed takes too long"),
        }
        self.hub.skip_to(newest);
    }
}

/// Returns true if an error says that another writer began a later epoch.
fn is_deposed(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        matches!(cause.downcast_ref(), Some(WriteError::Deposed(_)))
            || matches!(cause.downcast_ref(), Some(RowsError::Fenced(_)))
            || matches!(
                cause.downcast_ref(),
                Some(OpenError::Log(LogOpenError::Write(WriteError::Deposed(_))))
            )
    })
}
