//! Keys that were read from one snapshot of the rows, so that the next read of a hot key asks no storage.
//!
//! A cache belongs to one snapshot, which never changes: nothing in it ever gets stale. Newer rows begin with an empty one. Bounded in
//! bytes; a part that is full is emptied.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use etcd_types::types::KeyValue;

/// The number of parts. Each has its own lock.
const SHARDS: usize = 16;

/// Bytes that all parts hold together at most.
const MAX_CACHE_BYTES: usize = 16 << 20;

/// Longer values are not kept: a few of these would displace all others.
const MAX_VALUE_BYTES: usize = 64 << 10;

/// Memory that an entry takes in addition to key and value.
const ENTRY_OVERHEAD_BYTES: usize = 200;

/// See the module.
#[derive(Debug)]
pub struct HotRows {
    shards: [Mutex<HotRowsShard>; SHARDS],
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct HotRowsShard {
    found: HashMap<Bytes, Option<KeyValue>>,
    bytes: usize,
}

impl Default for HotRows {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
        }
    }
}

impl HotRows {
    /// The row of a key, if it was read before; `Some(None)`: there is none.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<Option<KeyValue>> {
        self.shard(key).found.get(key).cloned()
    }

    /// Caches the state of a key in the rows.
    pub fn keep(&self, key: &[u8], found: Option<&KeyValue>) {
        let bytes = 2 * key.len() + found.map_or(0, |kv| kv.value.len()) + ENTRY_OVERHEAD_BYTES;
        if bytes > MAX_VALUE_BYTES {
            return;
        }
        // Neither the request's buffer nor the reply's is kept with it.
        let key = Bytes::copy_from_slice(key);
        let found = found.map(|kv| KeyValue {
            key: key.clone(),
            value: Bytes::copy_from_slice(&kv.value),
            ..kv.clone()
        });
        let mut shard = self.shard(&key);
        if shard.bytes + bytes > MAX_CACHE_BYTES / SHARDS {
            *shard = HotRowsShard::default();
        }
        if shard.found.insert(key, found).is_none() {
            shard.bytes += bytes;
        }
    }

    fn shard(&self, key: &[u8]) -> MutexGuard<'_, HotRowsShard> {
        let hash = usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).unwrap_or_default();
        self.shards[hash].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_rows_are_bounded_in_bytes() {
        let hot = HotRows::default();
        let value = Bytes::from(vec![b'v'; 10 << 10]);
        for n in 0..10_000 {
            let key = Bytes::from(format!("key-{n}"));
            let kv = KeyValue {
                key: key.clone(),
                value: value.clone(),
                ..KeyValue::default()
            };
            hot.keep(&key, Some(&kv));
            assert_eq!(hot.get(&key), Some(Some(kv)));
        }
        let held: usize = hot.shards.iter().map(|shard| shard.lock().unwrap().bytes).sum();
        assert!(held <= MAX_CACHE_BYTES, "{held}");
        hot.keep(b"absent", None);
        assert_eq!((hot.get(b"absent"), hot.get(b"unknown")), (Some(None), None));
        let large = KeyValue {
            value: vec![0; MAX_VALUE_BYTES].into(),
            ..KeyValue::default()
        };
        hot.keep(b"large", Some(&large));
        assert_eq!(hot.get(b"large"), None);
    }
}
