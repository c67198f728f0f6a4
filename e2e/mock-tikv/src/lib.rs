//! Replaces PD and TiKV in tests. **A test program: it keeps one copy of the data, and breaks things on command.**
//!
//! Clients of the transaction API see TiKV's behaviour: two-phase and one-phase commit over many versions, locks, regions that split and
//! move, garbage collection, size limits, and all errors that come with them. The inside differs: one ordered map in memory serves all
//! store addresses, and there is at most one data file.
//!
//! [`MockTikv::start`] runs it in this process; the binary `mock-tikv` runs it in its own process, with the same commands over HTTP.

mod change;
mod codec;
pub mod control;
mod delays;
mod engine;
mod faults;
mod gate;
mod hex;
mod journal;
mod latches;
mod mock_tikv;
mod mvcc;
mod options;
mod proto;
mod regions;
mod replication;
mod rpc;
mod server;
mod tso;

pub use delays::{Delay, Delays};
pub use faults::{Action, Fault, FaultError, FaultId, FaultState, Faults, RefusalCode, RegionFault};
pub use journal::JournalError;
pub use mock_tikv::{CommandError, MockTikv, Sizes, StartError};
pub use options::{GcApi, Options, Tls};
pub use regions::{Region, RegionsError};
pub use replication::Tail;
pub use rpc::Rpc;
pub use server::EndpointError;
