//! A store over any log and rows: the handles that services need, and the node that leads it.

use std::sync::Arc;
use std::time::Duration;
use store::sequencer::DynSpaceQuota;

use ::watch::{self, DynHistory, Hub};
use cluster::node::Node;
use engine::LogAndRows;
use engine::log::{DynLog, Unanswered};
use engine::rows::DynRows;
use mvcc::fetch::FetchBudgets;
use mvcc::keys;
use store::commit_feed::CommitFeed;
use store::history::LogHistory;
use store::replica::{LogTail, Replica, StoreOpenError};
use store::sequencer::SequencerOptions;
use store::sequencer::command::SequencerHandle;
use store::state::StoreState;
use telemetry::metrics::Metrics;

/// The options of a node.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// Bounds of the write path.
    pub sequencer: SequencerOptions,
    /// Bounds of watches.
    pub watch: watch::WatchLimits,
    /// Memory for rows that requests read.
    pub fetches: FetchBudgets,
    /// The time for which reads may be answered after the last renewal of a lock; zero if no lock is needed.
    pub lease: Duration,
}

/// The handles on a running store that its services need.
pub struct NodeHandles {
    /// The published state.
    pub state: Arc<StoreState>,
    /// The queue of the writer.
    pub sequencer: SequencerHandle,
    /// The source of new commits for watchers.
    pub hub: Hub,
    /// The source of new commits for followers.
    pub feed: CommitFeed,
    /// The source of older commits for watchers.
    pub history: DynHistory,
}

/// Opens a store and loads the state of rows and log into memory. Nothing is written before the leader's first term. Fails if log
/// or rows cannot be opened.
pub async fn open(
    LogAndRows { log, rows }: LogAndRows,
    options: NodeOptions,
    metrics: &Arc<Metrics>,
    space: DynSpaceQuota,
) -> anyhow::Result<(NodeHandles, Node)> {
    let replica = load(&log, &rows).await?;
    let state = replica.state().clone();
    state.set_fetches(options.fetches);
    let (sequencer, queue) = SequencerHandle::new(options.lease);
    let watch = watch::WatchLimits {
        key_bytes: keys::longest(rows.max_key_len()),
        ..options.watch
    };
    let hub = Hub::new(watch, replica.revision());
    if options.lease.is_zero() {
        // No other member has watchers.
        state.fetches().read_unasked_for(hub.watchers_with_prev_kv());
    }
    let feed = CommitFeed::new();
    let store = NodeHandles {
        state: state.clone(),
        sequencer,
        hub: hub.clone(),
        feed: feed.clone(),
        history: Arc::new(LogHistory::new(log.clone(), state)),
    };
    let node = Node {
        log,
        rows,
        replica,
        queue,
        hub,
        feed,
        space,
        options: options.sequencer,
        announce_epoch: None,
        lease: options.lease,
        metrics: metrics.clone(),
        unanswered: Unanswered::default(),
    };
    Ok((store, node))
}

/// The number of chunks of the log's tail that are read before this member leads or follows: more than a single member leaves
/// there.
const MAX_TAIL_CHUNKS: usize = 64;

/// Loads the rows, and the log's tail as far as it is certainly committed; not all of it if others write faster than this reads.
async fn load(log: &DynLog, rows: &DynRows) -> Result<Replica, StoreOpenError> {
    loop {
        let attempt = async {
            let mut replica = Replica::load(log, rows).await?;
            LogTail::new(log.clone(), &replica)
                .catch_up(&mut replica, None, MAX_TAIL_CHUNKS)
                .await?;
            Ok(replica)
        };
        match attempt.await {
            Err(StoreOpenError::Destroyed) => {} // rows are newer now
            outcome => return outcome,
        }
    }
}
