// Copyright 2019 TiKV Project Authors. Licensed under Apache-2.0.

/// The value part of a key/value pair: any sequence of bytes.
pub type Value = Vec<u8>;
