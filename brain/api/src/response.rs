//! Results in their wire format.

use etcd_types::pb::etcdserverpb as pb;
use etcd_types::pb::mvccpb;
use etcd_types::types::{KeyValue, Revision};
use mvcc::op::{OpResult, RangeResult, TxnResult};
use pb::response_op::Response;

/// Converts a pair.
#[must_use]
pub fn key_value(kv: KeyValue) -> mvccpb::KeyValue {
    kv.into()
}

/// Converts the result of a range, with a header.
#[must_use]
pub fn range(header: pb::ResponseHeader, result: RangeResult) -> pb::RangeResponse {
    pb::RangeResponse {
        header: Some(header),
        kvs: result.kvs.into_iter().map(key_value).collect(),
        more: result.more,
        count: result.count,
    }
}

/// Converts the result of a put, with a header.
#[must_use]
pub fn put(header: pb::ResponseHeader, prev: Option<KeyValue>) -> pb::PutResponse {
    pb::PutResponse {
        header: Some(header),
        prev_kv: prev.map(key_value),
    }
}

/// Converts the result of a deletion, with a header.
#[must_use]
pub fn delete(header: pb::ResponseHeader, deleted: i64, kvs: Vec<KeyValue>) -> pb::DeleteRangeResponse {
    let prev_kvs = kvs.into_iter().map(key_value).collect();
    pb::DeleteRangeResponse {
        header: Some(header),
        deleted,
        prev_kvs,
    }
}

/// Converts the result of a txn, with a header.
#[must_use]
pub fn txn(header: pb::ResponseHeader, result: TxnResult) -> pb::TxnResponse {
    let responses = result
        .results
        .into_iter()
        .map(|(revision, result)| op(revision, result))
        .collect();
    pb::TxnResponse {
        header: Some(header),
        succeeded: result.succeeded,
        responses,
    }
}

/// Converts the result of an operation of a txn. Inner headers carry only the revision, those of nested txns not even that.
fn op(revision: Revision, result: OpResult) -> pb::ResponseOp {
    let header = pb::ResponseHeader {
        revision,
        ..pb::ResponseHeader::default()
    };
    let response = match result {
        OpResult::Range(result) => Response::ResponseRange(range(header, result)),
        OpResult::Put(prev) => Response::ResponsePut(put(header, prev)),
        OpResult::Delete(deleted, kvs) => Response::ResponseDeleteRange(delete(header, deleted, kvs)),
        OpResult::Txn(result) => Response::ResponseTxn(txn(pb::ResponseHeader::default(), result)),
    };
    pb::ResponseOp {
        response: Some(response),
    }
}
