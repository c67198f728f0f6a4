//! A running store over any log and rows: its tasks, and what services need of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::log::Log;
use crate::metrics::Metrics;
use crate::mvcc::history::LogHistory;
use crate::mvcc::materialize::Materializer;
use crate::mvcc::open;
use crate::rows::Rows;
use crate::sequencer::command::Handle;
use crate::sequencer::{Channels, Options as SequencerOptions, Sequencer, Space};
use crate::state::State;
use crate::tasks::Tasks;
use crate::watch::{self, Hub};

/// Generations on their way to the flush and back. Few: their bytes are what is bounded.
const GENERATIONS: usize = 4;

/// How a store is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bounds of the write path.
    pub sequencer: SequencerOptions,
    /// Bounds of watches.
    pub watch: watch::Options,
    /// How long reads may be answered after a lock was last renewed; zero where no lock is needed.
    pub lease: Duration,
}

/// A store whose tasks run.
pub struct Store<L, R: Rows> {
    /// What is published.
    pub state: Arc<State<R>>,
    /// The way to the writer.
    pub sequencer: Handle,
    /// Where watchers hear of what is committed.
    pub hub: Hub,
    /// Where they read what came before.
    pub history: LogHistory<L, R>,
}

/// Opens a store and starts its tasks. They end after `stop`, when everything acknowledged is flushed.
///
/// # Errors
/// When log or rows cannot be opened.
pub async fn start<L: Log, R: Rows>(
    (log, rows): (L, R),
    options: Options,
    metrics: &Arc<Metrics>,
    space: impl Space,
    tasks: &mut Tasks,
    stop: &CancellationToken,
) -> anyhow::Result<Store<L, R>> {
    let opened = open::open(&log, &rows, options.sequencer.member, options.lease).await?;
    let state = opened.state.clone();
    let (sequencer, commands) = Handle::new();
    let (frozen, to_flush) = mpsc::channel(GENERATIONS);
    let (flushed, from_flush) = mpsc::channel(GENERATIONS);
    let hub = Hub::new(options.watch, state.view().revision);
    let publish = {
        let hub = hub.clone();
        move |committed| hub.publish(committed)
    };
    let background = Materializer::new(
        (log.clone(), rows.clone()),
        state.clone(),
        opened.fence.clone(),
        to_flush,
        flushed,
        (metrics.clone(), stop.clone()),
    );
    let channels = Channels {
        commands,
        frozen,
        flushed: from_flush,
    };
    let writer = Sequencer::new(
        (log.clone(), rows),
        opened,
        channels,
        publish,
        space,
        (options.sequencer, metrics.clone()),
    );
    tasks.spawn("sequencer", writer.run(stop.clone()));
    tasks.spawn("rows", background.run());
    tasks.spawn("watch hub", {
        let (hub, stop) = (hub.clone(), stop.clone());
        async move { hub.run(stop).await }
    });
    let history = LogHistory::new(log, state.clone());
    Ok(Store {
        state,
        sequencer,
        hub,
        history,
    })
}

/// The space that a directory has.
#[derive(Debug)]
pub struct DiskSpace {
    path: PathBuf,
    quota: Option<u64>,
    reserve: u64,
}

/// Free bytes of the medium that only deletions and compaction may use: at least, at most, and as a share of its size.
/// More than what log and rows keep free for themselves.
const RESERVE: (u64, u64, u64) = (64 << 20, 256 << 20, 20);

impl DiskSpace {
    /// The space of the file system that holds `path`, and at most `quota` bytes of it.
    ///
    /// # Errors
    /// When the file system cannot be asked.
    pub fn new(path: &Path, quota: Option<u64>) -> anyhow::Result<Self> {
        let stat =
            rustix::fs::statvfs(path).with_context(|| format!("ask for the free space of {}", path.display()))?;
        let reserve = (stat.f_blocks * stat.f_frsize / RESERVE.2).clamp(RESERVE.0, RESERVE.1);
        Ok(Self {
            path: path.to_owned(),
            quota,
            reserve,
        })
    }
}

/// The size of a log's segments that fits the medium and the quota: a segment is made whole, and both must have room for
/// several.
///
/// # Errors
/// When the file system cannot be asked.
pub fn segment_bytes(path: &Path, quota: Option<u64>) -> anyhow::Result<u32> {
    let stat = rustix::fs::statvfs(path).with_context(|| format!("ask for the size of {}", path.display()))?;
    let share = (stat.f_blocks * stat.f_frsize / 32).clamp(4 << 20, 64 << 20);
    let share = quota.map_or(share, |quota| share.min(quota / 16).max(64 << 10));
    Ok(u32::try_from(share).unwrap_or(4 << 20))
}

impl Space for DiskSpace {
    fn exceeded(&mut self, size: u64) -> bool {
        let full = match rustix::fs::statvfs(&self.path) {
            Ok(stat) => stat.f_bavail * stat.f_frsize < self.reserve,
            Err(error) => {
                tracing::warn!(%error, path = %self.path.display(), "cannot ask for the free space");
                false
            }
        };
        full || self.quota.is_some_and(|quota| size > quota)
    }
}
