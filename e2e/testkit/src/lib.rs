//! Helpers for tests of several crates.

#![allow(clippy::unwrap_used, reason = "a test fails where a helper fails")]

pub mod certificates;
pub mod goal;
pub mod ports;
#[cfg(feature = "requests")]
pub mod requests;
pub mod small_disk;
