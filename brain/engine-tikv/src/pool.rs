//! Several clients of one cluster: each call goes to one of them with a time limit, and a stuck one is replaced.
//!
//! One client has one connection to each server, so several carry more. A client may get stuck for good (a silent PD, a
//! connection that could not be made): a caller that meets this counts a failure, and the supervisor replaces the client.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tikv_client::{Config, TransactionClient};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::error::{CallKind, ClientHealth, Error, classify};
use super::options::ConnectOptions;
use crate::metrics::TikvMetrics;
use runtime::backoff::Backoff;

/// Calls in a row without an answer after which a client is replaced.
const MAX_FAILURES: u32 = 2;

/// A call that its caller gave up counts as unanswered after this long, at least.
const ABANDONED_CALL_TIMEOUT: Duration = Duration::from_millis(500);

/// Initial and maximum delay before a call is repeated.
const CALL_BACKOFF: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(250));

/// The longest reply that is accepted.
const MAX_REPLY_BYTES: usize = 256 << 20;

/// Attempts at one call that wait for an answer at the same time.
const CONCURRENT_ATTEMPTS: usize = 3;

/// Short calls, of one or two round trips: their durations say how slow the cluster is.
const SHORT_CALLS: [&str; 5] = ["timestamp", "get", "get_now", "swap", "begin"];

/// Time limits of one attempt and of a whole call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallLimits {
    /// An attempt that is not answered within this time may be stuck: another client is asked as well. A call that must not happen
    /// twice is given up instead. A slow cluster stretches it: see [`CallPace`].
    pub(crate) attempt: Duration,
    /// The call is given up after this time.
    pub(crate) total: Duration,
}

impl CallLimits {
    /// A call that is given up after one attempt.
    pub(super) fn once(limit: Duration) -> CallLimits {
        CallLimits {
            attempt: limit,
            total: limit,
        }
    }
}

/// The time that short calls have taken lately, about the longest.
///
/// Only answers count. A slow cluster stretches the time limits of attempts, so that slow answers are waited for. A cluster that
/// does not answer at all stretches no limit, so that a stuck client is detected as soon as before.
#[derive(Debug, Default)]
struct CallPace(AtomicU64);

impl CallPace {
    fn observe(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let next = |lately: u64| Some(took.max(lately - lately / 8));
        // The closure never declines.
        let _lately = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// The clients.
pub(super) struct ClientPool {
    members: Vec<PoolMember>,
    next: AtomicUsize,
    unhealthy: Notify,
    pace: CallPace,
    metrics: TikvMetrics,
}

#[derive(Default)]
struct PoolMember {
    client: ArcSwapOption<PoolClient>,
    failures: AtomicU32,
}

struct PoolClient(TransactionClient);

/// A client whose turn it is.
pub(super) struct PooledClient<'a> {
    member: &'a PoolMember,
    client: Arc<PoolClient>,
}

impl ClientPool {
    /// Connects all clients, by those addresses of PD that answer.
    pub(super) async fn connect(options: &ConnectOptions, endpoints: &[String]) -> anyhow::Result<ClientPool> {
        let pool = ClientPool {
            members: (0..options.connections).map(|_| PoolMember::default()).collect(),
            next: AtomicUsize::new(0),
            unhealthy: Notify::new(),
            pace: CallPace::default(),
            metrics: options.metrics.clone(),
        };
        let limit = options.connect_timeout * options.patience;
        let all = pool
            .members
            .iter()
            .map(|member| member.replace(options, endpoints, limit));
        futures::future::try_join_all(all).await?;
        Ok(pool)
    }

