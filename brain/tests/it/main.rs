//! Features of the brain, tested from outside: each against the dumbest etcd that could be right.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may stop at once")]

mod engine;
mod etcd;
mod grpc;
mod model;
mod process;
mod same;
mod script;
mod store;
mod text;
mod wire;
