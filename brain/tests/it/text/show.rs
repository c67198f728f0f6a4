//! Answers to text.

use bytes::Bytes;

use crate::wire::{Answer, Refusal, Request, Response, pb};
use pb::request_op::Request as Op;
use pb::response_op::Response as Done;

pub(super) fn answer(request: &Request, answer: &Answer) -> String {
    let response = match answer {
        Ok(response) => response,
        Err(refusal) => return self::refusal(refusal),
    };
    match (request, response) {
        (Request::Range(range), Response::Range(response)) => top(range, response),
        (_, Response::Put(response)) => put(response),
        (_, Response::Delete(response)) => delete(response),
        (Request::Txn(txn), Response::Txn(response)) => {
            format!("{} {}", at(&response.header), self::txn(txn, response))
        }
        (_, Response::Compact(response)) => at(&response.header),
        (_, Response::Grant(response)) => format!("lease {} for {} s", response.id, response.ttl),
        (_, Response::Revoke(response)) => at(&response.header),
        (_, Response::KeepAlive(response)) => format!("{} s", response.ttl),
        (_, Response::TimeToLive(response)) => {
            let ttl = if response.ttl < 0 {
                response.ttl
            } else {
                response.granted_ttl
            };
            let keys: String = response.keys.iter().map(|key| format!(" {}", word(key))).collect();
            format!("{ttl} s{}{keys}", if keys.is_empty() { "" } else { ":" })
        }
        (_, Response::Leases(response)) => response
            .leases
            .iter()
            .map(|lease| lease.id.to_string())
            .collect::<Vec<_>>()
            .join(" "),
        (request, response) => panic!("{response:?} answers another request than {request:?}"),
    }
    .trim_end()
    .to_owned()
}

/// A point read alone is just its value.
fn top(range: &pb::RangeRequest, response: &pb::RangeResponse) -> String {
    match &response.kvs[..] {
        [kv] if range.range_end.is_empty() && !range.keys_only => word(&kv.value),
        [] if range.range_end.is_empty() && !range.count_only => "nothing".to_owned(),
        _ => self::range(range, response),
    }
}

fn range(range: &pb::RangeRequest, response: &pb::RangeResponse) -> String {
    let shown = |kv: &crate::wire::KeyValue| word(if range.keys_only { &kv.key } else { &kv.value });
    let mut all: Vec<_> = response.kvs.iter().map(shown).collect();
    if all.is_empty() {
        all.push("nothing".to_owned());
    }
    let more = if response.more { ", more" } else { "" };
    format!("{} of {}{more}", all.join(" "), response.count)
}

fn put(response: &pb::PutResponse) -> String {
    let prev = response.prev_kv.as_ref().map(|kv| format!(" was {}", word(&kv.value)));
    at(&response.header) + &prev.unwrap_or_default()
}

fn delete(response: &pb::DeleteRangeResponse) -> String {
    let prev: String = response
        .prev_kvs
        .iter()
        .map(|kv| format!(" {}", word(&kv.value)))
        .collect();
    format!("{} deleted {}{prev}", at(&response.header), response.deleted)
}

fn txn(txn: &pb::TxnRequest, response: &pb::TxnResponse) -> String {
    let ops = if response.succeeded { &txn.success } else { &txn.failure };
    let all: Vec<_> = ops
        .iter()
        .zip(&response.responses)
        .map(|(op, done)| match (&op.request, &done.response) {
            (Some(Op::RequestRange(asked)), Some(Done::ResponseRange(response))) => range(asked, response),
            (_, Some(Done::ResponsePut(response))) => put(response),
            (_, Some(Done::ResponseDeleteRange(response))) => delete(response),
            (Some(Op::RequestTxn(asked)), Some(Done::ResponseTxn(response))) => self::txn(asked, response),
            (op, done) => panic!("{done:?} answers another operation than {op:?}"),
        })
        .collect();
    format!("{} {}", if response.succeeded { "yes" } else { "no" }, all.join(" ; "))
}

fn at(header: &Option<pb::ResponseHeader>) -> String {
    format!("@{}", header.map_or(-1, |header| header.revision))
}

fn word(bytes: &Bytes) -> String {
    bytes.escape_ascii().to_string()
}

fn refusal(refusal: &Refusal) -> String {
    let text = refusal.text.trim_start_matches("etcdserver: ");
    match text {
        "mvcc: required revision has been compacted" => "compacted",
        "mvcc: required revision is a future revision" => "future",
        "duplicate key given in txn request" => "duplicate",
        "too many operations in txn request" => "too many",
        "key is not provided" => "no key",
        "key not found" => "no such key",
        "value is provided" => "value provided",
        "lease is provided" => "lease provided",
        "requested lease not found" => "no lease",
        "lease already exists" => "lease exists",
        "too large lease TTL" => "lease too long",
        other => other,
    }
    .to_owned()
}
