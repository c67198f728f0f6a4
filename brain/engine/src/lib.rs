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

use std::sync::Arc;

use log::{DynLog, Log};
use rows::{DynRows, Rows};

/// The log and the rows of one store. Clones share both.
#[derive(Clone)]
pub struct LogAndRows {
    /// The log.
    pub log: DynLog,
    /// The rows.
    pub rows: DynRows,
}

impl LogAndRows {
    /// The log and the rows of any engine.
    pub fn new(log: impl Log, rows: impl Rows) -> Self {
        Self {
            log: Arc::new(log),
            rows: Arc::new(rows),
        }
    }
}
