//! `backup list`: backups and schedules, one line each.

use crds::{KubeBrainBackup, KubeBrainBackupSchedule};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use plan::backup::location;
use plan::names::SCHEDULE;
use serde::Serialize;

use crate::connect::TargetNamespace;
use crate::observe::list;
use crate::table::{age, cell_of, table};

/// The output of `backup list`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BackupList {
    backups: Vec<BackupRow>,
    schedules: Vec<ScheduleRow>,
    /// Facts that could not be determined, and why.
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct BackupRow {
    name: String,
    cluster: String,
    /// Complete, Failed, Deleting, Running or Waiting.
    phase: &'static str,
    revision: Option<i64>,
    /// Size of the stored objects.
    stored_bytes: Option<i64>,
    created: Option<Timestamp>,
    /// The schedule that made it.
    schedule: Option<String>,
    location: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ScheduleRow {
    name: String,
    cluster: String,
    schedule: String,
    time_zone: String,
    /// The reason of Ready.
    state: String,
    last_success: Option<Timestamp>,
    next: Option<Timestamp>,
}

/// Returns the backups and schedules of a cluster, or of all clusters of the namespace.
///
/// # Errors
/// The API server refused or did not answer.
pub(super) async fn view(target: &TargetNamespace, cluster: Option<&str>) -> anyhow::Result<BackupList> {
    let backups = list::<KubeBrainBackup>(target, "kubebrainbackups", "").await?;
    let backups = backups.iter();
    let backups = backups.filter(|backup| cluster.is_none_or(|cluster| backup.spec.cluster_name == cluster));
    let mut backups: Vec<_> = backups.map(backup_row).collect();
    backups.sort_by(|one, other| (one.created, &one.name).cmp(&(other.created, &other.name)));
    let mut notes = Vec::new();
    let schedules = list::<KubeBrainBackupSchedule>(target, "kubebrainbackupschedules", "").await;
    let schedules = schedules.unwrap_or_else(|error| {
        notes.push(format!("schedules are unknown: {error:#}"));
        Vec::new()
    });
    let of_cluster = |schedule: &&KubeBrainBackupSchedule| {
        cluster.is_none_or(|cluster| schedule.spec.template.spec.cluster_name == cluster)
    };
    let mut schedules: Vec<_> = schedules.iter().filter(of_cluster).map(schedule_row).collect();
    schedules.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(BackupList {
        backups,
        schedules,
        notes,
    })
}

fn backup_row(backup: &KubeBrainBackup) -> BackupRow {
    let status = backup.status.clone().unwrap_or_default();
    BackupRow {
        name: backup.name_any(),
        cluster: backup.spec.cluster_name.clone(),
        phase: phase(backup),
        revision: status.revision,
        stored_bytes: status.stored_bytes,
        created: backup.metadata.creation_timestamp.as_ref().map(|time| time.0),
        schedule: backup.labels().get(SCHEDULE).cloned(),
        location: status.location.unwrap_or_else(|| location(backup)),
    }
}

/// Returns the phase of a backup: Complete, Failed, Deleting, Running or Waiting.
pub(super) fn phase(backup: &KubeBrainBackup) -> &'static str {
    let status = backup.status.as_ref();
    let conditions = status
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let is_true = |type_: &str| {
        let is = |condition: &Condition| condition.type_ == type_ && condition.status == "True";
        conditions.iter().any(is)
    };
    if backup.metadata.deletion_timestamp.is_some() {
        "Deleting"
    } else if is_true("Complete") {
        "Complete"
    } else if is_true("Failed") {
        "Failed"
    } else if plan::backup::has_begun(backup) {
        "Running"
    } else {
        "Waiting"
    }
}

fn schedule_row(schedule: &KubeBrainBackupSchedule) -> ScheduleRow {
    let status = schedule.status.clone().unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    let time = |time: Option<Time>| time.map(|time| time.0);
    ScheduleRow {
        name: schedule.name_any(),
        cluster: schedule.spec.template.spec.cluster_name.clone(),
        schedule: schedule.spec.schedule.clone(),
        time_zone: schedule.spec.time_zone().to_owned(),
        state: ready.map(|ready| ready.reason).unwrap_or_default(),
        last_success: time(status.last_successful_time),
        next: time(status.next_schedule_time),
    }
}

impl BackupList {
    /// Formats the list for humans; ages are relative to `now`.
    pub(super) fn table(&self, now: Timestamp) -> String {
        let since = |time: Option<Timestamp>| {
            // A clock may be a little ahead.
            time.map(|time| age(now.duration_since(time).as_secs().max(1)))
                .unwrap_or_default()
        };
        let number = |number: Option<i64>| number.map(|number| number.to_string()).unwrap_or_default();
        let backups: Vec<[String; 8]> = self
            .backups
            .iter()
            .map(|row| {
                [
                    row.name.clone(),
                    row.cluster.clone(),
                    row.phase.to_owned(),
                    number(row.revision),
                    number(row.stored_bytes),
                    since(row.created),
                    row.schedule.clone().unwrap_or_default(),
                    row.location.clone(),
                ]
            })
            .collect();
        let schedules: Vec<[String; 6]> = self
            .schedules
            .iter()
            .map(|row| {
                [
                    row.name.clone(),
                    row.cluster.clone(),
                    format!("{} {}", row.schedule, row.time_zone),
                    row.state.clone(),
                    row.last_success
                        .map(|time| format!("{} ago", since(Some(time))))
                        .unwrap_or_default(),
                    row.next.map(|next| next.to_string()).unwrap_or_default(),
                ]
            })
            .collect();
        let header = [
            "BACKUP", "CLUSTER", "PHASE", "REVISION", "BYTES", "AGE", "SCHEDULE", "LOCATION",
        ];
        let mut text = table(header, &backups);
        if !schedules.is_empty() {
            let header = ["SCHEDULE", "CLUSTER", "TIMES", "STATE", "LAST SUCCESS", "NEXT"];
            text.push('\n');
            text.push_str(&table(header, &schedules));
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        for note in &self.notes {
            text.push_str(&format!("Note: {}\n", cell_of(note)));
        }
        text
    }
}
