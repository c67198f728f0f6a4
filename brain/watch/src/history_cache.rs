//! History in shared chunks, so that a thousand lagging watchers cost little more than one.
//!
//! Streams keep no chunk between two responses: memory holds the cache and the few reads in progress, however many streams lag and
//! however slowly they read. The exception is a chunk that is too large for the cache: the last one is kept for [`LARGE_CHUNK_TTL`], and a
//! stream keeps it, if memory permits, until its other watchers have had their turn. Otherwise each of them would read it again.

use crate::history::DynHistory;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use anyhow::anyhow;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};
use tokio::sync::Semaphore;
use tracing::{info, warn};

use super::WatchLimits;
use super::history::HistoryError;
use super::mailbox::locked;
use super::range::KeyRange;
use super::ring::{Entry, Limit, PrevKv, scan};
use etcd_types::types::Revision;
use runtime::backoff::Backoff;
use runtime::tasks::Owned;

/// The number of concurrent reads, for all streams together.
const CONCURRENT_READS: usize = 4;

/// The delay before a read that failed is repeated.
const READ_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// The time for which a chunk that is too large for the cache is kept for the streams that wait for it.
const LARGE_CHUNK_TTL: Duration = Duration::from_secs(5);

/// All events between two revisions, both included.
#[derive(Debug)]
pub struct Chunk {
    from: Revision,
    through: Revision,
    /// Records whether the events have the versions that they superseded, or say that these are too large.
    prev_kv: PrevKv,
    entries: Vec<Arc<Entry>>,
    weight: usize,
}

/// The result of a read, for all streams that wait for it. It does not keep the chunk, because a stream whose client reads no answers
/// does not take it.
type ReplayResult = Result<Weak<Chunk>, ReplayError>;

/// The reason why a read failed, for all streams that wait for it.
#[derive(Debug, Clone)]
enum ReplayError {
    Compacted(Revision),
    Unavailable(Arc<str>),
}

/// A read in progress. It is a task of its own, because a stream is not polled while its client reads no answers, and other streams wait
/// for the same read, or for its turn. The task ends when no stream waits for it any more.
type ReplayRead = BoxFuture<'static, ReplayResult>;

impl Chunk {
    /// Returns the first revision that the chunk covers.
    #[must_use]
    pub fn from(&self) -> Revision {
        self.from
    }

    /// Returns the last revision that the chunk covers.
    #[must_use]
    pub fn through(&self) -> Revision {
        self.through
    }

    /// Returns the memory that it takes, in bytes.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// Returns true if the chunk satisfies a request with this option.
    #[must_use]
    pub fn has(&self, prev_kv: PrevKv) -> bool {
        self.prev_kv == PrevKv::Included || prev_kv == PrevKv::Omitted
    }

    /// As [`super::ring::Ring::scan`].
    pub(super) fn scan(&self, range: &KeyRange, from: Revision, limit: Limit) -> (Vec<Arc<Entry>>, Revision) {
        let offset = self.entries.partition_point(|entry| entry.revision() < from);
        let through = limit.through.min(self.through);
        scan(self.entries[offset..].iter(), range, Limit { through, ..limit })
    }
}

/// Reads history in chunks and shares them; see the module.
pub struct Replay {
    history: DynHistory,
    options: WatchLimits,
    /// Most recently used last.
    cache: Mutex<VecDeque<Arc<Chunk>>>,
    reads: Semaphore,
    /// Reads in progress: other requests for the same chunk share the result, even if it is too large to be cached.
    loading: Mutex<HashMap<(Revision, PrevKv), WeakShared<ReplayRead>>>,
    /// The last chunk that was too large for the cache, as long as a stream or `kept` holds it.
    large: Mutex<Weak<Chunk>>,
    /// Holds the large chunk for a while.
    kept: Mutex<Option<Owned<()>>>,
    failing: AtomicBool,
}

impl From<HistoryError> for ReplayError {
    fn from(error: HistoryError) -> Self {
        match error {
            HistoryError::Compacted(revision) => Self::Compacted(revision),
            HistoryError::Unavailable(error) => Self::Unavailable(format!("{error:#}").into()),
        }
    }
}

impl Replay {
    /// Creates it with an empty cache.
    pub fn new(history: DynHistory, options: WatchLimits) -> Self {
        Self {
            history,
            options,
            cache: Mutex::default(),
            reads: Semaphore::new(CONCURRENT_READS),
            loading: Mutex::default(),
            large: Mutex::default(),
            kept: Mutex::default(),
            failing: AtomicBool::new(false),
        }
    }

    /// Returns the store's history.
    pub fn history(&self) -> &DynHistory {
        &self.history
    }

    /// Returns true if a chunk is too large for the cache.
    pub fn is_large(&self, chunk: &Chunk) -> bool {
        chunk.weight > self.options.cache_bytes
    }

