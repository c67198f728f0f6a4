//! The file format of bbolt, in which etcd keeps its store and sends snapshots. It knows nothing of etcd.
//!
//! A file is a sequence of pages. Pages 0 and 1 are meta pages; the valid one with the higher transaction id counts. It
//! names the page of the root bucket, a tree of branch and leaf pages whose values are buckets, each a tree of its own. A page that
//! is too long for its place continues in the following pages, its overflow.
//!
//! [`Writer`] writes a file from front to back, from keys in ascending order, and holds no more than one page of each level of a
//! tree. [`Reader`] takes nothing in a file for granted: numbers of pages, lengths and the order of keys are checked, no page is read
//! twice, and elements of a page share no bytes, so that a damaged or hostile file has no more content than bytes, or ends in an [`Error`].

pub use self::reader::{BucketEntries, ReadAt, Reader, VisitedPart};
pub use self::writer::Writer;

mod page;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

/// The reason why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is no file of bbolt, or it is damaged.
    #[error("the database is damaged: {0}")]
    Damaged(String),
    /// The file system returned an error.
    #[error("the database cannot be read")]
    Io(#[from] std::io::Error),
}
