//! Clients of all kinds, at a steady rate. The number of keys is the same after a while: those that are deleted are made again.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Context as _;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::watch_client::WatchClient;
use pb::watch_request::RequestUnion;
use programs::server::Server;
use rand::RngExt as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tonic::transport::Channel;
use wire::etcdserverpb as pb;

use super::latency::SoakLatencies;
use super::{MINUTE, paced};

const WORKERS: u32 = 8;
const WATCHERS: usize = 16;
/// A watcher leaves and another one comes.
const WATCH_LIFETIME: Duration = Duration::from_secs(20);
const KEYS: u32 = 10_000;
/// Number of kinds of keys, each watched and listed separately.
const KINDS: u32 = 10;
const LIST_LIMIT: i64 = 500;
const LEASE_INTERVAL: Duration = Duration::from_millis(250);
const LEASE_TTL_SECONDS: i64 = 30;

/// Clients at work.
pub(super) struct SoakLoad {
    tasks: JoinSet<anyhow::Result<()>>,
    events: Arc<AtomicU64>,
}

#[derive(Clone)]
struct SoakClient {
    channel: Channel,
    latencies: SoakLatencies,
    revision: Arc<AtomicI64>,
    events: Arc<AtomicU64>,
}

impl SoakLoad {
    pub(super) async fn start(
        server: &Server,
        rate: u32,
        latencies: &SoakLatencies,
        stop: &CancellationToken,
    ) -> anyhow::Result<Self> {
        let events = Arc::new(AtomicU64::new(0));
        let revision = Arc::new(AtomicI64::new(0));
        let mut tasks = JoinSet::new();
        let client = async || {
            anyhow::Ok(SoakClient {
                channel: server.connect().await?,
                latencies: latencies.clone(),
                revision: revision.clone(),
                events: events.clone(),
            })
        };
        for worker in 0..WORKERS {
            tasks.spawn(until(stop.clone(), client().await?.work(rate, worker)));
        }
        for watcher in 0..WATCHERS {
            tasks.spawn(until(stop.clone(), client().await?.watch(watcher)));
        }
        tasks.spawn(until(stop.clone(), client().await?.hold_leases()));
        tasks.spawn(until(stop.clone(), client().await?.compact()));
        Ok(Self { tasks, events })
    }

    /// Events since the last time.
    pub(super) fn events(&self) -> u64 {
        self.events.swap(0, Relaxed)
    }

    /// Fails if a client gave up.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        match self.tasks.try_join_next() {
            None => Ok(()),
            Some(ended) => ended
                .context("a client panicked")?
                .and_then(|()| anyhow::bail!("a client ended early")),
        }
    }

    /// Waits until all clients have ended, after `stop`.
    pub(super) async fn end(mut self) -> anyhow::Result<()> {
        while let Some(ended) = self.tasks.join_next().await {
            ended.context("a client panicked")??;
        }
        Ok(())
    }
}

/// Runs a client until the stop.
async fn until(
    stop: CancellationToken,
    client: impl Future<Output = anyhow::Result<()>> + Send + 'static,
) -> anyhow::Result<()> {
    tokio::select! {
        () = stop.cancelled() => Ok(()),
        ended = client => ended,
    }
}

fn key(number: u32) -> Vec<u8> {
    format!("/soak/kind{}/{number:06}", number % KINDS).into_bytes()
}

fn kind(number: u32) -> (Vec<u8>, Vec<u8>) {
    let of = |end: char| format!("/soak/kind{}{end}", number % KINDS).into_bytes();
    (of('/'), of('0'))
}

impl SoakClient {
    /// Creates, updates, deletes and lists.
    async fn work(self, rate: u32, worker: u32) -> anyhow::Result<()> {
        let mut kv = KvClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        let mut ticks = paced(rate, WORKERS, worker);
        loop {
            ticks.tick().await;
            let (number, what, size) = {
                let mut random = rand::rng();
                (
                    random.random_range(0..KEYS),
                    random.random_range(0..100),
                    random.random_range(100..2_000),
                )
            };
            let began = Instant::now();
            match what {
                0..=9 => {
                    let (key, range_end) = kind(number);
                    let range = pb::RangeRequest {
                        key: key.into(),
                        range_end: range_end.into(),
                        limit: LIST_LIMIT,
                        ..pb::RangeRequest::default()
                    };
                    kv.range(range).await.context("list")?;
                    self.latencies.list(began.elapsed());
                }
                10..=29 => {
                    let delete = pb::DeleteRangeRequest {
                        key: key(number).into(),
                        ..pb::DeleteRangeRequest::default()
                    };
                    let answer = kv.delete_range(delete).await.context("delete")?.into_inner();
                    self.note(answer.header);
                    self.latencies.write(began.elapsed());
                }
                _ => {
                    let put = pb::PutRequest {
                        key: key(number).into(),
                        value: vec![b'v'; size].into(),
                        ..pb::PutRequest::default()
                    };
                    let answer = kv.put(put).await.context("put")?.into_inner();
                    self.note(answer.header);
                    self.latencies.write(began.elapsed());
                }
            }
        }
    }

