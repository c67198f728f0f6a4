//! The part of a cluster's status about its archive and its backups.
//!
//! Figures change all the time. They are written only once they have moved by a minute, or if the condition changes.

use crds::KubeBrainCluster;
use crds::cluster::status::{BackupStatus, KubeBrainClusterStatus, LastBackup};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::{ArchivePosition, ArchiveReport};
use crate::status::ConditionUpdate;

/// The condition about the archive.
pub const CONDITION: &str = "Archiving";

/// Seconds by which the time of the archive moves before it is written again, and the smallest lag that is written.
const STEP_SECONDS: i64 = 60;

/// The archive of a cluster, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum ObservedArchive {
    /// No pass has ended yet: what the status says stays.
    #[default]
    Unknown,
    /// There is none, and the spec has none.
    Absent,
    Reported(Box<ArchiveReport>),
}

impl ObservedArchive {
    /// Returns true if both lead to the same condition.
    pub fn says_the_same_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Reported(one), Self::Reported(other)) => one.condition == other.condition,
            (one, other) => one == other,
        }
    }
}

/// Returns the condition, if there is an archive.
pub fn condition(before: &[Condition], archive: &ObservedArchive) -> Option<ConditionUpdate> {
    match archive {
        ObservedArchive::Unknown => before_of(before).map(|before| ConditionUpdate::kept(CONDITION, before)),
        ObservedArchive::Absent => None,
        ObservedArchive::Reported(report) => Some(report.condition.clone()),
    }
}

/// Returns the part of the status; `None` if there is nothing to say.
pub fn status(
    cluster: &KubeBrainCluster,
    archive: &ObservedArchive,
    last_backup: Option<&LastBackup>,
) -> Option<BackupStatus> {
    let status = cluster.status.as_ref();
    let before = status.and_then(|status| status.backup.clone()).unwrap_or_default();
    let figures = match archive {
        ObservedArchive::Unknown => before.clone(),
        ObservedArchive::Absent => BackupStatus::default(),
        ObservedArchive::Reported(report) => figures(status, &before, report),
    };
    let found = last_backup.filter(|last| is_of(cluster, last));
    let newest = before.last_backup.iter().chain(found);
    let backup = BackupStatus {
        last_backup: newest.max_by_key(|last| last.completion_time.0).cloned(),
        ..figures
    };
    (backup != BackupStatus::default()).then_some(backup)
}

/// Returns true if the status of a cluster does not say yet what is known.
pub fn is_news(cluster: &KubeBrainCluster, archive: &ObservedArchive) -> bool {
    let conditions = conditions(cluster.status.as_ref());
    let update = condition(conditions, archive);
    let is_said = match (before_of(conditions), &update) {
        (None, None) => true,
        (Some(before), Some(update)) => is_same(before, update) && before.message == update.message,
        (None, Some(_)) | (Some(_), None) => false,
    };
    let before = cluster.status.as_ref().and_then(|status| status.backup.clone());
    !is_said || status(cluster, archive, None) != before
}

/// Returns the figures to publish: the present ones, or those of `before` as long as they are near enough.
fn figures(status: Option<&KubeBrainClusterStatus>, before: &BackupStatus, report: &ArchiveReport) -> BackupStatus {
    let Some(ArchivePosition { revision, until }) = report.position else {
        return BackupStatus::default();
    };
    let lag = report.lag.map(rounded);
    let is_same = before_of(conditions(status)).is_some_and(|before| is_same(before, &report.condition));
    let (present, written) = (until.as_second(), before.archived_until.as_ref());
    let is_near = written.is_some_and(|written| {
        let moved = present - written.0.as_second();
        (0..STEP_SECONDS).contains(&moved)
    });
    if is_same && is_near && lag <= before.lag_seconds {
        return before.clone();
    }
    BackupStatus {
        archived_revision: Some(revision),
        archived_until: Some(Time(until)),
        lag_seconds: lag,
        last_backup: None,
    }
}

/// Returns true if a backup is of this cluster, and not of a deleted one of its name.
fn is_of(cluster: &KubeBrainCluster, backup: &LastBackup) -> bool {
    let created = cluster.metadata.creation_timestamp.as_ref();
    created.is_none_or(|created| backup.completion_time.0 >= created.0)
}

/// Rounds a lag up, so that one that grows is written ever more rarely.
fn rounded(lag: i64) -> i64 {
    let mut step = STEP_SECONDS;
    while step < lag && step < i64::MAX / 2 {
        step *= 2;
    }
    step
}

fn conditions(status: Option<&KubeBrainClusterStatus>) -> &[Condition] {
    status
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default()
}

fn before_of(conditions: &[Condition]) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.type_ == CONDITION)
}

fn is_same(before: &Condition, update: &ConditionUpdate) -> bool {
    before.status == update.status.as_str() && before.reason == update.reason
}
