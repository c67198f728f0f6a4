//! Typed settings of the brain itself: compaction, quota and log level.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the brains compact by themselves. A kube-apiserver compacts on its own every five minutes.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    cel,
    validation = Rule::new("self.mode != 'Revision' || self.retention.matches('^[0-9]+$')")
        .message("retention must be a number of revisions, such as 10000, when mode is Revision")
        .field_path(".retention"),
    validation = Rule::new("self.mode != 'Periodic' || self.retention.matches('^([0-9]+(h|m|s))+$')")
        .message("retention must be a duration, such as 5m or 1h, when mode is Periodic")
        .field_path(".retention")
)]
pub struct AutoCompaction {
    /// What `retention` counts.
    #[serde(default)]
    pub mode: CompactionMode,

    /// What is kept: a duration such as `1h` with mode Periodic, a number of revisions with mode Revision.
    #[schemars(regex(pattern = r"^([0-9]+|([0-9]+(h|m|s))+)$"), length(max = 32))]
    pub retention: String,
}

/// What the retention of automatic compaction counts.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum CompactionMode {
    /// Time.
    #[default]
    Periodic,
    /// Revisions.
    Revision,
}

/// How much the brains log.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum LogLevel {
    /// Everything.
    Debug,
    /// What an operator of the cluster wants to read.
    Info,
    /// What may become a problem.
    Warn,
    /// What failed.
    Error,
}

impl LogLevel {
    /// The value of the brain's `--log-level`.
    #[must_use]
    pub fn flag(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}
