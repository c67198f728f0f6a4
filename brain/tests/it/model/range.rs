//! Reading: bounds, filters, order, limit.

use std::cmp::Ordering;

use super::{Draft, Keys, compacted, future_revision, header};
use crate::wire::{KeyValue, Refusal, pb};
use pb::range_request::{SortOrder, SortTarget};

impl Draft<'_> {
    pub(super) fn range(&self, range: &pb::RangeRequest) -> Result<pb::RangeResponse, Refusal> {
        let current = self.revision();
        if range.revision > current {
            return Err(future_revision());
        }
        let own = range.revision <= 0 || range.revision > self.before.revision();
        if !own && range.revision < self.before.compacted {
            return Err(compacted());
        }
        let keys = if own {
            &self.keys
        } else {
            &self.before.states[&range.revision]
        };
        let mut kvs = select(keys, &range.key, &range.range_end);
        let count = kvs.len() as i64;
        let mut more = false;
        if range.count_only {
            kvs.clear();
        } else {
            more = shape(range, &mut kvs);
        }
        Ok(pb::RangeResponse {
            header: header(current),
            kvs,
            more,
            count,
        })
    }
}

/// The keys from `key` to `range_end`: one key without an end, all from it on with the end `\0`.
pub(super) fn select(keys: &Keys, key: &[u8], range_end: &[u8]) -> Vec<KeyValue> {
    let within = |found: &[u8]| match range_end {
        [] => found == key,
        [0] => found >= key,
        end => found >= key && found < end,
    };
    keys.values().filter(|kv| within(&kv.key)).cloned().collect()
}

/// Filters, sorts and cuts. Answers whether more than the limit was left.
fn shape(range: &pb::RangeRequest, kvs: &mut Vec<KeyValue>) -> bool {
    let filtered = [
        range.min_mod_revision,
        range.max_mod_revision,
        range.min_create_revision,
        range.max_create_revision,
    ]
    .iter()
    .any(|bound| *bound != 0);
    let limit = usize::try_from(range.limit).ok().filter(|limit| *limit > 0);
    // In the default order no more is fetched than is needed to know whether there is more; also where that is sorted later.
    if let Some(limit) = limit
        && !filtered
        && range.sort_order() == SortOrder::None
    {
        kvs.truncate(limit.saturating_add(1));
    }
    kvs.retain(|kv| {
        let within = |value: i64, min: i64, max: i64| (min == 0 || value >= min) && (max == 0 || value <= max);
        within(kv.mod_revision, range.min_mod_revision, range.max_mod_revision)
            && within(kv.create_revision, range.min_create_revision, range.max_create_revision)
    });
    match range.sort_order() {
        SortOrder::None | SortOrder::Ascend => kvs.sort_by(|a, b| by_target(range, a, b)),
        SortOrder::Descend => kvs.sort_by(|a, b| by_target(range, b, a)),
    }
    let more = limit.is_some_and(|limit| kvs.len() > limit);
    kvs.truncate(limit.unwrap_or(usize::MAX));
    if range.keys_only {
        for kv in kvs {
            kv.value.clear();
        }
    }
    more
}

/// Compares two keys by the field that the request sorts by.
pub(crate) fn by_target(range: &pb::RangeRequest, a: &KeyValue, b: &KeyValue) -> Ordering {
    match range.sort_target() {
        SortTarget::Key => a.key.cmp(&b.key),
        SortTarget::Version => a.version.cmp(&b.version),
        SortTarget::Create => a.create_revision.cmp(&b.create_revision),
        SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
        SortTarget::Value => a.value.cmp(&b.value),
    }
}
