//! Rows: an ordered map of bytes with snapshots; the materialised log. It knows nothing of etcd.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

#[cfg(any(test, feature = "laws"))]
pub mod laws;
pub mod mem;

/// Rows of any engine. Clones share them.
pub type DynRows = Arc<dyn Rows>;

/// A snapshot of any engine. Clones share it.
pub type DynSnapshot = Arc<dyn Snapshot>;

/// An ordered map from bytes to bytes that trails the log.
///
/// One row, the fence, is special: every change writes it, after comparing it. The writer records in it which part of the log the
/// rows hold; a writer that finds another fence than expected has been superseded.
///
/// Laws, proved for every implementation by `rows::laws`:
/// 1. `apply` is atomic: all of its changes and the fence are applied, or none; also after a crash.
/// 2. After a crash the rows are the result of some prefix of the applied changes, which includes at least everything that `sync`
///    covered.
/// 3. A snapshot never changes, and contains everything applied before it was taken.
/// 4. Row order is the order of keys as unsigned bytes, for all byte strings.
/// 5. `apply` with the fence that is already stored returns `Ok` and changes nothing, unless that fence is also the expected one:
///    so an `apply` whose outcome is unknown is repeated until it is known.
/// 6. `apply_parallel` applies all of its changes, but not atomically: after an error or a crash any of its steps may be applied,
///    each of them completely. It does not change the fence, and has no effect once the fence is another one.
/// 7. When `take_over` returns, nothing that was begun before is still in progress, and no `apply` or `apply_parallel` that expects
///    an older fence than the stored one will ever take effect.
#[async_trait]
pub trait Rows: Send + Sync + 'static {
    /// Returns a view of the current rows.
    async fn snapshot(&self) -> Result<DynSnapshot, RowsError>;

    /// Returns the fence as last applied; `None` in a fresh map.
    async fn fence(&self) -> Result<Option<Bytes>, RowsError>;

    /// Writes `changes` and the new `fence` in one step, if the stored fence is `expected`.
    async fn apply(&self, expected: Option<Bytes>, fence: Bytes, changes: Vec<RowChange>) -> Result<(), RowsError>;

    /// Writes steps whose order does not matter, guarded by a `fence` that does not change; no row occurs in two of them. No other
    /// writer writes in the meantime: several of them may be in progress at once.
    async fn apply_parallel(&self, fence: Bytes, steps: Vec<Vec<RowChange>>) -> Result<(), RowsError>;

    /// Ends everything that an older writer left unfinished. A new writer calls this before it writes its first fence.
    async fn take_over(&self) -> Result<(), RowsError>;

    /// Returns true if no other process can write the rows, whatever the fence says: it need not be written before the first change.
    fn is_exclusive(&self) -> bool;

    /// Returns when everything applied so far is durable.
    async fn sync(&self) -> Result<(), RowsError>;

    /// Reclaims space that overwritten or deleted rows occupy, if the engine can do more of that than it does by itself. Writes may
    /// wait in the meantime.
    async fn compact(&self) -> Result<(), RowsError>;

    /// Returns the age at which a snapshot should be replaced; `None` if it stays valid for ever.
    fn renew_after(&self) -> Option<Duration>;

    /// Returns once views should be renewed even earlier, because work waits until older views release what they hold. Never returns if
    /// no such work exists.
    async fn renewal_asked(&self);

    /// Returns the recommended upper limit of one `apply`. It accepts more, but no faster.
    fn step(&self) -> StepSize;

    /// Returns the longest row key that `apply` accepts, in bytes.
    fn max_key_len(&self) -> usize;

    /// Returns the longest value of a row that `apply` accepts, in bytes.
    fn max_value_len(&self) -> usize;

    /// Returns the bytes that the rows occupy on their medium, and those in memory that are not there yet; `None` if only the
    /// writers of the rows can count them.
    fn size(&self) -> Option<u64>;

    /// Returns the bytes of them that rows which are not deleted occupy, about; `None` if only the writers of the rows can count them.
    fn in_use(&self) -> Option<u64>;

    /// Tells the bytes of the rows that are not deleted, about, so that an engine whose rows occupy many more gives space back.
    fn set_in_use(&self, _bytes: u64) {}

    /// Returns true while merges that are due may give back space that counts against the quota. If they cannot, it returns false.
    fn is_reclaiming(&self) -> bool;

    /// Returns the bytes of the medium that the engine will need in addition to those it occupies, even if nothing more is put;
    /// more than that must be free for it to continue.
    fn to_come(&self) -> u64;

    /// Returns the snapshots that are open; `None` if they hold nothing.
    fn open_snapshots(&self) -> Option<u64>;

    /// Returns the bytes that it occupies now and will release by itself within seconds.
    fn left_over(&self) -> u64;
}

/// Writes steps one after the other: [`Rows::apply_parallel`] of an engine that gains nothing by more.
pub async fn apply_in_turn(rows: &dyn Rows, fence: Bytes, steps: Vec<Vec<RowChange>>) -> Result<(), RowsError> {
    for step in steps {
        rows.apply(Some(fence.clone()), fence.clone(), step).await?;
    }
    Ok(())
}

