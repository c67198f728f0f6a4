//! Passes over schedules of backups: each creates the backup that is due, deletes those that are kept no longer, and has the newest one
//! verified.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crds::wishes::VERIFY;
use crds::{KubeBrainBackup, KubeBrainBackupSchedule};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::reflector::Store;
use kube::{Api, ResourceExt as _};
use plan::backup_schedule::{self as schedules, DeletedBackup, RequestedVerification, ScheduleProgress};
use plan::names::{MANAGER, SCHEDULE};
use serde_json::json;
use tracing::{info, warn};

use crate::archive::BackupReports;
use crate::cache::received::WholeObject;
use crate::context::Context;
use crate::pass::{PassError, api};
use crate::passes::{self, ELSEWHERE_INTERVAL, RECONCILE_ERROR, ReconciledKind};
use crate::publish::{Precondition, write_status};

#[cfg(test)]
mod tests;

/// The stores of schedules: one for each watched namespace, or one for all.
pub(crate) type ScheduleStores = Arc<Mutex<Vec<Store<KubeBrainBackupSchedule>>>>;

/// Backups that one request reads.
const BACKUPS_PER_PAGE: u32 = 50;
/// Maximum number of backups of a schedule that a pass considers: the newest.
const MAX_BACKUPS_READ: usize = 2_000;
/// Reason of Reconciling if another backup has the name of the one that is due.
const OWNERSHIP_CONFLICT: &str = "OwnershipConflict";

impl ReconciledKind for KubeBrainBackupSchedule {
    /// A schedule is never settled: it waits for its next time.
    fn is_settled(&self) -> bool {
        false
    }

    fn observed(&self, _: &BackupReports) {}

    async fn reconcile(context: &Context, namespace: &str, name: &str) -> Result<Option<Duration>, PassError> {
        Box::pin(reconcile(context, namespace, name, Timestamp::now())).await
    }

    async fn report(&self, context: &Context, words: String) -> Result<(), PassError> {
        let failing = ScheduleProgress::failing(RECONCILE_ERROR, words);
        publish(context, self, &failing, Timestamp::now()).await
    }
}

async fn reconcile(
    context: &Context,
    namespace: &str,
    name: &str,
    now: Timestamp,
) -> Result<Option<Duration>, PassError> {
    let Some(schedule) = passes::read::<KubeBrainBackupSchedule>(context, namespace, name).await? else {
        return Ok(None);
    };
    // Its backups stay.
    if schedule.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let cluster = context
        .cache
        .cluster(namespace, &schedule.spec.template.spec.cluster_name);
    if let Some(cluster) = cluster.as_deref()
        && context.installation.other(cluster).await.is_some()
    {
        return Ok(Some(ELSEWHERE_INTERVAL));
    }
    let backups = backups_of(context, &schedule).await?;
    let mut plan = schedules::plan(&schedule, &backups, &context.settings, now);
    if let Some(backup) = &plan.create {
        match create(context, &schedule, backup).await? {
            true => plan.progress.add(backup),
            false => {
                let why = format!(
                    "KubeBrainBackup {} is not of this schedule: delete it",
                    backup.name_any()
                );
                plan.progress.trouble = Some((OWNERSHIP_CONFLICT, why));
            }
        }
    }
    let mut deleted = Ok(());
    for backup in &plan.delete {
        deleted = delete(context, &schedule, backup).await;
        if deleted.is_err() {
            break;
        }
    }
    if let Some(wanted) = &plan.verify {
        verify(context, &schedule, wanted).await?;
    }
    // A backup that cannot be deleted does not hide what became of the others.
    publish(context, &schedule, &plan.progress, now).await?;
    deleted.map(|()| plan.again)
}

/// Reads the newest backups of a schedule. Those that have ended are in no store.
async fn backups_of(context: &Context, schedule: &KubeBrainBackupSchedule) -> Result<Vec<KubeBrainBackup>, PassError> {
    let namespace = schedule.namespace().unwrap_or_default();
    let all: Api<WholeObject> = passes::whole::<KubeBrainBackup>(context, &namespace);
    let mut params = ListParams::default().labels(&format!("{SCHEDULE}={}", schedule.name_any()));
    params = params.limit(BACKUPS_PER_PAGE);
    // Names ascend with the time.
    let mut newest = VecDeque::new();
    loop {
        let page = all.list(&params).await;
        let page = page.map_err(api("listing the backups of the schedule"))?;
        let found = page.items.iter().filter_map(WholeObject::parse::<KubeBrainBackup>);
        newest.extend(found.filter(|backup| schedules::is_of(schedule, backup)));
        newest.drain(..newest.len().saturating_sub(MAX_BACKUPS_READ));
        match page.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => params = params.continue_token(&next),
            None => return Ok(newest.into()),
        }
    }
}

