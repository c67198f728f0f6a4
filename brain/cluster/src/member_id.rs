//! The ids of members.

use sha2::{Digest as _, Sha256};

/// Returns the id of a member, given the cluster's token and its name: the same in every run of it. Never 0.
#[must_use]
pub fn member_id(token: &str, name: &str) -> u64 {
    let mut hash = Sha256::new();
    for part in [token, name] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let digest = hash.finalize();
    let first: [u8; 8] = std::array::from_fn(|at| digest[at]);
    u64::from_be_bytes(first).max(1)
}
