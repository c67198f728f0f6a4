//! Where the memory goes: the share of each consumer.
//!
//! | consumer | share of the memory | at least | at most | flag |
//! |---|---|---|---|---|
//! | requests and answers in flight | 1/4 | 128 MiB | 1 GiB | `--max-inflight-bytes` |
//! | leases and the keys that are attached to them | 1/4 | 64 MiB | | |
//! | cached blocks of an embedded store | 1/8 | 64 MiB | 1 GiB | `--embedded-cache-bytes` |
//! | the index of keys | 1/16 | 32 MiB | 1 GiB | `--key-index-bytes` |
//! | versions that are not in rows yet | 1/16 | 16 MiB | 64 MiB | |
//! | rows that requests read at a time | [`FetchBudgets::within`](mvcc::fetch::FetchBudgets::within) | | | |
//!
//! These are limits, not reservations. An empty store takes a few MiB.

use runtime::memory;

/// A share of the memory between two bounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemoryShare {
    divisor: u64,
    min_bytes: u64,
    max_bytes: u64,
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Requests and answers in flight.
pub(crate) const IN_FLIGHT: MemoryShare = MemoryShare {
    divisor: 4,
    min_bytes: 128 * MIB,
    max_bytes: GIB,
};

/// Leases and the keys that are attached to them. They are all in memory.
pub(crate) const LEASES: MemoryShare = MemoryShare {
    divisor: 4,
    min_bytes: 64 * MIB,
    max_bytes: u64::MAX,
};

/// Cached blocks of an embedded store.
pub(crate) const BLOCK_CACHE: MemoryShare = MemoryShare {
    divisor: 8,
    min_bytes: 64 * MIB,
    max_bytes: GIB,
};

/// The index of keys.
pub(crate) const KEY_INDEX: MemoryShare = MemoryShare {
    divisor: 16,
    min_bytes: 32 * MIB,
    max_bytes: GIB,
};

/// Versions that are not in rows yet.
pub(crate) const MEMTABLES: MemoryShare = MemoryShare {
    divisor: 16,
    min_bytes: 16 * MIB,
    max_bytes: 64 * MIB,
};

impl MemoryShare {
    /// Returns the bytes of this share of the memory that this process may use.
    pub(crate) fn of_available(self) -> usize {
        self.of(memory::available())
    }

    fn of(self, memory: u64) -> usize {
        let bytes = (memory / self.divisor).clamp(self.min_bytes, self.max_bytes);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_stays_between_its_bounds() {
        for (share, of_4_gib) in [
            (IN_FLIGHT, 1024 << 20),
            (LEASES, 1024 << 20),
            (BLOCK_CACHE, 512 << 20),
            (KEY_INDEX, 256 << 20),
            (MEMTABLES, 64 << 20),
        ] {
            assert_eq!(share.of(0), usize::try_from(share.min_bytes).unwrap());
            assert_eq!(share.of(4 * GIB), of_4_gib, "{share:?}");
            let of_a_pebibyte = share.max_bytes.min((1 << 50) / share.divisor);
            assert_eq!(share.of(1 << 50), usize::try_from(of_a_pebibyte).unwrap());
        }
    }
}
