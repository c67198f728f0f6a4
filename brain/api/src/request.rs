//! Requests from the wire: validated as etcd does before it reads its state, then converted to operations.

use std::collections::{BTreeMap, HashSet};

use bytes::{Bytes, BytesMut};
use prost::Message as _;

use engine::rows::Rows;
use etcd_types::errors::Error;
use etcd_types::pb::etcdserverpb as pb;
use etcd_types::types::LeaseId;
use mvcc::keys;
use mvcc::op::{
    Compare, CompareResult, CompareTarget, DeleteOp, Op, PutOp, RangeOp, SortOrder, SortTarget, Span, TxnOp,
};
use mvcc::row::OBJECT_HEADER_BYTES;
use pb::compare::TargetUnion;
use pb::request_op::Request;

/// The limits of a request.
#[derive(Debug, Clone, Copy)]
pub struct RequestLimits {
    /// `--max-txn-ops`.
    pub txn_ops: usize,
    /// `--max-request-bytes`.
    pub request_bytes: usize,
    /// The longest key that the rows take, in bytes.
    pub key_bytes: usize,
    /// The longest value that the rows take, in bytes.
    pub value_bytes: usize,
}

/// Bytes that etcd adds to a request before it compares it with `--max-request-bytes`.
const ENVELOPE_BYTES: usize = 20;

/// The number of operations of a txn and all those nested in it, as a multiple of `--max-txn-ops`. Etcd limits each path from the
/// outermost txn to an innermost one, but not the number of paths.
const NESTED_OPS_FACTOR: usize = 8;

impl RequestLimits {
    /// Returns the limits of the flags and of `rows`: an acknowledged request must fit into rows later.
    #[must_use]
    pub fn new(txn_ops: usize, request_bytes: usize, rows: &dyn Rows) -> Self {
        Self {
            txn_ops,
            request_bytes,
            key_bytes: keys::longest(rows.max_key_len()),
            value_bytes: rows.max_value_len().saturating_sub(OBJECT_HEADER_BYTES),
        }
    }

    /// Refuses a request that is too long. `encoded` is the request's length on the wire. Fails with [`Error::RequestTooLarge`].
    pub fn check_size(&self, encoded: usize) -> Result<usize, Error> {
        if encoded + ENVELOPE_BYTES > self.request_bytes {
            Err(Error::RequestTooLarge)
        } else {
            Ok(encoded)
        }
    }
}

/// Converts a range request. Fails as etcd's `checkRangeRequest`.
pub fn range(request: &pb::RangeRequest) -> Result<RangeOp, Error> {
    range_of(request, span)
}

fn range_of(request: &pb::RangeRequest, span: impl FnOnce(&Bytes, &Bytes) -> Span) -> Result<RangeOp, Error> {
    if request.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    let order = match request.sort_order {
        0 => SortOrder::None,
        1 => SortOrder::Ascend,
        2 => SortOrder::Descend,
        _ => return Err(Error::InvalidSortOption),
    };
    let target = match request.sort_target {
        0 => SortTarget::Key,
        1 => SortTarget::Version,
        2 => SortTarget::Create,
        3 => SortTarget::Mod,
        4 => SortTarget::Value,
        _ => return Err(Error::InvalidSortOption),
    };
    Ok(RangeOp {
        span: span(&request.key, &request.range_end),
        limit: request.limit,
        revision: request.revision,
        order,
        target,
        keys_only: request.keys_only,
        count_only: request.count_only,
        mod_revision: (request.min_mod_revision, request.max_mod_revision),
        create_revision: (request.min_create_revision, request.max_create_revision),
    })
}

/// Converts a put request. Fails as etcd's `checkPutRequest`.
pub fn put(request: &pb::PutRequest, limits: &RequestLimits) -> Result<PutOp, Error> {
    if request.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(Error::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(Error::LeaseProvided);
    }
    if request.key.len() > limits.key_bytes || request.value.len() > limits.value_bytes {
        return Err(Error::RequestTooLarge);
    }
    let (key, value) = own_pair(&request.key, &request.value);
    Ok(PutOp {
        key,
        value,
        lease: LeaseId(request.lease),
        prev_kv: request.prev_kv,
        ignore_value: request.ignore_value,
        ignore_lease: request.ignore_lease,
    })
}

/// Converts a delete request. Fails as etcd's `checkDeleteRequest`.
pub fn delete(request: &pb::DeleteRangeRequest) -> Result<DeleteOp, Error> {
    if request.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    Ok(DeleteOp {
        span: span(&request.key, &request.range_end),
        prev_kv: request.prev_kv,
    })
}

/// Converts a txn request. Fails as etcd's `checkTxnRequest` and `checkIntervals`.
pub fn txn(request: &pb::TxnRequest, limits: &RequestLimits) -> Result<TxnOp, Error> {
    let op = checked(request, limits)?;
    disjoint(op)
}

