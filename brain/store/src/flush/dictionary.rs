//! Makes dictionaries of the values that flushes write, for local rows: the first as soon as there are enough of them, another when there are
//! many more, if it is better.

use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;

use super::Flusher;
use super::write_batch::WriteBatch;
use crate::replica::ImmutableMemtable;
use engine::rows::RowChange;
use mvcc::dictionaries::Dictionaries;
use mvcc::keys;
use mvcc::memtable::Memtable;
use runtime::compression::Dictionary;

/// Bytes of the values that a dictionary is made of, at most and at least.
const SAMPLE_BYTES: usize = 2 << 20;
const MIN_SAMPLE_BYTES: usize = 1 << 20;

/// Bytes that are taken of one value: long ones leave no room for others.
const BYTES_PER_SAMPLE: usize = 128 << 10;

/// Shorter values are mostly numbers and names, which differ.
const MIN_VALUE_BYTES: usize = 256;

/// The part that another dictionary must save of what values take with the newest one: one in this many bytes.
const MIN_SAVED: usize = 10;

/// Bytes of values that are flushed before another dictionary is tried, after the first time. They double as often as one is tried.
const FIRST_INTERVAL_BYTES: usize = 64 << 20;

/// Each is in memory, and is never removed.
const MAX_DICTIONARIES: usize = 16;

/// The time for another dictionary, in bytes of values.
#[derive(Debug)]
pub(super) struct DictionarySchedule {
    /// Flushed since a dictionary was tried.
    flushed: usize,
    interval: usize,
}

impl DictionarySchedule {
    /// One is due at once if there is none.
    pub(super) fn new(dictionaries: &Dictionaries) -> Self {
        Self {
            flushed: if dictionaries.is_empty() {
                FIRST_INTERVAL_BYTES
            } else {
                0
            },
            interval: FIRST_INTERVAL_BYTES,
        }
    }

    fn is_due(&self) -> bool {
        self.flushed >= self.interval
    }

    /// One was tried.
    fn tried(&mut self) {
        (self.flushed, self.interval) = (0, self.interval.saturating_mul(2));
    }
}

impl Flusher {
    /// Stores another dictionary before a memtable is flushed, if it is time and one is better.
    pub(super) async fn renew_dictionary(&mut self, immutable: &ImmutableMemtable) -> anyhow::Result<()> {
        let known = self.dictionaries.clone();
        self.schedule.flushed = self.schedule.flushed.saturating_add(immutable.memtable.bytes());
        if !self.rows.is_exclusive() || !self.schedule.is_due() || known.len() >= MAX_DICTIONARIES {
            return Ok(());
        }
        let memtable = immutable.memtable.clone();
        // Takes a tenth of a second.
        let made = tokio::task::spawn_blocking(move || make(&memtable, &known)).await;
        let (samples, made) = match made.context("make a dictionary")? {
            // The next memtable may hold more.
            None => return Ok(()),
            Some(made) => made,
        };
        let Some(dictionary) = made else {
            self.schedule.tried();
            tracing::debug!(samples, "no other dictionary compresses values much better");
            return Ok(());
        };
        let mut batch = WriteBatch::new(&*self.rows, &self.dictionaries);
        let row = keys::dictionary_key(self.dictionaries.len() as u64 + 1);
        batch.push(RowChange::Put(row, dictionary.content().clone()));
        self.apply(batch).await?;
        self.schedule.tried();
        let (id, bytes) = (dictionary.id(), dictionary.content().len());
        tracing::info!(id, bytes, samples, "compressing values with another dictionary");
        self.dictionaries.add(Arc::new(dictionary));
        Ok(())
    }
}

/// Makes a dictionary of values of a memtable. Returns the number of values, and the dictionary if it is much better than what is known;
/// `None` if there are too few values.
fn make(memtable: &Memtable, known: &Dictionaries) -> Option<(usize, Option<Dictionary>)> {
    let samples = samples(memtable);
    if samples.iter().map(Bytes::len).sum::<usize>() < MIN_SAMPLE_BYTES {
        return None;
    }
    let better = Dictionary::train(&samples).filter(|made| {
        let with = |size_of: &dyn Fn(&Bytes) -> usize| samples.iter().map(size_of).sum::<usize>();
        let before = with(&|sample| known.compress(sample).map_or(sample.len(), |frame| frame.len()));
        let after = with(&|sample| made.size_of(sample));
        !known.contains(made) && after <= before - before / MIN_SAVED
    });
    Some((samples.len(), better))
}

