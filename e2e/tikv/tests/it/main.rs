//! What the real client sees of the stand-in.

#![allow(clippy::unwrap_used, reason = "tests")]

mod client;
mod transactions;
