//! A Bloom filter over the keys of a map that is searched far more often than it holds the key: memtables, and batches under way. A search
//! of an ordered map costs about one cache miss for each of its steps; the filter costs one.

use std::hash::{DefaultHasher, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bits of a key, all in one word.
const BITS_PER_KEY: u32 = 4;

/// The hash of a key: one serves for all filters.
#[derive(Debug, Clone, Copy)]
pub struct KeyHash(u64);

impl KeyHash {
    /// Returns the hash of `key`. A client that chooses keys with equal hashes makes only its own reads slower.
    #[must_use]
    pub fn of(key: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(key);
        Self(hasher.finish())
    }

    fn mask(self) -> u64 {
        (0..BITS_PER_KEY).fold(0, |mask, bit| mask | 1 << (self.0 >> (6 * bit) & 63))
    }
}

/// Keys that may be in a map. Never forgets one; the fuller it is, the more others it takes for one of them.
#[derive(Debug)]
pub struct KeyFilter(Box<[AtomicU64]>);

impl KeyFilter {
    /// An empty filter of 64 bits a word: five keys a word leave it wrong about 3 of 100 others.
    #[must_use]
    pub fn new(words: usize) -> Self {
        Self((0..words.max(1)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Adds a key. Relaxed: readers that may see the key are synchronized by other means.
    pub fn insert(&self, hash: KeyHash) {
        self.word(hash).fetch_or(hash.mask(), Relaxed);
    }

    /// Returns false if the key was certainly not added.
    #[must_use]
    pub fn may_contain(&self, hash: KeyHash) -> bool {
        let mask = hash.mask();
        self.word(hash).load(Relaxed) & mask == mask
    }

    fn word(&self, hash: KeyHash) -> &AtomicU64 {
        let at = usize::try_from(hash.0 >> 32).unwrap_or_default() % self.0.len();
        &self.0[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_and_few_others_are() {
        let filter = KeyFilter::new(8_192);
        let hash = |number: u32| KeyHash::of(format!("/registry/pods/default/{number}").as_bytes());
        (0..40_000).for_each(|number| filter.insert(hash(number)));
        assert!((0..40_000).all(|number| filter.may_contain(hash(number))));
        let wrong = (40_000..140_000)
            .filter(|number| filter.may_contain(hash(*number)))
            .count();
        assert!(
            (1..5_000).contains(&wrong),
            "{wrong} of 100,000 others are taken for keys"
        );
    }
}
