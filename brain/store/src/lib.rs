//! A member's state in memory, the tasks that keep it in step with log and rows, and the published part of it.
//!
//! It must not know other members, nor how requests arrive.

pub mod alarm;
pub mod auth;
pub mod commit_feed;
pub mod defragment;
pub mod flush;
pub mod history;
pub mod index;
pub mod replica;
pub mod retry;
pub mod sequencer;
pub mod state;
