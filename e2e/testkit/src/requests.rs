//! Random requests about keys, which run into one another: few keys, revisions around the ones that matter, leases that may exist.

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use wire::etcdserverpb as pb;

mod keys;
mod txns;

pub use keys::prefix_end;
pub use txns::puts_what_it_deletes;

/// No range end: one key.
pub const NONE: Bytes = Bytes::new();
/// The range end of all keys from one on.
pub const ZERO: Bytes = Bytes::from_static(b"\0");

/// Ids from here on may be names that a script gives to leases whose ids servers choose.
pub const NAMED_LEASES: i64 = 0x7a00_0000_0000_0000;

/// The revisions and leases that requests may refer to.
#[derive(Clone, Debug)]
pub struct KnownState {
    pub revision: i64,
    pub compacted: i64,
    pub leases: Vec<i64>,
}

/// The generator: its randomness, and what it knows of the store, which its caller keeps up to date.
///
/// The same seed and knowledge give the same requests.
#[derive(Debug)]
pub struct RandomRequests {
    pub rng: StdRng,
    pub known: KnownState,
}

impl RandomRequests {
    /// Requests for a fresh store.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            rng: StdRng::seed_from_u64(seed),
            known: KnownState {
                revision: 1,
                compacted: 0,
                leases: Vec::new(),
            },
        }
    }

    /// Any range.
    pub fn range(&mut self) -> pb::RangeRequest {
        let (key, range_end) = self.span();
        let mut request = pb::RangeRequest {
            key,
            range_end,
            ..pb::RangeRequest::default()
        };
        if self.chance(35) {
            request.limit = self.pick(&[1, 1, 2, 3, 5, 1000, -1, i64::MAX, i64::MIN, i64::from(i32::MAX)]);
        }
        if self.chance(35) {
            request.revision = self.some_revision();
        }
        if self.chance(25) {
            request.sort_order = self.pick(&[0, 1, 2, 1, 2, 1, 2, 3, -1]);
            request.sort_target = self.pick(&[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, -1]);
        }
        request.serializable = self.chance(20);
        request.keys_only = self.chance(15);
        request.count_only = self.chance(10);
        for bound in [
            &mut request.min_mod_revision,
            &mut request.max_mod_revision,
            &mut request.min_create_revision,
            &mut request.max_create_revision,
        ] {
            if self.chance(6) {
                *bound = self.some_revision();
            }
        }
        request
    }

    /// Any put. Most have what they need.
    pub fn put(&mut self) -> pb::PutRequest {
        let mut request = pb::PutRequest {
            key: self.key(),
            value: self.value(),
            ..pb::PutRequest::default()
        };
        if self.chance(25) {
            request.lease = self.lease();
        }
        request.prev_kv = self.chance(30);
        if self.chance(6) {
            request.ignore_value = true;
            if self.chance(80) {
                request.value.clear();
            }
        }
        if self.chance(6) {
            request.ignore_lease = true;
            if self.chance(80) {
                request.lease = 0;
            }
        }
        request
    }

    /// Any deletion.
    pub fn delete_range(&mut self) -> pb::DeleteRangeRequest {
        // most of one key only, or nothing would ever grow
        let (key, range_end) = if self.chance(80) {
            (self.key(), NONE)
        } else {
            self.span()
        };
        pb::DeleteRangeRequest {
            key,
            range_end,
            prev_kv: self.chance(40),
        }
    }

    /// Mostly a lease that exists.
    pub fn lease(&mut self) -> i64 {
        let known = self.known.leases.choose(&mut self.rng).copied();
        match known {
            Some(lease) if self.chance(85) => lease,
            _ => self.pick(&[0, 1, 2, 3, -5, 404, NAMED_LEASES, i64::MAX]),
        }
    }

    /// A revision where something may go wrong, or anything in between.
    pub fn some_revision(&mut self) -> i64 {
        let (now, floor) = (self.known.revision, self.known.compacted);
        match self.rng.random_range(0..20) {
            0..=6 => now - self.rng.random_range(0..12),
            7..=9 => self.rng.random_range(floor.min(now)..=now),
            10..=14 => floor + self.rng.random_range(-1..=2),
            15..=16 => now + self.rng.random_range(1..=3),
            17 => self.rng.random_range(-3..=2),
            18 => self.pick(&[i64::MAX, i64::MIN, i64::MAX - 1, 1 << 40]),
            _ => now,
        }
    }

    /// True in so much per cent of all cases.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_ratio(percent, 100)
    }

    /// One of these.
    ///
    /// # Panics
    ///
    /// There are none.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        *of.choose(&mut self.rng)
            .expect("every list to pick from has something in it")
    }
}
