//! The status of a schedule. As in that of a cluster, every field is optional.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cluster::schema;

/// Last observed state of the schedule.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeBrainBackupScheduleStatus {
    /// The `metadata.generation` that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Newest time of the schedule for which a backup was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_schedule_time: Option<Time>,

    /// Newest time of the schedule for which no backup was created, because `startingDeadlineSeconds` were over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_missed_time: Option<Time>,

    /// Time when the newest complete backup was complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_successful_time: Option<Time>,

    /// Time when the newest failed backup failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failed_time: Option<Time>,

    /// Time when a backup of this schedule was last verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_verification_time: Option<Time>,

    /// Name of the newest KubeBrainBackup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_backup: Option<String>,

    /// Name of the newest KubeBrainBackup that is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_successful_backup: Option<String>,

    /// Time of the next backup; absent while the schedule is suspended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_schedule_time: Option<Time>,

    /// Names of the KubeBrainBackups that are not finished, at most 10.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub active: Vec<String>,

    /// Version of the operator that wrote this status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator_version: Option<String>,

    /// Conditions Ready and Reconciling; also Stalled if the spec cannot work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Option<Vec<Condition>>,
}
