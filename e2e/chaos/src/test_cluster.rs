//! Three brains on one TiKV cluster, each in a network namespace of its own, with a bridge between them.

pub(super) mod members;
pub(super) mod network;
pub(super) mod tikv;
