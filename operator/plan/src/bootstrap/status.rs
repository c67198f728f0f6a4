//! The part of a cluster's status about its first data.

use crds::KubeBrainCluster;
use crds::cluster::status::{BootstrapPhase, BootstrapStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::{BootstrapProgress, describe, due, figures, source_of};
use crate::observed::Observed;
use crate::status::{ConditionStatus, ConditionUpdate, whole_seconds};

/// The condition about the first data.
pub const CONDITION: &str = "Bootstrapped";

/// Returns the condition, if the cluster begins with data. Once it is true it stays.
pub(crate) fn condition(
    cluster: &KubeBrainCluster,
    before: &[Condition],
    progress: Option<&BootstrapProgress>,
) -> Option<ConditionUpdate> {
    use ConditionStatus::{False, True};
    let Some(progress) = progress else {
        let before = before.iter().find(|condition| condition.type_ == CONDITION)?;
        return Some(ConditionUpdate::kept(CONDITION, before));
    };
    let (status, reason) = match progress {
        BootstrapProgress::Pending { reason, .. } => (False, *reason),
        BootstrapProgress::Running(_) => (False, "Bootstrapping"),
        BootstrapProgress::Following(_) => (False, "Following"),
        BootstrapProgress::CuttingOver { .. } => (False, "CuttingOver"),
        BootstrapProgress::Failed(_) => (False, "BootstrapFailed"),
        BootstrapProgress::Served => (True, "AlreadyStored"),
        BootstrapProgress::Complete(Some(result)) if result.is_foreign() => (True, "AlreadyStored"),
        BootstrapProgress::Complete(Some(_)) if is_copy(cluster) => (True, "Copied"),
        BootstrapProgress::Complete(Some(_)) => (True, "Restored"),
        BootstrapProgress::Complete(None) => (True, "ResultLost"),
    };
    Some(ConditionUpdate::new(
        CONDITION,
        status,
        reason,
        message(cluster, progress),
    ))
}

/// Returns the part of the status; `progress` is `None` if nothing has changed.
pub(crate) fn status(
    cluster: &KubeBrainCluster,
    progress: Option<&BootstrapProgress>,
    observed: &Observed,
) -> Option<BootstrapStatus> {
    let before = cluster
        .status
        .as_ref()
        .and_then(|status| status.bootstrap.as_deref().cloned());
    let (Some(progress), Some(bootstrap)) = (progress, due(cluster)) else {
        return before;
    };
    let phase = match progress {
        BootstrapProgress::Pending { .. } => BootstrapPhase::Pending,
        BootstrapProgress::Running(_) | BootstrapProgress::CuttingOver { follows: false, .. } => {
            BootstrapPhase::Running
        }
        BootstrapProgress::Following(_) | BootstrapProgress::CuttingOver { follows: true, .. } => {
            BootstrapPhase::Following
        }
        BootstrapProgress::Complete(_) | BootstrapProgress::Served => BootstrapPhase::Complete,
        BootstrapProgress::Failed(_) => BootstrapPhase::Failed,
    };
    let job = observed.bootstrap.job.as_ref();
    let created = job.and_then(|job| job.metadata.creation_timestamp.clone());
    let ended = job.and_then(|job| job.status.as_ref()?.completion_time.clone());
    let result = match progress {
        BootstrapProgress::Complete(result) => result.as_ref(),
        _ => None,
    };
    let completed = || ended.unwrap_or_else(|| Time(whole_seconds(observed.now)));
    Some(BootstrapStatus {
        phase,
        source: Some(describe(bootstrap)),
        backup_name: result.and_then(|result| result.name.clone()),
        start_time: created.or_else(|| before.and_then(|before| before.start_time)),
        completion_time: (phase == BootstrapPhase::Complete).then(completed),
        revision: result.and_then(|result| result.revision),
        progress: figures::progress(cluster, observed, phase).map(Box::new),
        message: Some(message(cluster, progress)),
    })
}

/// Returns true if the first data comes from an etcd.
fn is_copy(cluster: &KubeBrainCluster) -> bool {
    source_of(cluster).is_some_and(|bootstrap| bootstrap.from_etcd.is_some())
}

fn message(cluster: &KubeBrainCluster, progress: &BootstrapProgress) -> String {
    match progress {
        BootstrapProgress::Pending { message, .. }
        | BootstrapProgress::Running(message)
        | BootstrapProgress::Following(message)
        | BootstrapProgress::CuttingOver { message, .. }
        | BootstrapProgress::Failed(message) => message.clone(),
        BootstrapProgress::Served => "nothing was restored, because the cluster has members already".to_owned(),
        BootstrapProgress::Complete(None) => {
            "the Job has ended well, but its pods are gone, and the result with them".to_owned()
        }
        BootstrapProgress::Complete(Some(result)) if result.is_foreign() => format!(
            "nothing was restored, because there was the store {} already, which has another id than a store that is made for this cluster",
            result.cluster_id
        ),
        BootstrapProgress::Complete(Some(result)) => {
            let Some(revision) = result.revision else {
                return format!(
                    "an earlier attempt made the store {} of all of the source; its pod was killed before it said more",
                    result.cluster_id
                );
            };
            let what = match &result.name {
                _ if is_copy(cluster) => "copied the etcd, and compared both".to_owned(),
                Some(name) => format!("restored the backup {name}"),
                None => "restored the snapshot".to_owned(),
            };
            let lacks = result
                .source_revision
                .map(|newest| format!("; it lacks what was written there since, up to revision {newest}"));
            format!(
                "{what}; the store begins at revision {revision}{}",
                lacks.unwrap_or_default()
            )
        }
    }
}
