//! The space quota: when a store is full.

use std::sync::Arc;

use crate::state::StoreState;
use engine::rows::{DynRows, Rows};

/// The space quota of any engine.
pub type DynSpaceQuota = Arc<dyn SpaceQuota>;

/// The space quota.
pub trait SpaceQuota: Send + Sync + 'static {
    /// Returns true if the quota is used up or the disk is nearly full. `size` returns the space that the store occupies, in bytes, with
    /// what is not flushed yet.
    fn exceeded(&self, size: &dyn Fn() -> u64, rows: &dyn Rows) -> bool;
}

/// Bytes of the store, and of the memtables that become rows.
pub(super) fn occupied(state: &StoreState, rows: &DynRows, memtable_bytes: usize) -> u64 {
    let size = state.total_size(rows);
    match rows.size() {
        Some(_) => size + memtable_bytes as u64,
        None => size,
    }
}
