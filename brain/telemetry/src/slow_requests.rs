//! Logs requests that take long, in etcd's words.
//!
//! Texts are made only of requests that are logged, and a flood of slow requests does not flood the log.

use std::fmt::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use prometheus::IntCounter;
use tokio::time::Instant;
use tracing::Level;

use runtime::log_once::LogLimit;

/// The durations above which requests are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowOptions {
    /// Of a read, or of a change from when the leader takes it until its outcome is known.
    pub apply: Duration,
    /// Of a unary RPC.
    pub unary: Duration,
}

/// Logs and counts slow reads and changes. Clones share the limit of lines.
#[derive(Debug, Clone)]
pub struct ApplyLog(Arc<ApplyState>);

#[derive(Debug)]
struct ApplyState {
    expected: Duration,
    /// Counts also those that are not logged.
    count: IntCounter,
    limit: LogLimit,
}

impl ApplyLog {
    /// Creates the log of reads and changes that take longer than `expected`; `count` counts them.
    #[must_use]
    pub fn new(expected: Duration, count: IntCounter) -> Self {
        Self(Arc::new(ApplyState {
            expected,
            count,
            limit: LogLimit::default(),
        }))
    }

    /// Begins to time a read or change. `describe` returns its text.
    pub fn begin<D: Fn() -> String>(&self, prefix: &'static str, describe: D) -> ApplyTimer<'_, D> {
        ApplyTimer {
            log: &self.0,
            began: Instant::now(),
            prefix,
            describe,
            is_over: false,
        }
    }
}

/// A read or change that is timed. If it is dropped before [`ApplyTimer::end`], its client has gone away, or its deadline is over.
#[derive(Debug)]
pub struct ApplyTimer<'a, D: Fn() -> String> {
    log: &'a ApplyState,
    began: Instant,
    prefix: &'static str,
    describe: D,
    is_over: bool,
}

impl<D: Fn() -> String> ApplyTimer<'_, D> {
    /// Logs it if it took too long. `response` returns the text of its response.
    pub fn end<R>(mut self, answer: Result<R, impl fmt::Display>, response: impl FnOnce(R) -> String) {
        self.is_over = true;
        self.log(|| match answer {
            Ok(answer) => (response(answer), None),
            Err(error) => (String::new(), Some(error.to_string())),
        });
    }

    fn log(&self, outcome: impl FnOnce() -> (String, Option<String>)) {
        let (took, expected) = (self.began.elapsed(), self.log.expected);
        if took <= expected {
            return;
        }
        self.log.count.inc();
        let Some(skipped) = self.log.limit.admit() else { return };
        let (request, (response, error)) = ((self.describe)(), outcome());
        tracing::warn!(
            took = format!("{took:?}"),
            "expected-duration" = format!("{expected:?}"),
            prefix = self.prefix,
            request,
            response,
            error,
            skipped = (skipped > 0).then_some(skipped),
            "apply request took too long"
        );
    }
}

impl<D: Fn() -> String> Drop for ApplyTimer<'_, D> {
    fn drop(&mut self) {
        if !self.is_over {
            self.log(|| (String::new(), Some("context canceled".to_owned())));
        }
    }
}

/// The parts of a unary RPC that are described in the log.
#[derive(Debug)]
pub struct UnaryExchange<'a> {
    /// The path of the RPC.
    pub path: &'a str,
    /// The message of the request.
    pub request: Bytes,
    /// The message of the answer, if there is one.
    pub answer: Option<Bytes>,
}

/// The sizes and the text of a unary RPC. Counts and sizes are -1 for RPCs that are not of keys and values.
#[derive(Debug, PartialEq, Eq)]
pub struct RequestStats {
    /// Operations in the request.
    pub request_count: i64,
    /// Bytes of the request.
    pub request_size: i64,
    /// Keys in the response.
    pub response_count: i64,
    /// Bytes of the response.
    pub response_size: i64,
    /// The request without values.
    pub content: String,
}

impl Default for RequestStats {
    fn default() -> Self {
        Self {
            request_count: -1,
            request_size: -1,
            response_count: -1,
            response_size: -1,
            content: String::new(),
        }
    }
}

/// Logs slow unary RPCs. Clones share the limit of lines.
#[derive(Debug, Clone)]
pub struct RpcLog(Arc<RpcState>);

