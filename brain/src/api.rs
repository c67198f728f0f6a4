//! The v3 API: protobuf messages in, protobuf messages out.

pub mod status;
