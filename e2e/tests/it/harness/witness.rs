//! Watches all keys of a store from the first revision on, across every break of the connection.
//!
//! Invariant: what it has seen is a gap-free prefix of history; each event is newer than the one before, or of the same
//! revision.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use tokio_stream::StreamExt as _;
use tonic::transport::{Channel, Endpoint};
use wire::etcdserverpb::kv_client::KvClient;
use wire::etcdserverpb::watch_client::WatchClient;
use wire::etcdserverpb::{RangeRequest, WatchCreateRequest, WatchRequest, watch_request::RequestUnion};
use wire::mvccpb::{KeyValue, event::EventType};

/// For the watch to catch up with a list.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(60);
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Of a page of the list.
const LIST_PAGE_KEYS: i64 = 1000;
const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// A key's changes, oldest first: the revision, and what it was from then on.
type History = BTreeMap<Bytes, Vec<(i64, Option<KeyValue>)>>;

pub(crate) struct Witness(Arc<Shared>);

#[derive(Default)]
struct Shared {
    seen: Mutex<Seen>,
    news: Condvar,
}

#[derive(Default)]
struct Seen {
    history: History,
    events: usize,
    /// All events up to here have been seen.
    complete: i64,
    latest: i64,
    resumed: usize,
    broken: Option<String>,
}

impl Witness {
    pub(crate) fn start(url: &str) -> anyhow::Result<Self> {
        let shared = Arc::<Shared>::default();
        let endpoint = endpoint(url)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let theirs = shared.clone();
        std::thread::Builder::new().name("witness".to_owned()).spawn(move || {
            let error = runtime.block_on(theirs.follow(endpoint));
            theirs.lock().broken = Some(format!("{error:#}"));
            theirs.news.notify_all();
        })?;
        Ok(Self(shared))
    }

    /// Compares a list of now with what the watch says of that revision. Says how much that was.
    pub(crate) fn compare(&self, url: &str) -> anyhow::Result<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (revision, listed) = runtime.block_on(list(url)).context("list the store")?;
        let seen = self.complete_to(revision)?;
        let mut accumulated = BTreeMap::new();
        for (key, changes) in &seen.history {
            let last = changes.iter().rev().find(|(at, _)| *at <= revision);
            accumulated.extend(
                last.and_then(|(_, value)| value.clone())
                    .map(|value| (key.clone(), value)),
            );
        }
        for (key, value) in &listed {
            let watched = accumulated.get(key);
            ensure!(
                watched == Some(value),
                "at {revision} the list has {value:?}, the watch {watched:?}"
            );
        }
        let surplus = accumulated.keys().find(|key| !listed.contains_key(*key));
        ensure!(
            surplus.is_none(),
            "at {revision} the watch has a key that the list does not have: {surplus:?}"
        );
        let (keys, events, resumed) = (listed.len(), seen.events, seen.resumed);
        ensure!(keys > 0, "nothing is stored");
        Ok(format!(
            "{keys} keys at revision {revision} after {events} events; the watch was resumed {resumed} times"
        ))
    }

    /// Returns the events seen, as soon as they are complete up to `revision`.
    fn complete_to(&self, revision: i64) -> anyhow::Result<MutexGuard<'_, Seen>> {
        let waiting = |seen: &mut Seen| seen.complete < revision && seen.broken.is_none();
        let waited = self.0.news.wait_timeout_while(self.0.lock(), CATCH_UP_TIMEOUT, waiting);
        let (seen, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(broken) = &seen.broken {
            bail!("the watch broke: {broken}");
        }
        ensure!(
            seen.complete >= revision,
            "after {CATCH_UP_TIMEOUT:?} the watch is at {}, the list at {revision}",
            seen.complete
        );
        Ok(seen)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches, and again from where it was whenever the connection breaks. Ends only with what must not happen.
    async fn follow(&self, endpoint: Endpoint) -> anyhow::Error {
        loop {
            let from = self.lock().latest + 1;
            match self.watch(&endpoint, from).await {
                Ok(()) => {}
                Err(error) => return error,
            }
            self.lock().resumed += 1;
            tokio::time::sleep(RETRY_DELAY).await; // between attempts to connect
        }
    }

    /// Returns when the connection breaks.
    async fn watch(&self, endpoint: &Endpoint, from: i64) -> anyhow::Result<()> {
        let Ok(channel) = endpoint.connect().await else {
            return Ok(());
        };
        let create = WatchCreateRequest {
            key: Bytes::from_static(b"\0"),
            range_end: Bytes::from_static(b"\0"),
            start_revision: from,
            progress_notify: true,
            ..WatchCreateRequest::default()
        };
        let create = WatchRequest {
            request_union: Some(RequestUnion::CreateRequest(create)),
        };
        let requests = tokio_stream::once(create).chain(tokio_stream::pending());
        let Ok(answer) = WatchClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .watch(requests)
            .await
        else {
            return Ok(());
        };
        let mut answers = answer.into_inner();
        while let Some(Ok(answer)) = answers.next().await {
            let revision = answer.header.as_ref().map_or(0, |header| header.revision);
            ensure!(
                !answer.canceled,
                "cancelled at {revision}: {} {}",
                answer.cancel_reason,
                answer.compact_revision
            );
            let mut seen = self.lock();
            let progress = answer.events.is_empty() && !answer.created;
            for event in answer.events {
                let kind = event.r#type();
                let kv = event.kv.context("an event without a key")?;
                let at = kv.mod_revision;
                ensure!(
                    at >= from && at >= seen.latest,
                    "an event of {at} came after one of {}",
                    seen.latest
                );
                seen.complete = seen.complete.max(at - 1);
                seen.latest = at;
                seen.events += 1;
                let key = kv.key.clone();
                seen.history
                    .entry(key)
                    .or_default()
                    .push((at, (kind == EventType::Put).then_some(kv)));
            }
            if progress {
                seen.complete = seen.complete.max(revision);
            }
            // all events of a revision come in one answer, unless it is fragmented, which was not asked for
            seen.complete = seen.complete.max(seen.latest);
            self.news.notify_all();
        }
        Ok(())
    }
}

async fn list(url: &str) -> anyhow::Result<(i64, BTreeMap<Bytes, KeyValue>)> {
    let channel: Channel = endpoint(url)?.connect().await?;
    let mut client = KvClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let (mut revision, mut listed, mut from) = (0, BTreeMap::new(), Bytes::from_static(b"\0"));
    loop {
        let request = RangeRequest {
            key: from,
            range_end: Bytes::from_static(b"\0"),
            limit: LIST_PAGE_KEYS,
            revision,
            ..RangeRequest::default()
        };
        let answer = client.range(request).await?.into_inner();
        if revision == 0 {
            revision = answer.header.context("an answer without a header")?.revision;
        }
        let Some(last) = answer.kvs.last() else { break };
        from = [&last.key[..], b"\0"].concat().into();
        listed.extend(answer.kvs.into_iter().map(|kv| (kv.key.clone(), kv)));
        if !answer.more {
            break;
        }
    }
    Ok((revision, listed))
}

fn endpoint(url: &str) -> anyhow::Result<Endpoint> {
    Ok(Endpoint::from_shared(url.to_owned())?.connect_timeout(Duration::from_secs(5)))
}
