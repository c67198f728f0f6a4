//! Pods in a store, each written by one writer at a time, which knows its revision.

use std::cell::Cell;

use anyhow::ensure;
use bytes::Bytes;
use tokio::time::Instant;

use crate::guarded_writes::{Change, GuardedWrites};
use crate::objects::pods::{PodGenerator, PodVersion, RUNNING};
use crate::stored_bytes::StoredBytes;

/// A step that no number of pods has in common with: pods are visited in an order of their own.
const SLOT_STEP: u64 = 982_451_653;

pub(crate) struct PodFleet {
    pods: PodGenerator,
    slots: Vec<PodSlot>,
}

/// The place of a pod, and of its successors.
#[derive(Default)]
struct PodSlot {
    version: Cell<PodVersion>,
    /// 0 if there is no pod.
    revision: Cell<i64>,
    /// Of key and value.
    bytes: Cell<u64>,
    is_busy: Cell<bool>,
}

/// A pod as the store must have it.
pub(crate) struct StoredPod {
    pub(crate) key: Bytes,
    pub(crate) revision: i64,
    version: PodVersion,
}

impl PodFleet {
    pub(crate) fn new(count: u64) -> Self {
        let slot = |slot| PodSlot {
            version: Cell::new(PodVersion {
                slot,
                ..PodVersion::default()
            }),
            ..PodSlot::default()
        };
        Self {
            pods: PodGenerator::new(count),
            slots: (0..count).map(slot).collect(),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.slots.len() as u64
    }

    /// The slot of a rank: those of neighbours are far apart, and each has one.
    pub(crate) fn slot(&self, rank: u64) -> u64 {
        slot_of(rank, self.len())
    }

    /// Takes a slot for a writer. False: another one has it.
    pub(crate) fn take(&self, slot: u64) -> bool {
        !self.at(slot).is_busy.replace(true)
    }

    pub(crate) fn release(&self, slot: u64) {
        self.at(slot).is_busy.set(false);
    }

    /// The step of the pod of a slot; `None` if there is none.
    pub(crate) fn step(&self, slot: u64) -> Option<u64> {
        let slot = self.at(slot);
        (slot.revision.get() > 0).then(|| slot.version.get().step)
    }

    fn at(&self, slot: u64) -> &PodSlot {
        &self.slots[slot as usize]
    }

    /// Creates the pod of a slot, which must be absent.
    pub(crate) async fn create(&self, slot: u64, step: u64, to: &PodWrites<'_>, due: Instant) -> anyhow::Result<()> {
        let version = PodVersion {
            step,
            ..self.at(slot).version.get()
        };
        self.put(version, to, due).await
    }

    /// Updates the status of the pod of a slot.
    pub(crate) async fn update(&self, slot: u64, to: &PodWrites<'_>, due: Instant) -> anyhow::Result<()> {
        let version = self.at(slot).version.get();
        let version = PodVersion {
            step: version.step + 1,
            ..version
        };
        self.put(version, to, due).await
    }

    async fn put(&self, version: PodVersion, to: &PodWrites<'_>, due: Instant) -> anyhow::Result<()> {
        let slot = self.at(version.slot);
        let (key, value) = (self.pods.key(version), self.pods.value(version));
        let bytes = (key.len() + value.len()) as u64;
        let revision = to
            .writes
            .write(&key, slot.revision.get(), Change::Put(value), due)
            .await?;
        to.stored.put(slot.bytes.replace(bytes), bytes);
        slot.revision.set(revision);
        slot.version.set(version);
        Ok(())
    }

    /// Deletes the pod of a slot. The next one there has another name.
    pub(crate) async fn delete(&self, slot: u64, to: &PodWrites<'_>, due: Instant) -> anyhow::Result<()> {
        let slot = self.at(slot);
        let version = slot.version.get();
        let key = self.pods.key(version);
        to.writes.write(&key, slot.revision.get(), Change::Delete, due).await?;
        to.stored.delete(slot.bytes.replace(0), key.len() as u64);
        slot.revision.set(0);
        slot.version.set(PodVersion {
            life: version.life + 1,
            step: 0,
            ..version
        });
        Ok(())
    }

    /// Replaces a pod as a Deployment does: deletes it, creates another one, which a scheduler binds and a kubelet starts.
    pub(crate) async fn replace(&self, slot: u64, to: &PodWrites<'_>) -> anyhow::Result<()> {
        self.delete(slot, to, Instant::now()).await?;
        self.create(slot, 0, to, Instant::now()).await?;
        for _ in 0..RUNNING {
            self.update(slot, to, Instant::now()).await?;
        }
        Ok(())
    }

    /// All pods in the order of their keys.
    pub(crate) fn stored(&self) -> Vec<StoredPod> {
        let slots = self.slots.iter().filter(|slot| slot.revision.get() > 0);
        let mut pods: Vec<_> = slots
            .map(|slot| StoredPod {
                key: self.pods.key(slot.version.get()),
                revision: slot.revision.get(),
                version: slot.version.get(),
            })
            .collect();
        pods.sort_by(|one, other| one.key.cmp(&other.key));
        pods
    }

    /// Fails if what was read is not this pod.
    pub(crate) fn check(&self, pod: &StoredPod, read: &wire::mvccpb::KeyValue) -> anyhow::Result<()> {
        ensure!(
            read.key == pod.key && read.mod_revision == pod.revision && read.value == self.pods.value(pod.version),
            "{} of revision {} was read instead of {} of revision {}",
            read.key.escape_ascii(),
            read.mod_revision,
            pod.key.escape_ascii(),
            pod.revision
        );
        Ok(())
    }
}

fn slot_of(rank: u64, slots: u64) -> u64 {
    rank.wrapping_mul(SLOT_STEP) % slots
}

/// The writer of pods, and the count of their bytes.
pub(crate) struct PodWrites<'a> {
    pub(crate) writes: GuardedWrites<'a>,
    pub(crate) stored: &'a StoredBytes,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_rank_has_a_slot_of_its_own() {
        for count in [100, 1_000, 9_999] {
            let slots: BTreeSet<_> = (0..count).map(|rank| slot_of(rank, count)).collect();
            assert_eq!(slots.len() as u64, count);
        }
    }

    #[test]
    fn slots_have_one_writer_at_a_time() {
        let fleet = PodFleet::new(100);
        assert!(fleet.take(7) && !fleet.take(7) && fleet.take(8));
        fleet.release(7);
        assert!(fleet.take(7));
        assert_eq!(fleet.step(7), None);
    }
}