    /// Calls until it succeeds, or fails in a way that does not pass, or time is up. Only for calls that may happen twice: an attempt
    /// that is not answered for long is waited for, and another client is asked as well.
    pub(super) async fn call<T, F>(
        &self,
        CallKind { op, message }: CallKind,
        limits: CallLimits,
        call: impl Fn(TransactionClient) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = tikv_client::Result<T>>,
    {
        let deadline = Instant::now() + limits.total;
        let mut pauses = CALL_BACKOFF;
        let mut attempts = FuturesUnordered::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let overdue = self.stretched(limits.attempt, 2);
            let limits = CallLimits {
                attempt: overdue,
                total: left,
            };
            attempts.push(Box::pin(self.attempt(op, limits, &call)));
            let ended = tokio::select! {
                ended = attempts.next() => ended,
                () = tokio::time::sleep(overdue), if attempts.len() < CONCURRENT_ATTEMPTS => None,
            };
            match ended.map(|outcome| outcome.map_err(|error| error.of(message))) {
                None => {} // it may be stuck
                Some(Err(error)) if error.is_transient() => {
                    let pause = pauses.next_delay();
                    if Instant::now() + pause >= deadline {
                        return Err(error);
                    }
                    tracing::debug!(error = &error as &dyn std::error::Error, "trying again");
                    tokio::time::sleep(pause).await;
                }
                Some(outcome) => return outcome,
            }
        }
    }

    /// Returns true if any short call has succeeded.
    pub(super) fn has_answered(&self) -> bool {
        !self.pace.get().is_zero()
    }

    /// Returns `limit`, or the time that `calls` short calls take at present if that is longer.
    pub(super) fn stretched(&self, limit: Duration, calls: u32) -> Duration {
        limit.max(self.pace.get().saturating_mul(calls))
    }

