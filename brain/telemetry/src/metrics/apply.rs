//! Durations of changes that the leader carries out, by kind and outcome.

use std::time::Duration;

use prometheus::{Histogram, HistogramVec};

use super::Registrar;

/// Durations of changes, in seconds: from when the leader takes a change until its outcome is known, so with the wait for the log.
#[derive(Debug, Clone)]
pub struct ApplyMetrics {
    all: HistogramVec,
    /// The frequent ones, each failed and successful.
    put: [Histogram; 2],
    delete_range: [Histogram; 2],
    txn: [Histogram; 2],
}

impl ApplyMetrics {
    pub(super) fn register(r: &Registrar) -> Self {
        let all = r.histograms(
            "etcd_server_apply_duration_seconds",
            "Durations of changes on the leader, including the wait for the log.",
            &["version", "op", "success"],
            0.0001,
            20,
        );
        let both = |op: &str| [false, true].map(|success| one(&all, op, success));
        Self {
            put: both("Put"),
            delete_range: both("DeleteRange"),
            txn: both("Txn"),
            all,
        }
    }

    /// Records one change by its name in the API, as `lease_grant`.
    pub fn observe(&self, name: &str, success: bool, took: Duration) {
        let seconds = took.as_secs_f64();
        let frequent = match name {
            "put" => &self.put,
            "delete_range" => &self.delete_range,
            "txn" => &self.txn,
            _ => return one(&self.all, &camel_case(name), success).observe(seconds),
        };
        frequent[usize::from(success)].observe(seconds);
    }
}

fn one(all: &HistogramVec, op: &str, success: bool) -> Histogram {
    all.with_label_values(&["v3", op, if success { "true" } else { "false" }])
}

/// Returns etcd's name of a kind: `LeaseGrant` for `lease_grant`.
fn camel_case(name: &str) -> String {
    let words = name.split('_').map(|word| {
        let (first, rest) = word.split_at_checked(1).unwrap_or((word, ""));
        first.to_ascii_uppercase() + rest
    });
    words.collect()
}
