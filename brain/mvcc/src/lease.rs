//! Leases: keys that are deleted unless their owner renews the lease.
//!
//! Pure state. No clock, no I/O: the caller passes `now`, as time since boot, so that time continues while the machine
//! sleeps; it appends checkpoints and performs the deletes.
//!
//! Invariant: every lease in `by_id` has exactly one entry in `by_deadline`, and one in `by_checkpoint` unless a
//! checkpoint of it is recorded or under way.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::time::Duration;

use bytes::Bytes;

use etcd_types::types::LeaseId;

/// The longest time to live that is granted, in seconds (etcd: `lease.MaxLeaseTTL`).
pub const MAX_TTL: i64 = 9_000_000_000;

/// The checkpoint of an expired lease some of whose keys are deleted: it has no time left, and is not renewed.
pub const ENDING_CHECKPOINT: i64 = -1;

/// The longest time without a checkpoint. Shorter leases are checkpointed at half their time to live.
const MAX_CHECKPOINT_INTERVAL: Duration = Duration::from_secs(300);

/// Bytes of memory that a lease takes, the first node of its keys included, and an attached key beside its own bytes, about.
const LEASE_MEMORY_BYTES: usize = 700;
const ATTACHED_KEY_MEMORY_BYTES: usize = 64;

/// Delay of a new leader's first checkpoint of a lease. Checkpoints are in whole seconds, rounded up, so an earlier one would
/// gain nothing.
const FIRST_CHECKPOINT_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Lease {
    ttl: i64,
    /// As of the last checkpoint, in seconds; 0 if a restart grants the whole time to live; or [`ENDING_CHECKPOINT`].
    remaining: i64,
    deadline: Duration,
    checkpoint_at: Duration,
    /// From the checkpoint before to the next one.
    pace: Duration,
    /// A checkpoint was handed out and has not come back through [`Leases::checkpoint`].
    checkpointing: bool,
    /// Handed out by [`Leases::expired`]: it can only be revoked now.
    expiring: bool,
    attached: BTreeSet<Bytes>,
}

impl Lease {
    /// The time that a next leader gives it, in seconds: the checkpoint, or its whole time to live.
    fn noted(&self) -> i64 {
        match self.remaining {
            ENDING_CHECKPOINT => 0,
            ..=0 => self.ttl,
            remaining => remaining.min(self.ttl),
        }
    }

    /// The time left, in seconds, rounded up: a count from that is never early.
    fn left(&self, now: Duration) -> i64 {
        let left = self.deadline.saturating_sub(now);
        i64::try_from(left.as_secs()).unwrap_or(i64::MAX) + i64::from(left.subsec_nanos() > 0)
    }
}

/// The result of a keep-alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewed {
    /// The time to live, in seconds.
    pub ttl: i64,
    /// True if a checkpoint is recorded or under way: it must be cleared durably before the keep-alive is answered.
    pub clear_checkpoint: bool,
}

/// A lease as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredLease {
    /// The lease.
    pub id: LeaseId,
    /// Time to live, in seconds.
    pub ttl: i64,
    /// Remaining time as of the last checkpoint, in seconds; 0 means the whole time to live. Or [`ENDING_CHECKPOINT`].
    pub remaining: i64,
}

/// The state of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    /// Time to live as granted, in seconds.
    pub granted_ttl: i64,
    /// Time left.
    pub remaining: Duration,
    /// Attached keys, in key order, if they were asked for.
    pub keys: Vec<Bytes>,
}

/// All leases.
#[derive(Debug, Default)]
pub struct Leases {
    by_id: HashMap<LeaseId, Lease>,
    by_deadline: BTreeSet<(Duration, LeaseId)>,
    by_checkpoint: BTreeSet<(Duration, LeaseId)>,
    bytes: usize,
}

impl Leases {
    /// Adds a lease. `remaining` is the time of its last checkpoint, in seconds; 0 gives it its whole time to live.
    pub fn grant(&mut self, id: LeaseId, ttl: i64, remaining: i64, now: Duration) {
        // An import gives a lease that is here another time to live: its keys stay attached.
        let attached = self.remove(id).map(|lease| lease.attached).unwrap_or_default();
        self.bytes += attached.iter().map(attached_bytes).sum::<usize>();
        let pace = checkpoint_interval(ttl);
        let mut lease = Lease {
            ttl,
            remaining,
            deadline: now,
            checkpoint_at: now + pace,
            pace,
            checkpointing: false,
            expiring: false,
            attached,
        };
        lease.deadline += seconds(lease.noted());
        self.by_deadline.insert((lease.deadline, id));
        self.by_checkpoint.insert((lease.checkpoint_at, id));
        self.by_id.insert(id, lease);
        self.bytes += LEASE_MEMORY_BYTES;
    }

