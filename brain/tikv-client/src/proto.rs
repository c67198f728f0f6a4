// Copyright 2020 TiKV Project Authors. Licensed under Apache-2.0.

#![allow(clippy::large_enum_variant)]
#![allow(clippy::enum_variant_names)]

pub(crate) use protos::*;

// Most messages are of services that are not called.
#[allow(dead_code, unreachable_pub, clippy::all)]
mod protos {
    include!(concat!(env!("OUT_DIR"), "/kvproto.rs"));
}