/// Creates a backup, unless it exists. Returns `false` if another one has its name.
async fn create(
    context: &Context,
    schedule: &KubeBrainBackupSchedule,
    backup: &KubeBrainBackup,
) -> Result<bool, PassError> {
    let (namespace, name) = (schedule.namespace().unwrap_or_default(), backup.name_any());
    let all: Api<KubeBrainBackup> = Api::namespaced(context.client.clone(), &namespace);
    match all.create(&PostParams::default(), backup).await {
        Ok(_) => {
            let event = schedules::created(backup);
            info!(reason = event.reason, "{}", event.note);
            context.events.publish(schedule, event).await;
            Ok(true)
        }
        Err(kube::Error::Api(answer)) if answer.is_already_exists() => {
            let found = passes::read::<KubeBrainBackup>(context, &namespace, &name).await?;
            let is_ours = found.is_some_and(|found| schedules::is_of(schedule, &found));
            if !is_ours {
                warn!(backup = name, "the name of a backup is taken");
            }
            Ok(is_ours)
        }
        Err(error) => Err(api("creating the backup")(error)),
    }
}

/// Deletes exactly this backup. Its own deletion policy decides on what it stored.
async fn delete(
    context: &Context,
    schedule: &KubeBrainBackupSchedule,
    backup: &DeletedBackup,
) -> Result<(), PassError> {
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: backup.uid.clone(),
            resource_version: backup.resource_version.clone(),
        }),
        ..DeleteParams::background()
    };
    let namespace = schedule.namespace().unwrap_or_default();
    let all = passes::stubs::<KubeBrainBackup>(context, &namespace);
    match all.delete(&backup.name, &params).await {
        Ok(_) => {}
        Err(kube::Error::Api(answer)) if answer.is_not_found() || answer.is_conflict() => return Ok(()),
        Err(error) => return Err(api("deleting a backup")(error)),
    }
    let event = schedules::expired(backup);
    info!(reason = event.reason, "{}", event.note);
    context.events.publish(schedule, event).await;
    Ok(())
}

/// Asks for the verification of a backup.
async fn verify(
    context: &Context,
    schedule: &KubeBrainBackupSchedule,
    wanted: &RequestedVerification,
) -> Result<(), PassError> {
    let body = json!({"metadata": {"uid": wanted.uid, "annotations": {VERIFY: wanted.request}}});
    let params = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let namespace = schedule.namespace().unwrap_or_default();
    let all = passes::stubs::<KubeBrainBackup>(context, &namespace);
    match all.patch(&wanted.name, &params, &Patch::Merge(body)).await {
        Ok(_) => {
            info!(backup = wanted.name, "asked for the verification of a backup");
            Ok(())
        }
        Err(kube::Error::Api(answer)) if answer.is_not_found() || answer.is_conflict() => Ok(()),
        Err(error) => Err(api("asking for the verification of a backup")(error)),
    }
}

/// Writes the status if it differs, and publishes Events about its changes.
async fn publish(
    context: &Context,
    schedule: &KubeBrainBackupSchedule,
    progress: &ScheduleProgress,
    now: Timestamp,
) -> Result<(), PassError> {
    let status = schedules::status_of(schedule, progress, now);
    if schedule.status.as_ref() == Some(&status) {
        return Ok(());
    }
    let namespace = schedule.namespace().unwrap_or_default();
    let stubs = passes::stubs::<KubeBrainBackupSchedule>(context, &namespace);
    if write_status(&stubs, schedule, Precondition::Exists, &status)
        .await?
        .is_none()
    {
        return Ok(());
    }
    for event in schedules::events(schedule, &status) {
        info!(reason = event.reason, "{}", event.note);
        context.events.publish(schedule, event).await;
    }
    Ok(())
}
