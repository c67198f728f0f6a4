//! Clients that vanish, do not read, or are many: other clients do not notice.

use super::*;
use pb::watch_client::WatchClient;
use pb::watch_request::RequestUnion;
use tokio::sync::mpsc::{Sender, channel};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

struct Watch {
    requests: Sender<pb::WatchRequest>,
    responses: Streaming<pb::WatchResponse>,
}

impl Watch {
    async fn open(server: &Server, key: &str) -> Self {
        let (requests, queue) = channel(64);
        requests.send(create(key)).await.unwrap();
        let mut client = WatchClient::new(server.connect().await.unwrap()).max_decoding_message_size(usize::MAX);
        let mut responses = client.watch(ReceiverStream::new(queue)).await.unwrap().into_inner();
        assert!(responses.message().await.unwrap().unwrap().created);
        Self { requests, responses }
    }

    async fn next(&mut self) -> pb::WatchResponse {
        timeout(ANSWER_TIMEOUT, self.responses.message())
            .await
            .unwrap()
            .unwrap()
            .unwrap()
    }
}

fn create(key: &str) -> pb::WatchRequest {
    let create = pb::WatchCreateRequest {
        key: key.as_bytes().to_vec().into(),
        prev_kv: true,
        ..pb::WatchCreateRequest::default()
    };
    pb::WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(create)),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_vanishes_leaves_nothing_half_done() {
    let _deadline = deadline();
    let server = brain(&[]);
    let mut kv = kv(&server).await;
    for n in 0..200_u32 {
        // its connection closes while its request is in flight, a little later each time
        let mut gone = super::kv(&server).await;
        let request = pb::TxnRequest {
            success: ["left", "right"]
                .map(|key| pb::RequestOp {
                    request: Some(pb::request_op::Request::RequestPut(put(key, n.to_string()))),
                })
                .to_vec(),
            ..pb::TxnRequest::default()
        };
        drop(timeout(Duration::from_micros(u64::from(n) * 20), gone.txn(request)).await);
        drop(gone);
        let read = |key: &str| get(key);
        let both = pb::TxnRequest {
            success: ["left", "right"]
                .map(|key| pb::RequestOp {
                    request: Some(pb::request_op::Request::RequestRange(read(key))),
                })
                .to_vec(),
            ..pb::TxnRequest::default()
        };
        let seen = kv.txn(both).await.unwrap().into_inner();
        let values: Vec<_> = seen.responses.iter().map(|response| format!("{response:?}")).collect();
        let value = |text: &str| text.split_once("value: ").map(|(_, rest)| rest.to_owned());
        assert_eq!(value(&values[0]), value(&values[1]), "half a transaction");
    }
    server.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_that_does_not_read_slows_nobody_and_loses_nothing() {
    let _deadline = deadline();
    const WRITES: usize = 300;
    let server = brain(&[]);
    let mut kv = kv(&server).await;
    let mut deaf = Watch::open(&server, "a").await;
    let mut awake = Watch::open(&server, "a").await;
    let before = server.usage().unwrap().rss;
    for n in 0..WRITES {
        let written = timeout(
            ANSWER_TIMEOUT,
            kv.put(put("a", [n.to_string().into_bytes(), vec![b'v'; 200_000]].concat())),
        );
        written.await.unwrap().unwrap();
        assert_eq!(awake.next().await.events.len(), 1);
    }
    let grown = server.usage().unwrap().rss.saturating_sub(before) >> 20;
    assert!(grown < 512, "{grown} MiB more for {WRITES} values of 200 kB");
    let mut revision = 1;
    while revision < i64::try_from(WRITES).unwrap() + 1 {
        for event in deaf.next().await.events {
            let next = event.kv.unwrap().mod_revision;
            assert_eq!(next, revision + 1, "a gap");
            assert_eq!(event.prev_kv.is_some(), next > 2);
            revision = next;
        }
    }
    server.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_watchers_cost_only_those_whom_it_concerns() {
    let _deadline = deadline();
    const STREAMS: usize = 10;
    const EACH: usize = 1_000;
    let server = brain(&[]);
    let mut kv = kv(&server).await;
    let mut streams = Vec::new();
    for stream in 0..STREAMS {
        let mut watch = Watch::open(&server, &format!("key/{stream}/0")).await;
        for n in 1..EACH {
            watch.requests.send(create(&format!("key/{stream}/{n}"))).await.unwrap();
            assert!(watch.next().await.created);
        }
        streams.push(watch);
    }
    let began = Instant::now();
    for (at, stream) in streams.iter_mut().enumerate() {
        kv.put(put(format!("key/{at}/{}", EACH - 1), "x")).await.unwrap();
        let response = stream.next().await;
        assert_eq!(
            (response.events.len(), response.watch_id),
            (1, i64::try_from(EACH - 1).unwrap())
        );
    }
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "ten writes took {:?}",
        began.elapsed()
    );
    let rss = server.usage().unwrap().rss >> 20;
    assert!(rss < 300, "{rss} MiB for 10,000 watchers");
    drop(streams);
    kv.put(put("a", "still here")).await.unwrap();
    server.stop().unwrap();
}
