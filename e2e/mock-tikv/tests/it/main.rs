//! The mock from the view of the real client.

#![allow(clippy::unwrap_used, reason = "tests")]

mod client;
mod contents;
mod faults;
mod locks;
mod program;
mod regions;
mod restarts;
mod silence;
mod space;
mod tls;
mod transactions;
