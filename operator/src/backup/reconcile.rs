//! One pass over a backup: it waits for its cluster, creates the Job, and reports how that ended.

use std::time::Duration;

use crds::{KubeBrainBackup, KubeBrainCluster};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::core::ObjectMeta;
use kube::{Api, ResourceExt as _};
use plan::backup::references::{self, NamedKind, NamedObject};
use plan::backup::{self, BackupProgress, BackupResult, ClusterAccess};
use plan::names::{CLUSTER, DELETE_BACKUP, MANAGED_BY, MANAGER};
use plan::objects::ObjectKind;
use plan::spec::SpecRefusal;

use super::{PROGRESS_INTERVAL, deletion, publish, publish_status, stubs, verification};
use crate::context::Context;
use crate::pass::{PassError, api};
use crate::passes::{ELSEWHERE_INTERVAL, read};
use crate::{finalizer_patch, jobs};

/// Reason of a backup whose Job has another owner.
pub(super) const OWNERSHIP_CONFLICT: &str = "OwnershipConflict";
/// Reason of a backup that names an object which does not exist.
const WAITING_FOR_OBJECT: &str = "WaitingForObject";

/// Runs one pass. Returns the time until the next one, or `None` if only a change of the resource needs one.
///
/// # Errors
/// The API server refused or did not answer.
pub(super) async fn reconcile(context: &Context, namespace: &str, name: &str) -> Result<Option<Duration>, PassError> {
    let Some(mut backup) = read::<KubeBrainBackup>(context, namespace, name).await? else {
        return Ok(None);
    };
    if backup.metadata.deletion_timestamp.is_some() {
        return deletion::finish(context, &backup).await;
    }
    if backup::is_settled(&backup) {
        return Ok(None);
    }
    let cluster = context.cache.cluster(namespace, &backup.spec.cluster_name);
    let cluster = cluster.as_deref();
    if let Some(cluster) = cluster
        && context.installation.other(cluster).await.is_some()
    {
        return Ok(Some(ELSEWHERE_INTERVAL));
    }
    // The finalizer must be set before anything is stored that it must delete.
    match (backup::wants_finalizer(&backup), backup::has_finalizer(&backup)) {
        (true, false) => finalizer_patch::add(&stubs(context, namespace), &backup, DELETE_BACKUP).await?,
        (false, true) => finalizer_patch::remove(&stubs(context, namespace), &backup, DELETE_BACKUP).await?,
        (true, true) | (false, false) => {}
    }
    if backup::has_ended(&backup) {
        let mut status = backup.status.clone().unwrap_or_default();
        status.observed_generation = backup.metadata.generation;
        publish_status(context, &backup, status.clone()).await?;
        backup.status = Some(status);
        let again = Box::pin(verification::reconcile(context, &backup)).await?;
        return Ok(again.or(Some(PROGRESS_INTERVAL)));
    }
    if !backup::has_begun(&backup) {
        if let Some(progress) = obstacle(context, &backup, cluster).await? {
            publish(context, &backup, &progress).await?;
            return Ok(Some(PROGRESS_INTERVAL));
        }
        let Some(cluster) = cluster else {
            return Ok(Some(PROGRESS_INTERVAL));
        };
        // Recorded before the Job exists: from then on a deletion has something to delete.
        let runtime = backup::runtime(cluster, &context.settings);
        let status = backup::first(&backup, runtime, Timestamp::now());
        publish_status(context, &backup, status.clone()).await?;
        backup.status = Some(status);
    }
    let progress = advance(context, &backup, cluster).await?;
    publish(context, &backup, &progress).await?;
    Ok(Some(PROGRESS_INTERVAL))
}

/// Returns why a backup does not begin, if it does not.
async fn obstacle(
    context: &Context,
    backup: &KubeBrainBackup,
    cluster: Option<&KubeBrainCluster>,
) -> Result<Option<BackupProgress>, PassError> {
    let objects = objects_obstacle(context, backup).await?;
    if let Some((reason, message)) = objects.clone().filter(|(reason, _)| *reason != WAITING_FOR_OBJECT) {
        return Ok(Some(BackupProgress::Failed { reason, message }));
    }
    let waits = backup::waits_for(&backup.spec.cluster_name, cluster).map(|message| ("WaitingForCluster", message));
    let waits = waits.or(objects);
    Ok(waits.map(|(reason, message)| BackupProgress::Waiting { reason, message }))
}

/// Returns why no pod of a backup can have what the spec names, if it cannot: reason and message.
pub(super) async fn objects_obstacle(
    context: &Context,
    backup: &KubeBrainBackup,
) -> Result<Option<(&'static str, String)>, PassError> {
    let refused = |SpecRefusal { reason, message }| Some((reason, message));
    if let Err(refusal) = references::check(backup.into(), &backup.spec.cluster_name, &context.settings) {
        return Ok(refused(refusal));
    }
    let mut missing = None;
    for named in references::named(backup.into()) {
        match look(context, &backup.namespace().unwrap_or_default(), &named).await? {
            Found::OfCluster(owner) => return Ok(refused(named.refused(&owner))),
            Found::Nothing => missing = missing.or(Some(named.missing())),
            Found::Usable => {}
        }
    }
    Ok(missing.map(|message| (WAITING_FOR_OBJECT, message)))
}

