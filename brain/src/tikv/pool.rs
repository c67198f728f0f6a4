//! Several clients of one cluster: each call goes to one of them with a time limit, and a stuck one is replaced.
//!
//! One client has one connection to each server, so several carry more. A client may get stuck for good (a silent PD, a
//! connection that could not be made): a caller that meets this counts a failure, and the supervisor replaces the client.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures::FutureExt;
use tikv_client::{Config, TransactionClient};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::error::{Error, Health, Message, classify};
use super::options::Options;
use crate::metrics::TikvMetrics;

/// Calls in a row without an answer after which a client is replaced.
const MAX_FAILURES: u32 = 2;

/// A call that its caller gave up counts as unanswered after this long.
const GIVEN_UP: Duration = Duration::from_millis(500);

/// Initial and maximum delay before a call is repeated.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

/// The longest reply that is accepted.
const MAX_REPLY: usize = 256 << 20;

/// Time limits of one attempt and of a whole call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) attempt: Duration,
    pub(crate) total: Duration,
}

/// The clients.
pub(super) struct Pool {
    members: Vec<Member>,
    next: AtomicUsize,
    unhealthy: Notify,
    metrics: TikvMetrics,
}

#[derive(Default)]
struct Member {
    client: ArcSwapOption<Client>,
    failures: AtomicU32,
}

struct Client(TransactionClient);

/// A client whose turn it is.
pub(super) struct PooledClient<'a> {
    member: &'a Member,
    client: Arc<Client>,
}

impl Pool {
    /// Connects all clients, by those addresses of PD that answer.
    pub(super) async fn connect(options: &Options, endpoints: &[String]) -> anyhow::Result<Pool> {
        let pool = Pool {
            members: (0..options.connections).map(|_| Member::default()).collect(),
            next: AtomicUsize::new(0),
            unhealthy: Notify::new(),
            metrics: options.metrics.clone(),
        };
        let limit = options.connect_timeout;
        let all = pool
            .members
            .iter()
            .map(|member| member.replace(options, endpoints, limit));
        futures::future::try_join_all(all).await?;
        Ok(pool)
    }

    /// Calls until it succeeds, or fails in a way that does not pass, or time is up. Only for calls that may happen twice.
    /// `op` is the name under which they are counted, and the size of their message. Here as below.
    pub(super) async fn call<T, F>(
        &self,
        (op, message): (&'static str, Message),
        limits: Limits,
        call: impl Fn(TransactionClient) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = tikv_client::Result<T>>,
    {
        let deadline = Instant::now() + limits.total;
        let mut pause = PAUSE.0;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let outcome = self.attempt(op, limits.attempt.min(left), &call).await;
            match outcome.map_err(|error| error.of(message)) {
                Err(error) if error.is_transient() && Instant::now() + pause < deadline => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "trying again");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
                outcome => return outcome,
            }
        }
    }