/// Converts a txn request for the sequencer; returns its length, too. Fails as etcd's `checkTxnRequest`, [`RequestLimits::check_size`],
/// and `checkIntervals`. Etcd checks the length last; here a request that is too long is refused before its ranges are compared.
pub fn write_txn(request: &pb::TxnRequest, limits: &RequestLimits) -> Result<(TxnOp, usize), Error> {
    let op = checked(request, limits)?;
    let size = limits.check_size(request.encoded_len())?;
    Ok((disjoint(op)?, size))
}

fn checked(request: &pb::TxnRequest, limits: &RequestLimits) -> Result<TxnOp, Error> {
    count_ops(request, limits.txn_ops.saturating_mul(NESTED_OPS_FACTOR))?;
    checked_txn(request, limits.txn_ops, limits, &mut CopiedKey::default())
}

fn disjoint(op: TxnOp) -> Result<TxnOp, Error> {
    for branch in [&op.success, &op.failure] {
        // A single operation, as most branches are, overlaps with none.
        if !matches!(branch.as_slice(), [] | [Op::Put(_) | Op::Range(_) | Op::Delete(_)]) {
            check_overlaps(branch)?;
        }
    }
    Ok(op)
}

fn checked_txn(
    request: &pb::TxnRequest,
    max_ops: usize,
    limits: &RequestLimits,
    copied: &mut CopiedKey,
) -> Result<TxnOp, Error> {
    let ops = request
        .compare
        .len()
        .max(request.success.len())
        .max(request.failure.len());
    let Some(left) = max_ops.checked_sub(ops) else {
        return Err(Error::TooManyOps);
    };
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(Error::EmptyKey);
    }
    let mut branch = |ops: &[pb::RequestOp]| {
        ops.iter()
            .map(|op| checked_op(op, left, limits, copied))
            .collect::<Result<Vec<_>, _>>()
    };
    Ok(TxnOp {
        success: branch(&request.success)?,
        failure: branch(&request.failure)?,
        compares: request.compare.iter().map(|request| compare(request, copied)).collect(),
    })
}

fn checked_op(op: &pb::RequestOp, max_ops: usize, limits: &RequestLimits, copied: &mut CopiedKey) -> Result<Op, Error> {
    match &op.request {
        Some(Request::RequestRange(request)) => {
            let range = range_of(request, |key, end| copied.span(key, end))?;
            Ok(Op::Range(range))
        }
        Some(Request::RequestPut(request)) => {
            let put = put(request, limits)?;
            copied.0 = put.key.clone();
            Ok(Op::Put(put))
        }
        Some(Request::RequestDeleteRange(request)) => delete(request).map(Op::Delete),
        Some(Request::RequestTxn(request)) => checked_txn(request, max_ops, limits, copied).map(Op::Txn),
        None => Err(Error::KeyNotFound),
    }
}

fn compare(request: &pb::Compare, copied: &mut CopiedKey) -> Compare {
    let union = request.target_union.as_ref();
    let target = match request.target {
        0 => CompareTarget::Version(match union {
            Some(TargetUnion::Version(version)) => *version,
            _ => 0,
        }),
        1 => CompareTarget::Create(match union {
            Some(TargetUnion::CreateRevision(revision)) => *revision,
            _ => 0,
        }),
        2 => CompareTarget::Mod(match union {
            Some(TargetUnion::ModRevision(revision)) => *revision,
            _ => 0,
        }),
        3 => CompareTarget::Value(match union {
            Some(TargetUnion::Value(value)) => own(value),
            _ => Bytes::new(),
        }),
        4 => CompareTarget::Lease(match union {
            Some(TargetUnion::Lease(lease)) => *lease,
            _ => 0,
        }),
        _ => CompareTarget::Unknown,
    };
    let result = match request.result {
        0 => CompareResult::Equal,
        1 => CompareResult::Greater,
        2 => CompareResult::Less,
        3 => CompareResult::NotEqual,
        _ => CompareResult::Unknown,
    };
    Compare {
        span: copied.span(&request.key, &request.range_end),
        target,
        result,
    }
}

/// Counts operations, at each level as etcd does; returns how many more are allowed.
fn count_ops(request: &pb::TxnRequest, most: usize) -> Result<usize, Error> {
    let ops = request
        .compare
        .len()
        .max(request.success.len())
        .max(request.failure.len());
    let mut left = most.checked_sub(ops).ok_or(Error::TooManyOps)?;
    for op in request.success.iter().chain(&request.failure) {
        if let Some(Request::RequestTxn(nested)) = &op.request {
            left = count_ops(nested, left)?;
        }
    }
    Ok(left)
}

/// Disjoint ranges of keys: from each first key up to its end, which is not part of it.
#[derive(Debug, Default)]
struct KeyIntervals(BTreeMap<Bytes, Bytes>);

impl KeyIntervals {
    /// Adds the keys of a span. Etcd does not detect overlaps with a range that extends to the end of the key space.
    fn add(&mut self, span: &Span) {
        if let Some(end) = span.limit().filter(|_| !span.is_empty()) {
            self.insert(span.key.clone(), end);
        }
    }

