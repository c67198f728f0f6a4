//! The log: a sequence of slots, each written at most once. It knows nothing of etcd.
//!
//! Epochs, barriers and the limit of open slots belong to the layer above. If several writers share a log, barriers must survive
//! destruction, and only that layer can recognise them: such an engine is configured at creation with the records to keep
//! ([`MemLog::keeping`]). For a log in files a lock excludes a second writer, and barriers are destroyed with their segment.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

pub use self::faulty::{Fault, Faulty};
pub use self::mem::MemLog;
pub use self::observer::{LogObserver, LogWrite};
pub use self::watched::{Unanswered, WatchedLog};

pub mod batch_decoder;
mod faulty;
pub mod frame;
#[cfg(any(test, feature = "laws"))]
pub mod laws;
mod mem;
mod observer;
pub mod reader;
mod watched;
pub mod window;
pub mod writer;

/// The position of a record in the log. The first slot of a fresh log is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Slot(pub u64);

impl Slot {
    /// The slot of the first record of a fresh log.
    pub const FIRST: Slot = Slot(1);

    /// Returns the slot after this one.
    #[must_use]
    pub fn next(self) -> Slot {
        Slot(self.0 + 1)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The id of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogId(pub [u8; 16]);

/// The part of the log that rows are made of, as the rows record it. Records are synced before rows are made of them, so no crash
/// makes the log shorter than this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogOrigin {
    /// The log.
    pub id: LogId,
    /// The last taken slot that any row is made of.
    pub last: Slot,
}

/// A log of any engine. Clones share it.
pub type DynLog = Arc<dyn Log>;

/// A sequence of slots, each written at most once.
///
/// Laws, proved for every implementation by `log::laws`:
/// 1. A record that was appended (`Ok`), or returned by `read` once, is durable and never changes until destroyed.
/// 2. Appending the same bytes to the same slot again does no harm and returns `Ok`.
/// 3. `Taken` means that the slot has other bytes: the writer is deposed. `Unknown` promises nothing: the append may happen now,
///    later or never, and the only remedy is to repeat it with the same bytes.
/// 4. Slots may be appended in any order and may stay free; a free slot does not hide a later one from `read`.
/// 5. The watermark only moves forward, is durable before `raise_watermark` returns, and no slot at or above it is ever destroyed.
///    A destroyed slot reads as a free one.
#[async_trait]
pub trait Log: Send + Sync + 'static {
    /// Writes `record` to `slot` and returns when it is durable. `record` must not be empty nor longer than
    /// [`Log::max_record_len`].
    async fn append(&self, slot: Slot, record: Bytes) -> Result<(), AppendError>;

    /// Returns taken slots at or after `from` in ascending order: at least one if there is any, and then as many as fit into
    /// `max_bytes`. An empty result means that no slot from `from` on is taken.
    async fn read(&self, from: Slot, max_bytes: usize) -> Result<Vec<(Slot, Bytes)>, LogError>;

    /// Returns the slot below which everything may have been destroyed.
    async fn watermark(&self) -> Result<Slot, LogError>;

    /// Moves the watermark forward to `to`; does nothing if it is already there or further.
    async fn raise_watermark(&self, to: Slot) -> Result<(), LogError>;

    /// Destroys slots below the watermark, as many as the engine can cheaply; the rest remains for a later call. Returns true if another
    /// call would destroy more at once.
    async fn destroy_below_watermark(&self) -> Result<bool, LogError>;

    /// Releases space that was allocated for future records.
    async fn shrink(&self) -> Result<(), LogError>;

    /// Returns the log's id if it can be confused with another log, because it is not in one store with the rows.
    fn id(&self) -> Option<LogId>;

    /// Returns the longest record that one slot accepts, in bytes.
    fn max_record_len(&self) -> usize;

    /// Returns the bytes that the log occupies on its medium.
    fn size(&self) -> u64;
}

/// The reason why an append did not return `Ok`, one variant for each reaction.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// Deposed: step down; the outcome of earlier appends is unknown.
    #[error("slot {0} holds another record")]
    Taken(Slot, Bytes),
    /// Repeat with the same bytes until the outcome is known.
    #[error("lost contact before the append to slot {0} was confirmed")]
    Unknown(Slot, #[source] anyhow::Error),
    /// Nothing was written: retry with backoff.
    #[error("no contact with the log")]
    Unavailable(#[source] anyhow::Error),
    /// Nothing was written: raise the NOSPACE alarm.
    #[error("no space left for the log")]
    Full(#[source] anyhow::Error),
    /// The medium failed and the state of the log is uncertain: end the process.
    #[error("the log failed")]
    Failed(#[source] anyhow::Error),
}

/// The reason why the log could not be read or its watermark moved.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Stored bytes are not what was written: stop serving, repair nothing.
    #[error("the log is damaged: {0}")]
    Corrupt(String),
    /// The medium cannot be reached: a retry may succeed.
    #[error("the log cannot be reached")]
    Unavailable(#[source] anyhow::Error),
    /// The medium failed: end the process.
    #[error("the log failed")]
    Failed(#[source] anyhow::Error),
}

/// Refuses a record that no slot accepts. Only a defect of the caller causes this, and a retry would not help.
pub fn check_len(record: &Bytes, max: usize) -> Result<(), AppendError> {
    if (1..=max).contains(&record.len()) {
        return Ok(());
    }
    Err(AppendError::Failed(anyhow::anyhow!(
        "a record has 1 to {max} bytes, not {}",
        record.len()
    )))
}
