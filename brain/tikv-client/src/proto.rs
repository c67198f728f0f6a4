// Copyright 2020 TiKV Project Authors. Licensed under Apache-2.0.

pub(crate) use protos::*;

#[allow(
    dead_code,
    unreachable_pub,
    clippy::all,
    reason = "generated, and most messages are of services that are not called"
)]
mod protos {
    include!(concat!(env!("OUT_DIR"), "/kvproto.rs"));
}
