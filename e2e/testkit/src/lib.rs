//! What tests of several crates need.

pub mod ports;
