//! Decisions on a `KubeBrainBackupSchedule`: the backups that are due, those that are kept, verifications, and its status.
//!
//! The name of a backup follows from its schedule and its time. So one backup is made for a time, however often its creation
//! is tried.

use std::collections::BTreeMap;
use std::time::Duration;

use crds::backup::DeletionPolicy;
use crds::backup_schedule::ConcurrencyPolicy;
use crds::{KubeBrainBackup, KubeBrainBackupSchedule};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::civil::DateTime;
use k8s_openapi::jiff::tz::Offset;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::core::ObjectMeta;

mod expiry;
mod reasons;
mod status;
#[cfg(test)]
mod tests;
mod verification;

pub use reasons::REASONS;
pub use status::{ScheduleProgress, created, events, expired, status_of};
pub use verification::RequestedVerification;

use crate::backup::{has_begun, has_ended, references};
use crate::cron::Cron;
use crate::names::{SCHEDULE, is_reserved};
use crate::spec::OperatorSettings;
use crate::status::whole_seconds;

/// Interval of passes over a schedule while one of its backups is not finished.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// Longest interval of passes: a clock that is set, or a machine that is suspended, is noticed after it.
const LONGEST_INTERVAL: Duration = Duration::from_secs(3600);
/// Backups that are being deleted at a time: each has a Job that deletes its objects.
const MAX_LEAVING: usize = 10;
/// Digits of the time in the name of a backup.
const TIME_DIGITS: usize = 14;

/// The next actions for a schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct SchedulePlan {
    /// The backup that is due.
    pub create: Option<Box<KubeBrainBackup>>,
    /// The backups to delete.
    pub delete: Vec<DeletedBackup>,
    /// The verification that is due.
    pub verify: Option<RequestedVerification>,
    /// The state, without the backup that is created.
    pub progress: ScheduleProgress,
    /// Time until the next pass; `None` if only a change of the schedule needs one.
    pub again: Option<Duration>,
}

/// A backup that is deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedBackup {
    pub name: String,
    pub uid: Option<String>,
    /// The state in which it may be deleted; `None` if any.
    pub resource_version: Option<String>,
    pub why: &'static str,
}

/// A backup of the schedule, and its time: that in its name, but none after its creation, which the API server records. A clock that was
/// ahead, or a client that chooses names, could displace all other backups otherwise.
#[derive(Debug, Clone, Copy)]
struct OwnBackup<'a> {
    time: Timestamp,
    backup: &'a KubeBrainBackup,
}

/// The times at which backups are made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct DueTimes {
    /// The time of the backup that is due.
    due: Option<Timestamp>,
    /// The newest time that is too long ago.
    missed: Option<Timestamp>,
    next: Option<Timestamp>,
}

