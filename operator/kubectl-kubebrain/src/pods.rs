//! The pods whose logs and metrics describe a cluster: its members, what the operator runs for it, and the operator itself.

use std::collections::BTreeSet;

use crds::{KubeBrainBackup, KubeBrainCluster};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use plan::names::{ARCHIVE, BACKUP, BOOTSTRAP, COMPONENT, MANAGED_BY_INSTALLATION};
use plan::spec::is_external;

use super::connect::TargetNamespace;
use super::observe::{self, list};

/// Labels of the operator's pods, as its manifests and its chart set them.
const OPERATOR_LABELS: &str = "app.kubernetes.io/component=operator,app.kubernetes.io/part-of=kubebrain";
/// Namespace of an operator that no cluster names.
const DEFAULT_OPERATOR_NAMESPACE: &str = "kubebrain-system";

/// The pods of one cluster.
#[derive(Default)]
pub(super) struct ClusterPods {
    pub(super) members: Vec<Pod>,
    /// Trials and wipes, the archive, and the Jobs of the bootstrap and of backups.
    pub(super) helpers: Vec<Pod>,
    /// Those of the operator; they may serve other clusters as well.
    pub(super) operators: Vec<Pod>,
    /// Lists that failed, each with the reason.
    pub(super) notes: Vec<(String, String)>,
}

/// Returns the members' pods.
///
/// # Errors
/// The API server refused or did not answer.
pub(super) async fn members(target: &TargetNamespace, cluster: &KubeBrainCluster) -> anyhow::Result<Vec<Pod>> {
    let mut found = observe::pods(target, cluster).await?;
    found.retain(|pod| is_member(pod, cluster));
    Ok(found)
}

/// Returns all pods that can be listed.
pub(super) async fn all(target: &TargetNamespace, cluster: &KubeBrainCluster) -> ClusterPods {
    let name = cluster.name_any();
    let mut pods = ClusterPods::default();
    let own = observe::pods(target, cluster).await;
    let own = pods.known("pods of the members", own);
    (pods.members, pods.helpers) = own.into_iter().partition(|pod| is_member(pod, cluster));
    let archive = list::<Pod>(target, "pods", &format!("{ARCHIVE}={name}")).await;
    let archive = pods.known("pods of the archive", archive);
    pods.helpers.extend(archive);
    let bootstrap = list::<Pod>(target, "pods", &format!("{BOOTSTRAP}={name}")).await;
    let bootstrap = pods.known("pods of the bootstrap", bootstrap);
    pods.helpers.extend(bootstrap);
    let backups = backups(target, &name).await;
    let backups = pods.known("pods of backups", backups);
    pods.helpers.extend(backups);
    let installation = TargetNamespace {
        client: target.client.clone(),
        namespace: operator_namespace(cluster),
    };
    let operators = list::<Pod>(&installation, "pods", OPERATOR_LABELS).await;
    pods.operators = pods.known("pods of the operator", operators);
    pods
}

/// Returns the pods of the Jobs of a cluster's backups.
async fn backups(target: &TargetNamespace, cluster: &str) -> anyhow::Result<Vec<Pod>> {
    let backups = list::<KubeBrainBackup>(target, "kubebrainbackups", "").await?;
    let of_cluster = backups.iter().filter(|backup| backup.spec.cluster_name == cluster);
    let names: BTreeSet<String> = of_cluster.map(ResourceExt::name_any).collect();
    let mut pods = list::<Pod>(target, "pods", BACKUP).await?;
    pods.retain(|pod| pod.labels().get(BACKUP).is_some_and(|backup| names.contains(backup)));
    Ok(pods)
}

fn is_member(pod: &Pod, cluster: &KubeBrainCluster) -> bool {
    is_external(cluster)
        || pod
            .labels()
            .get(COMPONENT)
            .is_some_and(|component| component == "brain")
}

/// Returns the namespace of the operator that manages a cluster.
fn operator_namespace(cluster: &KubeBrainCluster) -> String {
    let chosen = cluster.annotations().get(MANAGED_BY_INSTALLATION);
    let present = chosen.or_else(|| cluster.status.as_ref()?.managed_by.as_ref());
    let namespace = present
        .and_then(|lease| lease.split_once('/'))
        .map(|(namespace, _)| namespace);
    namespace.unwrap_or(DEFAULT_OPERATOR_NAMESPACE).to_owned()
}

impl ClusterPods {
    fn known(&mut self, what: &str, found: anyhow::Result<Vec<Pod>>) -> Vec<Pod> {
        found.unwrap_or_else(|why| {
            self.notes.push((what.to_owned(), format!("{why:#}")));
            Vec::new()
        })
    }
}

/// Returns the names of a pod's containers, each with true if an earlier one of it has ended.
pub(super) fn containers(pod: &Pod) -> Vec<(String, bool)> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref());
    let has_ended = |name: &str| {
        let mut statuses = statuses.into_iter().flatten();
        statuses.any(|status| status.name == name && status.restart_count > 0)
    };
    containers
        .map(|container| (container.name.clone(), has_ended(&container.name)))
        .collect()
}
