//! Archives: the changes of a cluster since a backup of it, in segments that follow each other without a gap.
//!
//! Below a destination there are `archive/CLUSTER/FIRST-LAST`, named by the first and the last revision in them, and
//! `archive/CLUSTER/head.json`. A segment is one object: it exists as a whole or not at all. It names its revisions, the last one
//! before it, and times; its content is not known here.

pub use chain::{ChainError, Span, path, reach, spans};
pub use expiry::expired_segments;
pub use marks::{Mark, MarkError};
pub(crate) use name::ARCHIVES;
pub use name::SegmentName;
pub use segment::{Segment, SegmentHeader};
pub use store::{ArchiveWriter, ClusterArchive, StoredSegment, TakenOver};

pub(crate) mod chain;
mod expiry;
mod marks;
mod name;
mod segment;
mod store;
