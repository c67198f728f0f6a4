//! The log in files of one directory: the embedded engine.
//!
//! - **Segments** (`log/segment.rs`) are preallocated files in which frames (`log/frame.rs`) follow each other in the
//!   order of arrival. The first frame of each says where the segment before it ends.
//! - **One thread** (`log/writer.rs`) writes them: all that is queued as one batch, one `fdatasync`, then the answers.
//! - **`control`** (`log/control.rs`) holds the watermark and says which segments must exist.
//! - **Index files** (`log/segment_index.rs`) belong to segments that are no longer written to, and may be missing.
//! - **Open** (`log/open.rs`) reads everything once that is not in rows yet. A batch is written only when all before it is synced, so
//!   any frame proves everything before its batch; and when the queue runs empty a mark after the last batch proves that one too.
//!   Hence only a last batch without a mark can be torn, or be in the page cache alone: a torn one is cut; one in the page cache is
//!   written again into a new file and synced before any reader sees it (`log/recover_tail.rs`). All other invalid content is
//!   damage: it is named, and nothing is repaired.
//! - What remains undetected: damage to a last batch without a mark looks like a torn one. The mark is not synced itself,
//!   so this takes a power loss right after the last answer *and* a damaged sector in just that batch.
//!
//! Any failed write or sync ends the service of the log: later calls fail too, and the process must end. A lack of space is not
//! such a failure: space is taken by preallocation, before anything is written.
//!
//! The directory must not be open twice. The caller holds a lock on the data directory; the log takes none of its own.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use self::control::ControlState;
use self::disk::Disk;
pub use self::error::FileLogOpenError;
use self::shared::LogShared;
pub use self::stored::StoredLog;
use self::writer::{AppendRequest, LogWriter, WriterCommand};
use engine::log::{AppendError, Log, LogError, LogId, LogObserver, LogOrigin, Slot, check_len};

mod control;
mod disk;
mod error;
mod frame;
mod index;
mod open;
mod page;
mod read;
mod record;
mod recover_tail;
mod scan;
mod segment;
mod segment_index;
mod shared;
mod stored;
#[cfg(test)]
pub(crate) mod tests;
mod writer;

/// Appends that wait for the writer; further ones wait in their callers.
const APPEND_QUEUE_CAPACITY: usize = 1024;

/// Sizes of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLogOptions {
    /// Bytes of the first segment. Each one is twice as long as the one before it, so that an idle log stays small.
    pub first_segment_bytes: u32,
    /// Bytes that segments grow to. A segment with a longer record is as long as that record requires.
    pub segment_bytes: u32,
    /// Do not wait for the disk: acknowledged records may be lost if the machine fails, but not if only the process fails.
    pub unsafe_no_fsync: bool,
}

impl Default for FileLogOptions {
    fn default() -> Self {
        Self {
            first_segment_bytes: 4 << 20,
            segment_bytes: 16 << 20,
            unsafe_no_fsync: false,
        }
    }
}

/// A log in a directory. Clones are handles to the same log; the last one dropped ends its writer and waits for that.
#[derive(Debug, Clone)]
pub struct FileLog {
    inner: Arc<FileLogInner>,
}

#[derive(Debug)]
struct FileLogInner {
    shared: Arc<LogShared>,
    /// `None` only while it is dropped.
    queue: Option<mpsc::Sender<WriterCommand>>,
    writer: Option<JoinHandle<()>>,
}

impl Drop for FileLogInner {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the log's writer panicked");
        }
    }
}

impl FileLog {
    /// Longest record, in bytes.
    pub const MAX_RECORD_LEN: usize = 16 << 20;

    /// Opens the log in `dir`, or begins one there. Blocks: it reads everything that is stored, and trusts no index file.
    ///
    /// # Errors
    /// The log is not as it was left: see [`FileLogOpenError`]. Nothing was changed then.
    pub fn open(dir: &Path, options: FileLogOptions) -> Result<FileLog, FileLogOpenError> {
        Self::open_on(dir, options, Disk::default(), None)
    }

    /// Opens the log as [`Self::open`] does, but reads only what the rows of `origin` do not hold yet, and refuses a log that those rows
    /// do not come from. It tells `observer` of each write and sync of a batch.
    pub fn open_for(
        dir: &Path,
        options: FileLogOptions,
        observer: LogObserver,
        origin: Option<LogOrigin>,
    ) -> Result<FileLog, FileLogOpenError> {
        Self::open_on(dir, options, Disk::observed(observer), origin)
    }

