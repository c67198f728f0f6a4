//! `KubeBrainBackupSchedule`: backups of a cluster at regular times, and which of them are kept.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::backup::KubeBrainBackupSpec;
use crate::cluster::schema;
use status::KubeBrainBackupScheduleStatus;

pub mod status;
#[cfg(test)]
mod tests;

/// Time zone of a schedule that names none.
pub const DEFAULT_TIME_ZONE: &str = "Etc/UTC";
/// Form of a schedule: five fields of cron, or a shorthand.
pub(crate) const SCHEDULE_PATTERN: &str =
    r"^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|[0-9A-Za-z*/,-]+( [0-9A-Za-z*/,-]+){4})$";
/// Form of the name of a time zone.
pub(crate) const TIME_ZONE_PATTERN: &str = r"^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$";
/// Maximum length of the name of a schedule. The names of its backups are derived from it.
pub const MAX_SCHEDULE_NAME_BYTES: usize = 34;

/// Desired backups: when they are made, of what and where, and how long they are kept.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[cfg_attr(any(test, feature = "cel"), kube(cel))]
#[kube(
    group = "kubebrain.io",
    version = "v1alpha1",
    kind = "KubeBrainBackupSchedule",
    namespaced,
    status = "KubeBrainBackupScheduleStatus",
    doc = "Backups of a KubeBrainCluster at regular times: it creates KubeBrainBackups, and deletes those that are kept no longer.",
    shortname = "kbbs",
    category = "kubebrain",
    derive = "PartialEq",
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.template.spec.clusterName"),
    printcolumn(name = "Schedule", type_ = "string", json_path = ".spec.schedule"),
    printcolumn(name = "Time zone", type_ = "string", json_path = ".spec.timeZone"),
    printcolumn(name = "Suspend", type_ = "boolean", json_path = ".spec.suspend"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#
    ),
    printcolumn(name = "Last schedule", type_ = "date", json_path = ".status.lastScheduleTime"),
    printcolumn(name = "Last success", type_ = "date", json_path = ".status.lastSuccessfulTime"),
    printcolumn(
        name = "Last backup",
        type_ = "string",
        json_path = ".status.lastSuccessfulBackup",
        priority = 1
    ),
    printcolumn(name = "Next", type_ = "string", json_path = ".status.nextScheduleTime", priority = 1),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#,
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("size(self.metadata.name) <= 34")
        .message("name must be at most 34 characters: names of backups are derived from it"),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("name must hold only a-z, 0-9 and -, and begin and end with a letter or a digit")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.retention) || self.template.spec.deletionPolicy == 'Delete'")
        .message("retention requires template.spec.deletionPolicy Delete: with Keep the stored objects would stay")
)]
pub struct KubeBrainBackupScheduleSpec {
    /// Times of the backups, as cron has them: minute, hour, day of the month, month and day of the week; or `@hourly`, `@daily`,
    /// `@weekly`, `@monthly` or `@yearly`.
    #[schemars(
        regex(pattern = SCHEDULE_PATTERN),
        length(max = 256)
    )]
    pub schedule: String,

    /// Time zone of the schedule, by its IANA name, such as `Europe/Berlin`. Default: Etc/UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = TIME_ZONE_PATTERN), length(max = 64))]
    pub time_zone: Option<String>,

    /// Makes no backups and deletes none. Running ones continue. When it is unset, the newest backup that was missed is made.
    #[serde(default)]
    pub suspend: bool,

    /// Policy for a backup that is due while another one of this schedule is not finished. Forbid: it is made after that one, or not at all
    /// if a later one is due by then. Allow: both are made.
    #[serde(default)]
    pub concurrency_policy: ConcurrencyPolicy,

    /// Seconds after its time in which a backup may begin; after that it is missed. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 31_536_000))]
    pub starting_deadline_seconds: Option<i64>,

    /// Makes a backup when the schedule is created, in addition.
    #[serde(default)]
    pub immediate: bool,

    /// The KubeBrainBackups that are created. Changes apply to later ones.
    pub template: BackupTemplate,

    /// Backups that are kept. A complete backup of this schedule that no rule keeps is deleted, with what it stored. Default: all are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<BackupRetention>,

    /// Interval after which the newest complete backup of this schedule is read again, and compared with what was written. It counts from the last
    /// verification of one of its backups. Never: backups are verified only as `template.spec.verify` and the annotation
    /// `kubebrain.io/verify` ask for it.
    #[serde(default)]
    pub verify: VerificationInterval,

    /// Number of failed KubeBrainBackups that are kept, the newest ones. Default: 3.
    #[serde(default = "failed_backups")]
    #[schemars(range(min = 0, max = 100))]
    pub failed_backups_history_limit: i32,
}

