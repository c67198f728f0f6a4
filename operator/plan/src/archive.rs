//! The archive of a cluster: its Deployment, what its pod reports, and what the status says of it.
//!
//! An archive never affects the members, and its trouble is in a condition of its own.

use crds::KubeBrainCluster;
use crds::cluster::backup::{Archive, ClusterBackup};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

mod deployment;
mod figures;
mod report;
mod status;
#[cfg(test)]
mod tests;

pub use deployment::{deployment, is_applied, refused_pods};
pub use figures::ArchiveFigures;
pub(crate) use figures::metric;
pub use report::{ArchivePosition, ArchiveReport, ArchiveState, has_failed, observed, waiting};
pub use status::{CONDITION, ObservedArchive, condition, is_news, status};

use crate::names::{self, ARCHIVE};
use crate::ownership::{self, Ownership};

/// Name of the container.
pub const ARCHIVE_CONTAINER: &str = "archive";

/// Returns the archive that the spec asks for, with the place where it is stored; `None` if it is suspended.
pub fn wanted(cluster: &KubeBrainCluster) -> Option<(&ClusterBackup, &Archive)> {
    let backup = cluster.spec.backup.as_ref()?;
    let archive = backup.archive.as_ref().filter(|archive| !archive.suspend)?;
    Some((backup, archive))
}

/// Returns true if the spec has an archive, suspended or not.
pub fn is_configured(cluster: &KubeBrainCluster) -> bool {
    cluster
        .spec
        .backup
        .as_ref()
        .is_some_and(|backup| backup.archive.is_some())
}

/// Returns true if a pass over the archive of a cluster has something to do: the spec has one, or there may be one.
pub fn concerns(cluster: &KubeBrainCluster) -> bool {
    is_configured(cluster) || is_recorded(cluster)
}

/// Returns true if the status records that the cluster may have a Deployment. None is created before.
pub fn is_recorded(cluster: &KubeBrainCluster) -> bool {
    let conditions = cluster.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == CONDITION)
}

/// Returns the owner of the object with this metadata, as seen by the cluster.
pub fn owner(object: &ObjectMeta, cluster: &KubeBrainCluster) -> Ownership {
    ownership::of(object, &cluster.name_any(), &cluster.uid().unwrap_or_default())
}

/// Returns true if a pod has the label and a controller as the Deployment of the cluster gives them.
pub fn is_pod_of(pod: &Pod, cluster: &str) -> bool {
    let prefix = format!("{}-", names::archive(cluster));
    let mut owners = pod.owner_references().iter();
    let controller = owners.find(|owner| owner.controller == Some(true));
    let is_controlled = controller.is_some_and(|owner| owner.kind == "ReplicaSet" && owner.name.starts_with(&prefix));
    is_controlled && pod.labels().get(ARCHIVE).is_some_and(|label| label == cluster)
}
