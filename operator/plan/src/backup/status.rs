//! The status of a backup, and the Events about its changes.

use crds::backup::status::{BackupRuntime, KubeBrainBackupStatus};
use crds::cluster::status::LastBackup;
use crds::{KubeBrainBackup, backup::DeletionPolicy};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use serde::Deserialize;

use super::target::BackupTarget;
use super::verification;
use crate::event::ClusterEvent;
use crate::member::clean;
use crate::status::{ConditionStatus, ConditionUpdate, merge, whole_seconds};

const OPERATOR_VERSION: &str = env!("CARGO_PKG_VERSION");
/// Maximum length of a text of the program in the status, in bytes.
const MAX_TEXT_BYTES: usize = 128;

/// The state of a backup.
#[derive(Debug, Clone, PartialEq)]
pub enum BackupProgress {
    /// It cannot begin, or cannot continue by itself.
    Waiting { reason: &'static str, message: String },
    /// Its Job runs.
    Running(String),
    /// It was made at this time; the result is `None` if the pods that had it are gone.
    Complete(Option<Box<BackupResult>>, Option<Time>),
    /// It was not made.
    Failed { reason: &'static str, message: String },
    /// Its stored objects are being deleted; `is_trouble` if that does not succeed.
    Deleting { message: String, is_trouble: bool },
}

/// The result of the program, as its pod leaves it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupResult {
    name: String,
    revision: i64,
    cluster_id: String,
    snapshot_bytes: u64,
    sha256: String,
    stored_bytes: u64,
    encryption_key_id: Option<String>,
    verified: bool,
}

impl BackupResult {
    /// Returns the result that a pod which has succeeded left. The image of a pod is untrusted, so texts are bounded.
    pub fn of_pod(pod: &Pod) -> Option<Self> {
        let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
        let ended = containers
            .iter()
            .find_map(|container| container.state.as_ref()?.terminated.as_ref());
        let message = ended.filter(|ended| ended.exit_code == 0)?.message.as_ref()?;
        let mut result: Self = serde_json::from_str(message).ok()?;
        let texts = [&mut result.name, &mut result.cluster_id, &mut result.sha256];
        for text in texts.into_iter().chain(&mut result.encryption_key_id) {
            *text = clean(text, MAX_TEXT_BYTES);
        }
        Some(result)
    }
}

/// Returns the place of a backup.
pub fn location(backup: &KubeBrainBackup) -> String {
    BackupTarget::from(backup).location()
}

/// Returns the status of a backup that begins: from then on objects may be stored.
pub fn first(backup: &KubeBrainBackup, runtime: BackupRuntime, now: Timestamp) -> KubeBrainBackupStatus {
    let running = BackupProgress::Running("creating the Job".to_owned());
    KubeBrainBackupStatus {
        start_time: Some(Time(whole_seconds(now))),
        location: Some(location(backup)),
        runtime: Some(runtime),
        ..status_of(backup, &running, now)
    }
}

/// Returns the status after a pass.
pub fn status_of(backup: &KubeBrainBackup, progress: &BackupProgress, now: Timestamp) -> KubeBrainBackupStatus {
    let previous = backup.status.clone().unwrap_or_default();
    let before = previous.conditions.clone().unwrap_or_default();
    let updates = conditions(progress, &before);
    let mut status = KubeBrainBackupStatus {
        observed_generation: backup.metadata.generation,
        operator_version: Some(OPERATOR_VERSION.to_owned()),
        conditions: Some(merge(&before, &updates, backup.metadata.generation, now)),
        ..previous
    };
    if let BackupProgress::Complete(result, time) = progress {
        status.completion_time = time.clone().or_else(|| Some(Time(whole_seconds(now))));
        if let Some(result) = result.as_deref() {
            let size = |bytes: u64| i64::try_from(bytes).ok();
            status.backup_name = Some(result.name.clone());
            status.revision = Some(result.revision);
            status.cluster_id = Some(result.cluster_id.clone());
            status.bytes = size(result.snapshot_bytes);
            status.sha256 = Some(result.sha256.clone());
            status.stored_bytes = size(result.stored_bytes);
            status.encryption_key_id.clone_from(&result.encryption_key_id);
            status.verified = Some(result.verified);
        }
    }
    status
}

fn conditions(progress: &BackupProgress, before: &[Condition]) -> Vec<ConditionUpdate> {
    use ConditionStatus::{False, True};
    let update = |type_, status, reason: &str, message: &str| ConditionUpdate::new(type_, status, reason, message);
    let under_way = |reason: &str, message: &str| {
        vec![
            update("Complete", False, reason, message),
            update("Failed", False, reason, message),
            update("Reconciling", True, reason, message),
        ]
    };
    match progress {
        BackupProgress::Waiting { reason, message } => under_way(reason, message),
        BackupProgress::Running(message) => under_way("Running", message),
        BackupProgress::Complete(result, _) => {
            let (reason, message) = match result {
                Some(result) => (
                    "Completed",
                    format!("backup {} of revision {} was made", result.name, result.revision),
                ),
                None => (
                    "ResultLost",
                    "the backup was made, but its pods are gone, and the result with them: see `kubebrain backup list`"
                        .to_owned(),
                ),
            };
            vec![
                update("Complete", True, reason, &message),
                update("Failed", False, reason, &message),
                update("Reconciling", False, reason, &message),
            ]
        }
        BackupProgress::Failed { reason, message } => vec![
            update("Complete", False, reason, message),
            update("Failed", True, reason, message),
            update("Reconciling", False, reason, message),
            update("Stalled", True, reason, message),
        ],
        BackupProgress::Deleting { message, is_trouble } => {
            let reason = if *is_trouble { "DeletionFailed" } else { "Deleting" };
            // The others tell whether there is a backup, and stay; that of a verification ends with it.
            let kept = before
                .iter()
                .filter(|condition| ["Complete", "Failed"].contains(&condition.type_.as_str()));
            let kept = kept.map(|condition| {
                let status = if condition.status == "True" { True } else { False };
                let type_ = if condition.type_ == "Complete" {
                    "Complete"
                } else {
                    "Failed"
                };
                update(type_, status, &condition.reason, &condition.message)
            });
            kept.chain([update("Reconciling", True, reason, message)]).collect()
        }
    }
}

pub(super) fn is_true(backup: &KubeBrainBackup, type_: &str) -> bool {
    let status = backup.status.as_ref();
    let conditions = status
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    conditions
        .iter()
        .any(|condition| condition.type_ == type_ && condition.status == "True")
}

/// Returns the name of a backup that was made, with the time; `None` if it is not complete.
pub fn completed(backup: &KubeBrainBackup) -> Option<LastBackup> {
    let time = backup.status.as_ref()?.completion_time.clone()?;
    is_true(backup, "Complete").then(|| LastBackup {
        name: backup.name_any(),
        completion_time: time,
    })
}

/// Returns the Events to publish when the status of a backup changes to `status`.
pub fn events(backup: &KubeBrainBackup, status: &KubeBrainBackupStatus) -> Vec<ClusterEvent> {
    let before = backup.status.as_ref();
    let find = |status: Option<&KubeBrainBackupStatus>, type_: &str| {
        let conditions = status?.conditions.as_ref()?;
        conditions.iter().find(|condition| condition.type_ == type_).cloned()
    };
    let mut events = Vec::new();
    if status.start_time.is_some() && before.is_none_or(|before| before.start_time.is_none()) {
        let note = format!(
            "making a backup of {} at {}",
            backup.spec.cluster_name,
            location(backup)
        );
        events.push(ClusterEvent::normal("BackupStarted", "Backup", note));
    }
    let news = |type_: &str| {
        let (was, is) = (find(before, type_), find(Some(status), type_)?);
        let is_new = was.is_none_or(|was| was.status != is.status || was.reason != is.reason);
        (is.status == "True" && is_new).then_some(is)
    };
    if let Some(complete) = news("Complete") {
        events.push(ClusterEvent::normal("BackupCompleted", "Backup", complete.message));
    }
    let verified = || find(Some(status), verification::CONDITION);
    let is_new = before.and_then(|before| before.verification.as_ref()) != status.verification.as_ref();
    if let Some(verified) = verified().filter(|_| is_new) {
        events.push(match verified.status.as_str() {
            "True" => ClusterEvent::normal("BackupVerified", "Verify", verified.message),
            "False" => ClusterEvent::warning("BackupDamaged", "Verify", verified.message),
            _ => ClusterEvent::warning("BackupNotVerified", "Verify", verified.message),
        });
    }
    if let Some(failed) = news("Failed") {
        events.push(ClusterEvent::warning("BackupFailed", failed.reason, failed.message));
    }
    match news("Reconciling") {
        Some(it) if it.reason == "DeletionFailed" => {
            events.push(ClusterEvent::warning("BackupDeletionFailed", "Delete", it.message));
        }
        Some(it) if !["Running", "Deleting"].contains(&it.reason.as_str()) => {
            events.push(ClusterEvent::normal("BackupWaiting", it.reason, it.message));
        }
        _ => {}
    }
    events
}

/// Returns the Event of a backup whose resource is removed while its objects stay, with the reason.
pub fn kept(backup: &KubeBrainBackup, why: &str) -> ClusterEvent {
    let note = format!("the objects of the backup remain at {}: {why}", location(backup));
    match backup.spec.deletion_policy {
        DeletionPolicy::Keep => ClusterEvent::normal("BackupKept", "Delete", note),
        DeletionPolicy::Delete => ClusterEvent::warning("BackupKept", "Delete", note),
    }
}