    fn insert(&mut self, mut from: Bytes, mut to: Bytes) {
        if let Some((before, end)) = self.0.range::<Bytes, _>(..=&from).next_back()
            && *end >= from
        {
            to = to.max(end.clone());
            from = before.clone();
        }
        while let Some((next, end)) = self.0.range::<Bytes, _>(&from..=&to).next() {
            to = to.max(end.clone());
            let next = next.clone();
            self.0.remove(&next);
        }
        self.0.insert(from, to);
    }

    fn extend(&mut self, other: Self) {
        other.0.into_iter().for_each(|(from, to)| self.insert(from, to));
    }

    fn contains(&self, key: &Bytes) -> bool {
        self.0
            .range::<Bytes, _>(..=key)
            .next_back()
            .is_some_and(|(_, end)| key < end)
    }
}

/// Refuses a branch that puts a key twice, or puts one that it deletes. Returns the keys that it puts and deletes.
fn check_overlaps(ops: &[Op]) -> Result<(HashSet<&Bytes>, KeyIntervals), Error> {
    let mut deletes = KeyIntervals::default();
    for op in ops {
        if let Op::Delete(delete) = op {
            deletes.add(&delete.span);
        }
    }
    let mut puts = HashSet::new();
    for op in ops {
        let Op::Txn(nested) = op else { continue };
        let (then_puts, then_deletes) = check_overlaps(&nested.success)?;
        let (else_puts, else_deletes) = check_overlaps(&nested.failure)?;
        for key in &then_puts {
            if puts.contains(key) || deletes.contains(key) {
                return Err(Error::DuplicateKey);
            }
        }
        for key in &else_puts {
            // Only one of the two branches is taken.
            if puts.contains(key) && !then_puts.contains(key) || deletes.contains(key) {
                return Err(Error::DuplicateKey);
            }
        }
        puts.extend(then_puts);
        puts.extend(else_puts);
        deletes.extend(then_deletes);
        deletes.extend(else_deletes);
    }
    for op in ops {
        if let Op::Put(put) = op
            && (deletes.contains(&put.key) || !puts.insert(&put.key))
        {
            return Err(Error::DuplicateKey);
        }
    }
    Ok((puts, deletes))
}

fn span(key: &Bytes, end: &Bytes) -> Span {
    Span {
        key: own(key),
        end: own(end),
    }
}

/// The key of a txn that was copied last. Its compares and ranges, which end with the request, share the copy if they are of the same key, as
/// they mostly are. A deletion has a copy of its own: it stays in memory, and must not keep the value of a put with it.
#[derive(Default)]
struct CopiedKey(Bytes);

impl CopiedKey {
    fn span(&mut self, key: &Bytes, end: &Bytes) -> Span {
        if self.0 != key {
            self.0 = own(key);
        }
        Span {
            key: self.0.clone(),
            end: own(end),
        }
    }
}

/// Returns copies of a key and a value, which share one buffer: both stay in memory as long as their version does.
fn own_pair(key: &Bytes, value: &Bytes) -> (Bytes, Bytes) {
    let mut pair = BytesMut::with_capacity(key.len() + value.len());
    pair.extend_from_slice(key);
    pair.extend_from_slice(value);
    let mut pair = pair.freeze();
    (pair.split_to(key.len()), pair)
}

/// Returns a copy: a slice would keep the whole receive buffer of the connection in memory.
pub(super) fn own(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn delete(key: &[u8], end: &[u8]) -> Span {
        span(&Bytes::copy_from_slice(key), &Bytes::copy_from_slice(end))
    }

    #[test]
    fn intervals_hold_the_keys_of_all_their_spans() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut key = |most: u8| -> Vec<u8> {
            let len = rng.random_range(1..3);
            (0..len).map(|_| rng.random_range(0..most)).collect()
        };
        for _ in 0..500 {
            let (mut intervals, mut spans) = (KeyIntervals::default(), Vec::new());
            for n in 0..12 {
                let end = if n % 3 == 0 { Vec::new() } else { key(6) };
                let span = delete(&key(6), &end);
                intervals.add(&span);
                spans.push(span);
                for _ in 0..20 {
                    let key = Bytes::from(key(6));
                    let expected = spans.iter().any(|span| !span.is_open() && span.contains(&key));
                    assert_eq!(intervals.contains(&key), expected, "{key:?} in {spans:?}");
                }
            }
        }
    }

    #[test]
    fn overlaps_are_found_in_far_more_operations_than_a_txn_may_have() {
        let key = |n: u32| Bytes::from(format!("{n:08}"));
        let put = |key| {
            Op::Put(PutOp {
                key,
                value: Bytes::new(),
                lease: LeaseId::NONE,
                prev_kv: false,
                ignore_value: false,
                ignore_lease: false,
            })
        };
        let spans = (0..100_000).map(|n| {
            let span = super::span(&key(2 * n), &key(2 * n + 1));
            Op::Delete(DeleteOp { span, prev_kv: false })
        });
        let mut ops: Vec<Op> = spans.chain((0..100_000).map(|n| put(key(2 * n + 1)))).collect();
        check_overlaps(&ops).unwrap();
        ops.push(put(Bytes::from("00100000x")));
        assert!(check_overlaps(&ops).is_err());
    }
}