    /// Returns the id and the watermark of the log in `dir`, if there is one. Writes nothing.
    pub fn stored_watermark(dir: &Path) -> Result<Option<(LogId, Slot)>, FileLogOpenError> {
        if !dir.join(control::CONTROL_FILE).exists() {
            return Ok(None);
        }
        let control = control::Control::open(dir, &Disk::default())?;
        Ok(Some((control.id, Slot(control.state.watermark))))
    }

    fn open_on(
        dir: &Path,
        options: FileLogOptions,
        disk: Disk,
        origin: Option<LogOrigin>,
    ) -> Result<FileLog, FileLogOpenError> {
        let options = options.clamped();
        let (shared, active, next) = open::open(dir, options, disk, origin)?;
        let (queue, inbox) = mpsc::channel(APPEND_QUEUE_CAPACITY);
        let writer = LogWriter::new(Arc::clone(&shared), inbox, active, next);
        let thread = std::thread::Builder::new().name("log-writer".into());
        let writer = thread
            .spawn(move || writer.run())
            .map_err(FileLogOpenError::io("start the writer of", dir))?;
        let inner = FileLogInner {
            shared,
            queue: Some(queue),
            writer: Some(writer),
        };
        Ok(FileLog { inner: Arc::new(inner) })
    }

    /// Runs `work` where it may block, and to its end even if the caller goes away.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LogShared) -> Result<T, LogError> + Send + 'static,
    ) -> Result<T, LogError> {
        let inner = Arc::clone(&self.inner);
        let work = move || match inner.shared.failure() {
            Some(reason) => Err(LogError::Failed(anyhow::anyhow!("the log failed earlier: {reason}"))),
            None => work(&inner.shared),
        };
        tokio::task::spawn_blocking(work)
            .await
            .unwrap_or_else(|error| Err(LogError::Failed(error.into())))
    }
}

impl FileLogOptions {
    /// Lengths that a header and a frame fit into, in whole pages, and that 32 bits can address.
    fn clamped(self) -> Self {
        let whole = |bytes: u32| bytes.clamp(2 << 12, 1 << 30) & !0xfff;
        Self {
            first_segment_bytes: whole(self.first_segment_bytes),
            segment_bytes: whole(self.segment_bytes),
            ..self
        }
    }
}

/// The reaction to a failed change of `control`: without space it is made later.
fn changed(error: std::io::Error) -> LogError {
    if disk::is_full(&error) {
        LogError::Unavailable(error.into())
    } else {
        LogError::Failed(error.into())
    }
}

#[async_trait]
impl Log for FileLog {
    async fn append(&self, slot: Slot, record: Bytes) -> Result<(), AppendError> {
        check_len(&record, Self::MAX_RECORD_LEN)?;
        let gone = || AppendError::Failed(anyhow::anyhow!("the log's writer has ended"));
        let (reply, answer) = oneshot::channel();
        let queue = self.inner.queue.as_ref().ok_or_else(gone)?;
        queue
            .send(WriterCommand::Append(AppendRequest::new(slot, record, reply)))
            .await
            .map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    async fn read(&self, from: Slot, max_bytes: usize) -> Result<Vec<(Slot, Bytes)>, LogError> {
        self.blocking(move |shared| {
            let places = shared.index().collect(from.0, max_bytes);
            read::records(&places, max_bytes)
        })
        .await
    }

    async fn watermark(&self) -> Result<Slot, LogError> {
        self.blocking(|shared| Ok(Slot(shared.state().watermark))).await
    }

    async fn raise_watermark(&self, to: Slot) -> Result<(), LogError> {
        self.blocking(move |shared| {
            let raise = |state: ControlState| ControlState {
                watermark: state.watermark.max(to.0),
                ..state
            };
            shared.change(raise).map_err(changed)
        })
        .await
    }

    async fn destroy_below_watermark(&self) -> Result<bool, LogError> {
        self.blocking(|shared| shared.destroy().map_err(changed)).await?;
        Ok(false)
    }

    async fn shrink(&self) -> Result<(), LogError> {
        let failed = |reason: String| LogError::Failed(anyhow::anyhow!(reason));
        let gone = || failed("the log's writer has ended".to_owned());
        let (reply, answer) = oneshot::channel();
        let queue = self.inner.queue.as_ref().ok_or_else(gone)?;
        queue.send(WriterCommand::Shrink(reply)).await.map_err(|_| gone())?;
        answer
            .await
            .unwrap_or_else(|_| Err("the log's writer has ended".to_owned()))
            .map_err(failed)?;
        self.destroy_below_watermark().await.map(drop)
    }

    fn id(&self) -> Option<LogId> {
        Some(self.inner.shared.id)
    }

    fn max_record_len(&self) -> usize {
        Self::MAX_RECORD_LEN
    }

    fn size(&self) -> u64 {
        self.inner.shared.bytes()
    }
}
