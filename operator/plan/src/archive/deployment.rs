//! The Deployment of an archive.

use std::collections::BTreeMap;

use crds::KubeBrainCluster;
use crds::cluster::backup::{Archive, ClusterBackup};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy};
use k8s_openapi::api::core::v1::{ContainerPort, HTTPGetAction, PodTemplateSpec, Probe, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Resource, ResourceExt};
use serde_json::Value;

use super::ARCHIVE_CONTAINER;
use crate::backup::pod::{PodPlacement, ProgramPod};
use crate::backup::{BackupTarget, ClusterAccess, runtime};
use crate::drift;
use crate::names::{self, ARCHIVE, METRICS_PORT, is_reserved};
use crate::objects::{Epoch, is_inherited};
use crate::spec::OperatorSettings;

/// Former templates that are kept.
const KEPT_REVISIONS: i32 = 2;

/// Renders the Deployment of an archive, with its hash.
///
/// # Errors
/// It fails to serialise.
pub fn deployment(
    cluster: &KubeBrainCluster,
    (backup, archive): (&ClusterBackup, &Archive),
    settings: &OperatorSettings,
) -> Result<Value, serde_json::Error> {
    let name = cluster.name_any();
    let target = BackupTarget::from(backup);
    let mut program = ProgramPod::lasting("archive", target, "kubebrain-archive", (ARCHIVE, &name));
    program.store(target, &ClusterAccess::of(cluster, settings));
    program.flag("archive-interval", archive.interval());
    let any = Epoch::NEWEST.any_address();
    program.flag("listen-metrics-urls", format!("http://{any}:{METRICS_PORT}"));

    let placement = archive.pod.clone().unwrap_or_default();
    let placement = PodPlacement {
        resources: placement.resources.or_else(|| Some(default_resources())),
        node_selector: placement.node_selector,
        tolerations: placement.tolerations,
        priority_class_name: placement.priority_class_name,
    };
    let (labels, annotations) = metadata(cluster, &program.labels);
    let mut pod = program.spec(ARCHIVE_CONTAINER, &runtime(cluster, settings), placement);
    for container in &mut pod.containers {
        container.ports = Some(vec![ContainerPort {
            name: Some("metrics".to_owned()),
            container_port: METRICS_PORT,
            protocol: Some("TCP".to_owned()),
            ..ContainerPort::default()
        }]);
        // They check only that the process lives: a restart helps neither the members nor the destination.
        container.liveness_probe = Some(probe(10));
        container.readiness_probe = Some(probe(5));
    }
    let object = Deployment {
        metadata: ObjectMeta {
            name: Some(names::archive(&name)),
            namespace: cluster.namespace(),
            labels: Some(labels.clone()),
            annotations: Some(annotations.clone()),
            owner_references: Some(vec![owner(cluster)]),
            ..ObjectMeta::default()
        },
        spec: Some(DeploymentSpec {
            replicas: Some(i32::from(cluster.spec.replicas > 0)),
            revision_history_limit: Some(KEPT_REVISIONS),
            selector: LabelSelector {
                match_labels: Some(names::labels([(ARCHIVE, name.as_str())])),
                ..LabelSelector::default()
            },
            // Only one process may write an archive.
            strategy: Some(DeploymentStrategy {
                type_: Some("Recreate".to_owned()),
                ..DeploymentStrategy::default()
            }),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(labels),
                    annotations: Some(annotations),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod),
            },
            ..DeploymentSpec::default()
        }),
        ..Deployment::default()
    };
    let mut body = serde_json::to_value(object)?;
    drift::stamp(&mut body);
    Ok(body)
}

/// Returns the resources of a pod whose spec has none. A pod that requests no CPU gets none for many seconds while others are busy, and the
/// archive promises to be behind by its interval alone.
fn default_resources() -> ResourceRequirements {
    let requests = [("cpu", "50m"), ("memory", "64Mi")];
    let requests = requests.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())));
    ResourceRequirements {
        requests: Some(requests.into()),
        ..ResourceRequirements::default()
    }
}

/// Returns the labels and annotations: those that objects of the cluster inherit, and the own labels over them.
fn metadata(
    cluster: &KubeBrainCluster,
    own: &BTreeMap<String, String>,
) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let inherited = cluster.spec.inherited_metadata.clone().unwrap_or_default();
    let labels = inherited.labels.into_iter().filter(|(key, _)| !is_reserved(key));
    let annotations = inherited.annotations.into_iter().filter(|(key, _)| is_inherited(key));
    (labels.chain(own.clone()).collect(), annotations.collect())
}

fn owner(cluster: &KubeBrainCluster) -> OwnerReference {
    OwnerReference {
        api_version: KubeBrainCluster::api_version(&()).into_owned(),
        kind: KubeBrainCluster::kind(&()).into_owned(),
        name: cluster.name_any(),
        uid: cluster.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

fn probe(period: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some("/metrics".to_owned()),
            port: IntOrString::String("metrics".to_owned()),
            scheme: Some("HTTP".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        failure_threshold: Some(3),
        timeout_seconds: Some(5),
        ..Probe::default()
    }
}

/// Returns true if the live Deployment is as rendered: made of the same template, and not changed by others since.
///
/// # Errors
/// The live one fails to serialise.
pub fn is_applied(rendered: &Value, live: &Deployment) -> Result<bool, serde_json::Error> {
    let is_same = rendered["metadata"]["annotations"][drift::APPLIED_HASH].as_str()
        == live.annotations().get(drift::APPLIED_HASH).map(String::as_str);
    Ok(is_same && drift::is_within(rendered, &serde_json::to_value(live)?))
}

/// Returns why the API server refuses the pod, if it does.
pub fn refused_pods(live: &Deployment) -> Option<String> {
    let conditions = live.status.as_ref()?.conditions.as_ref()?;
    let failure = conditions
        .iter()
        .find(|condition| condition.type_ == "ReplicaFailure" && condition.status == "True")?;
    failure.message.clone()
}
