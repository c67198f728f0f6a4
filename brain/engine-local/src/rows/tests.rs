//! Tests in addition to the laws of rows: reopening after a close, a crash and damage.

use super::*;
use engine::rows::laws;

mod comes_back;
mod crash;
mod damage;
mod former;
mod full;
mod merges;
mod quota;
mod space;

/// Small tables, so that little data is enough for many of them and their merges.
fn small() -> LsmOptions {
    LsmOptions {
        cache_bytes: 1 << 20,
        memtable_bytes: 64 << 10,
        reserve_bytes: 1 << 20,
        ..LsmOptions::default()
    }
}

#[tokio::test]
async fn the_laws_of_rows_hold_on_disk() {
    for options in [small(), LsmOptions::default()] {
        let root = tempfile::tempdir().unwrap();
        let mut number = 0;
        let fresh = async || {
            number += 1;
            LsmRows::open(&root.path().join(number.to_string()), options.clone()).unwrap()
        };
        laws::hold(fresh, 32_000).await;
    }
}

/// A history whose prefixes can be distinguished: batch `n` is drawn from `seed`, and its fence is `n`.
struct History {
    seed: u64,
    max_value: usize,
}

impl History {
    fn new(seed: u64) -> Self {
        Self { seed, max_value: 700 }
    }

    fn fence(batch: u64) -> Option<Bytes> {
        (batch > 0).then(|| Bytes::copy_from_slice(&batch.to_be_bytes()))
    }

    fn batch_of(fence: Option<&Bytes>) -> u64 {
        fence.map_or(0, |fence| u64::from_be_bytes(fence.as_ref().try_into().unwrap()))
    }

    /// Puts, overwrites and deletes of 300 keys, and keys that are never touched again.
    fn changes(&self, batch: u64) -> Vec<RowChange> {
        use rand::{RngExt as _, SeedableRng as _};
        let mut random = rand::rngs::SmallRng::seed_from_u64(self.seed ^ batch.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut changes: Vec<RowChange> = (0..random.random_range(1..20))
            .map(|_| {
                let key = format!("key/{:03}", random.random_range(0..300));
                if random.random_bool(0.25) {
                    laws::delete(key)
                } else {
                    let mut value = vec![0; random.random_range(0..self.max_value)];
                    random.fill(value.as_mut_slice());
                    laws::put(key, value)
                }
            })
            .collect();
        changes.push(laws::put(format!("once/{batch:06}"), batch.to_string()));
        changes
    }

    async fn apply(&self, rows: &impl Rows, batch: u64) -> Result<(), RowsError> {
        let fence = batch.to_be_bytes();
        rows.apply(
            Self::fence(batch - 1),
            Bytes::copy_from_slice(&fence),
            self.changes(batch),
        )
        .await
    }
}
