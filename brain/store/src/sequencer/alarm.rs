//! Raises alarms: NOSPACE when the quota is used up, CORRUPT while rows refuse a flush.

use super::Sequencer;
use super::command::{Command, QueuedCommand};
use super::quota::occupied;
use crate::alarm::{CORRUPT, NOSPACE};
use mvcc::record::{Change, Record};

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

    /// Raises the alarm while rows refuse a flush: acknowledged writes could never become rows. NOSPACE is not enough, because it allows
    /// deletions and compactions; only CORRUPT stops all writes.
    pub(super) fn check_flush(&mut self) {
        if self.state.is_flush_refused() && !self.is_raising_corrupt && !self.state.has_alarm(CORRUPT) {
            self.is_raising_corrupt = true;
            self.raise(CORRUPT);
        }
    }

    fn raise(&mut self, alarm: i32) {
        let request = Command::Alarm(self.options.member, alarm, true);
        self.alarms.push(QueuedCommand::internal(request, 64));
    }

    /// An alarm that is published is not being raised any more, even if another record clears it at once.
    pub(super) fn note_alarms(&mut self, record: &Record) {
        for entry in &record.entries {
            if let Some(Change::Alarm(alarm)) = &entry.change {
                match alarm.kind {
                    NOSPACE => self.is_raising = false,
                    CORRUPT => self.is_raising_corrupt = false,
                    _ => {}
                }
            }
        }
    }
}