/// One change of a row. Keys are never empty, nor longer than [`Rows::max_key_len`]; values are not longer than
/// [`Rows::max_value_len`]. Of several changes of one row the last one counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowChange {
    /// Sets the row `key` to a value.
    Put(Bytes, Bytes),
    /// Removes the row `key`, if it exists.
    Delete(Bytes),
}

/// A consistent view of rows. Cheap to clone; the last clone dropped releases it.
#[async_trait]
pub trait Snapshot: Send + Sync + 'static {
    /// Returns the fence of the snapshot; `None` in a fresh map.
    async fn fence(&self) -> Result<Option<Bytes>, RowsError>;

    /// Returns the value of one row.
    async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, RowsError>;

    /// Returns the values of many rows, in the order of `keys`.
    async fn multi_get(&self, keys: &[Bytes]) -> Result<Vec<Option<Bytes>>, RowsError>;

    /// Returns rows of a range in ascending or descending order. Stops when `scan.max_rows` rows or `scan.max_bytes` bytes are
    /// reached, whichever comes first, but never before the first row. If both limits allow more rows, the range is done, and
    /// [`Page::done`] is set.
    async fn scan(&self, scan: Scan) -> Result<Page, RowsError>;

    /// Returns true if a scan of rows with long values costs much less than a scan of short ones and a get for each long one.
    fn scans_values(&self) -> bool;

    /// Returns up to `parts - 1` keys strictly inside `(from, to)`, ascending, that split the range into parts of roughly equal
    /// size; fewer, or none, if the engine cannot determine them. `to` of `None` is the end of the map.
    async fn split_points(&self, from: &[u8], to: Option<&[u8]>, parts: usize) -> Result<Vec<Bytes>, RowsError>;
}

/// The range to scan.
#[derive(Debug, Clone)]
pub struct Scan {
    /// First key of the range.
    pub from: Bytes,
    /// End of the range, not part of it; `None` is the end of the map.
    pub to: Option<Bytes>,
    /// The end to begin at.
    pub order: Order,
    /// True if values are returned empty.
    pub keys_only: bool,
    /// Rows to return at most.
    pub max_rows: usize,
    /// Bytes of keys and values to return at most, the first row excepted.
    pub max_bytes: usize,
}

/// The direction of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Smallest key first.
    Ascending,
    /// Largest key first.
    Descending,
}

/// Rows that a scan found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Keys and values in the requested order.
    pub rows: Vec<(Bytes, Bytes)>,
    /// True if the range has no more rows.
    pub done: bool,
}

/// An amount of changes that is applied well in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSize {
    /// Rows.
    pub rows: usize,
    /// Bytes of keys and values.
    pub bytes: usize,
    /// The number of steps that one `apply_parallel` handles well.
    pub at_once: usize,
}

/// The reason why rows could not be read or written, one variant for each reaction.
#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    /// Another writer wrote the fence: stop writing.
    #[error("the rows belong to another writer")]
    Fenced(Option<Bytes>),
    /// Stored bytes are not what was written: stop serving, repair nothing.
    #[error("the rows are damaged: {0}")]
    Corrupt(String),
    /// No space on the medium; nothing was written.
    #[error("no space left for rows")]
    Full(#[source] anyhow::Error),
    /// Lost contact before a change was confirmed: repeat it with the same fence.
    #[error("lost contact with the rows before a change was confirmed")]
    Unknown(#[source] anyhow::Error),
    /// The medium cannot be reached: a retry may succeed.
    #[error("the rows cannot be reached")]
    Unavailable(#[source] anyhow::Error),
    /// The medium failed: end the process.
    #[error("the rows failed")]
    Failed(#[source] anyhow::Error),
    /// The change violates the rules of rows, and nothing was written: do not retry it.
    #[error("the rows refuse this change: {0}")]
    Refused(String),
}

impl StepSize {
    /// An amount that suits rows in memory.
    pub const IN_MEMORY: StepSize = StepSize {
        rows: 1_000,
        bytes: 1 << 20,
        at_once: 1,
    };
}

impl RowChange {
    /// Bytes of key and value.
    #[allow(clippy::len_without_is_empty, reason = "a change must have bytes")]
    pub fn len(&self) -> usize {
        match self {
            RowChange::Put(key, value) => key.len() + value.len(),
            RowChange::Delete(key) => key.len(),
        }
    }
}

/// Refuses changes that no engine with these limits accepts.
///
/// # Errors
/// [`RowsError::Refused`] says which limit.
pub fn check_lengths(changes: &[RowChange], max_key_len: usize, max_value_len: usize) -> Result<(), RowsError> {
    for change in changes {
        let (key, value) = match change {
            RowChange::Put(key, value) => (key, value.len()),
            RowChange::Delete(key) => (key, 0),
        };
        if key.is_empty() || key.len() > max_key_len {
            return Err(RowsError::Refused(format!(
                "a row key of {} bytes, which must have between 1 and {max_key_len}",
                key.len()
            )));
        }
        if value > max_value_len {
            return Err(RowsError::Refused(format!(
                "a row value of {value} bytes, which must have at most {max_value_len}"
            )));
        }
    }
    Ok(())
}