    fn note(&self, header: Option<pb::ResponseHeader>) {
        let revision = header.map_or(0, |header| header.revision);
        self.revision.fetch_max(revision, Relaxed);
    }

    /// Watches one kind of keys; a new watch comes now and then.
    async fn watch(self, watcher: usize) -> anyhow::Result<()> {
        let mut client = WatchClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        // Not all at once.
        let mut until = Instant::now() + WATCH_LIFETIME * u32::try_from(watcher + 1)? / u32::try_from(WATCHERS)?;
        loop {
            let (key, range_end) = kind(u32::try_from(watcher)?);
            let create = pb::WatchCreateRequest {
                key: key.into(),
                range_end: range_end.into(),
                prev_kv: watcher.is_multiple_of(2),
                ..pb::WatchCreateRequest::default()
            };
            let create = pb::WatchRequest {
                request_union: Some(RequestUnion::CreateRequest(create)),
            };
            // The stream ends with its sender: dropping only the responses would leave a watcher that no client reads.
            let (requests, receiver) = mpsc::channel(1);
            requests.send(create).await.context("watch")?;
            let watching = client.watch(ReceiverStream::new(receiver)).await;
            let mut responses = watching.context("watch")?.into_inner();
            while let Ok(message) = tokio::time::timeout_at(until, responses.message()).await {
                let message = message.context("watch")?.context("the watch ended")?;
                anyhow::ensure!(!message.canceled, "the watch was cancelled: {}", message.cancel_reason);
                self.events.fetch_add(message.events.len() as u64, Relaxed);
            }
            until = Instant::now() + WATCH_LIFETIME;
        }
    }

    /// Grants leases with keys; of three one is revoked, one is kept alive once, and all others expire.
    async fn hold_leases(self) -> anyhow::Result<()> {
        let mut lease = LeaseClient::new(self.channel.clone());
        let mut kv = KvClient::new(self.channel.clone());
        let mut ticks = interval(LEASE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for number in 0_u64.. {
            ticks.tick().await;
            let grant = pb::LeaseGrantRequest {
                ttl: LEASE_TTL_SECONDS,
                id: 0,
            };
            let id = lease.lease_grant(grant).await.context("grant a lease")?.into_inner().id;
            let put = pb::PutRequest {
                key: format!("/soak-lease/{id:x}").into(),
                value: b"leased".to_vec().into(),
                lease: id,
                ..pb::PutRequest::default()
            };
            let answer = kv.put(put).await.context("put with a lease")?.into_inner();
            self.note(answer.header);
            match number % 3 {
                0 => {
                    let revoke = pb::LeaseRevokeRequest { id };
                    lease.lease_revoke(revoke).await.context("revoke a lease")?;
                }
                1 => {
                    let keep = tokio_stream::once(pb::LeaseKeepAliveRequest { id });
                    let mut kept = lease.lease_keep_alive(keep).await.context("keep a lease")?.into_inner();
                    kept.message().await.context("keep a lease")?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Compacts at the revision of a minute ago, as a kube-apiserver does at one of five.
    async fn compact(self) -> anyhow::Result<()> {
        let mut kv = KvClient::new(self.channel.clone());
        let mut ticks = interval(MINUTE);
        let mut before = 0;
        loop {
            ticks.tick().await;
            let revision = std::mem::replace(&mut before, self.revision.load(Relaxed));
            if revision == 0 {
                continue;
            }
            let compact = pb::CompactionRequest {
                revision,
                physical: false,
            };
            match kv.compact(compact).await {
                Ok(_) => {}
                // Nothing was written in that minute.
                Err(status) if status.code() == Code::OutOfRange => {}
                Err(status) => return Err(status).context("compact"),
            }
        }
    }
}
