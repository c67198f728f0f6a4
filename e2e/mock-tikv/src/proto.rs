//! PD's and TiKV's messages and server traits, generated from the client crate's own `.proto` files.

#![allow(
    clippy::all,
    clippy::pedantic,
    dead_code,
    unreachable_pub,
    missing_docs,
    rustdoc::all,
    reason = "generated code"
)]

include!(concat!(env!("OUT_DIR"), "/kvproto.rs"));