/// Decides on a schedule. `backups` are those with its label.
pub fn plan(
    schedule: &KubeBrainBackupSchedule,
    backups: &[KubeBrainBackup],
    settings: &OperatorSettings,
    now: Timestamp,
) -> SchedulePlan {
    let own = own(schedule, backups);
    let mut progress = ScheduleProgress::observe(&own);
    let cron = match check(schedule, settings) {
        Ok(cron) => cron,
        Err(refusal) => {
            progress.refusal = Some(refusal);
            return SchedulePlan {
                create: None,
                delete: Vec::new(),
                verify: None,
                again: (!progress.active.is_empty()).then_some(PROGRESS_INTERVAL),
                progress,
            };
        }
    };
    let spec = &schedule.spec;
    let newest = own.iter().map(|own| own.time).max();
    let times = match spec.suspend {
        true => DueTimes::default(),
        false => due(schedule, &cron, newest, now),
    };
    progress.verified = verification::last(schedule, &own, now);
    let verify = verification::due(schedule, &own, progress.verified, now).filter(|_| !spec.suspend);
    progress.missed = times.missed;
    progress.next = times.next;
    // One that still waits may wait for ever, for what the template named then; it has stored nothing.
    let (waiting, running): (Vec<&OwnBackup<'_>>, Vec<_>) = own
        .iter()
        .filter(|own| own.is_active())
        .partition(|own| !has_begun(own.backup));
    let must_wait = spec.concurrency_policy == ConcurrencyPolicy::Forbid && !running.is_empty();
    let create = times.due.filter(|_| !must_wait);
    progress.scheduled = create.or(newest);
    let mut delete = match spec.suspend {
        true => Vec::new(),
        false => expiry::expired(spec.retention.as_ref(), spec.failed_backups_history_limit, &own),
    };
    if create.is_some() {
        delete.splice(0..0, waiting.iter().map(|own| own.superseded()));
        progress
            .active
            .retain(|name| waiting.iter().all(|own| own.backup.name_any() != *name));
    }
    let create = create.map(|time| Box::new(backup_of(schedule, time)));
    let leaving = own.iter().filter(|own| own.is_leaving()).count();
    let is_deleting = leaving > 0 || !delete.is_empty();
    delete.truncate(MAX_LEAVING.saturating_sub(leaving));
    let until_next = times.next.map(|next| {
        let left = Duration::try_from(next.duration_since(now)).unwrap_or_default();
        left.clamp(Duration::from_secs(1), LONGEST_INTERVAL)
    });
    let is_active = create.is_some() || is_deleting || !progress.active.is_empty();
    let until_progress = is_active.then_some(PROGRESS_INTERVAL);
    SchedulePlan {
        create,
        delete,
        verify,
        again: until_next.into_iter().chain(until_progress).min(),
        progress,
    }
}

/// Returns the first time of a schedule after its last success, or after its creation; `None` if it makes no backups.
pub fn due_after_success(schedule: &KubeBrainBackupSchedule) -> Option<Timestamp> {
    let spec = &schedule.spec;
    if spec.suspend || schedule.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let status = schedule.status.as_ref();
    let success = status.and_then(|status| status.last_successful_time.as_ref());
    let since = success.or(schedule.metadata.creation_timestamp.as_ref())?;
    Cron::parse(&spec.schedule, spec.time_zone()).ok()?.next(since.0)
}

/// Returns the name of the backup of this time.
pub fn backup_name(schedule: &str, time: Timestamp) -> String {
    format!("{schedule}-{}", time.strftime("%Y%m%d%H%M%S"))
}

/// Returns true if a backup was made for this schedule.
pub fn is_of(schedule: &KubeBrainBackupSchedule, backup: &KubeBrainBackup) -> bool {
    time_of(schedule, backup).is_some()
}

/// Returns the time of a backup of this schedule. The label alone does not count: any client may set it.
fn time_of(schedule: &KubeBrainBackupSchedule, backup: &KubeBrainBackup) -> Option<Timestamp> {
    let (schedule, name) = (schedule.name_any(), backup.name_any());
    if backup.labels().get(SCHEDULE) != Some(&schedule) {
        return None;
    }
    let digits = name.strip_prefix(&schedule)?.strip_prefix('-')?;
    if digits.len() != TIME_DIGITS || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part = |from: usize| digits[from..from + 2].parse::<i8>().ok();
    let year = digits[..4].parse().ok()?;
    let time = DateTime::new(year, part(4)?, part(6)?, part(8)?, part(10)?, part(12)?, 0).ok()?;
    Offset::UTC.to_timestamp(time).ok()
}

fn own<'a>(schedule: &KubeBrainBackupSchedule, backups: &'a [KubeBrainBackup]) -> Vec<OwnBackup<'a>> {
    let mut own: Vec<_> = backups
        .iter()
        .filter_map(|backup| {
            let named = time_of(schedule, backup)?;
            let created = backup.metadata.creation_timestamp.as_ref();
            let time = created.map_or(named, |created| named.min(whole_seconds(created.0)));
            Some(OwnBackup { time, backup })
        })
        .collect();
    own.sort_by_key(|own| own.time);
    own
}

/// Refuses a spec that cannot work, with a message for the user.
fn check(schedule: &KubeBrainBackupSchedule, settings: &OperatorSettings) -> Result<Cron, String> {
    let spec = &schedule.spec;
    let cron = Cron::parse(&spec.schedule, spec.time_zone())?;
    expiry::check(spec.retention.as_ref())?;
    let backup = KubeBrainBackup::new(&schedule.name_any(), spec.template.spec.clone());
    references::check((&backup).into(), &backup.spec.cluster_name, settings)
        .map_err(|refusal| format!("template.spec: {}", refusal.message))?;
    Ok(cron)
}

