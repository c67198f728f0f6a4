//! Checks of the repository as a whole.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod architecture;
