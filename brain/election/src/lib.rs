//! Leader election: client-go's algorithm over any lock that compares and sets.
//!
//! A lock only decides which candidate *tries* to lead; data is protected by the leader's fence (a barrier in the brain's log,
//! idempotent server-side applies in the operator). The elector guarantees, as long as clocks run equally fast within the ratio of
//! lease duration to renew deadline: the times during which two candidates consider themselves valid never overlap.
//!
//! - A candidate takes a held lock only after it has seen the record unchanged for the record's whole lease duration on its *own*
//!   clock; wall clocks are never compared. The clock counts suspended time ([`BootClock`]).
//! - A leader's lease ends by itself: a renew deadline after it *sent* the last renewal that succeeded ([`Handle::valid_until`]).
//! - It gives the lock away (release, transfer) only after it has ended its own lease.
//!
//! Modules in reading order: the record and the lock, the clock, the algorithm, the loop, the handle.

mod call;
mod clock;
mod config;
mod elector;
mod handle;
mod kubeconfig;
pub mod laws;
mod lease;
mod lock;
pub mod memory;
mod record;
mod state;

pub use call::{Call, CallKind};
pub use clock::{BootClock, Clock, Moment};
pub use config::{AfterLoss, Config, ConfigError};
pub use elector::{Elector, RunError};
pub use handle::{ElectionState, Handle, Overdue, Term, TransferError};
pub use kubeconfig::as_client_go;
pub use lease::{LeaseLock, client};
pub use lock::{Lock, LockError};
pub use record::{DecodeError, Record, Timestamp};
pub use state::{Decision, Predecessor, State};
