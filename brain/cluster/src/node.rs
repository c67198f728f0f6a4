//! The running store of a member: what lives as long as the process, whether the member leads or follows.

use engine::rows::DynRows;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use ::watch::{History as _, HistoryError, Hub, PrevKv};
use engine::log::{DynLog, LogError, Unanswered};
use store::commit_feed::{CommitEvent, CommitFeed};
use store::history::LogHistory;
use store::replica::Replica;
use store::sequencer::command::QueueOwner;
use store::sequencer::{DynSpaceQuota, Publish, SequencerOptions};
use telemetry::metrics::Metrics;

/// The bytes of history that are read for all watchers together when a term begins. Older history is read by each watcher.
const WATCH_CATCH_UP_BYTES: usize = 1 << 20;

/// The time limit of that read: the member does not serve in the meantime.
const WATCH_CATCH_UP_TIMEOUT: Duration = Duration::from_secs(1);

/// Announces a new epoch to leaders that hold other locks.
pub type EpochAnnouncer = Arc<dyn Fn(u64) -> BoxFuture<'static, Result<(), LogError>> + Send + Sync>;

/// The running store of a member, which leads or follows.
pub struct Node {
    /// The log, which all members share if there are several.
    pub log: DynLog,
    /// The rows.
    pub rows: DynRows,
    /// The state in memory.
    pub replica: Replica,
    /// The queue of the sequencer, which takes it for the duration of a term.
    pub queue: QueueOwner,
    /// Publishes commits to watchers.
    pub hub: Hub,
    /// Publishes commits to followers.
    pub feed: CommitFeed,
    /// The space quota of the store.
    pub space: DynSpaceQuota,
    /// Bounds of the write path.
    pub options: SequencerOptions,
    /// Announces the epoch once the barrier is placed, before earlier leases are waited out.
    pub announce_epoch: Option<EpochAnnouncer>,
    /// The length of the read lease after a renewal of the lock; zero if no other member can lead.
    pub lease: Duration,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// Requests of this term that the log has not answered yet.
    pub unanswered: Unanswered,
}

impl Node {
    /// Returns a function that publishes the commits of a term to watchers and followers.
    pub(crate) fn publisher(&self) -> Publish {
        let (hub, feed) = (self.hub.clone(), self.feed.clone());
        Box::new(move |event| {
            if let CommitEvent::Batch(batch) = &event {
                hub.publish(batch.events.iter().cloned());
            }
            feed.send(event);
        })
    }

    /// Publishes to watchers the commits in the log that they have not received, if these can be read at once; otherwise each
    /// watcher reads those that concern it.
    pub(crate) async fn show_missed(&self) {
        let newest = self.replica.revision();
        if self.hub.revision() >= newest {
            return;
        }
        let history = LogHistory::new(self.log.clone(), self.replica.state().clone());
        let read = history.read(self.hub.revision() + 1, WATCH_CATCH_UP_BYTES, PrevKv::Included);
        match tokio::time::timeout(WATCH_CATCH_UP_TIMEOUT, read).await {
            Ok(Ok(missed)) if missed.last().is_some_and(|last| last.revision == newest) => {
                return self.hub.publish(missed);
            }
            Ok(Ok(_) | Err(HistoryError::Compacted(_))) => {}
            Ok(Err(HistoryError::Unavailable(error))) => {
                tracing::debug!(
                    error = format!("{error:#}"),
                    "cannot read the history that watchers missed"
                );
            }
            Err(_) => {
                tracing::debug!(limit = ?WATCH_CATCH_UP_TIMEOUT, "timed out reading the history that watchers missed")
            }
        }
        self.hub.skip_to(newest);
    }
}
