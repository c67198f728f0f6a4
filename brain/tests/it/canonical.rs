//! Two answers to one request, made comparable: what may differ between two right servers is taken out, nothing else.
//!
//! That is: ids of cluster, member and raft term in the outer header; remaining TTLs; the order of a lease's keys and of leases; the
//! order of ties in a sort, and which of them a limit cut off.

use crate::model::by_target;
use crate::wire::{Answer, KeyValue, Request, Response, pb};
use pb::request_op::Request as Op;
use pb::response_op::Response as Done;

/// Takes out of `answer` what two right answers to `request` may differ in.
pub(crate) fn canonical(request: &Request, mut answer: Answer) -> Answer {
    if let Ok(response) = &mut answer {
        if let Some(header) = response.header_mut() {
            (header.cluster_id, header.member_id, header.raft_term) = (0, 0, 0);
        }
        match (request, response) {
            (Request::Range(range), Response::Range(response)) => ties(range, response),
            (Request::Txn(txn), Response::Txn(response)) => nested(txn, response),
            (_, Response::TimeToLive(response)) => {
                response.ttl = response.ttl.min(0);
                response.keys.sort();
            }
            (_, Response::Leases(response)) => response.leases.sort_by_key(|lease| lease.id),
            _ => {}
        }
    }
    answer
}

fn nested(txn: &pb::TxnRequest, response: &mut pb::TxnResponse) {
    let ops = if response.succeeded { &txn.success } else { &txn.failure };
    for (op, done) in ops.iter().zip(&mut response.responses) {
        match (&op.request, &mut done.response) {
            (Some(Op::RequestRange(range)), Some(Done::ResponseRange(response))) => ties(range, response),
            (Some(Op::RequestTxn(txn)), Some(Done::ResponseTxn(response))) => nested(txn, response),
            _ => {}
        }
    }
}

/// Orders ties by key. If a limit cuts within ties, only their number and the field that they were sorted by is kept.
fn ties(range: &pb::RangeRequest, response: &mut pb::RangeResponse) {
    if range.sort_target == pb::range_request::SortTarget::Key as i32 {
        return;
    }
    let cut = response.kvs.last().cloned().filter(|_| response.more);
    for run in response.kvs.chunk_by_mut(|a, b| by_target(range, a, b).is_eq()) {
        run.sort_by(|a, b| a.key.cmp(&b.key));
    }
    for kv in &mut response.kvs {
        if cut.as_ref().is_some_and(|cut| by_target(range, cut, kv).is_eq()) {
            let by = kv.clone();
            *kv = sorted_by(range, &by);
        }
    }
}

/// Only what the request sorts by.
fn sorted_by(range: &pb::RangeRequest, kv: &KeyValue) -> KeyValue {
    use pb::range_request::SortTarget;
    let none = KeyValue::default();
    match range.sort_target() {
        SortTarget::Key => KeyValue {
            key: kv.key.clone(),
            ..none
        },
        SortTarget::Version => KeyValue {
            version: kv.version,
            ..none
        },
        SortTarget::Create => KeyValue {
            create_revision: kv.create_revision,
            ..none
        },
        SortTarget::Mod => KeyValue {
            mod_revision: kv.mod_revision,
            ..none
        },
        SortTarget::Value => KeyValue {
            value: kv.value.clone(),
            ..none
        },
    }
}
