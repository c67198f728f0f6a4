//! Raises alarms: NOSPACE when [the quota](super::quota) is used up, CORRUPT while rows refuse a flush.

use super::Sequencer;
use super::command::{Command, QueuedCommand};
use crate::alarm::{CORRUPT, NOSPACE};
use mvcc::record::{Change, Record};

impl Sequencer {
    /// Raises the alarm while rows refuse a flush: acknowledged writes could never become rows. NOSPACE is not enough, because it allows
    /// deletions and compactions; only CORRUPT stops all writes.
    pub(super) fn check_flush(&mut self) {
        if self.state.is_flush_refused() && !self.is_raising_corrupt && !self.state.has_alarm(CORRUPT) {
            self.is_raising_corrupt = true;
            self.raise(CORRUPT);
        }
    }

    pub(super) fn raise(&mut self, alarm: i32) {
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
