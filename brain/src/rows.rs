//! Rows: an ordered map of bytes with snapshots, the log materialised. It knows nothing of etcd.

use std::time::Duration;

use bytes::Bytes;

pub use self::tikv::{MAX_VALUE_LEN as TIKV_MAX_VALUE_LEN, TikvRows, TikvSnapshot};

pub mod fjall;
#[cfg(test)]
mod laws;
pub mod mem;
mod tikv;

/// An ordered map from bytes to bytes that trails the log.
///
/// One row, the fence, is special: it is written with every change and compared before it. Who writes it tells in it
/// which part of the log the rows hold; whoever finds another fence than expected has been superseded.
///
/// Laws, proved for every implementation by `rows::laws`:
/// 1. `apply` is atomic: all of its changes and the fence are there, or nothing is; also after a crash.
/// 2. After a crash the rows are what some prefix of the applied changes made them, and at least all that `sync` covered.
/// 3. A snapshot never changes, and shows everything applied before it was taken.
/// 4. Row order is the order of keys as unsigned bytes, for all byte strings.
/// 5. `apply` with the fence that is stored already answers `Ok` and changes nothing, unless that fence is also the expected
///    one: so an `apply` whose outcome is unknown is repeated until it is known.
/// 6. `apply_parallel` makes all of its changes, not as one: after an error or a crash any of its steps may be there, each wholly.
///    It leaves the fence as it is, and shows nothing once that is another one.
/// 7. Nothing that was begun before `take_over` answers is still under way, and no `apply` or `apply_parallel` that expects an older
///    fence than the stored one will ever show.
pub trait Rows: Clone + Send + Sync + 'static {
    /// A consistent view of all rows.
    type Snapshot: Snapshot;

    /// A view of the rows as they are now.
    fn snapshot(&self) -> impl Future<Output = Result<Self::Snapshot, RowsError>> + Send;

    /// The fence as last applied; `None` in a fresh map.
    fn fence(&self) -> impl Future<Output = Result<Option<Bytes>, RowsError>> + Send;

    /// Writes `changes` and the new `fence` in one step, if the stored fence is `expected`.
    fn apply(
        &self,
        expected: Option<Bytes>,
        fence: Bytes,
        changes: Vec<Change>,
    ) -> impl Future<Output = Result<(), RowsError>> + Send;

    /// Writes steps whose order does not matter, behind a `fence` that stays; no row occurs in two of them. Nobody else writes
    /// meanwhile: several of them may be under way at once.
    fn apply_parallel(
        &self,
        fence: Bytes,
        steps: Vec<Vec<Change>>,
    ) -> impl Future<Output = Result<(), RowsError>> + Send {
        async move {
            for step in steps {
                self.apply(Some(fence.clone()), fence.clone(), step).await?;
            }
            Ok(())
        }
    }

    /// Ends whatever an older writer left unfinished. A new writer does this before it writes its first fence.
    fn take_over(&self) -> impl Future<Output = Result<(), RowsError>> + Send;

    /// Answers when everything applied so far is durable.
    fn sync(&self) -> impl Future<Output = Result<(), RowsError>> + Send;

    /// Gives space back that is occupied by what was overwritten or deleted, where the engine can do more of that than it does by
    /// itself. Writes may wait meanwhile.
    fn compact(&self) -> impl Future<Output = Result<(), RowsError>> + Send {
        async { Ok(()) }
    }

    /// How old a snapshot should get before it is replaced; `None` where it serves for ever.
    fn renew_after(&self) -> Option<Duration>;

    /// How much one `apply` should carry at most. It takes more, but no faster.
    fn step(&self) -> Step;

    /// The longest row key that `apply` takes, in bytes.
    fn max_key_len(&self) -> usize;

    /// The longest value of a row that `apply` takes, in bytes.
    fn max_value_len(&self) -> usize;

    /// Bytes that the rows occupy on their medium, and in memory as long as they are only there; `None` where only those who write them
    /// can count them.
    fn size(&self) -> Option<u64>;

    /// Bytes of the medium that the engine will need beside what it occupies, even if nothing more is put; more than that must
    /// be free for it to go on.
    fn to_come(&self) -> u64 {
        0
    }

    /// Bytes that it occupies now and will give back by itself within seconds.
    fn left_over(&self) -> u64 {
        0
    }
}

