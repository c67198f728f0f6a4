//! Typed settings of the brain itself: compaction, quota and log level.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Compaction by the brains themselves. A kube-apiserver compacts on its own every five minutes.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("self.mode != 'Revision' || self.retention.matches('^[0-9]+$')")
        .message("retention must be a number of revisions, such as 10000, when mode is Revision")
        .field_path(".retention"),
    validation = Rule::new("self.mode != 'Periodic' || self.retention.matches('^([0-9]+(h|m|s))+$')")
        .message("retention must be a duration, such as 5m or 1h, when mode is Periodic")
        .field_path(".retention")
)]
pub struct AutoCompaction {
    /// Unit of `retention`. Periodic: a time. Revision: a number of revisions.
    #[serde(default)]
    pub mode: CompactionMode,

    /// History to keep: a duration such as `1h` with mode Periodic, a number of revisions with mode Revision.
    #[schemars(regex(pattern = r"^([0-9]+|([0-9]+(h|m|s))+)$"), length(max = 32))]
    pub retention: String,
}

/// Unit of the retention of automatic compaction.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum CompactionMode {
    /// Keeps the revisions of a period of time.
    #[default]
    Periodic,
    /// Keeps a number of revisions.
    Revision,
}

/// Log level of the brains. Default: Info.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum LogLevel {
    /// Logs everything.
    Debug,
    /// Logs events of interest to an operator of the cluster.
    Info,
    /// Logs conditions that may become a problem.
    Warn,
    /// Logs failures only.
    Error,
}

impl LogLevel {
    /// Returns the value for the brain's `--log-level`.
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
