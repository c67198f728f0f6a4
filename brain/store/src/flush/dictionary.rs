//! Makes dictionaries of the values that flushes write, for local rows: the first as soon as there are enough of them, another when there are
//! many more, if it is better.

use std::sync::Arc;

use bytes::Bytes;

use super::Flusher;
use super::write_batch::WriteBatch;
use crate::replica::ImmutableMemtable;
use engine::rows::RowChange;
use mvcc::dictionaries::Dictionaries;
use mvcc::keys;
use mvcc::memtable::Memtable;
use runtime::compression::{Dictionary, MIN_BYTES_WITH_DICTIONARY};

/// Bytes of the values that a dictionary is made of, about.
const SAMPLE_BYTES: usize = 2 << 20;

/// The number of values that it is made of, at least: a few long ones have nothing in common with others.
const MIN_SAMPLES: usize = 16;

/// Bytes that are taken of one value: long ones leave no room for others.
const BYTES_PER_SAMPLE: usize = 128 << 10;

/// Dictionaries hold pieces of values, and stay when these are gone. So there is none of values with this in their key: Secrets of Kubernetes.
const NEVER_SAMPLED: &[u8] = b"/secrets/";

/// The part that another dictionary must save of what samples take with the newest one: one in this many bytes.
const MIN_SAVED: usize = 10;

/// Bytes of values that are flushed before the first dictionary is made, and before the second. Each further one needs twice as many.
const FIRST_INTERVAL_BYTES: usize = 1 << 20;
const SECOND_INTERVAL_BYTES: usize = 64 << 20;

/// Each is in memory, and is never removed.
const MAX_DICTIONARIES: usize = 16;

/// The values for another dictionary, collected over flushes.
#[derive(Debug, Default)]
pub(super) struct DictionarySamples {
    /// Of all of them alike.
    taken: Vec<Bytes>,
    bytes: usize,
    /// Bytes of the values that were flushed since a dictionary was tried, and the number of them after which the next one is.
    flushed: usize,
    interval: usize,
}

impl DictionarySamples {
    /// None yet, of a store with these dictionaries.
    pub(super) fn new(known: &Dictionaries) -> Self {
        let interval = match known.len() {
            0 => FIRST_INTERVAL_BYTES,
            known => SECOND_INTERVAL_BYTES << (known - 1).min(MAX_DICTIONARIES),
        };
        Self {
            interval,
            ..Self::default()
        }
    }

    /// Takes as many values of a memtable as are its part in the interval.
    fn take(&mut self, memtable: &Memtable) {
        let values = || {
            let found = memtable.versions();
            let found = found.filter(|found| !found.key.windows(NEVER_SAMPLED.len()).any(|part| part == NEVER_SAMPLED));
            let values = found.filter_map(|found| found.version.value);
            values.filter(|value| value.len() >= MIN_BYTES_WITH_DICTIONARY)
        };
        let sampled = |value: &Bytes| value.len().min(BYTES_PER_SAMPLE);
        let all = self.flushed + values().map(|value| sampled(&value)).sum::<usize>();
        let interval = self.interval.max(all) as u64;
        for value in values() {
            self.flushed += sampled(&value);
            let wanted = (self.flushed as u64).saturating_mul(SAMPLE_BYTES as u64) / interval;
            if (self.bytes as u64) < wanted {
                self.bytes += sampled(&value);
                // A slice would keep all of its record.
                self.taken.push(Bytes::copy_from_slice(&value[..sampled(&value)]));
            }
        }
    }

    fn are_enough(&self) -> bool {
        self.flushed >= self.interval && self.taken.len() >= MIN_SAMPLES
    }

    /// Returns a dictionary of them if it is much better than those which are known.
    fn better_than(&self, known: &Dictionaries) -> Option<Dictionary> {
        Dictionary::train(&self.taken).filter(|made| {
            let with = |size_of: &dyn Fn(&Bytes) -> usize| self.taken.iter().map(size_of).sum::<usize>();
            let before = with(&|sample| known.compress(sample).map_or(sample.len(), |frame| frame.len()));
            let after = with(&|sample| made.size_of(sample));
            !known.contains(made) && after <= before - before / MIN_SAVED
        })
    }

