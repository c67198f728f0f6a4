//! A watch stream that is opened again whenever it breaks.

use std::time::Duration;

use anyhow::Context as _;
use pb::watch_client::WatchClient;
use pb::watch_request::RequestUnion;
use tokio::sync::mpsc::{self, Sender};
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, interval, timeout};
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use wire::etcdserverpb as pb;

use super::{REQUEST_TIMEOUT, RoundState, messages};
use crate::history::{KeySelector, Message, MessageContent, StreamAttempt, WatcherHistory};

/// Between two attempts.
const REOPEN_DELAY: Duration = Duration::from_millis(50);
/// Between two questions for progress.
const PROGRESS_REQUEST_INTERVAL: Duration = Duration::from_millis(150);
/// After the round's end, for all that is still to come.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Parts of a stream.
#[derive(Clone, Debug)]
pub(crate) struct StreamPlan {
    pub(crate) member: usize,
    pub(crate) channel: Channel,
    pub(crate) watches: Vec<KeySelector>,
    pub(crate) prev: bool,
    /// The revision to begin with.
    pub(crate) from: i64,
}

/// Watches until all watches have sent everything up to `end`, once that is known; gives up some time after.
///
/// # Errors
///
/// A message that etcd would not send.
pub(crate) async fn run(
    plan: StreamPlan,
    round: RoundState,
    mut end: Receiver<Option<i64>>,
) -> anyhow::Result<WatcherHistory> {
    let mut stream = OpenStream {
        next: vec![plan.from; plan.watches.len()],
        watcher: WatcherHistory {
            member: plan.member,
            watches: plan.watches.clone(),
            prev: plan.prev,
            attempts: Vec::new(),
        },
        plan,
        round,
    };
    let mut give_up: Option<Instant> = None;
    loop {
        stream.attempt(&mut end, &mut give_up).await?;
        if stream.is_done(*end.borrow()) || give_up.is_some_and(|at| Instant::now() > at) {
            return Ok(stream.watcher);
        }
        tokio::time::sleep(REOPEN_DELAY).await;
    }
}

struct OpenStream {
    plan: StreamPlan,
    round: RoundState,
    watcher: WatcherHistory,
    /// The first revision that each watch has not sent.
    next: Vec<i64>,
}

impl OpenStream {
    fn is_done(&self, end: Option<i64>) -> bool {
        end.is_some_and(|end| self.next.iter().all(|next| *next > end))
    }

    /// One life of the stream.
    async fn attempt(&mut self, end: &mut Receiver<Option<i64>>, give_up: &mut Option<Instant>) -> anyhow::Result<()> {
        let mut attempt = StreamAttempt {
            opened: self.round.at(),
            from: self.next.clone(),
            messages: Vec::new(),
            broke: None,
        };
        // an attempt that never came to be is none
        if let Ok(Ok((requests, mut messages))) = timeout(REQUEST_TIMEOUT, self.open()).await {
            let broke = self
                .listen(&mut attempt, requests, &mut messages, (end, give_up))
                .await?;
            attempt.broke = broke.map(|status| (self.round.at(), format!("{:?} {}", status.code(), status.message())));
            self.watcher.attempts.push(attempt);
        } else if end.borrow().is_some() {
            give_up.get_or_insert_with(|| Instant::now() + DRAIN_TIMEOUT);
        }
        Ok(())
    }

    async fn open(&self) -> Result<(Sender<pb::WatchRequest>, Streaming<pb::WatchResponse>), Status> {
        let (requests, queue) = mpsc::channel(16);
        for (number, (keys, from)) in self.plan.watches.iter().zip(&self.next).enumerate() {
            let (key, range_end) = messages::range(keys);
            let create = pb::WatchCreateRequest {
                key,
                range_end,
                start_revision: *from,
                prev_kv: self.plan.prev,
                progress_notify: true,
                watch_id: i64::try_from(number).unwrap_or_default() + 1,
                ..pb::WatchCreateRequest::default()
            };
            let request = ask(RequestUnion::CreateRequest(create));
            requests
                .send(request)
                .await
                .map_err(|_| Status::cancelled("the stream is gone"))?;
        }
        let queue = tokio_stream::wrappers::ReceiverStream::new(queue);
        let messages = WatchClient::new(self.plan.channel.clone())
            .max_decoding_message_size(usize::MAX)
            .watch(queue)
            .await?;
        Ok((requests, messages.into_inner()))
    }

    /// Until it breaks (then how), a watch ends, or all is sent.
    async fn listen(
        &mut self,
        attempt: &mut StreamAttempt,
        requests: Sender<pb::WatchRequest>,
        messages: &mut Streaming<pb::WatchResponse>,
        (end, give_up): (&mut Receiver<Option<i64>>, &mut Option<Instant>),
    ) -> anyhow::Result<Option<Status>> {
        let mut asking = interval(PROGRESS_REQUEST_INTERVAL);
        loop {
            tokio::select! {
                message = messages.message() => {
                    let message = match message {
                        Ok(Some(message)) => message,
                        Ok(None) => return Ok(Some(Status::ok("the stream ended"))),
                        Err(status) => return Ok(Some(status)),
                    };
                    if message.created {
                        continue;
                    }
                    let message = self.read(&message)?;
                    let over = matches!(message.told, MessageContent::Compacted(_) | MessageContent::Canceled(_));
                    attempt.messages.push(message);
                    if over || self.is_done(*end.borrow()) {
                        return Ok(None);
                    }
                }
                _ = asking.tick() => {
                    // when its queue is full, it has enough to answer
                    drop(requests.try_send(ask(RequestUnion::ProgressRequest(pb::WatchProgressRequest {}))));
                    if end.borrow().is_some() {
                        let at = *give_up.get_or_insert_with(|| Instant::now() + DRAIN_TIMEOUT);
                        if Instant::now() > at {
                            return Ok(None);
                        }
                    }
                }
            }
        }
    }

    /// Takes note of a message.
    fn read(&mut self, message: &pb::WatchResponse) -> anyhow::Result<Message> {
        let revision = message
            .header
            .as_ref()
            .context("a watch message without a header")?
            .revision;
        self.round.saw(revision);
        let watch = match message.watch_id {
            -1 => None,
            id => Some(
                usize::try_from(id - 1)
                    .ok()
                    .filter(|at| *at < self.next.len())
                    .context("an unknown watch")?,
            ),
        };
        let told = if message.compact_revision > 0 {
            MessageContent::Compacted(message.compact_revision)
        } else if message.canceled {
            MessageContent::Canceled(message.cancel_reason.clone())
        } else if message.events.is_empty() {
            MessageContent::Progress
        } else {
            MessageContent::Events(
                message
                    .events
                    .iter()
                    .map(messages::event)
                    .collect::<anyhow::Result<_>>()?,
            )
        };
        let upto = match &told {
            MessageContent::Events(events) => events.last().map_or(0, |event| event.revision() + 1),
            MessageContent::Progress => revision + 1,
            MessageContent::Compacted(revision) => *revision,
            MessageContent::Canceled(_) => 0,
        };
        for (at, next) in self.next.iter_mut().enumerate() {
            if watch.is_none_or(|watch| watch == at) {
                *next = upto.max(*next);
            }
        }
        Ok(Message {
            at: self.round.at(),
            watch,
            revision,
            told,
        })
    }
}

fn ask(request: RequestUnion) -> pb::WatchRequest {
    pb::WatchRequest {
        request_union: Some(request),
    }
}
