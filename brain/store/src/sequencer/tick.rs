//! The periodic work of the writer: expires leases, checkpoints them, checks the free space, flushes old memtables.

use super::Sequencer;
use super::command::{Command, QUEUE_CAPACITY, QueuedCommand};
use super::lease::limit::LeaseRoom;
use crate::alarm::CORRUPT;
use etcd_types::types::LeaseId;
use runtime::clock::since_boot;

/// Leases that expire in one tick at most (etcd: 1,000 a second).
pub(super) const EXPIRES_PER_TICK: usize = 500;

/// The same while more leases run out than that: others must not wait for them for hours.
const MAX_EXPIRES_PER_TICK: usize = 16_000;

/// Lease checkpoints in one tick at most (etcd: 1,000 a second).
const CHECKPOINTS_PER_TICK: usize = 500;

/// Maximum number of lease checkpoints at the end of a term: some hundred kilobytes, which the next leader must apply before it serves. For
/// further leases it uses the last checkpoint, as it does without a transfer.
const MAX_FINAL_CHECKPOINTS: usize = 20_000;

/// Bytes that a checkpoint takes in a record, roughly.
const CHECKPOINT_BYTES: usize = 20;

impl Sequencer {
    /// While no commands are taken: removes those whose clients do not wait any more, so that others are not refused because of them.
    fn forget_abandoned(&mut self) {
        if self.may_take() {
            return;
        }
        self.pending.retain(|command| !command.is_abandoned());
        while self.pending.len() < QUEUE_CAPACITY {
            let Ok(command) = self.commands.try_recv() else { break };
            if !command.is_abandoned() {
                self.pending.push_back(command);
            }
        }
    }

    /// Writes the last record of a term: the remaining time of leases, so that the next leader does not give them more.
    pub(super) fn checkpoint_leases(&mut self) {
        let leases = self
            .state
            .leases()
            .final_checkpoints(since_boot(), MAX_FINAL_CHECKPOINTS);
        self.note(leases);
    }

    /// Has one record note the remaining time of leases.
    fn note(&mut self, leases: Vec<(LeaseId, i64)>) {
        if !leases.is_empty() {
            let bytes = leases.len() * CHECKPOINT_BYTES;
            self.pending
                .push_back(QueuedCommand::internal(Command::Checkpoint(leases), bytes));
        }
    }

    /// Refuses further leases while the existing ones take as much memory as they may.
    fn check_leases(&mut self, bytes: usize) {
        let room = LeaseRoom::of(bytes, self.options.lease_bytes, self.lease_room);
        if room > LeaseRoom::Ample && self.lease_room == LeaseRoom::Ample {
            let most = self.options.lease_bytes;
            tracing::error!(
                bytes,
                most,
                "leases use too much memory: no more are granted, and no more keys are attached"
            );
        } else if room == LeaseRoom::Ample && self.lease_room > room {
            tracing::info!(bytes, "granting leases again");
        }
        self.lease_room = room;
    }

    /// Handles expired leases, due checkpoints, space, and data that has been unflushed for long.
    pub(super) fn tick(&mut self) {
        let now = since_boot();
        // Nothing is deleted while data is damaged: they end when the alarm is cleared.
        let is_corrupt = self.state.has_alarm(CORRUPT);
        let limit = match is_corrupt {
            true => 0,
            false => self.expire_limit.saturating_sub(self.lease_ends.waiting()),
        };
        let (expired, checkpoints, bytes) = {
            let mut leases = self.state.leases();
            (
                leases.expired(now, limit),
                leases.due_checkpoints(now, CHECKPOINTS_PER_TICK),
                leases.bytes(),
            )
        };
        self.expire_limit = match self.lease_ends.are_retried() {
            true => EXPIRES_PER_TICK,
            false => next_limit(self.expire_limit, limit, expired.len()),
        };
        self.check_leases(bytes);
        self.metrics.lease.expired.inc_by(expired.len() as u64);
        if !is_corrupt {
            self.lease_ends.extend(&self.state, expired);
        }
        self.note(checkpoints);
        self.forget_abandoned();
        self.check_space();
        self.check_flush();
        let is_old = self.replica.last_rotation().elapsed() >= self.options.flush_interval;
        // While rows refuse a memtable, further ones would only queue after it.
        if self.replica.is_dirty() && is_old && !self.state.is_flush_refused() {
            self.rotate();
        }
    }
}

/// The leases that may expire in the next tick, after `expired` of `limit` did in this one, which were `most` less those that still wait.
fn next_limit(most: usize, limit: usize, expired: usize) -> usize {
    match expired < limit {
        true => EXPIRES_PER_TICK,
        // Those that were handed out before are read by now.
        false if limit == most => (2 * most).min(MAX_EXPIRES_PER_TICK),
        false => most,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_leases_end_at_once_while_too_many_run_out() {
        let next = |most, limit, expired| next_limit(most, limit, expired);
        assert_eq!(
            next(EXPIRES_PER_TICK, EXPIRES_PER_TICK, EXPIRES_PER_TICK),
            2 * EXPIRES_PER_TICK
        );
        assert_eq!(
            next(MAX_EXPIRES_PER_TICK, MAX_EXPIRES_PER_TICK, MAX_EXPIRES_PER_TICK),
            MAX_EXPIRES_PER_TICK
        );
        assert_eq!(next(4_000, 3_000, 3_000), 4_000, "some still wait");
        assert_eq!(next(4_000, 0, 0), 4_000, "all still wait");
        assert_eq!(next(4_000, 3_000, 2_999), EXPIRES_PER_TICK, "no more have run out");
    }
}
