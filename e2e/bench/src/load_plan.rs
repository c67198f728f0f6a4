//! Parts that the long loads have in common: their times, the flag of both servers, and the rows of latencies.

use std::time::Duration;

use crate::histogram::LatencyHistogram;
use crate::report::{Report, Unit};

/// Of both servers: history grows between compactions.
pub(crate) const QUOTA_FLAG: &str = "--quota-backend-bytes=68719476736";
/// As kube-apiserver's.
const MAX_COMPACTION_INTERVAL: Duration = Duration::from_secs(300);
/// Intervals of a short load: the first compaction comes after two.
const LEAST_INTERVALS: u32 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoadTimes {
    pub(crate) load: Duration,
    pub(crate) compaction_interval: Duration,
}

impl LoadTimes {
    /// By default kube-apiserver's five minutes, or a fifth of the load if that is less.
    pub(crate) fn new(load: Duration, compaction_interval: Option<Duration>) -> Self {
        let default = MAX_COMPACTION_INTERVAL.min(load / LEAST_INTERVALS);
        Self {
            load,
            compaction_interval: compaction_interval.unwrap_or(default),
        }
    }
}

/// Rows of percentiles and of the longest, in milliseconds; none if nothing was measured.
pub(crate) fn say_latencies(name: &str, times: &LatencyHistogram, program: &'static str, report: &mut Report) {
    if times.count() == 0 {
        return;
    }
    let rows = [
        ("p50", times.percentile(0.5)),
        ("p99", times.percentile(0.99)),
        ("p99.9", times.percentile(0.999)),
        ("the longest", times.longest()),
    ];
    for (suffix, time) in rows {
        report.say(
            &format!("{name}, {suffix}"),
            Unit::Millis,
            program,
            time.as_secs_f64() * 1_000.0,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_loads_are_compacted_too() {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        let interval = |load, given| LoadTimes::new(load, given).compaction_interval;
        assert_eq!(interval(minutes(5), None), minutes(1));
        assert_eq!(interval(minutes(30), None), minutes(5));
        assert_eq!(interval(minutes(5), Some(minutes(2))), minutes(2));
    }
}