/// One change of a row. Keys are never empty, nor longer than [`Rows::max_key_len`]; values are not longer than
/// [`Rows::max_value_len`]. Of several changes of one row the last one counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Sets the row `key` to a value.
    Put(Bytes, Bytes),
    /// Removes the row `key`, if it is there.
    Delete(Bytes),
}

/// A consistent view of rows. Cheap to clone; the last clone dropped releases it.
pub trait Snapshot: Clone + Send + Sync + 'static {
    /// The fence as it was; `None` in a fresh map.
    fn fence(&self) -> impl Future<Output = Result<Option<Bytes>, RowsError>> + Send;

    /// The value of one row.
    fn get(&self, key: &[u8]) -> impl Future<Output = Result<Option<Bytes>, RowsError>> + Send;

    /// The values of many rows, in the order of `keys`.
    fn multi_get(&self, keys: &[Bytes]) -> impl Future<Output = Result<Vec<Option<Bytes>>, RowsError>> + Send;

    /// Rows of a range in ascending or descending order. Ends where `scan.max_rows` rows or `scan.max_bytes` bytes are reached,
    /// whichever comes first, but never before the first row. Fewer rows than both limits allow means the range is done:
    /// [`Page::done`] says so.
    fn scan(&self, scan: Scan) -> impl Future<Output = Result<Page, RowsError>> + Send;

    /// Up to `parts - 1` keys strictly inside `(from, to)`, ascending, that cut the range into parts of roughly equal
    /// size; fewer, or none, where the engine cannot tell. `to` of `None` is the end of the map.
    fn split_points(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
        parts: usize,
    ) -> impl Future<Output = Result<Vec<Bytes>, RowsError>> + Send;
}

/// The range to scan.
#[derive(Debug, Clone)]
pub struct Scan {
    /// First key of the range.
    pub from: Bytes,
    /// End of the range, not part of it; `None` is the end of the map.
    pub to: Option<Bytes>,
    /// Which end to begin at.
    pub order: Order,
    /// Return keys with empty values.
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
    /// Keys and values in the order asked for.
    pub rows: Vec<(Bytes, Bytes)>,
    /// Nothing is left of the range.
    pub done: bool,
}

/// An amount of changes that is applied well in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Rows.
    pub rows: usize,
    /// Bytes of keys and values.
    pub bytes: usize,
    /// How many steps one `apply_parallel` carries well.
    pub at_once: usize,
}

/// Why rows could not be read or written, one variant for each reaction.
#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    /// Somebody else wrote the fence: stop writing.
    #[error("the rows belong to another writer")]
    Fenced(Option<Bytes>),
    /// Stored bytes are not what was written: stop serving, repair nothing.
    #[error("the rows are damaged: {0}")]
    Corrupt(String),
    /// No space on the medium; nothing was written.
    #[error("no space left for rows")]
    Full(#[source] anyhow::Error),
    /// Lost contact before a change was known to be there: repeat it with the same fence.
    #[error("lost contact with the rows before a change was confirmed")]
    Unknown(#[source] anyhow::Error),
    /// The medium cannot be reached: the same may succeed later.
    #[error("the rows cannot be reached")]
    Unavailable(#[source] anyhow::Error),
    /// The medium failed: end the process.
    #[error("the rows failed")]
    Failed(#[source] anyhow::Error),
    /// The change breaks the rules of rows, and nothing was written: do not try it again.
    #[error("the rows do not take this change: {0}")]
    Refused(String),
}

impl Step {
    /// The options that suit an engine that writes to local files.
    const LOCAL: Step = Step {
        rows: 1_000,
        bytes: 1 << 20,
        at_once: 1,
    };
}

impl Change {
    /// Bytes of key and value.
    pub(crate) fn len(&self) -> usize {
        match self {
            Change::Put(key, value) => key.len() + value.len(),
            Change::Delete(key) => key.len(),
        }
    }
}

/// Refuses what no engine that has these limits takes.
fn check_lengths(changes: &[Change], max_key_len: usize, max_value_len: usize) -> Result<(), RowsError> {
    for change in changes {
        let (key, value) = match change {
            Change::Put(key, value) => (key, value.len()),
            Change::Delete(key) => (key, 0),
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