/// Returns the times of a schedule. `newest` is that of its newest backup: the status may be older, or gone.
fn due(schedule: &KubeBrainBackupSchedule, cron: &Cron, newest: Option<Timestamp>, now: Timestamp) -> DueTimes {
    let status = schedule.status.as_ref();
    let recorded = |time: fn(&crds::KubeBrainBackupScheduleStatus) -> &Option<Time>| {
        status.and_then(|status| time(status).as_ref()).map(|time| time.0)
    };
    let done = [
        recorded(|status| &status.last_schedule_time),
        recorded(|status| &status.last_missed_time),
        newest,
    ];
    // A clock that was ahead has recorded times to come.
    let done = done.into_iter().flatten().filter(|time| *time <= now).max();
    let created = schedule.metadata.creation_timestamp.as_ref();
    let created = created.map_or(now, |created| whole_seconds(created.0));
    let at_creation = (schedule.spec.immediate && done.is_none()).then_some(created);
    let found = cron.newest(done.unwrap_or(created), now).or(at_creation);
    let deadline = schedule.spec.starting_deadline_seconds.map(SignedDuration::from_secs);
    let is_late = |time: Timestamp| deadline.is_some_and(|deadline| now.duration_since(time) > deadline);
    DueTimes {
        due: found.filter(|time| !is_late(*time)),
        missed: found.filter(|time| is_late(*time)),
        next: cron.next(now),
    }
}

/// Returns the backup of a time. It has no owner: it outlives its schedule.
fn backup_of(schedule: &KubeBrainBackupSchedule, time: Timestamp) -> KubeBrainBackup {
    let template = &schedule.spec.template;
    let metadata = template.metadata.clone().unwrap_or_default();
    let allowed = |texts: BTreeMap<String, String>| -> BTreeMap<String, String> {
        texts.into_iter().filter(|(key, _)| !is_reserved(key)).collect()
    };
    let mut labels = allowed(metadata.labels);
    labels.insert(SCHEDULE.to_owned(), schedule.name_any());
    let annotations = allowed(metadata.annotations);
    let mut backup = KubeBrainBackup::new(&backup_name(&schedule.name_any(), time), template.spec.clone());
    backup.metadata = ObjectMeta {
        namespace: schedule.namespace(),
        labels: Some(labels),
        annotations: (!annotations.is_empty()).then_some(annotations),
        ..backup.metadata
    };
    backup
}

impl OwnBackup<'_> {
    fn is_active(&self) -> bool {
        !self.is_leaving() && !has_ended(self.backup)
    }

    /// Deletes it, unless it begins in the meantime.
    fn superseded(&self) -> DeletedBackup {
        DeletedBackup {
            name: self.backup.name_any(),
            uid: self.backup.uid(),
            resource_version: self.backup.resource_version(),
            why: "it had not begun at the time of the next one",
        }
    }

    fn is_leaving(&self) -> bool {
        self.backup.metadata.deletion_timestamp.is_some()
    }

    /// Returns the message of this condition, and since when it is true; `None` if it is not.
    fn since(&self, type_: &str) -> Option<(Timestamp, &str)> {
        let conditions = self.backup.status.as_ref()?.conditions.as_ref()?;
        let mut all = conditions.iter();
        let found = all.find(|condition| condition.type_ == type_ && condition.status == "True")?;
        Some((found.last_transition_time.0, &found.message))
    }

    /// Returns the time at which it was complete, if it is.
    fn completed(&self) -> Option<Timestamp> {
        let (since, _) = self.since("Complete")?;
        let status = self.backup.status.as_ref();
        let completion = status.and_then(|status| status.completion_time.as_ref());
        Some(completion.map_or(since, |time| time.0))
    }

    /// Returns true if what it stored goes with it.
    fn takes_its_objects(&self) -> bool {
        self.backup.spec.deletion_policy == DeletionPolicy::Delete
    }
}