    /// Calls once, and gives the call up after `limit`.
    pub(super) async fn attempt_once<T, F>(
        &self,
        op: &'static str,
        limit: Duration,
        call: impl FnOnce(TransactionClient) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = tikv_client::Result<T>>,
    {
        self.attempt(op, CallLimits::once(limit), call).await
    }

    /// Calls once.
    async fn attempt<T, F>(
        &self,
        op: &'static str,
        limits: CallLimits,
        call: impl FnOnce(TransactionClient) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = tikv_client::Result<T>>,
    {
        self.attempt_by(&self.pick()?, op, limits, call).await
    }

    /// Calls once, by a client that was picked before: calls that belong together use one client. It counts as stuck while the attempt is
    /// overdue.
    pub(super) async fn attempt_by<T, F>(
        &self,
        PooledClient { member, client }: &PooledClient<'_>,
        op: &'static str,
        limits: CallLimits,
        call: impl FnOnce(TransactionClient) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = tikv_client::Result<T>>,
    {
        let mut attempt = CallAttempt {
            pool: self,
            member,
            begun: Instant::now(),
            is_overdue: false,
            health: None,
        };
        let measured = self.measured(op, limits.total, Box::pin(call(client.0.clone())));
        tokio::pin!(measured);
        let (outcome, health) = tokio::select! {
            ended = &mut measured => ended,
            () = tokio::time::sleep(limits.attempt), if limits.attempt < limits.total => {
                attempt.note_overdue();
                measured.await
            }
        };
        if outcome.is_ok() && SHORT_CALLS.contains(&op) {
            self.pace.observe(attempt.begun.elapsed());
        }
        attempt.health = Some(health);
        outcome
    }

    /// Calls once by each client, all at the same time. A failure is only logged: the next call by that client meets it.
    pub(super) async fn call_each<T, F>(&self, op: &'static str, limit: Duration, call: impl Fn(TransactionClient) -> F)
    where
        F: Future<Output = tikv_client::Result<T>>,
    {
        let calls = self.members.iter().filter_map(|member| {
            let client = member.client.load_full()?;
            Some(PooledClient { member, client })
        });
        let calls = calls.map(async |picked| self.attempt_by(&picked, op, CallLimits::once(limit), &call).await);
        for outcome in futures::future::join_all(calls).await {
            if let Err(error) = outcome {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    op,
                    "one client of many failed"
                );
            }
        }
    }

    /// Calls once. The outcome does not count against the client: other calls detect a stuck client.
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
    ) -> (Result<T, Error>, ClientHealth) {
        let begun = Instant::now();
        let (outcome, health) = guarded(limit, call).await;
        let took = begun.elapsed().as_secs_f64();
        self.metrics.requests.with_label_values(&[op]).observe(took);
        if let Err(error) = &outcome {
            self.metrics.failures.with_label_values(&[op, error.reason()]).inc();
        }
        (outcome, health)
    }

    /// Waits until a client must be replaced.
    pub(super) async fn unhealthy(&self) {
        loop {
            let noted = self.unhealthy.notified();
            if self.members.iter().any(PoolMember::is_struck) {
                return;
            }
            noted.await;
        }
    }

    /// Replaces the unhealthy clients, or all of them; the old ones serve until the new ones are ready.
    pub(super) async fn replace(
        &self,
        options: &ConnectOptions,
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

impl PoolMember {
    fn is_struck(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= MAX_FAILURES
    }

    async fn replace(&self, options: &ConnectOptions, endpoints: &[String], limit: Duration) -> anyhow::Result<()> {
        let mut config = Config::default()
            .with_timeout(options.answer_timeout())
            .with_grpc_max_decoding_message_size(MAX_REPLY_BYTES);
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
        self.client.store(Some(Arc::new(PoolClient(client))));
        self.failures.store(0, Ordering::Relaxed);
        Ok(())
    }
}

/// Returns the outcome of a call, and the health of the client that follows from it.
async fn guarded<T>(
    limit: Duration,
    call: impl Future<Output = tikv_client::Result<T>>,
) -> (Result<T, Error>, ClientHealth) {
    // The client trusts some of the data it receives: a reply that makes it panic must not end more than this call.
    let call = AssertUnwindSafe(call).catch_unwind();
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(Ok(value))) => (Ok(value), ClientHealth::Fine),
        Ok(Ok(Err(error))) => {
            let (error, health) = classify(error);
            (Err(error), health)
        }
        Ok(Err(_)) => (Err(Error::unreachable("the client panicked")), ClientHealth::Broken),
        Err(_) => (Err(Error::unreachable("no answer in time")), ClientHealth::Doubtful),
    }
}

/// A call under way; dropped it tells the client's health.
struct CallAttempt<'a> {
    pool: &'a ClientPool,
    member: &'a PoolMember,
    begun: Instant,
    /// True if it was counted as a failure because it takes too long.
    is_overdue: bool,
    /// `None` when the caller went away.
    health: Option<ClientHealth>,
}

impl CallAttempt<'_> {
    fn note_overdue(&mut self) {
        self.is_overdue = true;
        self.fail(1);
    }

    fn fail(&self, failures: u32) {
        self.member.failures.fetch_add(failures, Ordering::Relaxed);
        if self.member.is_struck() {
            self.pool.unhealthy.notify_one();
        }
    }
}

impl Drop for CallAttempt<'_> {
    fn drop(&mut self) {
        let given_up = || self.begun.elapsed() >= self.pool.stretched(ABANDONED_CALL_TIMEOUT, 2);
        match self.health {
            Some(ClientHealth::Fine) => self.member.failures.store(0, Ordering::Relaxed),
            Some(ClientHealth::Broken) => self.fail(MAX_FAILURES),
            Some(ClientHealth::Doubtful) if !self.is_overdue => self.fail(1),
            None if !self.is_overdue && given_up() => self.fail(1),
            Some(ClientHealth::Doubtful) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_answers_stretch_the_limits_of_attempts_until_answers_are_quick_again() {
        let pace = CallPace::default();
        pace.observe(Duration::from_secs(4));
        assert_eq!(pace.get(), Duration::from_secs(4));
        for _ in 0..100 {
            pace.observe(Duration::from_millis(5));
        }
        assert!(pace.get() < Duration::from_millis(6), "{:?}", pace.get());
    }
}
