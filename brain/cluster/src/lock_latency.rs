//! The latency of the election's lock: a metric, and a log line that says what to do before the lead is lost.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use election::{Call, CallKind, Config as Timing};
use prometheus::Histogram;
use tracing::warn;

use runtime::log_once::LogBackoff;
use telemetry::metrics::ServerMetrics;

/// Pause between two log lines while the lock is slow, at first and at most.
const FIRST_LOG_INTERVAL: Duration = Duration::from_secs(10);
const MAX_LOG_INTERVAL: Duration = Duration::from_secs(600);

/// A renewal that takes longer than this part of the renew deadline is slow: two of them that follow each other hardly fit.
const SLOW_RENEWAL_DIVISOR: u32 = 3;

/// Measures the calls of an elector.
#[derive(Debug)]
pub struct LockLatency {
    reads: Histogram,
    writes: Histogram,
    timing: Timing,
    log: Mutex<LogBackoff>,
}

impl LockLatency {
    /// Creates it for an elector with this timing.
    #[must_use]
    pub fn new(metrics: &ServerMetrics, timing: Timing) -> Self {
        let op = |op| metrics.election_requests.with_label_values(&[op]);
        Self {
            reads: op("read"),
            writes: op("write"),
            timing,
            log: Mutex::new(LogBackoff::new(FIRST_LOG_INTERVAL, MAX_LOG_INTERVAL)),
        }
    }

    /// Records a call that has ended.
    pub fn observe(&self, call: &Call) {
        let histogram = match call.kind {
            CallKind::Read => &self.reads,
            CallKind::Write => &self.writes,
        };
        histogram.observe(call.took.as_secs_f64());
        if self.is_slow(call) && self.log.lock().unwrap_or_else(PoisonError::into_inner).is_due() {
            warn!(
                round_trip = ?call.took,
                answered = call.is_answered,
                renew_deadline = ?self.timing.renew_deadline,
                lease_duration = ?self.timing.lease_duration,
                "the lock of the election answers slowly: the leader loses its lead when two renewals take longer than \
                 --election-renew-deadline; raise it, and --election-lease-duration with it, on all members"
            );
        }
    }

    /// Returns true if the lead is at risk, or cannot be won, because of calls like this one.
    fn is_slow(&self, call: &Call) -> bool {
        let matters = call.kind == CallKind::Write || !call.is_answered;
        matters && call.took > self.timing.renew_deadline / SLOW_RENEWAL_DIVISOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telemetry::metrics::Metrics;

    fn call(kind: CallKind, millis: u64) -> Call {
        Call {
            kind,
            took: Duration::from_millis(millis),
            is_answered: true,
            leads: true,
        }
    }

    #[tokio::test]
    async fn latency_is_measured_and_slow_renewals_are_told_from_quick_ones() {
        let metrics = Metrics::new(false);
        let latency = LockLatency::new(&metrics.server, Timing::storage("a"));
        for call in [
            call(CallKind::Read, 20),
            call(CallKind::Write, 20),
            call(CallKind::Write, 600),
        ] {
            latency.observe(&call);
        }
        let text = String::from_utf8(metrics.render().unwrap()).unwrap();
        for (op, count) in [("read", 1), ("write", 2)] {
            let line = format!("kubebrain_election_request_duration_seconds_count{{op=\"{op}\"}} {count}");
            assert!(text.contains(&line), "{text}");
        }
        assert!(!latency.is_slow(&call(CallKind::Write, 400)) && latency.is_slow(&call(CallKind::Write, 600)));
        assert!(!latency.is_slow(&call(CallKind::Read, 600)), "a candidate may wait");
    }
}
