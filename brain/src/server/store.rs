//! A store over any log and rows: the handles that services need, and the node that leads it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

use crate::cluster::engine::Engine;
use crate::cluster::node::Node;
use crate::sequencer::command::Handle;
use crate::sequencer::{Options as SequencerOptions, Space};
use crate::storage::commit_feed::CommitFeed;
use crate::storage::history::LogHistory;
use crate::storage::replica::{OpenError, Replica, Tail};
use crate::storage::state::State;
use ::watch::{self, Hub};
use engine::log::{Log, LogWrite, Unanswered};
use engine::rows::Rows;
use mvcc::fetch::Fetches;
use mvcc::keys;
use telemetry::metrics::{DiskMetrics, Metrics};

/// The options of a store.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bounds of the write path.
    pub sequencer: SequencerOptions,
    /// Bounds of watches.
    pub watch: watch::Options,
    /// Memory for rows that requests read.
    pub fetches: Fetches,
    /// The time for which reads may be answered after the last renewal of a lock; zero if no lock is needed.
    pub lease: Duration,
}

/// The handles on a running store that its services need.
pub struct NodeHandles<E: Engine> {
    /// The published state.
    pub state: Arc<State<E::Rows>>,
    /// The queue of the writer.
    pub sequencer: Handle,
    /// The source of new commits for watchers.
    pub hub: Hub,
    /// The source of new commits for followers.
    pub feed: CommitFeed,
    /// The source of older commits for watchers.
    pub history: LogHistory<E::Log, E::Rows>,
}

/// Opens a store and loads the state of rows and log into memory. Nothing is written before the leader's first term. Fails if log
/// or rows cannot be opened.
pub async fn open<E: Engine>(
    (log, rows): (E::Log, E::Rows),
    options: Options,
    metrics: &Arc<Metrics>,
    space: E::Space,
) -> anyhow::Result<(NodeHandles<E>, Node<E>)> {
    let replica = load(&log, &rows).await?;
    let state = replica.state().clone();
    state.set_fetches(options.fetches);
    let (sequencer, queue) = Handle::new(options.lease);
    let watch = watch::Options {
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
        history: LogHistory::new(log.clone(), state),
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
const TAIL: usize = 64;

/// Loads the rows, and the log's tail as far as it is certainly committed; not all of it if others write faster than this reads.
async fn load<L: Log, R: Rows>(log: &L, rows: &R) -> Result<Replica<R>, OpenError> {
    loop {
        let attempt = async {
            let mut replica = Replica::load(log, rows).await?;
            Tail::new(log.clone(), &replica)
                .catch_up(&mut replica, None, TAIL)
                .await?;
            Ok(replica)
        };
        match attempt.await {
            Err(OpenError::Destroyed) => {} // rows are newer now
            outcome => return outcome,
        }
    }
}

/// The space available to a directory.
#[derive(Debug, Clone)]
pub struct DiskSpace {
    path: PathBuf,
    quota: Option<u64>,
    reserve: u64,
}

/// Counts what a log does.
pub fn count_log(done: LogWrite, disk: &DiskMetrics) {
    match done {
        LogWrite::Written(bytes, took) => {
            disk.wal_write.observe(took.as_secs_f64());
            disk.wal_write_bytes.add(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        LogWrite::Synced(took) => disk.wal_fsync.observe(took.as_secs_f64()),
    }
}

/// The free bytes of the medium that only deletions and compaction may use: the minimum, the maximum, and the divisor of its size.
/// This is more than log and rows keep free for themselves; the space that rows need for their next merge is added.
const RESERVE: (u64, u64, u64) = (64 << 20, 256 << 20, 20);

impl DiskSpace {
    /// Returns the space of the file system that holds `path`, limited to `quota` bytes. Fails if the file system cannot be
    /// queried.
    pub fn new(path: &Path, quota: Option<u64>) -> anyhow::Result<Self> {
        let stat =
            rustix::fs::statvfs(path).with_context(|| format!("ask for the free space of {}", path.display()))?;
        let reserve = (stat.f_blocks.saturating_mul(stat.f_frsize) / RESERVE.2).clamp(RESERVE.0, RESERVE.1);
        Ok(Self {
            path: path.to_owned(),
            quota,
            reserve,
        })
    }
}

/// Returns the size of the rows' in-memory table, such that a few tables on disk fit a small medium, too. Fails if the file system
/// cannot be queried.
pub fn memtable_bytes(path: &Path) -> anyhow::Result<u64> {
    let stat = rustix::fs::statvfs(path).with_context(|| format!("ask for the size of {}", path.display()))?;
    Ok((stat.f_blocks.saturating_mul(stat.f_frsize) / 256).clamp(1 << 20, 16 << 20))
}

/// Returns the size of a log's segments that fits the medium and the quota: a segment is allocated as a whole, and both must have
/// room for several. Fails if the file system cannot be queried.
pub fn segment_bytes(path: &Path, quota: Option<u64>) -> anyhow::Result<u32> {
    let stat = rustix::fs::statvfs(path).with_context(|| format!("ask for the size of {}", path.display()))?;
    let share = (stat.f_blocks.saturating_mul(stat.f_frsize) / 32).clamp(4 << 20, 16 << 20);
    let share = quota.map_or(share, |quota| share.min(quota / 16).max(64 << 10));
    Ok(u32::try_from(share).unwrap_or(4 << 20))
}

impl Space for DiskSpace {
    fn exceeded(&mut self, size: impl FnOnce() -> u64, rows: &impl Rows) -> bool {
        // Asked before the size: a merge that ends in between has made that smaller.
        let is_reclaiming = rows.is_reclaiming();
        let full = match rustix::fs::statvfs(&self.path) {
            Ok(stat) => {
                let (free, wanted) = (
                    stat.f_bavail.saturating_mul(stat.f_frsize),
                    self.reserve + rows.to_come(),
                );
                free < self.reserve || (free < wanted && free + rows.left_over() < wanted)
            }
            Err(error) => {
                tracing::warn!(%error, path = %self.path.display(), "cannot ask for the free space");
                false
            }
        };
        full || self.quota.is_some_and(|quota| !is_reclaiming && size() > quota)
    }
}