/// Values of a memtable, from all over it: of each prefix of keys as many bytes as it has a part in.
fn samples(memtable: &Memtable) -> Vec<Bytes> {
    let values = || {
        let found = memtable.versions().filter_map(|found| found.version.value);
        let long = found.filter(|value| value.len() >= MIN_VALUE_BYTES);
        long.map(|value| value.slice(..value.len().min(BYTES_PER_SAMPLE)))
    };
    let total = values().map(|value| value.len() as u64).sum::<u64>().max(1);
    let (mut samples, mut passed, mut taken) = (Vec::new(), 0, 0);
    for value in values() {
        passed += value.len() as u64;
        // As large a part of the samples is taken as was passed of all values.
        if total <= SAMPLE_BYTES as u64 || taken < passed * SAMPLE_BYTES as u64 / total {
            taken += value.len() as u64;
            samples.push(value);
        }
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;
    use etcd_types::types::LeaseId;
    use mvcc::memtable::{MemtableSet, Version};
    use std::collections::BTreeMap;

    fn memtable(values: impl Iterator<Item = (String, impl Into<Bytes>)>) -> Arc<Memtable> {
        let memtable = MemtableSet::new().active().clone();
        for (revision, (key, value)) in (2..).zip(values) {
            let version = Version {
                create_revision: revision,
                version: 1,
                prev_mod: 0,
                lease: LeaseId::default(),
                value: Some(value.into()),
            };
            memtable.insert(key.into(), revision, version);
        }
        memtable
    }

    /// Objects of two kinds: a few long ones, and many short ones.
    fn objects(count: usize) -> impl Iterator<Item = (String, String)> {
        (0..count).map(|number| match number % 10 {
            0 => {
                let value = format!("pod: {number}, {}", "container: main, image: nginx, ".repeat(300));
                (format!("/registry/pods/{number:08}"), value)
            }
            _ => {
                let value = format!(
                    "lease: {number}, holder: node-{}, {}",
                    number % 100,
                    "spec: none, ".repeat(80)
                );
                (format!("/registry/leases/{number:08}"), value)
            }
        })
    }

    #[test]
    fn samples_are_of_each_prefix_by_its_part_of_the_bytes() {
        let memtable = memtable(objects(10_000));
        let mut bytes = BTreeMap::new();
        for sample in samples(&memtable) {
            *bytes.entry(sample[..3].to_vec()).or_insert(0) += sample.len();
        }
        let (leases, pods) = (bytes[&b"lea"[..]], bytes[&b"pod"[..]]);
        assert!(
            (SAMPLE_BYTES..SAMPLE_BYTES + 20_000).contains(&(leases + pods)),
            "{leases} {pods}"
        );
        // 8.9 and 9.3 MB of values.
        assert!(leases * 10 > pods * 8 && pods * 10 > leases * 8, "{leases} {pods}");
    }

    #[test]
    fn few_long_and_short_values_are_no_samples() {
        let known = Dictionaries::default();
        assert!(make(&memtable(objects(100)), &known).is_none());
        let short = (0..100_000).map(|number| (format!("k{number}"), "x".repeat(MIN_VALUE_BYTES - 1)));
        assert!(make(&memtable(short), &known).is_none());
    }

    #[test]
    fn another_dictionary_is_better_or_is_not_made() {
        let known = Dictionaries::default();
        let (of_objects, of_others) = (memtable(objects(10_000)), {
            let other = |number: usize| format!("event {number}: {}", "scheduled to a machine; ".repeat(50));
            memtable((0..5_000).map(move |number| (format!("/registry/events/{number}"), other(number))))
        });
        for (memtable, is_better) in [(&of_objects, true), (&of_objects, false), (&of_others, true)] {
            let (_, made) = make(memtable, &known).unwrap();
            assert_eq!(made.is_some(), is_better, "{}", known.len());
            if let Some(made) = made {
                known.add(Arc::new(made));
            }
        }
        let random = (0..4_000).map(|number| {
            let value: Vec<u8> = (0..1_000).map(|_| rand::random()).collect();
            (format!("k{number}"), value)
        });
        assert!(make(&memtable(random), &known).unwrap().1.is_none());
    }
}