    /// Removes a lease. Its keys have been deleted or detached before.
    pub fn revoke(&mut self, id: LeaseId) {
        self.remove(id);
    }

    fn remove(&mut self, id: LeaseId) -> Option<Lease> {
        let lease = self.by_id.remove(&id)?;
        self.by_deadline.remove(&(lease.deadline, id));
        self.by_checkpoint.remove(&(lease.checkpoint_at, id));
        self.bytes -= LEASE_MEMORY_BYTES + lease.attached.iter().map(attached_bytes).sum::<usize>();
        Some(lease)
    }

    /// Gives a lease its whole time to live again; `None` if there is no such lease, or it has expired.
    pub fn renew(&mut self, id: LeaseId, now: Duration) -> Option<Renewed> {
        let lease = self.by_id.get_mut(&id)?;
        if lease.expiring || lease.deadline <= now {
            return None;
        }
        self.by_deadline.remove(&(lease.deadline, id));
        lease.deadline = now + seconds(lease.ttl);
        self.by_deadline.insert((lease.deadline, id));
        self.by_checkpoint.remove(&(lease.checkpoint_at, id));
        let clear_checkpoint = lease.remaining > 0 || lease.checkpointing;
        if !clear_checkpoint {
            lease.pace = checkpoint_interval(lease.ttl);
            lease.checkpoint_at = now + lease.pace;
            self.by_checkpoint.insert((lease.checkpoint_at, id));
        }
        Some(Renewed {
            ttl: lease.ttl,
            clear_checkpoint,
        })
    }

    /// Records a checkpoint: the remaining time in seconds, or 0 for none.
    pub fn checkpoint(&mut self, id: LeaseId, remaining: i64, now: Duration) {
        if let Some(lease) = self.by_id.get_mut(&id) {
            lease.remaining = remaining;
            lease.checkpointing = false;
            self.by_checkpoint.remove(&(lease.checkpoint_at, id));
            let longest = checkpoint_interval(lease.ttl);
            lease.pace = if remaining > 0 {
                longest.min(lease.pace * 2)
            } else {
                longest
            };
            lease.checkpoint_at = now + lease.pace;
            self.by_checkpoint.insert((lease.checkpoint_at, id));
        }
    }

    /// Returns the leases that are due for a checkpoint, and their remaining time in seconds; at most `limit`.
    pub fn due_checkpoints(&mut self, now: Duration, limit: usize) -> Vec<(LeaseId, i64)> {
        let due: Vec<_> = self
            .by_checkpoint
            .range(..=(now, LeaseId(i64::MAX)))
            .take(limit)
            .copied()
            .collect();
        let mut noted = Vec::with_capacity(due.len());
        for entry in due {
            self.by_checkpoint.remove(&entry);
            let Some(lease) = self.by_id.get_mut(&entry.1) else {
                continue;
            };
            let left = lease.left(now);
            if !lease.expiring && left > 0 {
                lease.checkpointing = true;
                noted.push((entry.1, left));
            }
        }
        noted
    }

    /// Returns the leases to checkpoint before the next leader takes over: those that it would give more time than they have
    /// left, and their remaining time in seconds, the first to expire first; at most `limit`. Expired leases that are not
    /// revoked yet get the minimum remaining time.
    pub fn final_checkpoints(&mut self, now: Duration, limit: usize) -> Vec<(LeaseId, i64)> {
        let by_deadline = self.by_deadline.iter().filter_map(|(_, id)| {
            let lease = self.by_id.get(id)?;
            let left = lease.left(now).max(1);
            (left < lease.noted()).then_some((*id, left))
        });
        let noted: Vec<_> = by_deadline.take(limit).collect();
        for (id, _) in &noted {
            if let Some(lease) = self.by_id.get_mut(id) {
                self.by_checkpoint.remove(&(lease.checkpoint_at, *id));
                lease.checkpointing = true;
            }
        }
        noted
    }

    /// Leases that have run out, soonest first, at most `limit`. They cannot be renewed any more.
    pub fn expired(&mut self, now: Duration, limit: usize) -> Vec<LeaseId> {
        let due = self.by_deadline.range(..=(now, LeaseId(i64::MAX)));
        let ids: Vec<_> = due
            .map(|(_, id)| *id)
            .filter(|id| self.by_id.get(id).is_some_and(|lease| !lease.expiring))
            .take(limit)
            .collect();
        for id in &ids {
            if let Some(lease) = self.by_id.get_mut(id) {
                lease.expiring = true;
            }
        }
        ids
    }

    /// Returns true if a checkpoint of a lease was handed out and is not recorded yet.
    #[must_use]
    pub fn is_checkpointing(&self, id: LeaseId) -> bool {
        self.by_id.get(&id).is_some_and(|lease| lease.checkpointing)
    }

