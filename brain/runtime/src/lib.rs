//! Building blocks that every server needs, whatever it serves: tasks that end together, a thread for tasks that must not wait, budgets of
//! memory, the clock, limits of the process, delays between attempts, log lines that do not
//! repeat, compression.
//!
//! It must not know anything of etcd, of storage or of the network.

pub mod backoff;
pub mod budget;
pub mod clock;
pub mod compression;
pub mod kill_points;
pub mod log_once;
pub mod memory;
pub mod open_files;
pub mod own_thread;
pub mod tasks;
