//! How a change reaches running brains.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::maintenance_window::MaintenanceWindow;

/// Maximum time of a planned hand-over if the spec does not set one.
const LEADER_TRANSFER_TIMEOUT: Duration = Duration::from_secs(30);

/// Pace and limits of a rolling update.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategy {
    /// How outdated pods are replaced. LeaderLast: the operator replaces pods one by one, the leader last. OnDelete: the operator waits for you
    /// to delete the pods.
    #[serde(default, rename = "type")]
    pub type_: UpdateStrategyType,

    /// Maximum number of brains that may be missing while pods are replaced.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub max_unavailable: i32,

    /// Seconds that a new pod must be ready before the next one is replaced.
    #[serde(default = "ten")]
    #[schemars(range(min = 0, max = 3600))]
    pub min_ready_seconds: i32,

    /// Seconds that a planned hand-over of leadership may take before the leader is replaced anyway. Default: 30. Forbidden with Embedded
    /// storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3600))]
    pub leader_transfer_timeout_seconds: Option<i32>,

    /// Seconds that a change may take before it is reported as failed.
    #[serde(default = "six_hundred")]
    #[schemars(range(min = 1, max = 86400))]
    pub progress_deadline_seconds: i32,

    /// Times in which outdated members that serve are replaced. A change waits for the next one, and continues there if one ends before it does;
    /// members that have failed are replaced at any time. Default: always.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub maintenance_windows: Vec<MaintenanceWindow>,
}

/// Selects who replaces outdated pods.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum UpdateStrategyType {
    /// The operator replaces pods one after the other, the leader last.
    #[default]
    LeaderLast,
    /// The operator waits for a user to delete the pods.
    OnDelete,
}

fn one() -> i32 {
    1
}

fn ten() -> i32 {
    10
}

fn six_hundred() -> i32 {
    600
}

impl UpdateStrategy {
    /// Returns the maximum time of a planned hand-over.
    #[must_use]
    pub fn leader_transfer_timeout(&self) -> Duration {
        let seconds = self.leader_transfer_timeout_seconds.map(u64::try_from);
        seconds
            .and_then(Result::ok)
            .map_or(LEADER_TRANSFER_TIMEOUT, Duration::from_secs)
    }
}

impl Default for UpdateStrategy {
    fn default() -> Self {
        Self {
            type_: UpdateStrategyType::default(),
            max_unavailable: one(),
            min_ready_seconds: ten(),
            leader_transfer_timeout_seconds: None,
            progress_deadline_seconds: six_hundred(),
            maintenance_windows: Vec::new(),
        }
    }
}