#[derive(Debug)]
struct RpcState {
    expected: Duration,
    describe: fn(UnaryExchange<'_>) -> RequestStats,
    limit: LogLimit,
}

impl RpcLog {
    /// Creates the log of RPCs that take longer than `expected`; `describe` is called for those that are logged.
    #[must_use]
    pub fn new(expected: Duration, describe: fn(UnaryExchange<'_>) -> RequestStats) -> Self {
        Self(Arc::new(RpcState {
            expected,
            describe,
            limit: LogLimit::default(),
        }))
    }

    /// Returns true if an RPC that took this long is logged.
    #[must_use]
    pub fn is_logged(&self, took: Duration) -> bool {
        took > self.0.expected || tracing::enabled!(Level::DEBUG)
    }

    /// Logs an RPC: as a warning if it took too long, else at debug level.
    pub fn log(&self, took: Duration, client: Option<SocketAddr>, rpc: UnaryExchange<'_>) {
        let is_slow = took > self.0.expected;
        let skipped = match is_slow {
            true => self.0.limit.admit(),
            false => tracing::enabled!(Level::DEBUG).then_some(0),
        };
        let Some(skipped) = skipped else { return };
        let start = SignedDuration::try_from(took)
            .ok()
            .and_then(|took| Timestamp::now().checked_sub(took).ok());
        let remote = client.map_or_else(|| "No remote client info.".to_owned(), |client| client.to_string());
        let path = rpc.path;
        let stats = (self.0.describe)(rpc);
        macro_rules! log {
            ($level:expr) => {
                tracing::event!(
                    $level,
                    "start time" = start.map(|start| format!("{start:.6}")),
                    "time spent" = format!("{took:?}"),
                    remote,
                    "response type" = path,
                    "request count" = stats.request_count,
                    "request size" = stats.request_size,
                    "response count" = stats.response_count,
                    "response size" = stats.response_size,
                    "request content" = stats.content,
                    skipped = (skipped > 0).then_some(skipped),
                    "request stats"
                )
            };
        }
        if is_slow {
            log!(Level::WARN);
        } else {
            log!(Level::DEBUG);
        }
    }
}

/// The longest text of a request in bytes; the rest of it is left out.
const MAX_TEXT_BYTES: usize = 4 << 10;

/// A text that takes no more than 4 KiB. A write beyond that fails, so that nothing further is formatted.
#[derive(Debug, Default)]
pub struct BoundedText(String);

impl BoundedText {
    /// Returns the text of `value`, with an ellipsis in the place of what is too long.
    pub fn of(value: impl fmt::Display) -> String {
        let mut text = Self::default();
        match write!(text, "{value}") {
            Ok(()) => text.0,
            Err(fmt::Error) => text.0 + "...",
        }
    }
}

impl fmt::Write for BoundedText {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = MAX_TEXT_BYTES - self.0.len();
        if part.len() <= room {
            self.0.push_str(part);
            return Ok(());
        }
        let chars = part.char_indices().map(|(at, char)| at + char.len_utf8());
        let fits = chars.take_while(|end| *end <= room).last().unwrap_or(0);
        self.0.push_str(&part[..fits]);
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const SLOW_REQUEST_TIME: Duration = Duration::from_millis(100);
    const TICK: Duration = Duration::from_millis(1);

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(BoundedText::of("short"), "short");
        let text = BoundedText::of("x".to_owned() + &"\u{e9}".repeat(MAX_TEXT_BYTES));
        assert_eq!(text.len(), MAX_TEXT_BYTES - 1 + 3);
        assert!(text.ends_with("\u{e9}..."));
    }

    #[tokio::test(start_paused = true)]
    async fn every_slow_request_is_counted_and_few_are_described() {
        let (count, described) = (IntCounter::new("slow", "slow").unwrap(), Cell::new(0));
        let log = ApplyLog::new(SLOW_REQUEST_TIME, count.clone());
        let describe = || {
            described.set(described.get() + 1);
            String::new()
        };
        let fast = log.begin("", describe);
        tokio::time::advance(SLOW_REQUEST_TIME).await;
        fast.end(Ok::<_, Infallible>(()), |()| unreachable!("it is not slow"));
        assert_eq!((count.get(), described.get()), (0, 0));
        let slow: Vec<_> = (0..100).map(|_| log.begin("", describe)).collect();
        tokio::time::advance(SLOW_REQUEST_TIME + TICK).await;
        for applying in slow {
            applying.end(Err::<(), _>("refused"), |()| unreachable!("it failed"));
        }
        assert_eq!((count.get(), described.get()), (100, 20));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_request_is_counted_though_its_client_has_gone() {
        let count = IntCounter::new("slow", "slow").unwrap();
        let log = ApplyLog::new(SLOW_REQUEST_TIME, count.clone());
        let gone = log.begin("", String::new);
        tokio::time::advance(SLOW_REQUEST_TIME + TICK).await;
        drop(gone);
        assert_eq!(count.get(), 1);
    }

    #[test]
    fn fast_rpc_is_not_described() {
        static DESCRIBED: AtomicUsize = AtomicUsize::new(0);
        let log = RpcLog::new(SLOW_REQUEST_TIME, |_| {
            DESCRIBED.fetch_add(1, Ordering::Relaxed);
            RequestStats::default()
        });
        let rpc = |took| {
            let (request, answer) = (Bytes::new(), None);
            let path = "/etcdserverpb.KV/Put";
            log.log(took, None, UnaryExchange { path, request, answer });
        };
        assert!(!log.is_logged(SLOW_REQUEST_TIME) && log.is_logged(SLOW_REQUEST_TIME + TICK));
        rpc(SLOW_REQUEST_TIME);
        assert_eq!(DESCRIBED.load(Ordering::Relaxed), 0);
        (0..100).for_each(|_| rpc(SLOW_REQUEST_TIME + TICK));
        assert_eq!(DESCRIBED.load(Ordering::Relaxed), 20);
    }
}
