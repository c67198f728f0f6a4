//! Ties of a sort: etcd's sort is not stable, so keys that compare equal come in any order.

use std::cmp::Ordering;

use pb::range_request::{SortOrder, SortTarget};
use pb::request_op::Request as Op;
use pb::response_op::Response;
use wire::etcdserverpb as pb;
use wire::mvccpb::KeyValue;

use super::Answer;
use crate::request::Request;

/// Puts ties into the order of their keys. Where a limit cut through a tie, any of them may have been kept: there only
/// what they were sorted by is left.
pub fn order_ties(request: &Request, answer: &mut Answer) {
    match (request, answer) {
        (Request::Range(request), Answer::Range(response)) => in_range(request, response),
        (Request::Txn(request), Answer::Txn(response)) => in_txn(request, response),
        _ => {}
    }
}

fn in_txn(request: &pb::TxnRequest, response: &mut pb::TxnResponse) {
    let ops = if response.succeeded {
        &request.success
    } else {
        &request.failure
    };
    for (op, response) in ops.iter().zip(&mut response.responses) {
        match (&op.request, &mut response.response) {
            (Some(Op::RequestRange(request)), Some(Response::ResponseRange(response))) => in_range(request, response),
            (Some(Op::RequestTxn(request)), Some(Response::ResponseTxn(response))) => in_txn(request, response),
            _ => {}
        }
    }
}

fn in_range(request: &pb::RangeRequest, response: &mut pb::RangeResponse) {
    let (target, order) = (request.sort_target(), request.sort_order());
    if target == SortTarget::Key {
        return;
    }
    let mut groups: Vec<&mut [KeyValue]> = response.kvs.chunk_by_mut(|a, b| rank(target, a, b).is_eq()).collect();
    // with neither an order nor bounds the limit came before the sort, so there all are known
    let bounds = [
        request.min_mod_revision,
        request.max_mod_revision,
        request.min_create_revision,
        request.max_create_revision,
    ];
    let sorted_first = order != SortOrder::None || bounds.iter().any(|bound| *bound != 0);
    let cut = (response.more && sorted_first).then(|| groups.pop()).flatten();
    for tie in groups {
        tie.sort_by(|a, b| a.key.cmp(&b.key));
    }
    cut.into_iter().flatten().for_each(|kv| *kv = only(target, kv));
}

fn rank(target: SortTarget, a: &KeyValue, b: &KeyValue) -> Ordering {
    match target {
        SortTarget::Key => a.key.cmp(&b.key),
        SortTarget::Version => a.version.cmp(&b.version),
        SortTarget::Create => a.create_revision.cmp(&b.create_revision),
        SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
        SortTarget::Value => a.value.cmp(&b.value),
    }
}

fn only(target: SortTarget, kv: &KeyValue) -> KeyValue {
    match target {
        SortTarget::Key => KeyValue {
            key: kv.key.clone(),
            ..KeyValue::default()
        },
        SortTarget::Version => KeyValue {
            version: kv.version,
            ..KeyValue::default()
        },
        SortTarget::Create => KeyValue {
            create_revision: kv.create_revision,
            ..KeyValue::default()
        },
        SortTarget::Mod => KeyValue {
            mod_revision: kv.mod_revision,
            ..KeyValue::default()
        },
        SortTarget::Value => KeyValue {
            value: kv.value.clone(),
            ..KeyValue::default()
        },
    }
}
