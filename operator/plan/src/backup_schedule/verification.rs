//! The verification that is due: of the newest complete backup, once the last one of the schedule is old enough.

use crds::KubeBrainBackupSchedule;
use crds::backup::status::{Verification, VerificationResult};
use crds::backup_schedule::VerificationInterval;
use crds::wishes::VERIFY;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::OwnBackup;
use crate::backup::verification::{is_waiting, requested};
use crate::status::whole_seconds;

/// Pause after a verification that could not read the backup.
const RETRY_INTERVAL: SignedDuration = SignedDuration::from_hours(24);

/// A request to verify a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedVerification {
    pub name: String,
    pub uid: Option<String>,
    /// Value of the annotation.
    pub request: String,
}

/// Returns the interval of verifications; `None` if there are none.
fn interval(of: VerificationInterval) -> Option<SignedDuration> {
    let days = match of {
        VerificationInterval::Daily => 1,
        VerificationInterval::Weekly => 7,
        VerificationInterval::Monthly => 30,
        VerificationInterval::Never => return None,
    };
    Some(SignedDuration::from_hours(24 * days))
}

/// Returns the time when a backup of the schedule was last read and judged, as far as it has ended by `now`. A backup that was read again
/// when it was made counts.
pub(super) fn last(schedule: &KubeBrainBackupSchedule, own: &[OwnBackup<'_>], now: Timestamp) -> Option<Timestamp> {
    let status = schedule.status.as_ref();
    let recorded = status.and_then(|status| status.last_verification_time.as_ref());
    let of_backups = own.iter().flat_map(|own| {
        let judged = verification(own).filter(|last| last.result != VerificationResult::Failed);
        let at_once = own.completed().filter(|_| own.backup.spec.verify);
        [judged.map(|last| last.time.0), at_once]
    });
    let times = recorded.map(|time| time.0).into_iter().chain(of_backups.flatten());
    // A clock that was ahead has recorded times to come.
    times.filter(|time| *time <= now).max()
}

/// Returns true if a verification was asked for that the next one waits for. One that waits itself, for an object that is missing, is waited for
/// for a day: so the others neither wait for ever, nor does each new backup get a Job when the object comes.
fn is_pending(own: &OwnBackup<'_>, now: Timestamp) -> bool {
    let Some(request) = requested(own.backup) else {
        return false;
    };
    // Those of the schedule are times.
    let time = request.parse::<Timestamp>();
    let is_recent = time.is_ok_and(|time| time <= now && now.duration_since(time) < RETRY_INTERVAL);
    !is_waiting(own.backup) || is_recent
}

fn verification<'a>(own: &OwnBackup<'a>) -> Option<&'a Verification> {
    own.backup.status.as_ref()?.verification.as_ref()
}

/// Returns the verification that is due. `last` is the time of the last one.
pub(super) fn due(
    schedule: &KubeBrainBackupSchedule,
    own: &[OwnBackup<'_>],
    last: Option<Timestamp>,
    now: Timestamp,
) -> Option<RequestedVerification> {
    let interval = interval(schedule.spec.verify)?;
    let is_old = |time: Timestamp, least: SignedDuration| now.duration_since(time) >= least;
    if last.is_some_and(|last| !is_old(last, interval)) {
        return None;
    }
    // Backups are in the order of their times; one is asked for at a time.
    let complete = || {
        own.iter()
            .rev()
            .filter(|own| !own.is_leaving() && own.completed().is_some())
    };
    if complete().any(|own| is_pending(own, now)) {
        return None;
    }
    let newest = complete().next().filter(|own| requested(own.backup).is_none())?;
    // Without its name, it cannot be read.
    newest.backup.status.as_ref()?.backup_name.as_ref()?;
    let failed = own
        .iter()
        .filter_map(verification)
        .filter(|last| last.result == VerificationResult::Failed);
    if failed
        .into_iter()
        .any(|failed| failed.time.0 <= now && !is_old(failed.time.0, RETRY_INTERVAL))
    {
        return None;
    }
    let request = whole_seconds(now).to_string();
    let present = newest.backup.annotations().get(VERIFY);
    (present != Some(&request)).then(|| RequestedVerification {
        name: newest.backup.name_any(),
        uid: newest.backup.uid(),
        request,
    })
}
