//! The requests that are sent, and what they do when they are right.

use std::path::Path;

use anyhow::Context as _;
use bytes::Bytes;
use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::request_op::Request as Op;
use prost::Message;
use wire::etcdserverpb as pb;

/// The key that all updates meet at.
pub(crate) const HOT_KEY: &[u8] = b"/registry/bench/hot";
/// The prefix of the listed keys, and the end of that range.
pub(crate) const LISTED_PREFIX: &[u8] = b"/registry/listed/";
const LISTED_PREFIX_END: &[u8] = b"/registry/listed0";
const VALUE_BYTES: usize = 512;

/// An update as kube-apiserver makes it: compare the mod revision, then put, else get. The same bytes are sent again and again, so the
/// comparison is one that holds each time: the mod revision of an existing key is greater than 0.
pub(crate) fn update() -> pb::TxnRequest {
    update_of(put())
}

/// The same of any key.
pub(crate) fn update_of(put: pb::PutRequest) -> pb::TxnRequest {
    let key = put.key.clone();
    let compare = pb::Compare {
        result: CompareResult::Greater.into(),
        target: CompareTarget::Mod.into(),
        key: key.clone(),
        target_union: Some(TargetUnion::ModRevision(0)),
        range_end: Bytes::new(),
    };
    let get = pb::RangeRequest {
        key,
        ..pb::RangeRequest::default()
    };
    pb::TxnRequest {
        compare: vec![compare],
        success: vec![pb::RequestOp {
            request: Some(Op::RequestPut(put)),
        }],
        failure: vec![pb::RequestOp {
            request: Some(Op::RequestRange(get)),
        }],
    }
}

/// As kube-apiserver writes: does this if the key has this mod revision, which is 0 of an absent one, else gets the key.
pub(crate) fn at_revision(key: Bytes, revision: i64, then: Op) -> pb::TxnRequest {
    let compare = pb::Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: key.clone(),
        target_union: Some(TargetUnion::ModRevision(revision)),
        range_end: Bytes::new(),
    };
    let get = pb::RangeRequest {
        key,
        ..pb::RangeRequest::default()
    };
    let operation = |request| vec![pb::RequestOp { request: Some(request) }];
    pb::TxnRequest {
        compare: vec![compare],
        success: operation(then),
        failure: operation(Op::RequestRange(get)),
    }
}

/// 512 bytes under the hot key.
pub(crate) fn put() -> pb::PutRequest {
    pb::PutRequest {
        key: Bytes::from_static(HOT_KEY),
        value: vec![b'v'; VALUE_BYTES].into(),
        ..pb::PutRequest::default()
    }
}

/// The hot key.
pub(crate) fn get() -> pb::RangeRequest {
    pb::RangeRequest {
        key: Bytes::from_static(HOT_KEY),
        ..pb::RangeRequest::default()
    }
}

/// All listed keys.
pub(crate) fn list() -> pb::RangeRequest {
    let (key, range_end) = (Bytes::from_static(LISTED_PREFIX), Bytes::from_static(LISTED_PREFIX_END));
    pb::RangeRequest {
        key,
        range_end,
        ..pb::RangeRequest::default()
    }
}

/// The end of the range of all keys that begin with this, whose last byte is not 255.
pub(crate) fn prefix_end(prefix: &str) -> Bytes {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end.into()
}

/// A message as the body of a call: not compressed, its length, itself.
pub(crate) fn body(message: &impl Message) -> anyhow::Result<Bytes> {
    let length = message.encoded_len();
    let mut body = Vec::with_capacity(5 + length);
    body.push(0);
    body.extend(u32::try_from(length).context("a body of that length")?.to_be_bytes());
    message.encode(&mut body)?;
    Ok(body.into())
}

/// Writes the body of a call to a file.
pub(crate) fn write(message: &impl Message, path: &Path) -> anyhow::Result<()> {
    std::fs::write(path, body(message)?).with_context(|| format!("write {}", path.display()))
}

/// Bytes of a response as the body of an answer.
pub(crate) fn framed(message: &impl Message) -> u64 {
    message.encoded_len() as u64 + 5
}
