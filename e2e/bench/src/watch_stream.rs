//! One gRPC stream with many watches.

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use h2::SendStream;
use pb::watch_request::RequestUnion;
use tokio::task::JoinSet;
use wire::etcdserverpb as pb;

use crate::grpc::{Connection, ResponseMessages, WATCH};
use crate::requests;

/// An open stream. Dropping it ends its watches.
#[derive(Debug)]
pub(crate) struct WatchStream {
    messages: ResponseMessages,
    /// The stream of requests stays open, else the watches would end.
    _requests: SendStream<Bytes>,
}

impl WatchStream {
    /// Makes one watch for each of these keys, or ranges if they have an end; returns when all are created. They get
    /// the ids 1, 2 and so on, in this order.
    pub(crate) async fn open(
        connection: &Connection,
        ranges: impl IntoIterator<Item = (Bytes, Bytes)>,
    ) -> anyhow::Result<Self> {
        let creates = ranges.into_iter().map(|(key, range_end)| pb::WatchCreateRequest {
            key,
            range_end,
            ..pb::WatchCreateRequest::default()
        });
        Self::create(connection, creates).await
    }

    /// Makes one watch of all keys that begin with this, with `prev_kv`, as kube-apiserver does.
    pub(crate) async fn of_prefix(connection: &Connection, prefix: &str) -> anyhow::Result<Self> {
        let create = pb::WatchCreateRequest {
            key: prefix.to_owned().into(),
            range_end: requests::prefix_end(prefix),
            prev_kv: true,
            ..pb::WatchCreateRequest::default()
        };
        Self::create(connection, [create]).await
    }

    async fn create(
        connection: &Connection,
        creates: impl IntoIterator<Item = pb::WatchCreateRequest>,
    ) -> anyhow::Result<Self> {
        let (response, mut sender) = connection.start(WATCH).await?;
        let mut last = 0;
        for create in creates {
            last += 1;
            let create = pb::WatchCreateRequest {
                watch_id: last,
                ..create
            };
            let request = pb::WatchRequest {
                request_union: Some(RequestUnion::CreateRequest(create)),
            };
            sender.send_data(requests::body(&request)?, false)?;
        }
        let mut messages = ResponseMessages::new(response.await?.into_body());
        for id in 1..=last {
            let created: pb::WatchResponse = messages.next().await?.context("the stream of watches ended")?;
            ensure!(
                created.created && !created.canceled && created.watch_id == id,
                "watch {id} was refused: {}",
                created.cancel_reason
            );
        }
        Ok(Self {
            messages,
            _requests: sender,
        })
    }

    /// The next response with events. May be cancelled without a loss.
    pub(crate) async fn next(&mut self) -> anyhow::Result<pb::WatchResponse> {
        loop {
            let response: pb::WatchResponse = self.messages.next().await?.context("the stream of watches ended")?;
            if response.canceled {
                let (id, reason, compacted) = (response.watch_id, response.cancel_reason, response.compact_revision);
                ensure!(
                    compacted == 0 || !reason.is_empty(),
                    "watch {id} fell behind: revisions before {compacted} are compacted"
                );
                bail!("watch {id} was cancelled: {reason}");
            }
            if !response.events.is_empty() {
                return Ok(response);
            }
        }
    }
}

/// Measures while watchers run, which do not end.
pub(crate) async fn while_watching<W: 'static, T>(
    measuring: impl Future<Output = anyhow::Result<T>>,
    watchers: &mut JoinSet<anyhow::Result<W>>,
) -> anyhow::Result<T> {
    tokio::select! {
        measured = measuring => measured,
        Some(ended) = watchers.join_next() => {
            ended??;
            bail!("a watcher ended early")
        }
    }
}
