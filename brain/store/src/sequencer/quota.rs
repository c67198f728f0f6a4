//! The space quota: when a store is full, and the check before writes.

use std::sync::Arc;

use super::Sequencer;
use crate::alarm::NOSPACE;
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

impl Sequencer {
    /// Returns true if space ran out; raises the alarm if it did.
    pub(super) fn check_space(&mut self) -> bool {
        self.unchecked = 0;
        // An append that finds no space is repeated until there is some, and everything after it waits.
        let is_stuck = self.writer.is_full();
        let size = || occupied(&self.state, &self.rows, self.replica.memtable_bytes());
        let full = is_stuck || self.space.exceeded(&size, &*self.rows);
        if full && !self.is_raising && !self.state.has_alarm(NOSPACE) {
            self.is_raising = true;
            tracing::error!("no space left: puts are refused until space is freed and the NOSPACE alarm is disarmed");
            self.raise(NOSPACE);
            if is_stuck {
                // The log accepts the alarm once it accepts records again: until then the alarm is set only here.
                self.state.alarms().insert((NOSPACE, self.options.member));
            }
        }
        full
    }
}

/// Bytes of the store, and of the memtables that become rows.
fn occupied(state: &StoreState, rows: &DynRows, memtable_bytes: usize) -> u64 {
    let size = state.total_size(rows);
    match rows.size() {
        Some(_) => size + memtable_bytes as u64,
        None => size,
    }
}
