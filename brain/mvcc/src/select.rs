//! Bounds, order and limit of a range: sorts its pairs, many of them on another thread.

use bytes::Bytes;

use super::op::{RangeOp, RangeResult, SortOrder, SortTarget};
use etcd_types::errors::Error;
use etcd_types::types::{KeyValue, Revision};

/// Pairs that are sorted at once. More take so long that others would wait for the thread.
const MAX_INLINE_SORT_PAIRS: usize = 16_384;

/// As [`RangeOp::select`]. Fails with [`Error::Stopped`] when the process ends.
pub(super) async fn select(op: &RangeOp, kvs: Vec<KeyValue>, count: i64) -> Result<RangeResult, Error> {
    if kvs.len() <= MAX_INLINE_SORT_PAIRS {
        return Ok(op.select(kvs, count));
    }
    let op = op.clone();
    let selected = tokio::task::spawn_blocking(move || op.select(kvs, count)).await;
    selected.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Error::Stopped,
    })
}

impl RangeOp {
    /// Applies bounds, order and limit to pairs in key order: all of the span's, or, unless [`RangeOp::needs_all`], at
    /// least one more than the limit. As in etcd, an order by another field than the key, but of no direction, sorts only the
    /// pairs within the limit.
    #[must_use]
    pub fn select(&self, mut kvs: Vec<KeyValue>, count: i64) -> RangeResult {
        let within =
            |(min, max): (Revision, Revision), revision| (min == 0 || revision >= min) && (max == 0 || revision <= max);
        if self.limit > 0 && !self.needs_all() {
            kvs.truncate(usize::try_from(self.limit).unwrap_or(usize::MAX).saturating_add(1));
        }
        kvs.retain(|kv| within(self.mod_revision, kv.mod_revision) && within(self.create_revision, kv.create_revision));
        let order = match (self.order, self.target) {
            (SortOrder::None, SortTarget::Key) => SortOrder::None,
            (SortOrder::None, _) => SortOrder::Ascend,
            (order, _) => order,
        };
        let by = |a: &KeyValue, b: &KeyValue| match self.target {
            SortTarget::Key => a.key.cmp(&b.key),
            SortTarget::Version => a.version.cmp(&b.version),
            SortTarget::Create => a.create_revision.cmp(&b.create_revision),
            SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
            SortTarget::Value => a.value.cmp(&b.value),
        };
        match order {
            SortOrder::None => {}
            SortOrder::Ascend => kvs.sort_by(by),
            SortOrder::Descend => kvs.sort_by(|a, b| by(b, a)),
        }
        let limit = usize::try_from(self.limit).unwrap_or(0);
        let more = limit > 0 && kvs.len() > limit;
        if more {
            kvs.truncate(limit);
        }
        if self.keys_only {
            kvs.iter_mut().for_each(|kv| kv.value = Bytes::new());
        }
        RangeResult { kvs, count, more }
    }
}
