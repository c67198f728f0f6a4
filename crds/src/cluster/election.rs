//! The election of the leader, and its timings.

use std::time::Duration;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration;

/// The lock that chooses the leader. It only chooses which brain tries to lead; the storage decides which one writes.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new(
        "duration(has(self.leaseDuration) ? self.leaseDuration : (self.backend == 'Lease' ? '15s' : '2s')) > duration(has(self.renewDeadline) ? self.renewDeadline : (self.backend == 'Lease' ? '10s' : '1500ms'))"
    )
    .message("leaseDuration must be greater than renewDeadline"),
    validation = Rule::new(
        "duration(has(self.renewDeadline) ? self.renewDeadline : (self.backend == 'Lease' ? '10s' : '1500ms')).getMilliseconds() * 10 > duration(has(self.retryPeriod) ? self.retryPeriod : (self.backend == 'Lease' ? '2s' : '400ms')).getMilliseconds() * 12"
    )
    .message("renewDeadline must be greater than 1.2 x retryPeriod"),
    validation = Rule::new("!has(self.retryPeriod) || duration(self.retryPeriod) >= duration('100ms')")
        .message("retryPeriod must be at least 100ms")
        .field_path(".retryPeriod"),
    validation = Rule::new("!has(self.leaseDuration) || duration(self.leaseDuration) <= duration('1h')")
        .message("leaseDuration must be at most 1h")
        .field_path(".leaseDuration")
)]
pub struct LeaderElection {
    /// Location of the lock. Storage: the brains' own storage. Lease: a `coordination.k8s.io` Lease of this Kubernetes cluster; not allowed
    /// if these brains are the store of the same cluster.
    #[serde(default)]
    pub backend: ElectionBackend,

    /// Time that a candidate must see the lock unchanged before it takes it. Default: 2s, or 15s with Lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9]+(h|m|s|ms))+$"), length(max = 32))]
    pub lease_duration: Option<String>,

    /// Time that a leader continues to lead without renewing the lock. Default: 1500ms, or 10s with Lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9]+(h|m|s|ms))+$"), length(max = 32))]
    pub renew_deadline: Option<String>,

    /// Time between two reads of the lock. Default: 400ms, or 2s with Lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9]+(h|m|s|ms))+$"), length(max = 32))]
    pub retry_period: Option<String>,
}

/// Location of the lock.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum ElectionBackend {
    /// In the brains' own storage. Works everywhere.
    #[default]
    Storage,
    /// In a coordination.k8s.io Lease of this Kubernetes cluster. Not allowed if these brains are the store of this same cluster.
    Lease,
}

/// The timings of an election with defaults filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timings {
    /// Time that a candidate must see the lock unchanged before it takes it.
    pub lease_duration: Duration,
    /// Time that a leader continues to lead without renewing the lock.
    pub renew_deadline: Duration,
    /// Time between two reads of the lock.
    pub retry_period: Duration,
}

impl LeaderElection {
    /// Returns the timings in force. Defaults depend on the backend.
    ///
    /// # Errors
    /// A value is not a duration.
    pub fn timings(&self) -> Result<Timings, duration::Error> {
        let (lease_duration, renew_deadline, retry_period) = match self.backend {
            ElectionBackend::Storage => ("2s", "1500ms", "400ms"),
            ElectionBackend::Lease => ("15s", "10s", "2s"),
        };
        let read = |set: &Option<String>, default| duration::parse(set.as_deref().unwrap_or(default));
        Ok(Timings {
            lease_duration: read(&self.lease_duration, lease_duration)?,
            renew_deadline: read(&self.renew_deadline, renew_deadline)?,
            retry_period: read(&self.retry_period, retry_period)?,
        })
    }
}
