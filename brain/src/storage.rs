//! A member's state in memory, what keeps it in step with log and rows, and what of it is published.

pub mod commit_feed;
pub mod defragment;
pub mod flush;
pub mod history;
pub mod replica;
pub mod retry;
pub mod state;
