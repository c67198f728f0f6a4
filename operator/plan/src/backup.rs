//! Decisions on a `KubeBrainBackup`: what its spec may name, its Jobs, and its status.
//!
//! Every Job of a backup passes the uid of its resource to the program as the id of a request. So one backup is made however often a Job is
//! started, and it is found again to be deleted, even if its name never reached the status.

use crds::KubeBrainBackup;
use crds::backup::DeletionPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};

mod access;
mod job;
pub(crate) mod pod;
mod reasons;
pub mod references;
mod status;
mod target;
#[cfg(test)]
mod tests;
pub mod verification;

pub use access::{ClusterAccess, runtime, verifying_runtime, waits_for};
pub use job::{create_job, delete_job, verification_job};
pub(crate) use job::{damage_ends, evictions_do_not_count};
pub use reasons::REASONS;
pub use status::{BackupProgress, BackupResult, completed, events, first, kept, location, status_of};
pub use target::BackupTarget;

use crate::names::DELETE_BACKUP;

/// Name of the container of each Job.
pub const BACKUP_CONTAINER: &str = "backup";

/// Returns the name of the Job that makes the backup.
pub fn job_name(backup: &KubeBrainBackup) -> String {
    format!("{}-backup", backup.name_any())
}

/// Returns the name of the Job that deletes the stored objects.
pub fn deletion_job_name(backup: &KubeBrainBackup) -> String {
    format!("{}-backup-delete", backup.name_any())
}

/// Returns the name of the Job that verifies the backup.
pub fn verification_job_name(backup: &KubeBrainBackup) -> String {
    format!("{}-backup-verify", backup.name_any())
}

/// Returns true if the stored objects must be deleted before the resource is removed.
pub fn wants_finalizer(backup: &KubeBrainBackup) -> bool {
    backup.spec.deletion_policy == DeletionPolicy::Delete
}

/// Returns true if the resource has the operator's finalizer.
pub fn has_finalizer(backup: &KubeBrainBackup) -> bool {
    backup.finalizers().iter().any(|finalizer| finalizer == DELETE_BACKUP)
}

/// Returns true if the backup has ended, for better or worse.
pub fn has_ended(backup: &KubeBrainBackup) -> bool {
    ["Complete", "Failed"]
        .iter()
        .any(|type_| status::is_true(backup, type_))
}

/// Returns true if the backup was made.
pub fn is_complete(backup: &KubeBrainBackup) -> bool {
    status::is_true(backup, "Complete")
}

/// Returns true if objects may have been stored.
pub fn has_begun(backup: &KubeBrainBackup) -> bool {
    backup.status.as_ref().is_some_and(|status| status.start_time.is_some())
}

/// Returns true if there is nothing to do for a backup until its resource changes.
pub fn is_settled(backup: &KubeBrainBackup) -> bool {
    if backup.metadata.deletion_timestamp.is_some() {
        return !has_finalizer(backup);
    }
    let observed = backup.status.as_ref().and_then(|status| status.observed_generation);
    has_ended(backup)
        && wants_finalizer(backup) == has_finalizer(backup)
        && observed == backup.metadata.generation
        && verification::requested(backup).is_none()
}

/// Returns true if an object is controlled by this backup.
pub fn is_owned(object: &ObjectMeta, backup: &KubeBrainBackup) -> bool {
    let mut owners = object.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true));
    controller.is_some_and(|owner| {
        owner.kind == KubeBrainBackup::kind(&()) && Some(&owner.uid) == backup.metadata.uid.as_ref()
    })
}
