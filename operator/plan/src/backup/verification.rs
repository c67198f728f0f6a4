//! Verifications of complete backups, which an annotation asks for.
//!
//! The value of the annotation is the request. The Job of a request names it, and the status names the last one that was handled, so each
//! request is handled once.

use crds::KubeBrainBackup;
use crds::backup::status::{KubeBrainBackupStatus, Verification, VerificationResult};
use crds::wishes::{MAX_VERIFY_BYTES, VERIFY};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::status::is_true;
use crate::member::clean;
use crate::status::{ConditionStatus, ConditionUpdate, replace, whole_seconds};

/// Condition with the result.
pub const CONDITION: &str = "Verified";
/// Exit code of the program if the backup is not what was written. Another exit code says nothing about the backup.
pub const DAMAGED_EXIT_CODE: i32 = 3;
/// Reasons of a verification whose Job runs, and of one that could not read the backup.
const RUNNING: &str = "Verifying";
const FAILED: &str = "VerificationFailed";
/// Maximum length of a message in the status, in bytes.
const MAX_MESSAGE_BYTES: usize = 1024;

/// The state of a verification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerificationProgress {
    /// It cannot begin, or cannot continue by itself.
    Waiting { reason: &'static str, message: String },
    /// Its Job runs.
    Running(String),
    /// It ended at this time; `None` if that is not known.
    Ended {
        result: VerificationResult,
        message: String,
        time: Option<Time>,
    },
}

/// Returns the request that was not handled yet, if there is one. Only a complete backup is verified.
pub fn requested(backup: &KubeBrainBackup) -> Option<&str> {
    let request = backup.annotations().get(VERIFY)?.as_str();
    let last = backup.status.as_ref().and_then(|status| status.verification.as_ref());
    let is_new = last.is_none_or(|last| last.handled != request);
    let is_sound = !request.is_empty() && request.len() <= MAX_VERIFY_BYTES;
    (is_new && is_sound && is_true(backup, "Complete")).then_some(request)
}

/// Returns true if the last pass could not carry out the request, because an object is missing, for example.
pub fn is_waiting(backup: &KubeBrainBackup) -> bool {
    let status = backup.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| {
        let of_jobs = [RUNNING, FAILED].contains(&condition.reason.as_str());
        condition.type_ == CONDITION && condition.status == ConditionStatus::Unknown.as_str() && !of_jobs
    })
}

/// Returns true if a Job is for this request, and not for an earlier one.
pub fn is_for(job: &Job, request: &str) -> bool {
    job.annotations().get(VERIFY).is_some_and(|value| value == request)
}

/// Returns true if a pod of the Job found damage.
pub fn found_damage(pod: &Pod) -> bool {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref());
    let mut ends = statuses
        .into_iter()
        .flatten()
        .filter_map(|container| container.state.as_ref()?.terminated.as_ref());
    ends.any(|ended| ended.exit_code == DAMAGED_EXIT_CODE)
}

/// Returns the status after a pass. All but the result of the verification stays.
pub fn status_of(
    backup: &KubeBrainBackup,
    request: &str,
    progress: &VerificationProgress,
    now: Timestamp,
) -> KubeBrainBackupStatus {
    use ConditionStatus::{False, True, Unknown};
    let mut status = backup.status.clone().unwrap_or_default();
    let (condition, reason, message) = match progress {
        VerificationProgress::Waiting { reason, message } => (Unknown, *reason, message),
        VerificationProgress::Running(message) => (Unknown, RUNNING, message),
        VerificationProgress::Ended { result, message, time } => {
            status.verification = Some(Verification {
                handled: request.to_owned(),
                time: time.clone().unwrap_or_else(|| Time(whole_seconds(now))),
                result: *result,
                message: clean(message, MAX_MESSAGE_BYTES),
            });
            match result {
                VerificationResult::Verified => {
                    status.verified = Some(true);
                    (True, "Verified", message)
                }
                VerificationResult::Damaged => {
                    status.verified = Some(false);
                    (False, "Damaged", message)
                }
                VerificationResult::Failed => (Unknown, FAILED, message),
            }
        }
    };
    let update = ConditionUpdate::new(CONDITION, condition, reason, message);
    let before = status.conditions.unwrap_or_default();
    status.conditions = Some(replace(&before, &update, backup.metadata.generation, now));
    status
}

/// Returns true if the last verification of a backup found damage.
pub fn is_damaged(backup: &KubeBrainBackup) -> bool {
    let last = backup.status.as_ref().and_then(|status| status.verification.as_ref());
    last.is_some_and(|last| last.result == VerificationResult::Damaged)
}
