//! The space quota: when a store is full, the check before writes, and the end of the alarm once there is space again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Sequencer;
use super::command::{Command, QueuedCommand};
use crate::alarm::NOSPACE;
use crate::state::StoreState;
use engine::rows::{DynRows, Rows};

/// The time for which space must be ample before the alarm is disarmed. A merge that ends may make some that the next one takes.
const DISARM_DELAY: Duration = Duration::from_secs(10);

/// The space quota of any engine.
pub type DynSpaceQuota = Arc<dyn SpaceQuota>;

/// The space quota.
pub trait SpaceQuota: Send + Sync + 'static {
    /// Returns how much space is left. `size` returns the space that the store occupies, in bytes, with what is not flushed yet.
    fn level(&self, size: &dyn Fn() -> u64, rows: &dyn Rows) -> SpaceLevel;
}

/// The space that is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpaceLevel {
    /// Enough to disarm the alarm.
    Ample,
    /// Writes are accepted, but an alarm that is raised stays.
    Low,
    /// The quota is used up, or the disk is nearly full.
    Exhausted,
}

impl Sequencer {
    /// Returns true if space ran out; raises the alarm if it did.
    pub(super) fn check_space(&mut self) -> bool {
        self.unchecked = 0;
        // An append that finds no space is repeated until there is some, and everything after it waits.
        let is_stuck = self.writer.is_full();
        let size = || occupied(&self.state, &self.rows, self.replica.memtable_bytes());
        let level = match is_stuck {
            true => SpaceLevel::Exhausted,
            false => self.space.level(&size, &*self.rows),
        };
        let full = level == SpaceLevel::Exhausted;
        if full && !self.is_raising && !self.state.has_alarm(NOSPACE) {
            self.is_raising = true;
            tracing::error!("no space left: puts are refused until space is freed and the NOSPACE alarm is disarmed");
            self.raise(NOSPACE);
            if is_stuck {
                // The log accepts the alarm once it accepts records again: until then the alarm is set only here.
                self.state.alarms().insert((NOSPACE, self.options.member));
            }
        }
        if self.options.disarms_nospace {
            self.disarm(level);
        }
        full
    }

    /// Disarms the alarm of every member once space has been ample for a while.
    fn disarm(&mut self, level: SpaceLevel) {
        if level != SpaceLevel::Ample || !self.state.has_alarm(NOSPACE) {
            self.ample_since = None;
            return;
        }
        let since = *self.ample_since.get_or_insert_with(Instant::now);
        if since.elapsed() < DISARM_DELAY {
            return;
        }
        // If the alarm stays or is raised again, it takes the same time again.
        self.ample_since = None;
        tracing::info!("there is space again: the NOSPACE alarm is disarmed");
        let raised = self.state.alarms();
        let members = raised
            .iter()
            .filter(|(kind, _)| *kind == NOSPACE)
            .map(|(_, member)| *member);
        let disarm = |member| QueuedCommand::internal(Command::Alarm(member, NOSPACE, false), 64);
        self.alarms.extend(members.map(disarm));
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
