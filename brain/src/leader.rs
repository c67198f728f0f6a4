//! A leader's term: the tasks that write, from the barrier to the end of the epoch.
//!
//! Invariant: at most one term is under way, and its tasks are gone before the next one begins.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::feed::{Feed, News};
use crate::log::frame::Candidate;
use crate::log::writer::{OpenError as LogOpenError, WriteError};
use crate::log::{Log, LogError, Unanswered, WatchedLog};
use crate::metrics::Metrics;
use crate::mvcc::history::LogHistory;
use crate::mvcc::materialize::Materializer;
use crate::mvcc::patience::may_pass;
use crate::replica::{Leadership, OpenError, Replica};
use crate::rows::{Rows, RowsError};
use crate::sequencer::command::Seat;
use crate::sequencer::{Channels, FlushEnded, Options, Sequencer, Space};
use crate::state::since_boot;
use crate::tasks::Owned;
use crate::watch::{History as _, HistoryError, Hub, PrevKv};

/// Generations on their way to the flush and back. Few: their bytes are what is bounded.
const GENERATIONS: usize = 4;

/// How long to wait before a term is begun once more that storage did not let begin, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// What is read back for all watchers when a term begins, in bytes. Of more, each reads back what concerns it.
const CHUNK: usize = 1 << 20;

/// And how long that may take: a member answers nobody meanwhile.
const AT_ONCE: Duration = Duration::from_secs(1);

/// How a term ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// As asked: everything acknowledged is flushed.
    Stopped,
    /// The lock was lost.
    Lost,
    /// Another writer began a later epoch.
    Deposed,
}

/// By what a member leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The lock that it holds: see [`Candidate::lock`].
    pub lock: u64,
    /// It knows that whoever held that lock before answers reads no more.
    pub seen: bool,
}

/// Who is told how far a term has come.
#[derive(Debug)]
pub struct Told {
    /// The barrier stands: everything that older leaders acknowledged is known.
    pub placed: oneshot::Sender<()>,
    /// Requests are taken.
    pub begun: oneshot::Sender<()>,
}

/// Tells holders of other locks than this member's that an epoch has begun.
pub type Herald = Arc<dyn Fn(u64) -> BoxFuture<'static, Result<(), LogError>> + Send + Sync>;

/// What a member needs to lead.
pub struct Leader<L, R: Rows, Q> {
    /// The engine.
    pub engine: (L, R),
    /// What is in memory.
    pub replica: Replica<R>,
    /// Where the sequencer takes its place.
    pub seat: Seat,
    /// Where watchers hear of what is committed.
    pub hub: Hub,
    /// Where followers do.
    pub feed: Feed,
    /// What bounds the store.
    pub space: Q,
    /// Bounds of the write path.
    pub options: Options,
    /// Whom to tell when the barrier stands, before anybody is waited for.
    pub herald: Option<Herald>,
    /// How long this member may answer reads after its lock was last renewed; zero where no other can lead.
    pub lease: Duration,
    /// What is measured.
    pub metrics: Arc<Metrics>,
    /// What the log has not answered in the term that is under way.
    pub unanswered: Unanswered,
}