    /// Begins again, for the dictionary after the one that was tried.
    fn begin_again(&mut self, known: &Dictionaries) {
        let interval = Self::new(known).interval.max(self.interval.saturating_mul(2));
        *self = Self {
            interval,
            ..Self::default()
        };
    }
}

impl Flusher {
    /// Stores another dictionary before a memtable is flushed, if it is time and one is better.
    pub(super) async fn renew_dictionary(&mut self, immutable: &ImmutableMemtable) -> anyhow::Result<()> {
        let known = self.dictionaries.clone();
        if !self.rows.is_exclusive() || known.len() >= MAX_DICTIONARIES {
            return Ok(());
        }
        let (memtable, mut samples) = (immutable.memtable.clone(), std::mem::take(&mut self.samples));
        // To make one takes a tenth of a second.
        let making = tokio::task::spawn_blocking(move || {
            samples.take(&memtable);
            let made = samples.are_enough().then(|| samples.better_than(&known));
            (samples, made)
        });
        let made = match making.await {
            Ok((samples, made)) => {
                self.samples = samples;
                made
            }
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "no dictionary was made");
                self.samples = DictionarySamples::new(&self.dictionaries);
                None
            }
        };
        let Some(made) = made else {
            return Ok(());
        };
        let samples = self.samples.taken.len();
        if let Some(dictionary) = made {
            let mut batch = WriteBatch::new(&*self.rows, &self.dictionaries);
            let row = keys::dictionary_key(self.dictionaries.len() as u64 + 1);
            batch.push(RowChange::Put(row, dictionary.content().clone()));
            self.apply(batch).await?;
            let (id, bytes) = (dictionary.id(), dictionary.content().len());
            tracing::info!(id, bytes, samples, "compressing values with another dictionary");
            self.dictionaries.add(Arc::new(dictionary));
        } else {
            tracing::debug!(samples, "no other dictionary compresses values much better");
        }
        self.samples.begin_again(&self.dictionaries);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::FlusherContext;
    use super::*;
    use crate::replica::Replica;
    use engine::LogAndRows;
    use engine::log::{DynLog, MemLog, Slot};
    use engine::rows::DynRows;
    use engine_local::rows::{LsmOptions, LsmRows};
    use etcd_types::types::{LeaseId, Revision};
    use mvcc::memtable::{MemtableSet, Version};
    use mvcc::row::Manifest;
    use prost::Message as _;
    use std::collections::BTreeMap;
    use telemetry::metrics::Metrics;
    use tokio::sync::mpsc;
    use tokio_util::sync::CancellationToken;

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
        let mut samples = DictionarySamples::new(&Dictionaries::default());
        samples.take(&memtable);
        let mut bytes = BTreeMap::new();
        for sample in samples.taken {
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
    fn small_flushes_add_up_to_a_dictionary() {
        let known = Dictionaries::default();
        let mut samples = DictionarySamples::new(&known);
        // 1.8 KB of values at a time.
        let mut flushes = 0;
        while !samples.are_enough() {
            flushes += 1;
            let flush = objects(flushes * 10).skip((flushes - 1) * 10);
            samples.take(&memtable(flush));
        }
        assert!((50..100).contains(&flushes), "{flushes}");
        let first = samples.better_than(&known).unwrap();
        known.add(Arc::new(first));
        samples.begin_again(&known);
        // A part of each flush.
        while !samples.are_enough() {
            samples.take(&memtable(objects(1_000)));
        }
        let bytes: usize = samples.taken.iter().map(Bytes::len).sum();
        assert!((SAMPLE_BYTES..SAMPLE_BYTES + 100_000).contains(&bytes), "{bytes}");
        samples.begin_again(&known);
        assert_eq!(samples.interval, 2 * SECOND_INTERVAL_BYTES);
    }

    #[test]
    fn few_values_short_ones_and_secrets_are_not_sampled() {
        let sampled = |memtable: &Memtable| {
            let mut samples = DictionarySamples::new(&Dictionaries::default());
            samples.take(memtable);
            (samples.taken.len(), samples.are_enough())
        };
        let long = (0..MIN_SAMPLES - 1).map(|number| (format!("k{number}"), "x".repeat(BYTES_PER_SAMPLE)));
        assert_eq!(sampled(&memtable(long)), (MIN_SAMPLES - 1, false));
        let short = (0..100_000).map(|number| (format!("k{number}"), "x".repeat(MIN_BYTES_WITH_DICTIONARY - 1)));
        assert_eq!(sampled(&memtable(short)), (0, false));
        let secrets = (0..2_000).map(|number| (format!("/registry/secrets/default/{number}"), "x".repeat(1_000)));
        assert_eq!(sampled(&memtable(secrets)), (0, false));
    }

    #[test]
    fn another_dictionary_is_better_or_is_not_made() {
        let known = Dictionaries::default();
        let made = |memtable: &Memtable| {
            let mut samples = DictionarySamples::new(&Dictionaries::default());
            samples.take(memtable);
            assert!(samples.are_enough());
            samples.better_than(&known)
        };
        let (of_objects, of_others) = (memtable(objects(10_000)), {
            let other = |number: usize| format!("event {number}: {}", "scheduled to a machine; ".repeat(50));
            memtable((0..5_000).map(move |number| (format!("/registry/events/{number}"), other(number))))
        });
        for (memtable, is_better) in [(&of_objects, true), (&of_objects, false), (&of_others, true)] {
            let made = made(memtable);
            assert_eq!(made.is_some(), is_better, "{}", known.len());
            if let Some(made) = made {
                known.add(Arc::new(made));
            }
        }
        let random = (0..4_000).map(|number| {
            let value: Vec<u8> = (0..1_000).map(|_| rand::random()).collect();
            (format!("k{number}"), value)
        });
        assert!(made(&memtable(random)).is_none());
    }

    /// Flushes a memtable with versions up to this revision.
    async fn flush(log: &DynLog, rows: &DynRows, memtable: &Arc<Memtable>, revision: Revision) {
        let stored = rows.fence().await.unwrap().unwrap();
        let manifest = Manifest::decode(stored).unwrap();
        let state = Replica::load(log, rows).await.unwrap().state().clone();
        let immutable = Arc::new(ImmutableMemtable {
            memtable: memtable.clone(),
            applied_slot: Slot(manifest.applied_slot + 1),
            last: Slot(0),
            revision,
            compacted: manifest.compacted,
            state_rows: Vec::new(),
            has_auth: false,
            alarms: Vec::new(),
            sizes: manifest.sizes,
        });
        let (to_flush, received) = mpsc::channel(1);
        let (flushed, mut shown) = mpsc::channel(1);
        let context = FlusherContext {
            metrics: Arc::new(Metrics::new(false)),
            stop: CancellationToken::new(),
        };
        let (log, rows) = (log.clone(), rows.clone());
        let engine = LogAndRows { log, rows };
        let flusher = Flusher::new(engine, state, manifest, [immutable].iter(), received, flushed, context);
        let until_shown = async {
            while shown
                .recv()
                .await
                .unwrap()
                .through
                .is_none_or(|(_, reached)| reached < revision)
            {}
            drop(to_flush);
        };
        let (ended, ()) = tokio::join!(flusher.run(), until_shown);
        ended.unwrap();
    }

    #[tokio::test]
    async fn rows_are_read_with_their_dictionary_after_a_start() {
        let dir = tempfile::tempdir().unwrap();
        let open = || -> DynRows { Arc::new(LsmRows::open(dir.path(), LsmOptions::default()).unwrap()) };
        let log: DynLog = Arc::new(MemLog::new());
        let rows = open();
        let fresh = Manifest::fresh().encode_to_vec();
        rows.apply(None, fresh.into(), Vec::new()).await.unwrap();
        let value = |number: usize| format!("pod {number}: {}", "container: main, image: nginx, ".repeat(30));
        let values: Vec<_> = (0..2_000)
            .map(|number| (format!("/pods/{number}"), value(number)))
            .collect();
        flush(&log, &rows, &memtable(values.clone().into_iter()), 2_001).await;
        drop(rows);
        let rows = open();
        let view = Replica::load(&log, &rows).await.unwrap().state().view();
        assert_eq!(view.dictionaries.len(), 1);
        for (key, value) in values {
            let found = view.get(&key.into(), 2_001).await.unwrap().unwrap();
            assert_eq!(found.value, value);
        }
        let row = view.rows.get(&keys::object_key(b"/pods/7", 9)).await.unwrap().unwrap();
        assert!(row.len() < 150, "{} bytes", row.len());
    }
}
