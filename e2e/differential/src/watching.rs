//! One watch stream: what is asked on it, and what each of its watchers received.
//!
//! Nothing is read between requests, so that watchers fall behind as they do in life. Every promise that a single stream
//! can break is checked on the way, for either server.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tokio::sync::mpsc::{Sender, channel};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;
use wire::etcdserverpb as pb;
use wire::mvccpb::Event;

use super::answer::Received;
use super::client::{Credentials, with};
use pb::watch_client::WatchClient;
use pb::watch_request::RequestUnion;

/// The id of messages that concern no watcher, or all.
pub const NO_WATCHER: i64 = -1;

/// Delay before a progress request is repeated: the server drops a request that comes before a watcher has caught up.
const PROGRESS_RETRY_DELAY: Duration = Duration::from_millis(20);
const SETTLE_TIMEOUT: Duration = Duration::from_secs(20);

/// An open stream.
#[derive(Debug)]
pub struct OpenStream {
    requests: Sender<pb::WatchRequest>,
    responses: Streaming<pb::WatchResponse>,
    watchers: BTreeMap<i64, Watcher>,
    received: BTreeMap<i64, Vec<Received>>,
    /// Watchers that the server ended after a compaction and that must still be canceled.
    compacted: Vec<i64>,
    /// The watcher whose message has come only in part.
    fragmented: Option<i64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Watcher {
    /// All events up to this revision have come.
    complete: i64,
    /// The revision of the last event.
    last: i64,
    fragment: bool,
}

/// Meaning of a message to a waiting caller.
#[derive(Debug)]
enum Message {
    Created(pb::WatchResponse),
    Canceled(pb::WatchResponse),
    Progress(i64),
    Events,
}

impl OpenStream {
    /// Opens one; servers answer no sooner than there is something to answer.
    ///
    /// # Errors
    ///
    /// The server refuses, or answers something else.
    pub async fn open(
        channel: Channel,
        create: pb::WatchCreateRequest,
        credentials: Option<&Credentials>,
    ) -> anyhow::Result<(Self, pb::WatchResponse)> {
        let (requests, queue) = self::channel(64);
        let fragment = create.fragment;
        requests
            .send(request(RequestUnion::CreateRequest(create)))
            .await
            .context("queue the first request")?;
        let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
        let responses = client
            .watch(with(ReceiverStream::new(queue), credentials))
            .await
            .context("open a watch stream")?
            .into_inner();
        let mut stream = Self {
            requests,
            responses,
            watchers: BTreeMap::new(),
            received: BTreeMap::new(),
            compacted: Vec::new(),
            fragmented: None,
        };
        let created = stream.wait_created(fragment).await?;
        Ok((stream, created))
    }

    /// Creates a watcher.
    ///
    /// # Errors
    ///
    /// The stream ended or broke a promise.
    pub async fn create(&mut self, create: pb::WatchCreateRequest) -> anyhow::Result<pb::WatchResponse> {
        let fragment = create.fragment;
        self.ask(RequestUnion::CreateRequest(create)).await?;
        self.wait_created(fragment).await
    }

    /// Cancels a watcher, and waits for the answer if it is known to the server.
    ///
    /// # Errors
    ///
    /// The stream ended or broke a promise.
    pub async fn cancel(&mut self, id: i64, known: bool) -> anyhow::Result<Option<pb::WatchResponse>> {
        self.ask(RequestUnion::CancelRequest(pb::WatchCancelRequest { watch_id: id }))
            .await?;
        if !known {
            return Ok(None);
        }
        loop {
            match self.next().await? {
                Message::Canceled(response) if response.watch_id == id => return Ok(Some(response)),
                Message::Created(response) | Message::Canceled(response) => self.note(response),
                Message::Progress(_) | Message::Events => {}
            }
        }
    }

