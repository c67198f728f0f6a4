//! The status of a schedule, and the Events about its changes.

use crds::{KubeBrainBackup, KubeBrainBackupSchedule, KubeBrainBackupScheduleStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::{DeletedBackup, OwnBackup};
use crate::event::ClusterEvent;
use crate::status::{ConditionStatus, ConditionUpdate, merge, whole_seconds};

const OPERATOR_VERSION: &str = env!("CARGO_PKG_VERSION");
/// Maximum number of backups in `active`.
const MAX_ACTIVE: usize = 10;
/// Reasons of Ready.
const SCHEDULED: &str = "Scheduled";
const SUSPENDED: &str = "Suspended";
const BACKUP_FAILED: &str = "BackupFailed";
const INVALID_SPEC: &str = "InvalidSpec";

/// The state of a schedule.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ScheduleProgress {
    /// Why the spec cannot work, if it cannot.
    pub(super) refusal: Option<String>,
    /// Why a pass did not do what it should: reason and message.
    pub trouble: Option<(&'static str, String)>,
    pub(super) scheduled: Option<Timestamp>,
    pub(super) missed: Option<Timestamp>,
    pub(super) next: Option<Timestamp>,
    /// The time of the last verification.
    pub(super) verified: Option<Timestamp>,
    pub(super) active: Vec<String>,
    pub(super) newest: Option<String>,
    /// The newest backup that is complete, and the time when it was.
    success: Option<(String, Timestamp)>,
    /// The time when the last backup failed, and a message about it.
    failure: Option<(Timestamp, String)>,
}

impl ScheduleProgress {
    /// Returns the state of the backups, which are in the order of their times.
    pub(super) fn observe(own: &[OwnBackup<'_>]) -> Self {
        let active = own.iter().filter(|own| own.is_active());
        let success = own
            .iter()
            .rev()
            .find_map(|own| Some((own.backup.name_any(), own.completed()?)));
        let failures = own.iter().filter_map(|own| {
            let (since, message) = own.since("Failed")?;
            Some((since, format!("KubeBrainBackup {}: {message}", own.backup.name_any())))
        });
        Self {
            active: active.map(|own| own.backup.name_any()).collect(),
            newest: own.last().map(|own| own.backup.name_any()),
            success,
            failure: failures.max_by_key(|(since, _)| *since),
            ..Self::default()
        }
    }

    /// Adds the backup that was created.
    pub fn add(&mut self, backup: &KubeBrainBackup) {
        let name = backup.name_any();
        if !self.active.contains(&name) {
            self.active.push(name.clone());
        }
        self.newest = Some(name);
    }

    /// Returns a state about which nothing is known but that passes do not succeed.
    pub fn failing(reason: &'static str, message: String) -> Self {
        Self {
            trouble: Some((reason, message)),
            ..Self::default()
        }
    }
}

/// Returns the status after a pass.
pub fn status_of(
    schedule: &KubeBrainBackupSchedule,
    progress: &ScheduleProgress,
    now: Timestamp,
) -> KubeBrainBackupScheduleStatus {
    let previous = schedule.status.clone().unwrap_or_default();
    let before = previous.conditions.clone().unwrap_or_default();
    let later = |before: &Option<Time>, new: Option<Timestamp>| {
        // A clock that was ahead has recorded times to come.
        let before = before.as_ref().map(|time| time.0).filter(|time| *time <= now);
        before.max(new.map(whole_seconds)).map(Time)
    };
    let is_blind = progress.trouble.is_some() && progress.next.is_none();
    let mut status = KubeBrainBackupScheduleStatus {
        observed_generation: match is_blind {
            true => previous.observed_generation,
            false => schedule.metadata.generation,
        },
        // A backup that could not be created is still due.
        last_schedule_time: match progress.trouble {
            Some(_) => previous.last_schedule_time.clone(),
            None => later(&previous.last_schedule_time, progress.scheduled),
        },
        last_missed_time: later(&previous.last_missed_time, progress.missed),
        last_successful_time: later(
            &previous.last_successful_time,
            progress.success.as_ref().map(|(_, time)| *time),
        ),
        last_failed_time: later(
            &previous.last_failed_time,
            progress.failure.as_ref().map(|(time, _)| *time),
        ),
        last_verification_time: later(&previous.last_verification_time, progress.verified),
        last_backup: progress.newest.clone().or(previous.last_backup.clone()),
        last_successful_backup: progress
            .success
            .clone()
            .map(|(name, _)| name)
            .or(previous.last_successful_backup.clone()),
        next_schedule_time: match is_blind {
            true => previous.next_schedule_time.clone(),
            false => progress.next.map(Time),
        },
        active: match is_blind {
            true => previous.active.clone(),
            false => progress.active.iter().take(MAX_ACTIVE).cloned().collect(),
        },
        operator_version: Some(OPERATOR_VERSION.to_owned()),
        conditions: None,
    };
    let updates = conditions(schedule, progress, &status, &before);
    status.conditions = Some(merge(&before, &updates, schedule.metadata.generation, now));
    status
}

fn conditions(
    schedule: &KubeBrainBackupSchedule,
    progress: &ScheduleProgress,
    status: &KubeBrainBackupScheduleStatus,
    before: &[Condition],
) -> Vec<ConditionUpdate> {
    use ConditionStatus::{False, True};
    if let Some(message) = &progress.refusal {
        return ["Ready", "Reconciling", "Stalled"]
            .map(|type_| {
                let status = if type_ == "Stalled" { True } else { False };
                ConditionUpdate::new(type_, status, INVALID_SPEC, message)
            })
            .to_vec();
    }
    // Nothing is known that differs from what was.
    if let Some((reason, message)) = progress.trouble.as_ref().filter(|_| progress.next.is_none()) {
        let former = |type_: &'static str| {
            let found = before.iter().find(|it| it.type_ == type_)?;
            let status = if found.status == "True" { True } else { False };
            Some(ConditionUpdate::new(type_, status, &found.reason, &found.message))
        };
        let mut updates: Vec<_> = ["Ready", "Stalled"].into_iter().filter_map(former).collect();
        if updates.is_empty() {
            updates.push(ConditionUpdate::new("Ready", False, reason, message));
        }
        updates.push(ConditionUpdate::new("Reconciling", True, reason, message));
        return updates;
    }
    let spec = &schedule.spec;
    let time = |time: &Option<Time>| time.as_ref().map(|time| time.0);
    let (failed, successful) = (time(&status.last_failed_time), time(&status.last_successful_time));
    let (is_ready, reason, message) = if spec.suspend {
        (
            False,
            SUSPENDED,
            "suspend is true: no backups are made or deleted".to_owned(),
        )
    } else if let Some((reason, message)) = &progress.trouble {
        (False, *reason, message.clone())
    } else if failed > successful {
        let former = before
            .iter()
            .find(|it| it.type_ == "Ready" && it.reason == BACKUP_FAILED);
        let message = progress.failure.as_ref().map(|(_, message)| message.clone());
        let message = message.or_else(|| former.map(|former| former.message.clone()));
        (
            False,
            BACKUP_FAILED,
            message.unwrap_or_else(|| "the last backup failed".to_owned()),
        )
    } else {
        let zone = spec.time_zone();
        (
            True,
            SCHEDULED,
            format!("backups are made at {}, {zone}", spec.schedule),
        )
    };
    let reconciling = match &progress.trouble {
        Some((reason, message)) => ConditionUpdate::new("Reconciling", True, reason, message),
        None => ConditionUpdate::new("Reconciling", False, reason, &message),
    };
    vec![ConditionUpdate::new("Ready", is_ready, reason, &message), reconciling]
}

/// Returns the Events to publish when the status of a schedule changes to `status`.
pub fn events(schedule: &KubeBrainBackupSchedule, status: &KubeBrainBackupScheduleStatus) -> Vec<ClusterEvent> {
    let before = schedule.status.as_ref();
    let find = |status: Option<&KubeBrainBackupScheduleStatus>, type_: &str| {
        let conditions = status?.conditions.as_ref()?;
        conditions.iter().find(|condition| condition.type_ == type_).cloned()
    };
    let news = |type_: &str, value: &str| {
        let (was, is) = (find(before, type_), find(Some(status), type_)?);
        let is_new = was.is_none_or(|was| was.status != is.status || was.reason != is.reason);
        (is.status == value && is_new).then_some(is)
    };
    let mut events = Vec::new();
    let missed = status.last_missed_time.as_ref();
    if let Some(missed) = missed.filter(|missed| before.and_then(|it| it.last_missed_time.as_ref()) != Some(*missed)) {
        let note = format!(
            "the backup of {} was not made: it could not begin within startingDeadlineSeconds",
            missed.0
        );
        events.push(ClusterEvent::warning("BackupMissed", "Schedule", note));
    }
    if let Some(ready) = news("Ready", "False").filter(|ready| ready.reason == BACKUP_FAILED) {
        events.push(ClusterEvent::warning("BackupFailed", "Backup", ready.message));
    }
    if let Some(stalled) = news("Stalled", "True") {
        events.push(ClusterEvent::warning("Stalled", stalled.reason, stalled.message));
    }
    if let Some(it) = news("Reconciling", "True") {
        events.push(ClusterEvent::warning("BackupNotScheduled", it.reason, it.message));
    }
    events
}

/// Returns the Event about a backup that was created.
pub fn created(backup: &KubeBrainBackup) -> ClusterEvent {
    let note = format!("created KubeBrainBackup {}", backup.name_any());
    ClusterEvent::normal("BackupScheduled", "Schedule", note)
}

/// Returns the Event about a backup that was deleted.
pub fn expired(backup: &DeletedBackup) -> ClusterEvent {
    let note = format!("deleted KubeBrainBackup {}: {}", backup.name, backup.why);
    ClusterEvent::normal("BackupExpired", "Delete", note)
}
