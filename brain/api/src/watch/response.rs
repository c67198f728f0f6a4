//! Responses made from batches of events.

use bytes::Bytes;
use prost::Message;
use prost::encoding::encoded_len_varint;
use tonic::Status;

use super::request::{CancelReason, ResponseFormat};
use ::watch::{Entry, PrevKv};
use etcd_types::errors::Error;
use etcd_types::pb::etcdserverpb::{ResponseHeader, WatchResponse};
use etcd_types::pb::mvccpb;
use etcd_types::types::{Event, EventKind, KeyValue, Revision};
use std::sync::Arc;

/// The id in responses that are not for a single watcher.
pub(super) const NO_WATCHER: i64 = -1;

pub(super) fn created(header: ResponseHeader, watch_id: i64) -> WatchResponse {
    WatchResponse {
        header: Some(header),
        watch_id,
        created: true,
        ..WatchResponse::default()
    }
}

pub(super) fn refused(header: ResponseHeader, why: &CancelReason) -> WatchResponse {
    WatchResponse {
        header: Some(header),
        watch_id: NO_WATCHER,
        created: true,
        canceled: true,
        cancel_reason: why.to_string(),
        ..WatchResponse::default()
    }
}

pub(super) fn canceled(header: ResponseHeader, watch_id: i64) -> WatchResponse {
    WatchResponse {
        header: Some(header),
        watch_id,
        canceled: true,
        ..WatchResponse::default()
    }
}

/// Returns the response for a compacted start revision. Its header carries revision 0, so that it is not taken for progress.
pub(super) fn compacted(header: ResponseHeader, watch_id: i64, compact_revision: i64) -> WatchResponse {
    WatchResponse {
        header: Some(header),
        watch_id,
        canceled: true,
        compact_revision,
        ..WatchResponse::default()
    }
}

/// Returns the response for a revision if the previous versions that the watcher requests do not fit into memory: the watcher ends as if
/// that revision were compacted, because clients list again then. etcd's Go client does not report a response that has only a reason.
pub(super) fn too_large(header: ResponseHeader, watch_id: i64, revision: Revision) -> WatchResponse {
    WatchResponse {
        cancel_reason: format!("etcdserver: the previous values of revision {revision} are too large for a watch"),
        ..compacted(header, watch_id, revision + 1)
    }
}

/// Returns the response for a revision whose fragments exceed the memory of the watcher's client: as [`too_large`].
pub(super) fn too_many_requests(header: ResponseHeader, watch_id: i64, revision: Revision) -> WatchResponse {
    WatchResponse {
        cancel_reason: Status::from(Error::TooManyRequests).message().to_owned(),
        ..compacted(header, watch_id, revision + 1)
    }
}

/// Returns a progress response: all events up to the header's revision were sent to the watcher or, with [`NO_WATCHER`], to every
/// watcher of the stream.
pub(super) fn progress(header: ResponseHeader, watch_id: i64) -> WatchResponse {
    WatchResponse {
        header: Some(header),
        watch_id,
        ..WatchResponse::default()
    }
}

/// Returns one response with all events, or several if it is too long and may be fragmented: all but the last have `fragment` set. The
/// version before an event at or before `floor` is compacted: it is omitted even if it is still in memory, so that clients do not depend on
/// it.
pub(super) fn events(
    header: ResponseHeader,
    watch_id: i64,
    entries: &[Arc<Entry>],
    form: ResponseFormat,
    floor: Revision,
    max_fragment_bytes: usize,
) -> Vec<WatchResponse> {
    let form_of = |entry: &Entry| {
        if entry.revision() <= floor {
            PrevKv::Omitted
        } else {
            form.prev_kv
        }
    };
    let events: Vec<Bytes> = entries
        .iter()
        .map(|entry| entry.encoded(form_of(entry), encode))
        .collect();
    let whole = WatchResponse {
        events,
        ..progress(header, watch_id)
    };
    if !form.fragment || whole.encoded_len() < max_fragment_bytes {
        return vec![whole];
    }
    let empty = WatchResponse {
        fragment: true,
        ..progress(header, watch_id)
    };
    let (overhead, mut len) = (empty.encoded_len(), usize::MAX);
    let mut fragments: Vec<WatchResponse> = Vec::new();
    for event in whole.events {
        let more = field_len(&event);
        match fragments.last_mut() {
            Some(last) if len + more < max_fragment_bytes => {
                len += more;
                last.events.push(event);
            }
            _ => {
                len = overhead + more;
                fragments.push(WatchResponse {
                    events: vec![event],
                    ..empty.clone()
                });
            }
        }
    }
    if let Some(last) = fragments.last_mut() {
        last.fragment = false;
    }
    fragments
}

/// Returns the bytes of an element of `WatchResponse.events`: tag, length and content.
fn field_len(event: &Bytes) -> usize {
    1 + encoded_len_varint(event.len() as u64) + event.len()
}

fn encode(event: &Event, form: PrevKv) -> Bytes {
    let kind = match event.kind {
        EventKind::Put => mvccpb::event::EventType::Put,
        EventKind::Delete => mvccpb::event::EventType::Delete,
    };
    let message = mvccpb::Event {
        r#type: kind.into(),
        kv: Some(key_value(&event.kv)),
        prev_kv: event
            .prev_kv
            .as_ref()
            .filter(|_| form == PrevKv::Included)
            .map(key_value),
    };
    message.encode_to_vec().into()
}

fn key_value(kv: &KeyValue) -> mvccpb::KeyValue {
    mvccpb::KeyValue {
        key: kv.key.clone(),
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        value: kv.value.clone(),
        lease: kv.lease.0,
    }
}
