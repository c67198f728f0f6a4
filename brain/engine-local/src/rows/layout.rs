//! The layout of rows in the tree.
//!
//! The fence has the key 0x00. A row key that begins with 0x00 gets another 0x00 in front, all others are stored as they are: order is
//! kept, and no row is the fence.

use std::ops::Bound;

use bytes::Bytes;
use lsm_tree::Slice;

use super::MAX_KEY_LEN;

/// Key of the fence.
pub(super) const FENCE_ROW: [u8; 1] = [0];

const FIRST_ROW: [u8; 2] = [0, 0];

/// The stored form of a row key.
pub(super) fn stored(key: &[u8]) -> Slice {
    if key.first() == Some(&0) {
        let mut longer = Vec::with_capacity(key.len() + 1);
        longer.push(0);
        longer.extend_from_slice(key);
        Slice::from(longer)
    } else {
        Slice::from(key)
    }
}

/// The row key of a stored form.
pub(super) fn loaded(stored: &Slice) -> Bytes {
    Bytes::copy_from_slice(match stored.first() {
        Some(0) => &stored[1..],
        _ => stored,
    })
}

/// A stored range, or nothing where the range is empty. A bound longer than any row stands for its beginning.
pub(super) fn range(from: &[u8], to: Option<&[u8]>) -> Option<(Bound<Slice>, Bound<Slice>)> {
    if to.is_some_and(|to| from >= to) {
        return None;
    }
    let lower = match from.get(..MAX_KEY_LEN) {
        Some(start) if from.len() > MAX_KEY_LEN => Bound::Excluded(stored(start)),
        _ if from.is_empty() => Bound::Included(Slice::from(FIRST_ROW)),
        _ => Bound::Included(stored(from)),
    };
    let upper = match to.map(|to| (to, to.get(..MAX_KEY_LEN))) {
        None => Bound::Unbounded,
        Some((to, Some(start))) if to.len() > MAX_KEY_LEN => Bound::Included(stored(start)),
        Some((to, _)) => Bound::Excluded(stored(to)),
    };
    Some((lower, upper))
}

/// A fence row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FenceRow {
    /// The number of the batch in a directory of the former layout, one more than that of the batch before.
    pub(super) batch: u64,
    pub(super) fence: Bytes,
}

/// Value of the fence row: a number that only the former layout used, the length of the fence, the fence.
pub(super) fn fence_value(fence: &[u8]) -> Vec<u8> {
    let mut value = vec![0; 8];
    value.extend_from_slice(&u32::try_from(fence.len()).unwrap_or(u32::MAX).to_be_bytes());
    value.extend_from_slice(fence);
    value
}

/// Reads a fence row; `None` when it is too short. There may be zeros after it, from the former layout.
pub(super) fn parse_fence(value: &[u8]) -> Option<FenceRow> {
    let (batch, rest) = value.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let fence = rest.get(..usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    Some(FenceRow {
        batch: u64::from_be_bytes(*batch),
        fence: Bytes::copy_from_slice(fence),
    })
}
