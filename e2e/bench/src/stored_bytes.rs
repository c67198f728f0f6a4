//! The bytes of keys and values that a store must keep: all that is alive, and the history since the compacted revision.

use std::cell::Cell;

/// Kept up to date by each write.
#[derive(Default)]
pub(crate) struct StoredBytes {
    now: Cell<ByteCounts>,
    /// Those of the compacted revision.
    compacted: Cell<ByteCounts>,
}

/// Bytes at one revision.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ByteCounts {
    /// Of the newest version of each key.
    alive: u64,
    /// Of all versions until then.
    written: u64,
}

impl StoredBytes {
    /// A key has another value: both sizes include the key, and the old one is 0 of an absent key.
    pub(crate) fn put(&self, old: u64, new: u64) {
        let ByteCounts { alive, written } = self.now.get();
        self.now.set(ByteCounts {
            alive: alive + new - old,
            written: written + new,
        });
    }

    /// A key is gone, which leaves a tombstone with its name.
    pub(crate) fn delete(&self, old: u64, key: u64) {
        let ByteCounts { alive, written } = self.now.get();
        self.now.set(ByteCounts {
            alive: alive - old,
            written: written + key,
        });
    }

    pub(crate) fn snapshot(&self) -> ByteCounts {
        self.now.get()
    }

    /// All versions that were replaced before then are gone.
    pub(crate) fn compacted(&self, then: ByteCounts) {
        self.compacted.set(then);
    }

    pub(crate) fn alive(&self) -> u64 {
        self.now.get().alive
    }

    /// All that was alive at the compacted revision, and everything since.
    pub(crate) fn kept(&self) -> u64 {
        let (now, then) = (self.now.get(), self.compacted.get());
        then.alive + now.written - then.written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_is_kept_until_it_is_compacted() {
        let stored = StoredBytes::default();
        stored.put(0, 100);
        stored.put(0, 50);
        assert_eq!((stored.alive(), stored.kept()), (150, 150));
        stored.put(100, 120);
        let then = stored.snapshot();
        stored.put(120, 110);
        stored.delete(50, 10);
        assert_eq!((stored.alive(), stored.kept()), (110, 390));
        stored.compacted(then);
        // 120 and 50 of then, 110 and the tombstone
        assert_eq!((stored.alive(), stored.kept()), (110, 290));
    }
}
