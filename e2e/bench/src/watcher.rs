//! A watcher that reads as fast as it can, on a thread of its own.

use std::thread::JoinHandle;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use pb::watch_client::WatchClient;
use pb::watch_request::RequestUnion;
use programs::server::Server;
use tokio::sync::oneshot;
use tokio_stream::StreamExt as _;
use tonic::transport::Endpoint;
use wire::etcdserverpb as pb;

/// A running watcher of one key, with prev_kv.
#[derive(Debug)]
pub(crate) struct KeyWatcher {
    until: oneshot::Sender<i64>,
    thread: JoinHandle<anyhow::Result<u64>>,
}

impl KeyWatcher {
    /// Returns when it is created.
    pub(crate) async fn start(server: &Server, key: &'static [u8]) -> anyhow::Result<Self> {
        let (until, stop) = oneshot::channel();
        let (created, is_created) = oneshot::channel();
        let endpoint = Endpoint::new(server.endpoint().to_owned())?;
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(watch(endpoint, Bytes::from_static(key), created, stop))
        });
        is_created.await.context("the watcher ended before it was created")?;
        Ok(Self { until, thread })
    }

    /// Waits until the event of `revision` has come, and returns the number of events.
    pub(crate) fn finish(self, revision: i64) -> anyhow::Result<u64> {
        self.until.send(revision).ok().context("the watcher ended early")?;
        self.thread.join().ok().context("the watcher failed")?
    }
}

async fn watch(
    endpoint: Endpoint,
    key: Bytes,
    created: oneshot::Sender<()>,
    mut stop: oneshot::Receiver<i64>,
) -> anyhow::Result<u64> {
    let create = pb::WatchCreateRequest {
        key,
        prev_kv: true,
        ..pb::WatchCreateRequest::default()
    };
    let request = pb::WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(create)),
    };
    // the stream of requests stays open, else the watch would end
    let requests = tokio_stream::once(request).chain(tokio_stream::pending());
    let mut client = WatchClient::new(endpoint.connect().await?).max_decoding_message_size(usize::MAX);
    let mut responses = client.watch(requests).await?.into_inner();
    let first = responses.message().await?.context("the watch ended")?;
    ensure!(
        first.created && !first.canceled,
        "the watch was refused: {}",
        first.cancel_reason
    );
    created.send(()).ok().context("no receiver for the watcher")?;
    let (mut count, mut last, mut until) = (0, 0, i64::MAX);
    while last < until {
        tokio::select! {
            revision = &mut stop, if until == i64::MAX => until = revision.context("no receiver for the watcher")?,
            message = responses.message() => {
                let message = message?.context("the watch ended")?;
                for event in &message.events {
                    ensure!(event.prev_kv.is_some(), "an update without the version before");
                    last = event.kv.as_ref().map_or(last, |kv| kv.mod_revision);
                    count += 1;
                }
            }
        }
    }
    Ok(count)
}
