//! A cell: one small value that is compared and set, where several members can reach it.
//!
//! Whoever sets it knows that nobody else did in between. That is all that an election needs of its storage.

use bytes::Bytes;

/// One value, or none, that several members read and replace.
///
/// Laws, proved for every implementation by `cell::laws`:
/// 1. `get` shows the newest value: whatever was set, by anyone, before it was asked.
/// 2. `compare_and_set` sets the value only if the cell holds `expected` at that very moment.
/// 3. `Won` and `Lost` are final. `Unknown` promises nothing: the value may have been set, or may yet be set as long as the
///    cell holds `expected`; only `get` can tell, and only what differs from `expected` ends the doubt.
pub trait Cell: Clone + Send + Sync + 'static {
    /// The value; `None` while there is none.
    ///
    /// # Errors
    /// When the cell cannot be reached.
    fn get(&self) -> impl Future<Output = anyhow::Result<Option<Bytes>>> + Send;

    /// Sets the value to `new`, or removes it, if the cell holds `expected`.
    fn compare_and_set(&self, expected: Option<Bytes>, new: Option<Bytes>) -> impl Future<Output = Swap> + Send;
}

/// What became of a [`Cell::compare_and_set`].
#[derive(Debug)]
pub enum Swap {
    /// The cell holds the new value.
    Won,
    /// The cell held something else and is as it was.
    Lost,
    /// Lost contact before the outcome was known.
    Unknown(anyhow::Error),
}

#[cfg(test)]
pub(crate) mod laws;
pub mod mem;
