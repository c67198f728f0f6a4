//! When the operator may restart members by plan.

use std::time::Duration;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::backup_schedule::{DEFAULT_TIME_ZONE, SCHEDULE_PATTERN, TIME_ZONE_PATTERN};

/// Shortest window.
pub const MIN_DURATION: Duration = Duration::from_secs(10 * 60);
/// Longest window: a week.
pub const MAX_DURATION: Duration = Duration::from_secs(168 * 3600);

/// A recurring time in which outdated members are replaced.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("self.duration.matches('^([0-9]+(h|m))+$')")
        .message("duration is written in h and m, such as 2h30m")
        .field_path(".duration"),
    validation = Rule::new("!self.duration.matches('^([0-9]+(h|m))+$') || (duration(self.duration) >= duration('10m') && duration(self.duration) <= duration('168h'))")
        .message("duration must be between 10m and 168h")
        .field_path(".duration")
)]
pub struct MaintenanceWindow {
    /// Times at which it begins, as cron has them: minute, hour, day of the month, month and day of the week; or a shorthand such as `@daily`.
    #[schemars(
        regex(pattern = SCHEDULE_PATTERN),
        length(max = 256)
    )]
    pub schedule: String,

    /// Its length in h and m, from 10m to 168h.
    #[schemars(length(max = 32))]
    pub duration: String,

    /// Time zone of the schedule, by its IANA name. Default: Etc/UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = TIME_ZONE_PATTERN), length(max = 64))]
    pub time_zone: Option<String>,
}

impl MaintenanceWindow {
    /// Returns the name of the time zone, with its default filled in.
    #[must_use]
    pub fn time_zone(&self) -> &str {
        self.time_zone.as_deref().unwrap_or(DEFAULT_TIME_ZONE)
    }
}