    /// Waits until all events up to `revision` have come, and gives what came since the last time.
    ///
    /// # Errors
    ///
    /// The stream ended, broke a promise, or never says so.
    pub async fn settle(&mut self, revision: i64) -> anyhow::Result<BTreeMap<i64, Vec<Received>>> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            self.cancel_compacted().await?;
            if self.watchers.is_empty() {
                break;
            }
            self.ask(RequestUnion::ProgressRequest(pb::WatchProgressRequest {}))
                .await?;
            if self.wait_progress(revision, deadline).await? {
                break;
            }
        }
        Ok(std::mem::take(&mut self.received))
    }

    /// Reads until progress is at `revision` (true), or nothing comes for a while (false).
    async fn wait_progress(&mut self, revision: i64, deadline: Instant) -> anyhow::Result<bool> {
        loop {
            let quiet = Instant::now() + PROGRESS_RETRY_DELAY;
            let watchers = &self.watchers;
            let Ok(message) = timeout_at(quiet.min(deadline), self.responses.message()).await else {
                ensure!(
                    Instant::now() < deadline,
                    "no progress at revision {revision} within {SETTLE_TIMEOUT:?}: {watchers:?}"
                );
                return Ok(false);
            };
            match self.take(message?.context("the watch stream ended")?)? {
                Message::Progress(at) if at > revision => {
                    bail!("a progress message speaks of revision {at}, the store is at {revision}")
                }
                Message::Progress(at) if at == revision => return Ok(true),
                Message::Canceled(response) => {
                    self.note(response);
                    return Ok(false);
                }
                Message::Created(response) => self.note(response),
                Message::Progress(_) | Message::Events => {}
            }
        }
    }

    /// A watcher whose revisions were compacted stays known to the server until it is canceled, as clients do.
    async fn cancel_compacted(&mut self) -> anyhow::Result<()> {
        while let Some(id) = self.compacted.pop() {
            if let Some(response) = self.cancel(id, true).await? {
                self.note(response);
            }
        }
        Ok(())
    }

    async fn wait_created(&mut self, fragment: bool) -> anyhow::Result<pb::WatchResponse> {
        loop {
            match self.next().await? {
                Message::Created(response) => {
                    if !response.canceled {
                        let watcher = Watcher {
                            fragment,
                            ..Watcher::default()
                        };
                        self.watchers.insert(response.watch_id, watcher);
                    }
                    return Ok(response);
                }
                Message::Canceled(response) => self.note(response),
                Message::Progress(_) | Message::Events => {}
            }
        }
    }

    fn note(&mut self, response: pb::WatchResponse) {
        if response.compact_revision != 0 {
            self.compacted.push(response.watch_id);
        }
        self.received
            .entry(response.watch_id)
            .or_default()
            .push(Received::Control(response));
    }

    async fn ask(&self, union: RequestUnion) -> anyhow::Result<()> {
        self.requests
            .send(request(union))
            .await
            .ok()
            .context("the watch stream ended")
    }

    async fn next(&mut self) -> anyhow::Result<Message> {
        let message = timeout(SETTLE_TIMEOUT, self.responses.message())
            .await
            .context("silence on the watch stream")?;
        self.take(message.context("watch stream")?.context("the watch stream ended")?)
    }

    fn take(&mut self, response: pb::WatchResponse) -> anyhow::Result<Message> {
        let id = response.watch_id;
        if let Some(other) = self.fragmented {
            ensure!(
                other == id,
                "a message of watcher {id} inside the fragments of watcher {other}"
            );
        }
        self.fragmented = response.fragment.then_some(id);
        if response.created {
            ensure!(
                response.events.is_empty(),
                "events in the message that says that watcher {id} is created"
            );
            return Ok(Message::Created(response));
        }
        if response.canceled {
            ensure!(
                self.watchers.remove(&id).is_some() || response.compact_revision == 0,
                "watcher {id} ends twice"
            );
            return Ok(Message::Canceled(response));
        }
        if response.events.is_empty() {
            return self.progress(&response);
        }
        self.events(response)?;
        Ok(Message::Events)
    }

    fn progress(&mut self, response: &pb::WatchResponse) -> anyhow::Result<Message> {
        let revision = response.header.as_ref().map_or(0, |header| header.revision);
        ensure!(revision > 0, "an empty message without a revision: {response:?}");
        for (id, watcher) in &mut self.watchers {
            if response.watch_id == NO_WATCHER || response.watch_id == *id {
                watcher.complete = watcher.complete.max(revision);
            }
        }
        let asked = response.watch_id == NO_WATCHER;
        Ok(if asked {
            Message::Progress(revision)
        } else {
            Message::Events
        })
    }

    fn events(&mut self, response: pb::WatchResponse) -> anyhow::Result<()> {
        let id = response.watch_id;
        let watcher = self
            .watchers
            .get_mut(&id)
            .with_context(|| format!("events of watcher {id}, which is none"))?;
        let head = response.header.as_ref().map_or(0, |header| header.revision);
        let mut first = true;
        for event in response.events {
            let revision = revision(&event)?;
            ensure!(
                revision > watcher.complete,
                "an event of {revision} after progress at {}",
                watcher.complete
            );
            ensure!(
                revision >= watcher.last,
                "an event of {revision} after one of {}",
                watcher.last
            );
            ensure!(
                revision <= head,
                "an event of {revision} in a message of revision {head}"
            );
            let torn = first && revision == watcher.last && !watcher.fragment;
            ensure!(!torn, "events of revision {revision} in two messages of watcher {id}");
            (watcher.last, first) = (revision, false);
            self.received.entry(id).or_default().push(Received::Event(event));
        }
        Ok(())
    }
}

fn revision(event: &Event) -> anyhow::Result<i64> {
    event
        .kv
        .as_ref()
        .map(|kv| kv.mod_revision)
        .context("an event without a key")
}

fn request(union: RequestUnion) -> pb::WatchRequest {
    pb::WatchRequest {
        request_union: Some(union),
    }
}