    /// Returns true if a lease was handed out by [`Leases::expired`].
    #[must_use]
    pub fn is_expiring(&self, id: LeaseId) -> bool {
        self.by_id.get(&id).is_some_and(|lease| lease.expiring)
    }

    /// Takes back that a lease was handed out by [`Leases::expired`], because it could not be revoked: it is handed out again.
    pub fn retry_expired(&mut self, id: LeaseId) {
        if let Some(lease) = self.by_id.get_mut(&id) {
            lease.expiring = false;
        }
    }

    /// Takes the leases over as a new leader. Renewals of the previous leader are not known here, so each lease gets the time of
    /// its last checkpoint, or its whole time to live, from now on (etcd's lessor does the same on `Promote`).
    ///
    /// The next leader grants the time before the first checkpoint again, so the first one is due soon, and each later one after
    /// twice the time, up to the usual interval. Checkpoints cover at least a third of a term that outlives the first one: a
    /// lease that is not renewed expires, however often leaders change.
    pub fn promote(&mut self, now: Duration) {
        self.by_deadline.clear();
        self.by_checkpoint.clear();
        for (id, lease) in &mut self.by_id {
            lease.deadline = now + seconds(lease.noted());
            lease.pace = checkpoint_interval(lease.ttl).min(FIRST_CHECKPOINT_DELAY);
            lease.checkpoint_at = now + lease.pace;
            lease.checkpointing = false;
            lease.expiring = false;
            self.by_deadline.insert((lease.deadline, *id));
            self.by_checkpoint.insert((lease.checkpoint_at, *id));
        }
    }

    /// Attaches a key.
    pub fn attach(&mut self, id: LeaseId, key: Bytes) {
        if let Some(lease) = self.by_id.get_mut(&id) {
            let bytes = attached_bytes(&key);
            if lease.attached.insert(key) {
                self.bytes += bytes;
            }
        }
    }

    /// Detaches a key.
    pub fn detach(&mut self, id: LeaseId, key: &Bytes) {
        if let Some(lease) = self.by_id.get_mut(&id)
            && lease.attached.remove(key)
        {
            self.bytes -= attached_bytes(key);
        }
    }

    /// Bytes of memory that leases and attached keys take, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if the lease exists, though it may have run out.
    #[must_use]
    pub fn contains(&self, id: LeaseId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Keys attached to a lease, in key order.
    pub fn attached(&self, id: LeaseId) -> impl Iterator<Item = &Bytes> {
        self.by_id.get(&id).into_iter().flat_map(|lease| &lease.attached)
    }

    /// The first keys attached to a lease after `key`, at most `most`.
    #[must_use]
    pub fn attached_behind(&self, id: LeaseId, key: Option<&Bytes>, most: usize) -> Vec<Bytes> {
        let Some(lease) = self.by_id.get(&id) else {
            return Vec::new();
        };
        let behind = (key.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let keys = lease.attached.range::<Bytes, _>(behind);
        keys.take(most).cloned().collect()
    }

    /// The number of keys attached to a lease.
    #[must_use]
    pub fn attached_count(&self, id: LeaseId) -> usize {
        self.by_id.get(&id).map_or(0, |lease| lease.attached.len())
    }

    /// Returns the time to live and the checkpointed remaining time of a lease, in seconds.
    #[must_use]
    pub fn stored(&self, id: LeaseId) -> Option<(i64, i64)> {
        self.by_id.get(&id).map(|lease| (lease.ttl, lease.remaining))
    }

    /// All leases as they are stored, in no order.
    #[must_use]
    pub fn all_stored(&self) -> Vec<StoredLease> {
        let leases = self.by_id.iter().map(|(id, lease)| StoredLease {
            id: *id,
            ttl: lease.ttl,
            remaining: lease.remaining,
        });
        leases.collect()
    }

    /// The state of a lease that has not run out, and its keys if `with_keys`: there may be a million of them.
    #[must_use]
    pub fn info(&self, id: LeaseId, now: Duration, with_keys: bool) -> Option<Info> {
        let lease = self.by_id.get(&id).filter(|lease| lease.deadline > now)?;
        Some(Info {
            granted_ttl: lease.ttl,
            remaining: lease.deadline.saturating_sub(now),
            keys: match with_keys {
                true => lease.attached.iter().cloned().collect(),
                false => Vec::new(),
            },
        })
    }

    /// All leases, soonest to run out first.
    pub fn ids(&self) -> impl Iterator<Item = LeaseId> {
        self.by_deadline.iter().map(|(_, id)| *id)
    }
}

fn attached_bytes(key: &Bytes) -> usize {
    ATTACHED_KEY_MEMORY_BYTES + key.len()
}

fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or(0))
}

/// At most half a time to live apart.
fn checkpoint_interval(ttl: i64) -> Duration {
    (seconds(ttl) / 2).min(MAX_CHECKPOINT_INTERVAL)
}

#[cfg(test)]
mod tests;
