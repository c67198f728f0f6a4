//! From a key to its versions in a few steps: one task adds keys, any number of others look them up and never wait.

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::history::History;

/// 32,768 buckets, which is few keys in each while generations are what they should be. They are made in segments, when the first key of a
/// segment comes: most generations of an idle store hold next to nothing.
const SEGMENTS: u64 = 256;
const SEGMENT: u64 = 128;

/// Keys by hash. Never grows and never loses a key.
#[derive(Debug)]
pub(super) struct Index {
    segments: Box<[OnceLock<Box<[Bucket]>>]>,
    /// Nobody outside can tell which keys meet in a bucket.
    seed: u64,
}

type Bucket = ArcSwapOption<Item>;

#[derive(Debug)]
struct Item {
    hash: u64,
    key: Bytes,
    history: Arc<History>,
    next: Option<Arc<Item>>,
}

impl Index {
    pub(super) fn new() -> Self {
        Self {
            segments: (0..SEGMENTS).map(|_| OnceLock::new()).collect(),
            seed: rand::random(),
        }
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<Arc<History>> {
        self.find(key, Arc::clone)
    }

    /// What `read` makes of the versions of `key`.
    pub(super) fn find<T>(&self, key: &[u8], read: impl FnOnce(&Arc<History>) -> T) -> Option<T> {
        let hash = self.hash(key);
        let (segment, bucket) = place(hash);
        let first = self.segments[segment].get()?[bucket].load();
        let mut item = first.as_ref();
        while let Some(found) = item {
            if found.hash == hash && found.key == key {
                return Some(read(&found.history));
            }
            item = found.next.as_ref();
        }
        None
    }

    /// Adds a key that is not there yet. Only one task may do so.
    pub(super) fn insert(&self, key: Bytes, history: Arc<History>) {
        let hash = self.hash(&key);
        let (segment, bucket) = place(hash);
        let segment = self.segments[segment].get_or_init(|| (0..SEGMENT).map(|_| Bucket::empty()).collect());
        let bucket = &segment[bucket];
        let next = bucket.load_full();
        bucket.store(Some(Arc::new(Item {
            hash,
            key,
            history,
            next,
        })));
    }

    fn hash(&self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.seed)
    }
}

/// Segment and bucket of a hash; both are small, so that nothing is lost.
fn place(hash: u64) -> (usize, usize) {
    ((hash % SEGMENTS) as usize, (hash / SEGMENTS % SEGMENT) as usize)
}

impl Drop for Item {
    /// One by one, as many as there are.
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(item) = next {
            next = Arc::into_inner(item).and_then(|mut item| item.next.take());
        }
    }
}
