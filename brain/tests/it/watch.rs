//! A watch of all keys, against the model.

use std::time::Duration;

use prost::Message;
use tokio_stream::wrappers::ReceiverStream;

use crate::grpc::Grpc;
use crate::model::{Event, Model};
use crate::wire::pb;
use etcd_types::pb::mvccpb;
use pb::watch_request::RequestUnion;

/// Every event must come within this time.
const EVENT_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two requests for progress: they are dropped while a watcher is catching up.
const PROGRESS_RETRY_DELAY: Duration = Duration::from_millis(20);

/// Watches all keys from the oldest revision that is left, until the server says that there is no more, and compares every event.
///
/// # Panics
/// An event differs, is missing, comes twice or in the wrong order.
pub(crate) async fn sees_what_happened(server: &mut Grpc, model: &Model) {
    let from = model.compacted().max(1);
    let seen = tokio::time::timeout(EVENT_TIMEOUT, all_from(server, from, model.revision())).await;
    let seen = seen.expect("the watch did not reach the current revision");
    let expected: Vec<_> = model
        .events_from(from)
        .cloned()
        .map(|event| canonical(event, from))
        .collect();
    let seen: Vec<_> = seen.into_iter().map(|event| canonical(event, from)).collect();
    for (number, (seen, expected)) in seen.iter().zip(&expected).enumerate() {
        assert_eq!(seen, expected, "event {number} from revision {from}");
    }
    assert_eq!(seen.len(), expected.len(), "number of events from revision {from}");
}

/// Removes the `prev_kv` of an event at the first watched revision, because compaction may have deleted it.
fn canonical(mut event: Event, from: i64) -> Event {
    if event.kv.mod_revision <= from {
        event.prev_kv = None;
    }
    event
}

async fn all_from(server: &mut Grpc, from: i64, current: i64) -> Vec<Event> {
    let (requests, stream) = tokio::sync::mpsc::channel(1);
    let create = pb::WatchCreateRequest {
        key: bytes::Bytes::from_static(b"\0"),
        range_end: bytes::Bytes::from_static(b"\0"),
        start_revision: from,
        prev_kv: true,
        ..pb::WatchCreateRequest::default()
    };
    let send = |union| {
        requests.send(pb::WatchRequest {
            request_union: Some(union),
        })
    };
    send(RequestUnion::CreateRequest(create)).await.unwrap();
    let mut answers = server
        .watch
        .watch(ReceiverStream::new(stream))
        .await
        .unwrap()
        .into_inner();
    let mut events = Vec::new();
    let mut ask_again = tokio::time::interval(PROGRESS_RETRY_DELAY);
    loop {
        let answer = tokio::select! {
            answer = answers.message() => answer.unwrap().expect("the server ended the watch"),
            _ = ask_again.tick() => {
                send(RequestUnion::ProgressRequest(pb::WatchProgressRequest {})).await.unwrap();
                continue;
            }
        };
        assert!(!answer.canceled, "{answer:?}");
        let is_progress = answer.events.is_empty() && !answer.created;
        let mut last = 0;
        for bytes in answer.events {
            let event = mvccpb::Event::decode(bytes).unwrap();
            let kv = event.kv.expect("an event has a key");
            last = kv.mod_revision;
            let deleted = event.r#type == mvccpb::event::EventType::Delete as i32;
            events.push(Event {
                kv,
                deleted,
                prev_kv: event.prev_kv,
            });
        }
        let revision = answer.header.expect("answers have headers").revision;
        assert!(
            last <= revision && revision <= current,
            "{last} <= {revision} <= {current}"
        );
        if is_progress {
            assert_eq!(revision, current, "nothing else writes");
            return events;
        }
    }
}
