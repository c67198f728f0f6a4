//! Requests and answers of a round, as etcd's messages.

use anyhow::{Context as _, ensure};
use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::request_op::Request as AnyRequest;
use pb::response_op::Response as AnyResponse;
use wire::{etcdserverpb as pb, mvccpb};

use super::Padding;
use crate::history::{Compare, Event, KeySelector, Kv, Op, OpAnswer, WrittenValue};

/// A value's number, and bytes that follow from it.
pub(super) fn bytes(value: WrittenValue, padding: Padding) -> Vec<u8> {
    let mut bytes = value.0.to_be_bytes().to_vec();
    bytes.resize(8 + padding.of(value), filler(value));
    bytes
}

fn filler(value: WrittenValue) -> u8 {
    value.0.to_le_bytes()[0]
}

/// The number; a value that was never written is an error.
fn value(bytes: &[u8]) -> anyhow::Result<WrittenValue> {
    let (number, padding) = bytes.split_first_chunk().context("a value is cut")?;
    let value = WrittenValue(u64::from_be_bytes(*number));
    ensure!(
        padding.iter().all(|byte| *byte == filler(value)),
        "the value {value:?} is torn"
    );
    Ok(value)
}

pub(super) fn kv(kv: &mvccpb::KeyValue) -> anyhow::Result<Kv> {
    Ok(Kv {
        key: String::from_utf8(kv.key.to_vec())?,
        value: value(&kv.value)?,
        create: kv.create_revision,
        modified: kv.mod_revision,
        version: kv.version,
        lease: kv.lease,
    })
}

pub(super) fn event(event: &mvccpb::Event) -> anyhow::Result<Event> {
    let changed = event.kv.as_ref().context("an event without a key")?;
    let prev = event.prev_kv.as_ref().map(kv).transpose()?;
    Ok(if event.r#type == mvccpb::event::EventType::Delete as i32 {
        Event::Delete {
            key: String::from_utf8(changed.key.to_vec())?,
            revision: changed.mod_revision,
            prev,
        }
    } else {
        Event::Put { kv: kv(changed)?, prev }
    })
}

/// The first key, and the end of the range; empty for one key.
pub(super) fn range(keys: &KeySelector) -> (bytes::Bytes, bytes::Bytes) {
    match keys {
        KeySelector::One(key) => (key.clone().into(), bytes::Bytes::new()),
        KeySelector::Prefix(prefix) if prefix.is_empty() => (vec![0].into(), vec![0].into()),
        KeySelector::Prefix(prefix) => {
            let mut end = prefix.clone().into_bytes();
            if let Some(last) = end.last_mut() {
                *last += 1; // prefixes are ASCII
            }
            (prefix.clone().into(), end.into())
        }
    }
}

pub(super) fn put(op: &Op, padding: Padding) -> Option<pb::PutRequest> {
    let Op::Put {
        key,
        value,
        lease,
        prev,
    } = op
    else {
        return None;
    };
    Some(pb::PutRequest {
        key: key.clone().into(),
        value: bytes(*value, padding).into(),
        lease: *lease,
        prev_kv: *prev,
        ..pb::PutRequest::default()
    })
}

pub(super) fn any(op: &Op, padding: Padding, serializable: bool) -> AnyRequest {
    match op {
        Op::Put { .. } => AnyRequest::RequestPut(put(op, padding).unwrap_or_default()),
        Op::Delete { keys, prev } => {
            let (key, range_end) = range(keys);
            AnyRequest::RequestDeleteRange(pb::DeleteRangeRequest {
                key,
                range_end,
                prev_kv: *prev,
            })
        }
        Op::Range { keys, revision } => {
            let (key, range_end) = range(keys);
            AnyRequest::RequestRange(pb::RangeRequest {
                key,
                range_end,
                revision: *revision,
                serializable,
                ..pb::RangeRequest::default()
            })
        }
    }
}

pub(super) fn compare(compare: &Compare, padding: Padding) -> pb::Compare {
    let (key, target, union) = match compare {
        Compare::Modified(key, revision) => (key, CompareTarget::Mod, TargetUnion::ModRevision(*revision)),
        Compare::Version(key, version) => (key, CompareTarget::Version, TargetUnion::Version(*version)),
        Compare::Value(key, value) => (
            key,
            CompareTarget::Value,
            TargetUnion::Value(bytes(*value, padding).into()),
        ),
    };
    pb::Compare {
        result: CompareResult::Equal as i32,
        target: target as i32,
        key: key.clone().into(),
        range_end: bytes::Bytes::new(),
        target_union: Some(union),
    }
}

pub(super) fn done(response: &AnyResponse) -> anyhow::Result<OpAnswer> {
    let kvs = |kvs: &[mvccpb::KeyValue]| kvs.iter().map(kv).collect::<anyhow::Result<Vec<_>>>();
    Ok(match response {
        AnyResponse::ResponsePut(put) => OpAnswer::Put {
            prev: put.prev_kv.as_ref().map(kv).transpose()?,
        },
        AnyResponse::ResponseDeleteRange(delete) => OpAnswer::Delete {
            deleted: delete.deleted,
            prev: kvs(&delete.prev_kvs)?,
        },
        AnyResponse::ResponseRange(range) => OpAnswer::Range {
            kvs: kvs(&range.kvs)?,
            count: range.count,
        },
        AnyResponse::ResponseTxn(_) => anyhow::bail!("a txn where none was asked for"),
    })
}
