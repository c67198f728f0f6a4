//! Requests that are refused before the store is asked.

use std::collections::BTreeSet;

use bytes::Bytes;
use tonic::Code;

use super::{key_not_found, refused};
use crate::wire::{Refusal, Request, pb};
use pb::range_request::{SortOrder, SortTarget};
use pb::request_op::Request as Op;

/// Operations in one list of a txn, less those of the levels around it.
const MAX_TXN_OPS: usize = 128;

pub(super) fn request(request: &Request) -> Result<(), Refusal> {
    match request {
        Request::Range(range) => self::range(range),
        Request::Put(put) => self::put(put),
        Request::Delete(delete) => key(&delete.key),
        Request::Txn(txn) => {
            self::txn(txn, MAX_TXN_OPS)?;
            touched(&txn.success)?;
            touched(&txn.failure)?;
            Ok(())
        }
        _ => Ok(()),
    }
}

fn key(key: &[u8]) -> Result<(), Refusal> {
    if key.is_empty() {
        Err(refused(Code::InvalidArgument, "key is not provided"))
    } else {
        Ok(())
    }
}

fn range(range: &pb::RangeRequest) -> Result<(), Refusal> {
    key(&range.key)?;
    if SortOrder::try_from(range.sort_order).is_err() || SortTarget::try_from(range.sort_target).is_err() {
        return Err(refused(Code::InvalidArgument, "invalid sort option"));
    }
    Ok(())
}

fn put(put: &pb::PutRequest) -> Result<(), Refusal> {
    key(&put.key)?;
    if put.ignore_value && !put.value.is_empty() {
        return Err(refused(Code::InvalidArgument, "value is provided"));
    }
    if put.ignore_lease && put.lease != 0 {
        return Err(refused(Code::InvalidArgument, "lease is provided"));
    }
    Ok(())
}

fn txn(txn: &pb::TxnRequest, max_ops: usize) -> Result<(), Refusal> {
    let most = txn.compare.len().max(txn.success.len()).max(txn.failure.len());
    if most > max_ops {
        return Err(refused(Code::InvalidArgument, "too many operations in txn request"));
    }
    for compare in &txn.compare {
        key(&compare.key)?;
    }
    for op in txn.success.iter().chain(&txn.failure) {
        match &op.request {
            Some(Op::RequestRange(range)) => self::range(range)?,
            Some(Op::RequestPut(put)) => self::put(put)?,
            Some(Op::RequestDeleteRange(delete)) => key(&delete.key)?,
            Some(Op::RequestTxn(nested)) => self::txn(nested, max_ops - most)?,
            None => return Err(key_not_found()),
        }
    }
    Ok(())
}

/// The keys that a list of operations may put and delete.
#[derive(Default)]
struct Touched {
    puts: BTreeSet<Bytes>,
    /// From, to. Taken literally: an end of `\0`, which means "all", is treated as a key here, and no key is before it.
    deletes: Vec<(Bytes, Bytes)>,
}

impl Touched {
    fn add_put(&mut self, key: &Bytes) -> Result<(), Refusal> {
        let deleted = self.deletes.iter().any(|(from, to)| from <= key && key < to);
        if deleted || !self.puts.insert(key.clone()) {
            return Err(refused(Code::InvalidArgument, "duplicate key given in txn request"));
        }
        Ok(())
    }
}

/// Refuses two puts of a key, and a put of what is deleted on the same level or, before it, in a nested one.
fn touched(ops: &[pb::RequestOp]) -> Result<Touched, Refusal> {
    let mut all = Touched::default();
    for op in ops {
        if let Some(Op::RequestDeleteRange(delete)) = &op.request {
            let to = if delete.range_end.is_empty() {
                Bytes::from([&delete.key[..], &[0]].concat())
            } else {
                delete.range_end.clone()
            };
            all.deletes.push((delete.key.clone(), to));
        }
    }
    for op in ops {
        let Some(Op::RequestTxn(nested)) = &op.request else {
            continue;
        };
        let (success, failure) = (touched(&nested.success)?, touched(&nested.failure)?);
        for key in &success.puts {
            all.add_put(key)?;
        }
        for key in &failure.puts {
            // Only one of the branches runs.
            if success.puts.contains(key) {
                continue;
            }
            all.add_put(key)?;
        }
        all.deletes.extend(success.deletes);
        all.deletes.extend(failure.deletes);
    }
    for op in ops {
        if let Some(Op::RequestPut(put)) = &op.request {
            all.add_put(&put.key)?;
        }
    }
    Ok(all)
}
