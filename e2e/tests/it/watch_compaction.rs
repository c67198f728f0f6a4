//! Watchers that keep up receive every event, also when its revision is compacted at once.

use std::time::Duration;

use futures::StreamExt as _;
use pb::kv_client::KvClient;
use pb::request_op::Request as Op;
use pb::watch_client::WatchClient;
use pb::watch_request::RequestUnion;
use programs::progress::Progress;
use programs::server::{Program, Server};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use wire::etcdserverpb as pb;

use crate::harness::deadline;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The keys that one request deletes. A txn puts at most 100 of them.
const DELETED_KEYS: [usize; 3] = [300, 1_000, 2_000];
const PUTS_PER_TXN: usize = 100;

fn key(number: usize) -> Vec<u8> {
    format!("w/{number:05}").into_bytes()
}

/// Puts keys, deletes all of them at once, and has the history given up to that revision.
async fn write(kv: &mut KvClient<tonic::transport::Channel>, keys: usize) {
    for first in (0..keys).step_by(PUTS_PER_TXN) {
        let puts = (first..keys.min(first + PUTS_PER_TXN)).map(|number| pb::RequestOp {
            request: Some(Op::RequestPut(pb::PutRequest {
                key: key(number).into(),
                value: number.to_string().into_bytes().into(),
                ..pb::PutRequest::default()
            })),
        });
        let txn = pb::TxnRequest {
            success: puts.collect(),
            ..pb::TxnRequest::default()
        };
        kv.txn(txn).await.unwrap();
    }
    let deleted = kv
        .delete_range(pb::DeleteRangeRequest {
            key: b"w/".as_slice().into(),
            range_end: b"w0".as_slice().into(),
            prev_kv: false,
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(usize::try_from(deleted.deleted), Ok(keys));
    let head = pb::CompactionRequest {
        revision: deleted.header.unwrap().revision,
        physical: false,
    };
    kv.compact(head).await.unwrap();
}

/// A watcher with previous values gets each put and each deletion, in their order. Returns the number of previous values that it got.
async fn watch(server: &Server) -> usize {
    let channel = server.connect().await.unwrap();
    let mut kv = KvClient::new(channel.clone());
    let (requests, asked) = mpsc::channel(1);
    let create = pb::WatchCreateRequest {
        key: b"w/".as_slice().into(),
        range_end: b"w0".as_slice().into(),
        prev_kv: true,
        ..pb::WatchCreateRequest::default()
    };
    let create = pb::WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(create)),
    };
    requests.send(create).await.unwrap();
    let answers = WatchClient::new(channel).watch(ReceiverStream::new(asked)).await;
    let mut answers = answers.unwrap().into_inner();
    assert!(answers.next().await.unwrap().unwrap().created);
    let mut previous = 0;
    for keys in DELETED_KEYS {
        let seen = async {
            let mut events = Vec::new();
            while events.len() < 2 * keys {
                let answer = answers.next().await.expect("the stream goes on").unwrap();
                assert!(
                    !answer.canceled,
                    "{}: {answer:?} after {} events",
                    server.name(),
                    events.len()
                );
                events.extend(answer.events);
            }
            events
        };
        let (events, ()) = tokio::join!(timeout(ANSWER_TIMEOUT, seen), write(&mut kv, keys));
        let events = events.expect("all events in time");
        for (at, event) in events.iter().enumerate() {
            let number = at % keys;
            let is_delete = at >= keys;
            assert_eq!(event.r#type, i32::from(is_delete), "event {at} of {keys} keys");
            assert_eq!(event.kv.as_ref().unwrap().key, key(number), "event {at} of {keys} keys");
            if let Some(before) = &event.prev_kv {
                assert!(is_delete, "{before:?} before it was put");
                assert_eq!(before.value, number.to_string().into_bytes());
                previous += 1;
            }
        }
    }
    previous
}

#[tokio::test(flavor = "multi_thread")]
async fn watcher_that_keeps_up_gets_what_is_deleted_at_once_and_compacted() {
    let _deadline = deadline();
    let etcd = Server::start(&Program::etcd(&Progress::stderr()).unwrap(), &[]).unwrap();
    let brain = Server::start(&Program::kubebrain().unwrap(), &[]).unwrap();
    let (expected, found) = tokio::join!(watch(&etcd), watch(&brain));
    eprintln!("{expected} previous values from etcd, {found} from the brain");
    etcd.stop().unwrap();
    brain.stop().unwrap();
}