fn failed_backups() -> i32 {
    3
}

/// Interval of verifications.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum VerificationInterval {
    /// Once a day.
    Daily,
    /// Every seven days.
    Weekly,
    /// Every thirty days.
    Monthly,
    /// Not at all.
    #[default]
    Never,
}

/// Policy for backups at the same time. Without Replace, which Jobs have: a backup that takes longer than the interval would never end.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum ConcurrencyPolicy {
    /// One after the other.
    #[default]
    Forbid,
    /// At the same time.
    Allow,
}

/// The KubeBrainBackups of a schedule.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupTemplate {
    /// Labels and annotations of the KubeBrainBackups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,

    /// Spec of the KubeBrainBackups.
    #[schemars(schema_with = "template_spec")]
    pub spec: KubeBrainBackupSpec,
}

/// Labels and annotations. Those of `kubebrain.io/` are left out.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplateMetadata {
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::texts")]
    pub labels: BTreeMap<String, String>,

    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::texts")]
    pub annotations: BTreeMap<String, String>,
}

/// Rules of `kubebrain backup prune`: a backup that at least one of them keeps is kept. Ages count from the newest complete backup, which is
/// always kept. Hours, days, weeks, months and years are those of UTC, and only those that have backups count. Each store (`clusterID`) is
/// counted separately.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("has(self.keepLast) || has(self.keepWithin) || has(self.keepHourly) || has(self.keepDaily) || has(self.keepWeekly) || has(self.keepMonthly) || has(self.keepYearly)")
        .message("retention needs a rule that keeps something, such as keepLast")
)]
pub struct BackupRetention {
    /// Keeps this number of the newest backups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep_last: Option<i32>,

    /// Keeps backups that are at most this much older than the newest one, in h, m and s, or in days such as 14d.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9]{1,5}d|([0-9]{1,7}(h|m|s))+)$"), length(max = 32))]
    pub keep_within: Option<String>,

    /// Keeps the newest backup of each of the last hours, of this number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep_hourly: Option<i32>,

    /// Keeps the newest backup of each of the last days, of this number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep_daily: Option<i32>,

    /// Keeps the newest backup of each of the last weeks (ISO), of this number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep_weekly: Option<i32>,

    /// Keeps the newest backup of each of the last months, of this number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep_monthly: Option<i32>,

    /// Keeps the newest backup of each of the last years, of this number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep_yearly: Option<i32>,
}

impl KubeBrainBackupScheduleSpec {
    /// Returns the name of the time zone, with its default filled in.
    #[must_use]
    pub fn time_zone(&self) -> &str {
        self.time_zone.as_deref().unwrap_or(DEFAULT_TIME_ZONE)
    }
}

/// Returns the schema of a backup's spec without the rules about its changes: a backup cannot be changed, but a template can.
fn template_spec(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = KubeBrainBackupSpec::json_schema(generator);
    schema.insert("description".to_owned(), "Spec of the KubeBrainBackups.".into());
    if let Some(Value::Array(rules)) = schema.get_mut("x-kubernetes-validations") {
        rules.retain(|rule| !rule["rule"].as_str().is_some_and(|rule| rule.contains("oldSelf")));
    }
    schema
}