    /// Returns a cached chunk that covers `revision`, with previous versions if requested.
    pub fn cached(&self, revision: Revision, prev_kv: PrevKv) -> Option<Arc<Chunk>> {
        let serves = |chunk: &Chunk| chunk.has(prev_kv) && (chunk.from..=chunk.through).contains(&revision);
        if let Some(large) = locked(&self.large).upgrade().filter(|large| serves(large)) {
            return Some(large);
        }
        let mut cache = locked(&self.cache);
        let at = cache.iter().position(|chunk| serves(chunk))?;
        let chunk = cache.remove(at)?;
        cache.push_back(Arc::clone(&chunk));
        Some(chunk)
    }

    /// Returns a chunk that begins at or before `from` and covers it, with previous versions if requested. Retries while history
    /// cannot be read. If `from` is compacted, returns the compacted revision as the error.
    pub async fn load(self: &Arc<Self>, from: Revision, prev_kv: PrevKv) -> Result<Arc<Chunk>, Revision> {
        let mut backoff = READ_BACKOFF;
        loop {
            match self.loading(from, prev_kv).await {
                Ok(chunk) => {
                    if self.failing.swap(false, Ordering::Relaxed) {
                        info!("history can be read again");
                    }
                    // Otherwise others have taken its place in the cache since.
                    if let Some(chunk) = chunk.upgrade() {
                        return Ok(chunk);
                    }
                }
                Err(ReplayError::Compacted(revision)) => return Err(revision),
                Err(ReplayError::Unavailable(error)) => {
                    if !self.failing.swap(true, Ordering::Relaxed) {
                        warn!(%from, %error, "cannot read history for watchers; will retry");
                    }
                    tokio::time::sleep(backoff.next_delay()).await;
                }
            }
        }
    }

    /// Returns the read of this chunk that is in progress, or a new one.
    fn loading(self: &Arc<Self>, from: Revision, prev_kv: PrevKv) -> Shared<ReplayRead> {
        let mut loading = locked(&self.loading);
        if let Some(read) = loading.get(&(from, prev_kv)).and_then(WeakShared::upgrade) {
            return read;
        }
        loading.retain(|_, read| read.upgrade().is_some());
        let replay = Arc::clone(self);
        let mut reading = Owned::start(async move {
            let loaded = replay.try_load(from, prev_kv).await;
            // From now on a request for this chunk starts a new read.
            locked(&replay.loading).remove(&(from, prev_kv));
            loaded.map(|chunk| Arc::downgrade(&chunk)).map_err(ReplayError::from)
        });
        let read = async move {
            let ended = reading.end().await;
            ended.unwrap_or_else(|error| Err(ReplayError::Unavailable(format!("{error:#}").into())))
        };
        let read = read.boxed().shared();
        if let Some(weak) = read.downgrade() {
            loading.insert((from, prev_kv), weak);
        }
        read
    }

    async fn try_load(&self, from: Revision, prev_kv: PrevKv) -> Result<Arc<Chunk>, HistoryError> {
        let closed = |error| HistoryError::Unavailable(anyhow::Error::new(error));
        let _permit = self.reads.acquire().await.map_err(closed)?;
        if let Some(chunk) = self.cached(from, prev_kv) {
            return Ok(chunk); // another stream was faster
        }
        let published = self.history.published();
        if from > published {
            let error = anyhow!("revision {from} is newer than the published one, {published}");
            return Err(HistoryError::Unavailable(error));
        }
        let revisions = self.history.read(from, self.options.chunk_bytes, prev_kv).await?;
        let through = revisions.last().map_or(published, |last| last.revision);
        let entries: Vec<_> = revisions.iter().flat_map(Entry::of).collect();
        let chunk = Arc::new(Chunk {
            from,
            through,
            prev_kv,
            weight: entries.iter().map(|entry| entry.weight()).sum(),
            entries,
        });
        self.keep(&chunk);
        Ok(chunk)
    }

    fn keep(&self, chunk: &Arc<Chunk>) {
        // It would evict all others and then be evicted itself.
        if self.is_large(chunk) {
            *locked(&self.large) = Arc::downgrade(chunk);
            let chunk = Arc::clone(chunk);
            *locked(&self.kept) = Some(Owned::start(async move {
                tokio::time::sleep(LARGE_CHUNK_TTL).await;
                drop(chunk);
            }));
            return;
        }
        let mut cache = locked(&self.cache);
        cache.push_back(Arc::clone(chunk));
        let mut weight: usize = cache.iter().map(|chunk| chunk.weight).sum();
        while weight > self.options.cache_bytes {
            let Some(oldest) = cache.pop_front() else { break };
            weight -= oldest.weight;
        }
    }
}
