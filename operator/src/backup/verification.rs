//! Verifies a complete backup whenever an annotation asks for it: a Job reads it, and its result goes into the status.

use std::time::Duration;

use crds::KubeBrainBackup;
use crds::backup::status::VerificationResult;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};
use plan::backup;
use plan::backup::verification::{VerificationProgress, found_damage, is_for, requested, status_of};

use super::reconcile::{OWNERSHIP_CONFLICT, objects_obstacle};
use super::{PROGRESS_INTERVAL, publish_status};
use crate::context::Context;
use crate::jobs;
use crate::pass::{PassError, api};
use crate::passes::RECONCILE_ERROR;

/// Interval of passes over a backup that cannot be verified yet.
const WAITING_INTERVAL: Duration = Duration::from_secs(30);

/// Runs one pass over a backup that has ended. Returns the time until the next one; `None` if there is nothing to verify.
///
/// # Errors
/// The API server refused or did not answer.
pub(super) async fn reconcile(context: &Context, backup: &KubeBrainBackup) -> Result<Option<Duration>, PassError> {
    let Some(request) = requested(backup) else {
        return Ok(None);
    };
    let progress = advance(context, backup, request).await?;
    let again = match progress {
        VerificationProgress::Waiting { .. } => WAITING_INTERVAL,
        VerificationProgress::Running(_) | VerificationProgress::Ended { .. } => PROGRESS_INTERVAL,
    };
    publish_status(context, backup, status_of(backup, request, &progress, Timestamp::now())).await?;
    Ok(Some(again))
}

/// Reports that passes over a backup that has ended fail.
///
/// # Errors
/// The API server refused or did not answer.
pub(super) async fn report(context: &Context, backup: &KubeBrainBackup, words: String) -> Result<(), PassError> {
    let Some(request) = requested(backup) else {
        return Ok(());
    };
    let progress = VerificationProgress::Waiting {
        reason: RECONCILE_ERROR,
        message: words,
    };
    publish_status(context, backup, status_of(backup, request, &progress, Timestamp::now())).await
}

/// Creates the Job, or reports its state.
async fn advance(
    context: &Context,
    backup: &KubeBrainBackup,
    request: &str,
) -> Result<VerificationProgress, PassError> {
    let namespace = backup.namespace().unwrap_or_default();
    let all: Api<Job> = Api::namespaced(context.client.clone(), &namespace);
    let name = backup::verification_job_name(backup);
    let found = all.get_opt(&name).await;
    let Some(job) = found.map_err(api("reading the Job of the verification"))? else {
        return create(context, backup, request, &all).await;
    };
    if !backup::is_owned(&job.metadata, backup) {
        return Ok(VerificationProgress::Waiting {
            reason: OWNERSHIP_CONFLICT,
            message: format!("Job {name} is not owned by this backup: delete it or rename it"),
        });
    }
    if job.metadata.deletion_timestamp.is_some() || !is_for(&job, request) {
        if job.metadata.deletion_timestamp.is_none() {
            let deleted = jobs::delete(&all, &job).await;
            deleted.map_err(api("deleting the Job of an earlier verification"))?;
        }
        return Ok(VerificationProgress::Running(format!(
            "waiting for the end of Job {name} of an earlier request"
        )));
    }
    if jobs::condition(&job, "Complete").is_some() {
        return Ok(VerificationProgress::Ended {
            result: VerificationResult::Verified,
            message: "the backup was read, and is as it was written".to_owned(),
            time: job.status.and_then(|status| status.completion_time),
        });
    }
    let why = jobs::failure(&context.client, &namespace, &job).await?;
    let Some(failed) = jobs::condition(&job, "Failed") else {
        return Ok(VerificationProgress::Running(
            why.unwrap_or_else(|| format!("Job {name} is running")),
        ));
    };
    let pods = jobs::pods(&context.client, &namespace, &job).await?;
    let result = match pods.iter().any(found_damage) {
        true => VerificationResult::Damaged,
        false => VerificationResult::Failed,
    };
    let message = why.or_else(|| failed.message.clone()).unwrap_or_default();
    Ok(VerificationProgress::Ended {
        result,
        message,
        time: failed.last_transition_time.clone(),
    })
}

async fn create(
    context: &Context,
    backup: &KubeBrainBackup,
    request: &str,
    all: &Api<Job>,
) -> Result<VerificationProgress, PassError> {
    let failed = |message: &str| VerificationProgress::Ended {
        result: VerificationResult::Failed,
        message: message.to_owned(),
        time: None,
    };
    let status = backup.status.as_ref();
    let Some(stored) = status.and_then(|status| status.backup_name.as_deref()) else {
        return Ok(failed(
            "the name of the backup is unknown: find it with `kubebrain backup list`, and use `kubebrain backup verify`",
        ));
    };
    let Some(runtime) = status.and_then(|status| status.runtime.as_ref()) else {
        return Ok(failed("the status does not say with which image the backup was made"));
    };
    if let Some((reason, message)) = objects_obstacle(context, backup).await? {
        return Ok(VerificationProgress::Waiting { reason, message });
    }
    let namespace = backup.namespace().unwrap_or_default();
    let cluster = context.cache.cluster(&namespace, &backup.spec.cluster_name);
    let runtime = backup::verifying_runtime(runtime, cluster.as_deref(), &context.settings);
    let wanted = backup::verification_job(backup, stored, request, &runtime);
    let created = all.create(&PostParams::default(), &wanted).await;
    created.map_err(api("creating the Job of the verification"))?;
    Ok(VerificationProgress::Running(format!(
        "created Job {}",
        wanted.name_any()
    )))
}
