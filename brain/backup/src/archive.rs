//! The changes of a running store as an archive keeps them: followed as they happen, and appended to a store that was made of a snapshot.
//!
//! All that changes keys comes by a watch over all of them, revision by revision, none left out and none twice. Leases are no events: the
//! source is asked for the time to live of each lease that a key names. Users, roles and compactions are not followed.

pub use feed::{Feed, FeedItem};
pub use replay::{Replay, ReplayOptions};

mod content;
mod feed;
mod replay;
