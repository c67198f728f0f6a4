//! The end of a backup whose resource is deleted: its objects stay, or a Job deletes them before the resource is removed.
//!
//! A deletion never waits forever: with the policy Keep, or in a namespace that is being deleted, the objects stay.

use std::time::Duration;

use crds::KubeBrainBackup;
use k8s_openapi::api::batch::v1::Job;
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};
use plan::backup::{self, BackupProgress};
use plan::event::ClusterEvent;
use plan::names::DELETE_BACKUP;
use tracing::{info, warn};

use super::{PROGRESS_INTERVAL, publish, stubs};
use crate::api_error::FailureClass;
use crate::context::Context;
use crate::pass::{PassError, api};
use crate::{finalizer_patch, jobs};

/// The progress of a deletion.
enum DeletionProgress {
    /// Nothing holds it back any more; the Event says why, if there is something to say.
    Done(Option<Box<ClusterEvent>>),
    /// This condition must be met first.
    Waiting(String),
    /// It cannot continue by itself, or only later, for this reason.
    Trouble(String),
}

/// Runs one pass over a backup that is being deleted.
///
/// # Errors
/// The API server refused or did not answer.
pub(super) async fn finish(context: &Context, backup: &KubeBrainBackup) -> Result<Option<Duration>, PassError> {
    if !backup::has_finalizer(backup) {
        return Ok(None);
    }
    let progress = if !backup::wants_finalizer(backup) {
        DeletionProgress::Done(Some(Box::new(backup::kept(backup, "deletionPolicy is Keep"))))
    } else if !backup::has_begun(backup) {
        DeletionProgress::Done(None)
    } else {
        advance(context, backup).await?
    };
    let (message, is_trouble) = match progress {
        DeletionProgress::Done(event) => {
            if let Some(event) = event {
                info!(reason = event.reason, "{}", event.note);
                context.events.publish(backup, *event).await;
            }
            let stubs = stubs(context, &backup.namespace().unwrap_or_default());
            finalizer_patch::remove(&stubs, backup, DELETE_BACKUP).await?;
            // The finalizer may still exist, if another client changed the backup in between.
            return Ok(Some(PROGRESS_INTERVAL));
        }
        DeletionProgress::Waiting(message) => (message, false),
        DeletionProgress::Trouble(message) => (message, true),
    };
    publish(context, backup, &BackupProgress::Deleting { message, is_trouble }).await?;
    Ok(Some(PROGRESS_INTERVAL))
}

/// Ends the Job that makes the backup, then has another one delete what was stored.
async fn advance(context: &Context, backup: &KubeBrainBackup) -> Result<DeletionProgress, PassError> {
    let namespace = backup.namespace().unwrap_or_default();
    let all: Api<Job> = Api::namespaced(context.client.clone(), &namespace);
    let making = all.get_opt(&backup::job_name(backup)).await;
    let making = making.map_err(api("reading the Job of the backup"))?;
    if let Some(job) = making.filter(|job| backup::is_owned(&job.metadata, backup)) {
        if job.metadata.deletion_timestamp.is_none() {
            let deleted = jobs::delete_after_dependents(&all, &job).await;
            deleted.map_err(api("deleting the Job of the backup"))?;
        }
        return Ok(DeletionProgress::Waiting(format!(
            "waiting for the end of Job {}",
            job.name_any()
        )));
    }
    let name = backup::deletion_job_name(backup);
    let found = all
        .get_opt(&name)
        .await
        .map_err(api("reading the Job of the deletion"))?;
    let Some(job) = found else {
        return create(context, backup, &all).await;
    };
    if !backup::is_owned(&job.metadata, backup) {
        return Ok(DeletionProgress::Trouble(format!(
            "Job {name} is not owned by this backup: delete it or rename it"
        )));
    }
    if jobs::condition(&job, "Complete").is_some() {
        let note = format!(
            "the objects of the backup were deleted from {}",
            backup::location(backup)
        );
        let deleted = ClusterEvent::normal("BackupDeleted", "Delete", note);
        return Ok(DeletionProgress::Done(Some(Box::new(deleted))));
    }
    let why = jobs::failure(&context.client, &namespace, &job).await?;
    let Some(failed) = jobs::condition(&job, "Failed") else {
        return Ok(match why {
            Some(why) => DeletionProgress::Trouble(why),
            None => DeletionProgress::Waiting(format!("Job {name} is running")),
        });
    };
    if jobs::is_retry_due(failed) {
        let deleted = jobs::delete(&all, &job).await;
        deleted.map_err(api("deleting the Job of the deletion"))?;
    }
    let why = why.or_else(|| failed.message.clone()).unwrap_or_default();
    Ok(DeletionProgress::Trouble(format!(
        "{why}; set deletionPolicy to Keep to remove the resource without its objects"
    )))
}

async fn create(context: &Context, backup: &KubeBrainBackup, all: &Api<Job>) -> Result<DeletionProgress, PassError> {
    let Some(runtime) = backup.status.as_ref().and_then(|status| status.runtime.clone()) else {
        return Ok(DeletionProgress::Trouble(
            "the status does not say with which image the backup was made: set deletionPolicy to Keep".to_owned(),
        ));
    };
    let namespace = backup.namespace().unwrap_or_default();
    let wanted = backup::delete_job(backup, &runtime);
    let created = all.create(&PostParams::default(), &wanted).await;
    if created.as_ref().err().map(FailureClass::of) == Some(FailureClass::NamespaceTerminating) {
        let event = backup::kept(backup, "the namespace is being deleted, so no Job can delete them");
        warn!(namespace, backup = backup.name_any(), "{}", event.note);
        // No Event can be created in the namespace any more, only one about it.
        context.events.publish_about_namespace(&namespace, backup, &event).await;
        return Ok(DeletionProgress::Done(None));
    }
    created.map_err(api("creating the Job of the deletion"))?;
    Ok(DeletionProgress::Waiting(format!("created Job {}", wanted.name_any())))
}
