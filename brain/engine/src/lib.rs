//! The storage interfaces below a store: a log whose slots are written once, rows that the log is applied to, and a register with
//! compare-and-set.
//! Their laws, which every engine keeps, and engines in memory for tests.
//!
//! It must not know a real engine, nor anything of etcd.

pub mod cas_register;
#[cfg(any(test, feature = "laws"))]
pub mod hooked;
pub mod log;
pub mod rows;

/// The log and the rows of one store.
#[derive(Debug, Clone)]
pub struct LogAndRows<L, R> {
    /// The log.
    pub log: L,
    /// The rows.
    pub rows: R,
}
