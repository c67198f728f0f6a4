//! One leadership of a node: the tasks that write, from the barrier to the end of the epoch.
//!
//! Invariant: at most one term is in progress, and its tasks have ended before the next one begins.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::field::Empty;
use tracing::{Instrument as _, Span, instrument};

use super::node::Node;
use engine::LogAndRows;
use engine::log::frame::Candidate;
use engine::log::writer::{WriteError, WriterOpenError};
use engine::log::{DynLog, WatchedLog};
use engine::rows::RowsError;
use runtime::backoff::Backoff;
use runtime::clock::since_boot;
use runtime::tasks::Owned;
use store::flush::{Flusher, FlusherContext};
use store::replica::{Leadership, StoreOpenError, TakeOver};
use store::retry::is_transient;
use store::sequencer::{FlushEnded, Sequencer, SequencerChannels};

/// The number of memtables on their way to the flush and back. Small, because their bytes are bounded, not their number.
const MEMTABLE_QUEUE_CAPACITY: usize = 4;

/// The pause before a term that could not begin because of storage is tried again.
const TERM_START_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

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

/// A node that begins to lead, or leads.
pub struct Term {
    /// The node, which is returned when the term ends.
    pub node: Node,
    /// The lock by which it leads.
    pub claim: LockClaim,
}

impl Term {
    /// Leads until `stop`, then finishes queued requests and, if no other member can lead, flushes; or until `lost`, and then stops
    /// at once. Fails if log or rows fail or are damaged; the member cannot continue then.
    // The epoch is known once the barrier is placed.
    #[instrument(name = "term", skip_all, fields(epoch = Empty))]
    pub async fn run(
        mut self,
        stop: &CancellationToken,
        lost: &CancellationToken,
        TermNotifier { placed, begun }: TermNotifier,
    ) -> anyhow::Result<(Node, TermEnd)> {
        self.node.unanswered.clear();
        let opened = tokio::select! {
        biased;
        () = lost.cancelled() => return Ok((self.node, TermEnd::Lost)),
        () = stop.cancelled() => return Ok((self.node, TermEnd::Stopped)),
        opened = self.begin(placed) => opened,
        };
        let Leadership {
            writer,
            manifest,
            stored,
            ..
        } = match opened {
            Ok(leadership) => leadership,
            Err(error) if is_deposed(&error) => return Ok((self.node, TermEnd::Deposed)),
            Err(error) => return Err(error),
        };
        let (immutable, to_flush) = mpsc::channel(MEMTABLE_QUEUE_CAPACITY);
        let (flushed, from_flush) = mpsc::channel(MEMTABLE_QUEUE_CAPACITY);
        let channels = SequencerChannels {
            commands: self.node.queue.take(),
            immutable,
            flushed: from_flush,
        };
        // The receiver may be gone.
        let _gone = begun.send(());
        let state = self.node.replica.state().clone();
        let immutables = self.node.replica.immutables();
        let background = Flusher::new(
            LogAndRows {
                log: self.node.log.clone(),
                rows: self.node.rows.clone(),
            },
            state,
            manifest,
            immutables,
            to_flush,
            flushed,
            FlusherContext {
                metrics: self.node.metrics.clone(),
                stop: stop.clone(),
            },
        )
        .over(stored)
        .paced(self.node.options.compaction);
        let publish = self.node.publisher();
        let (log, rows) = (self.watched_log(), self.node.rows.clone());
        let sequencer = Sequencer::new(
            LogAndRows { log, rows },
            (self.node.replica, writer),
            channels,
            publish,
            self.node.space.clone(),
            (self.node.options.clone(), self.node.metrics.clone()),
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
        self.node.replica = replica;
        self.node.queue.leave();
        // After an orderly stop everything acknowledged is flushed, if no other member can lead. Otherwise the next leader flushes
        // it.
        let in_order = ended.is_ok() && failed.is_none() && !lost.is_cancelled();
        let flushed = match failed {
            Some(ended) => ended,
            None if in_order && self.node.lease.is_zero() => tokio::select! {
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
            Ok(()) if in_order => Ok((self.node, TermEnd::Stopped)),
            Ok(()) => Ok((self.node, TermEnd::Lost)),
            Err(error) if is_deposed(&error) => {
                tracing::info!(reason = format!("{error:#}"), "deposed");
                Ok((self.node, TermEnd::Deposed))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the log; what it has not answered is recorded.
    fn watched_log(&self) -> DynLog {
        Arc::new(WatchedLog::new(self.node.log.clone(), self.node.unanswered.clone()))
    }

    /// Becomes the only writer, with retries as long as storage is unreachable, and publishes to watchers what was committed in the
    /// meantime.
    async fn begin(&mut self, placed: oneshot::Sender<()>) -> anyhow::Result<Leadership> {
        let (mut placed, mut pauses) = (Some(placed), TERM_START_BACKOFF);
        loop {
            match self.try_begin(&mut placed).await {
                Err(error) if is_transient(&error) => {
                    let pause = pauses.next_delay();
                    tracing::warn!(error = format!("{error:#}"), again_in = ?pause, "cannot start the term yet");
                    tokio::time::sleep(pause).await;
                }
                outcome => return outcome,
            }
        }
    }

    async fn try_begin(&mut self, placed: &mut Option<oneshot::Sender<()>>) -> anyhow::Result<Leadership> {
        let (log, rows) = (&self.watched_log(), &self.node.rows);
        let candidate = Candidate {
            member: self.node.options.member,
            lease: self.node.lease,
            lock: self.claim.lock,
        };
        let take_over = TakeOver {
            candidate,
            predecessor_expired: self.claim.predecessor_expired,
        };
        let mut leadership = loop {
            match self.node.replica.lead(log, rows, take_over).await {
                // The rows contain the missing slots by now. An older leader may continue to destroy slots while the rows are loaded.
                Err(StoreOpenError::Destroyed) => match self.node.replica.reset_from_snapshot(log, rows).await {
                    Ok(()) | Err(StoreOpenError::Destroyed) => {}
                    Err(error) => return Err(error.into()),
                },
                outcome => break outcome?,
            }
        };
        Span::current().record("epoch", self.node.replica.state().epoch());
        if let Some(placed) = placed.take() {
            // The receiver may be gone.
            let _gone = placed.send(());
        }
        if let Some(announce_epoch) = &self.node.announce_epoch {
            announce_epoch(self.node.replica.state().epoch()).await?;
        }
        if !leadership.wait.is_zero() {
            // Views show it already.
            self.node.show_missed().await;
            // An older leader whose lease was not seen to expire may still serve reads.
            tracing::info!(wait = ?leadership.wait, "waiting for the previous leader's lease to expire");
            tokio::time::sleep(leadership.wait).await;
            leadership.waited(rows).await?;
        }
        self.node.replica.state().leases().promote(since_boot());
        self.node.show_missed().await;
        Ok(leadership)
    }
}

/// Returns true if an error says that another writer began a later epoch.
fn is_deposed(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        matches!(cause.downcast_ref(), Some(WriteError::Deposed(_)))
            || matches!(cause.downcast_ref(), Some(RowsError::Fenced(_)))
            || matches!(
                cause.downcast_ref(),
                Some(StoreOpenError::Log(WriterOpenError::Write(WriteError::Deposed(_))))
            )
    })
}