/// The state of an object that a backup or an archive names.
pub(crate) enum Found {
    Usable,
    Nothing,
    /// It belongs to this cluster.
    OfCluster(String),
}

/// Looks at the metadata of an object that a backup or an archive names. No value of a Secret is read.
pub(crate) async fn look(context: &Context, namespace: &str, named: &NamedObject<'_>) -> Result<Found, PassError> {
    let client = || context.client.clone();
    let metadata: Option<ObjectMeta> = match named.kind {
        NamedKind::Secret => {
            if let Some(owner) = context.cache.owner(ObjectKind::Secret, namespace, named.name) {
                return Ok(Found::OfCluster(owner));
            }
            let all: Api<Secret> = Api::namespaced(client(), namespace);
            let found = all
                .get_metadata_opt(named.name)
                .await
                .map_err(api("reading a Secret"))?;
            found.map(|found| found.metadata)
        }
        NamedKind::ConfigMap => {
            let all: Api<ConfigMap> = Api::namespaced(client(), namespace);
            let found = all
                .get_metadata_opt(named.name)
                .await
                .map_err(api("reading a ConfigMap"))?;
            // Those of clusters hold certificates, which are public.
            return Ok(found.map_or(Found::Nothing, |_| Found::Usable));
        }
        NamedKind::PersistentVolumeClaim => {
            let all: Api<PersistentVolumeClaim> = Api::namespaced(client(), namespace);
            let found = all.get_metadata_opt(named.name).await.map_err(api("reading a claim"))?;
            found.map(|found| found.metadata)
        }
    };
    let Some(metadata) = metadata else {
        return Ok(Found::Nothing);
    };
    let label = |key: &str| metadata.labels.as_ref().and_then(|labels| labels.get(key)).cloned();
    let is_ours = match named.kind {
        // This includes Secrets of clusters that no longer exist.
        NamedKind::Secret => label(MANAGED_BY).as_deref() == Some(MANAGER),
        NamedKind::ConfigMap | NamedKind::PersistentVolumeClaim => true,
    };
    Ok(match label(CLUSTER).filter(|_| is_ours) {
        Some(owner) => Found::OfCluster(owner),
        None => Found::Usable,
    })
}

/// Creates the Job, or reports its state. The Job is read from the API server: there is one for each backup in progress.
async fn advance(
    context: &Context,
    backup: &KubeBrainBackup,
    cluster: Option<&KubeBrainCluster>,
) -> Result<BackupProgress, PassError> {
    let namespace = backup.namespace().unwrap_or_default();
    let all: Api<Job> = Api::namespaced(context.client.clone(), &namespace);
    let name = backup::job_name(backup);
    let Some(job) = all.get_opt(&name).await.map_err(api("reading the Job"))? else {
        let waits = backup::waits_for(&backup.spec.cluster_name, cluster);
        let (Some(cluster), None) = (cluster, &waits) else {
            return Ok(BackupProgress::Waiting {
                reason: "WaitingForCluster",
                message: waits.unwrap_or_default(),
            });
        };
        let runtime = backup.status.as_ref().and_then(|status| status.runtime.clone());
        let runtime = runtime.unwrap_or_else(|| backup::runtime(cluster, &context.settings));
        let access = ClusterAccess::of(cluster, &context.settings);
        let wanted = backup::create_job(backup, &access, &runtime);
        let created = all.create(&PostParams::default(), &wanted).await;
        created.map_err(api("creating the Job"))?;
        return Ok(BackupProgress::Running(format!("created Job {name}")));
    };
    if !backup::is_owned(&job.metadata, backup) {
        return Ok(BackupProgress::Waiting {
            reason: OWNERSHIP_CONFLICT,
            message: format!(
                "Job {name} is not owned by this backup: delete it, or choose another name for the backup"
            ),
        });
    }
    if jobs::condition(&job, "Complete").is_some() {
        let pods = jobs::pods(&context.client, &namespace, &job).await?;
        let result = pods.iter().rev().find_map(BackupResult::of_pod).map(Box::new);
        let time = job.status.as_ref().and_then(|status| status.completion_time.clone());
        return Ok(BackupProgress::Complete(result, time));
    }
    let why = jobs::failure(&context.client, &namespace, &job).await?;
    let Some(failed) = jobs::condition(&job, "Failed") else {
        return Ok(BackupProgress::Running(
            why.unwrap_or_else(|| format!("Job {} is running", job.name_any())),
        ));
    };
    let (reason, message) = match failed.reason.as_deref() {
        Some("DeadlineExceeded") => (
            "DeadlineExceeded",
            format!("it took longer than {}", backup.spec.timeout()),
        ),
        _ => ("BackupFailed", failed.message.clone().unwrap_or_default()),
    };
    let message = match (reason, why) {
        ("BackupFailed", Some(why)) => why,
        (_, Some(why)) => format!("{message}: {why}"),
        (_, None) => message,
    };
    Ok(BackupProgress::Failed { reason, message })
}
