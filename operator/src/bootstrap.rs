//! Looks at the restore or the copy of a cluster's first data: its Job, or the objects that a new Job needs. A cluster that has begun costs nothing.

use crds::cluster::bootstrap::Bootstrap;
use crds::{KubeBrainBackup, KubeBrainCluster};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, ResourceExt as _};
use plan::bootstrap::{
    self, BackupSource, BootstrapObstacle, BootstrapResult, BootstrapSource, CopyFigures, ObservedBootstrap,
};
use plan::ownership::{self, Ownership};
use plan::spec::{Desired, SpecRefusal};
use tracing::debug;

use crate::backup::{Found, look as look_at};
use crate::context::Context;
use crate::pass::{PassError, api};
use crate::{jobs, passes, probe};

/// Returns what is known of the restore.
///
/// # Errors
/// The API server refused or did not answer.
pub(crate) async fn look(
    context: &Context,
    cluster: &KubeBrainCluster,
    desired: &Desired,
) -> Result<ObservedBootstrap, PassError> {
    let Some(begun) = bootstrap::due(cluster).filter(|_| desired.refusal().is_none()) else {
        return Ok(ObservedBootstrap::default());
    };
    let namespace = &desired.names.namespace;
    let all: Api<Job> = Api::namespaced(context.client.clone(), namespace);
    let found = all.get_opt(&desired.names.bootstrap()).await;
    let Some(job) = found.map_err(api("reading the Job of the bootstrap"))? else {
        // Without members nothing is restored yet.
        let source = match desired.replicas {
            0 => None,
            _ => Some(source(context, cluster, begun).await?),
        };
        return Ok(ObservedBootstrap {
            source,
            ..ObservedBootstrap::default()
        });
    };
    let mut seen = ObservedBootstrap::default();
    match (is_own(&job, cluster), jobs::condition(&job, "Complete")) {
        // Its pods are those of another owner, too.
        (false, _) => {}
        (true, Some(_)) => {
            let pods = jobs::pods(&context.client, namespace, &job).await?;
            seen.result = pods.iter().rev().find_map(BootstrapResult::of_pod);
        }
        (true, None) => {
            let trouble = jobs::trouble(&context.client, namespace, &job).await?;
            let runs = jobs::condition(&job, "Failed").is_none();
            seen.pods = if runs { trouble.unfinished } else { Vec::new() };
            seen.refused_pods = trouble.refused.filter(|_| runs);
            seen.trouble = trouble.words;
            if bootstrap::are_figures_due(cluster, &seen, Timestamp::now()) {
                seen.figures = Box::pin(figures(context, &seen.pods)).await.map(Box::new);
            }
            seen.source = Some(source(context, cluster, begun).await?);
        }
    }
    seen.job = Some(Box::new(job));
    Ok(seen)
}

/// Asks the pod of a copy how far it is. One that does not answer is asked again in the next pass.
async fn figures(context: &Context, pods: &[Pod]) -> Option<CopyFigures> {
    let address = |pod: &Pod| {
        let status = pod.status.as_ref()?;
        let runs = status.phase.as_deref() == Some("Running") && pod.metadata.deletion_timestamp.is_none();
        status.pod_ip.clone().filter(|_| runs)
    };
    let address = pods.iter().rev().find_map(address)?;
    let _permit = context.prober.acquire().await?;
    let answer = probe::ask_copy(&address).await;
    answer
        .inspect_err(|why| debug!(why, "the pod of a copy did not report its progress"))
        .ok()
}

fn is_own(job: &Job, cluster: &KubeBrainCluster) -> bool {
    let uid = cluster.uid().unwrap_or_default();
    ownership::of(&job.metadata, &cluster.name_any(), &uid) == Ownership::Ours
}

/// Returns the source for a new Job, or why there is none. No value of a Secret is read.
async fn source(
    context: &Context,
    cluster: &KubeBrainCluster,
    bootstrap: &Bootstrap,
) -> Result<Result<BootstrapSource, BootstrapObstacle>, PassError> {
    let namespace = cluster.namespace().unwrap_or_default();
    let invalid = |refusal: SpecRefusal| BootstrapObstacle {
        reason: "InvalidSpec",
        message: format!("bootstrap: {}", refusal.message),
    };
    let source = match of_spec(context, &namespace, bootstrap).await? {
        Ok(source) => source,
        Err(obstacle) => return Ok(Err(obstacle)),
    };
    if let Err(refusal) = source.check(&cluster.name_any(), &context.settings) {
        return Ok(Err(invalid(refusal)));
    }
    let mut missing = None;
    for named in source.named() {
        match look_at(context, &namespace, &named).await? {
            Found::OfCluster(owner) => return Ok(Err(invalid(named.refused(&owner)))),
            Found::Nothing => missing = missing.or(Some(named.missing())),
            Found::Usable => {}
        }
    }
    Ok(match missing {
        Some(message) => Err(BootstrapObstacle {
            reason: "WaitingForObject",
            message,
        }),
        None => Ok(source),
    })
}

/// Returns the source that a spec describes, or that the KubeBrainBackup has which it names.
async fn of_spec(
    context: &Context,
    namespace: &str,
    bootstrap: &Bootstrap,
) -> Result<Result<BootstrapSource, BootstrapObstacle>, PassError> {
    if let Some(etcd) = &bootstrap.from_etcd {
        return Ok(Ok(BootstrapSource::Etcd(Box::new(etcd.clone()))));
    }
    if let Some(snapshot) = &bootstrap.from_snapshot {
        return Ok(Ok(BootstrapSource::Snapshot(snapshot.persistent_volume_claim.clone())));
    }
    let from = bootstrap.from_backup.clone().unwrap_or_default();
    let found = match (&from.backup, BackupSource::of_spec(&from)) {
        (Some(named), _) => {
            let found = passes::read::<KubeBrainBackup>(context, namespace, &named.name).await?;
            BackupSource::of_backup(&named.name, found.as_ref())
        }
        (None, Some(source)) => Ok(source),
        (None, None) => Err(BootstrapObstacle {
            reason: "InvalidSpec",
            message: "bootstrap: set exactly one of fromBackup.backup and destination".to_owned(),
        }),
    };
    Ok(found.map(|found| BootstrapSource::Backup(Box::new(found))))
}

/// Deletes the Job of a cluster that is being deleted. Returns true once it is gone, with its pods.
///
/// # Errors
/// The API server refused or did not answer.
pub(crate) async fn end(context: &Context, cluster: &KubeBrainCluster, job: &str) -> Result<bool, PassError> {
    if bootstrap::source_of(cluster).is_none() {
        return Ok(true);
    }
    let namespace = cluster.namespace().unwrap_or_default();
    let all: Api<Job> = Api::namespaced(context.client.clone(), &namespace);
    let found = all
        .get_opt(job)
        .await
        .map_err(api("reading the Job of the bootstrap"))?;
    let Some(job) = found.filter(|job| is_own(job, cluster)) else {
        return Ok(true);
    };
    if job.metadata.deletion_timestamp.is_none() {
        let deleted = jobs::delete_after_dependents(&all, &job).await;
        deleted.map_err(api("deleting the Job of the bootstrap"))?;
    }
    Ok(false)
}

#[cfg(test)]
mod tests;
