//! Helpers for tests of several crates.

pub mod ports;
