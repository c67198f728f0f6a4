//! Features of the brain, tested from outside: each against the dumbest etcd that could be right.
// The futures of brains on TiKV are nested deeply.
#![recursion_limit = "256"]
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may stop at once")]

mod alarms;
mod answers;
mod archive;
mod auth;
mod backup;
mod canonical;
mod collector;
mod compaction_pace;
mod counted;
mod defragment;
mod dump;
mod engine;
mod etcd;
mod failing_rows;
mod fetch;
mod first_start;
mod fixtures;
mod follow;
mod grpc;
mod health;
mod hot_rows;
mod http_forms;
mod import;
mod key_index;
mod kubebrain;
mod leader_lease;
mod leases;
mod limits;
mod locks;
mod members;
mod metrics;
mod model;
mod pausable_rows;
mod peer_port;
mod process;
mod program;
mod script;
mod self_hosted_lease;
mod snapshot;
mod spans;
mod stale_leader;
mod stalled;
mod store;
mod text;
mod tikv;
mod traces;
mod watch;
mod wire;

/// A number from the environment: to run a test longer, or once more with the seed that failed.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number in the environment"))
}