impl<L: Log, R: Rows, Q: Space + Clone> Leader<L, R, Q> {
    /// Leads until `stop`, then finishes what is queued and, where nobody else can, flushes; or until `lost`, and then stops where it stands.
    ///
    /// # Errors
    /// When log or rows fail, or are damaged. The member cannot go on then.
    pub async fn term(
        mut self,
        claim: Claim,
        stop: &CancellationToken,
        lost: &CancellationToken,
        Told { placed, begun }: Told,
    ) -> anyhow::Result<(Self, Ended)> {
        self.unanswered.clear();
        let opened = tokio::select! {
            biased;
            () = lost.cancelled() => return Ok((self, Ended::Lost)),
            () = stop.cancelled() => return Ok((self, Ended::Stopped)),
            opened = self.begin(claim, placed) => opened,
        };
        let Leadership { writer, fence, .. } = match opened {
            Ok(leadership) => leadership,
            Err(error) if is_deposed(&error) => return Ok((self, Ended::Deposed)),
            Err(error) => return Err(error),
        };
        let (frozen, to_flush) = mpsc::channel(GENERATIONS);
        let (flushed, from_flush) = mpsc::channel(GENERATIONS);
        let channels = Channels {
            commands: self.seat.take(),
            frozen,
            flushed: from_flush,
        };
        // Whoever waits for it may be gone.
        let _gone = begun.send(());
        let state = self.replica.state().clone();
        let sealed = self.replica.sealed();
        let background = Materializer::new(
            self.engine.clone(),
            state,
            fence,
            sealed,
            to_flush,
            flushed,
            (self.metrics.clone(), stop.clone()),
        );
        let publish = {
            let (hub, feed) = (self.hub.clone(), self.feed.clone());
            move |news| {
                if let News::Batch(shown) = &news {
                    hub.publish(shown.events.iter().cloned());
                }
                feed.tell(news);
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
        // Whatever ends the background ends the sequencer, too.
        let over = lost.child_token();
        let mut sequencer = Owned::start(sequencer.run(stop.clone(), over.clone()));
        let mut background = Owned::start(background.run());
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
        self.seat.leave();
        // Stopped in order: what is acknowledged is flushed, if nobody else can. Otherwise whoever leads next does that.
        let in_order = ended.is_ok() && failed.is_none() && !lost.is_cancelled();
        let flushed = match failed {
            Some(ended) => ended,
            None if in_order && self.lease.is_zero() => tokio::select! {
                biased;
                ended = background.end() => ended.context("the flush")?,
                // The next start takes from the log what the rows lack.
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
        // The flush first: the sequencer ends when it does.
        match flushed.context("the flush").and(ended.context("the sequencer")) {
            Ok(()) if in_order => Ok((self, Ended::Stopped)),
            Ok(()) => Ok((self, Ended::Lost)),
            Err(error) if is_deposed(&error) => {
                tracing::info!(reason = format!("{error:#}"), "deposed");
                Ok((self, Ended::Deposed))
            }
            Err(error) => Err(error),
        }
    }

    /// Becomes the only writer, however long storage is out of reach, and tells watchers what was committed meanwhile.
    async fn begin(&mut self, claim: Claim, placed: oneshot::Sender<()>) -> anyhow::Result<Leadership> {
        let (mut placed, mut pause) = (Some(placed), RETRY.0);
        loop {
            match self.try_begin(claim, &mut placed).await {
                Err(error) if may_pass(&error) => {
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
        claim: Claim,
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
            match self.replica.lead(log, rows, (candidate, claim.seen)).await {
                // What is missing in the log is in rows by now.
                Err(OpenError::Destroyed) => self.replica.rebase(log, rows).await?,
                outcome => break outcome?,
            }
        };
        if let Some(placed) = placed.take() {
            // Whoever waits for it may be gone.
            let _gone = placed.send(());
        }
        if let Some(herald) = &self.herald {
            herald(self.replica.state().epoch()).await?;
        }
        if !leadership.wait.is_zero() {
            // Somebody may be reading yet, and nobody saw its lock run out.
            tracing::info!(wait = ?leadership.wait, "waiting for an older leader's right to end");
            tokio::time::sleep(leadership.wait).await;
            leadership.waited(rows).await?;
        }
        self.replica.state().leases().promote(since_boot());
        self.show_missed().await;
        Ok(leadership)
    }
}

impl<L: Log, R: Rows, Q> Leader<L, R, Q> {
    /// Tells watchers that there is more in the log than they heard of: what it is, if that can be read at once; else each
    /// of them reads back what concerns it.
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

/// Whether an error says that another writer began a later epoch.
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