    /// Calls once.
    pub(super) async fn attempt<T, F>(
        &self,
        op: &'static str,
        limit: Duration,
        call: impl FnOnce(TransactionClient) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = tikv_client::Result<T>>,
    {
        self.attempt_by(&self.pick()?, op, limit, call).await
    }

    /// Calls once, by a client that was picked before: calls that belong together use one client.
    pub(super) async fn attempt_by<T, F>(
        &self,
        PooledClient { member, client }: &PooledClient<'_>,
        op: &'static str,
        limit: Duration,
        call: impl FnOnce(TransactionClient) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = tikv_client::Result<T>>,
    {
        let mut attempt = Attempt {
            pool: self,
            member,
            begun: Instant::now(),
            health: None,
        };
        let (outcome, health) = self.measured(op, limit, Box::pin(call(client.0.clone()))).await;
        attempt.health = Some(health);
        outcome
    }

    /// Calls once, and whatever comes of it is not the client's fault: others are there to notice that it is stuck.
    pub(super) async fn call_untracked<T, F>(
        &self,
        op: &'static str,
        limit: Duration,
        call: impl FnOnce(TransactionClient) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = tikv_client::Result<T>>,
    {
        let client = self.pick()?.client;
        let (outcome, _) = self.measured(op, limit, Box::pin(call(client.0.clone()))).await;
        outcome
    }

    /// Counts a call; one that its caller gives up is not counted. The futures of the client are large: callers box them.
    async fn measured<T>(
        &self,
        op: &'static str,
        limit: Duration,
        call: impl Future<Output = tikv_client::Result<T>>,
    ) -> (Result<T, Error>, Health) {
        let begun = Instant::now();
        let (outcome, health) = guarded(limit, call).await;
        let took = begun.elapsed().as_secs_f64();
        self.metrics.requests.with_label_values(&[op]).observe(took);
        if let Err(error) = &outcome {
            self.metrics.failures.with_label_values(&[op, error.reason()]).inc();
        }
        (outcome, health)
    }

    /// Waits until a client is to be replaced.
    pub(super) async fn unhealthy(&self) {
        loop {
            let noted = self.unhealthy.notified();
            if self.members.iter().any(Member::is_struck) {
                return;
            }
            noted.await;
        }
    }

    /// Replaces the clients that are unhealthy, or all of them; the old ones serve until the new ones are there.
    pub(super) async fn replace(
        &self,
        options: &Options,
        endpoints: &[String],
        all: bool,
        limit: Duration,
    ) -> anyhow::Result<()> {
        let chosen = self.members.iter().filter(|member| all || member.is_struck());
        let replaced = futures::future::join_all(chosen.map(|member| member.replace(options, endpoints, limit))).await;
        let number = replaced.iter().filter(|replaced| replaced.is_ok()).count();
        self.metrics.replaced.inc_by(number as u64);
        replaced.into_iter().collect()
    }

    /// Returns the next client in turn, a healthy one if there is one. Fails if that client is not connected.
    pub(super) fn pick(&self) -> Result<PooledClient<'_>, Error> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.members.len();
        let (before, from) = self.members.split_at(turn);
        let in_turn = || from.iter().chain(before);
        let member = in_turn()
            .find(|member| !member.is_struck())
            .or_else(|| in_turn().next());
        let picked = member.and_then(|member| {
            let client = member.client.load_full()?;
            Some(PooledClient { member, client })
        });
        picked.ok_or_else(|| Error::unreachable("no client is connected"))
    }
}

impl Member {
    fn is_struck(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= MAX_FAILURES
    }

    async fn replace(&self, options: &Options, endpoints: &[String], limit: Duration) -> anyhow::Result<()> {
        let mut config = Config::default()
            .with_timeout(options.rpc_timeout)
            .with_grpc_max_decoding_message_size(MAX_REPLY);
        if let Some(tls) = &options.tls {
            config = config.with_security(&tls.ca, &tls.cert, &tls.key);
        }
        let connect = TransactionClient::new_with_config(endpoints.to_vec(), config);
        let connect = AssertUnwindSafe(connect).catch_unwind();
        let client = match tokio::time::timeout(limit, connect).await {
            Ok(Ok(client)) => client?,
            Ok(Err(_)) => anyhow::bail!("the client panicked"),
            Err(_) => anyhow::bail!("no answer from PD within {limit:?}"),
        };
        self.client.store(Some(Arc::new(Client(client))));
        self.failures.store(0, Ordering::Relaxed);
        Ok(())
    }
}

/// Returns the outcome of a call, and the health of the client that follows from it.
async fn guarded<T>(limit: Duration, call: impl Future<Output = tikv_client::Result<T>>) -> (Result<T, Error>, Health) {
    // The client trusts some of the data it receives: a reply that makes it panic must not end more than this call.
    let call = AssertUnwindSafe(call).catch_unwind();
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(Ok(value))) => (Ok(value), Health::Fine),
        Ok(Ok(Err(error))) => {
            let (error, health) = classify(error);
            (Err(error), health)
        }
        Ok(Err(_)) => (Err(Error::unreachable("the client panicked")), Health::Broken),
        Err(_) => (Err(Error::unreachable("no answer in time")), Health::Doubtful),
    }
}

/// A call under way; dropped it tells the client's health.
struct Attempt<'a> {
    pool: &'a Pool,
    member: &'a Member,
    begun: Instant,
    /// `None` when the caller went away.
    health: Option<Health>,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let failures = &self.member.failures;
        match self.health {
            Some(Health::Fine) => return failures.store(0, Ordering::Relaxed),
            Some(Health::Broken) => failures.fetch_add(MAX_FAILURES, Ordering::Relaxed),
            Some(Health::Doubtful) => failures.fetch_add(1, Ordering::Relaxed),
            None if self.begun.elapsed() < GIVEN_UP => return,
            None => failures.fetch_add(1, Ordering::Relaxed),
        };
        if self.member.is_struck() {
            self.pool.unhealthy.notify_one();
        }
    }
}
