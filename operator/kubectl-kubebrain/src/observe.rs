//! The input of a pass of the operator, read once from the API server instead of from the operator's stores.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use crds::KubeBrainCluster;
use crds::cluster::election::ElectionBackend;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::core::{DynamicObject, Selector};
use kube::{Api, Client, Resource, ResourceExt};
use plan::bootstrap::{ObservedBootstrap, due};
use plan::names::{CLUSTER, MANAGED_BY, MANAGER, Names};
use plan::objects::{ObjectKey, ObjectKind, name_kind};
use plan::observed::Observed;
use plan::ownership::{self, belongs};
use plan::spec::secrets::{GivenSecrets, is_name, named};
use plan::spec::{Desired, is_external, tidb_cluster};
use plan::steps;
use serde::de::DeserializeOwned;

use super::connect::TargetNamespace;

/// Returns the TiDB operator's cluster that the spec names, if it exists.
///
/// # Errors
/// The API server refused or did not answer.
pub(super) async fn referenced(
    target: &TargetNamespace,
    cluster: &KubeBrainCluster,
) -> anyhow::Result<Option<DynamicObject>> {
    let tikv = cluster.spec.storage.tikv.as_ref();
    let Some(reference) = tikv.and_then(|tikv| tikv.cluster_ref.as_ref()) else {
        return Ok(None);
    };
    let api: Api<DynamicObject> = Api::namespaced_with(target.client.clone(), &target.namespace, &tidb_cluster());
    match api.get_opt(&reference.name).await {
        // The API server may not know the group.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        found => found.map_err(|error| target.explain(error, "get", "clusters.core.pingcap.com")),
    }
}

/// Reads the operator's objects, pods and claims, but not the answers of the members.
///
/// # Errors
/// The API server refused or did not answer.
pub(super) async fn observe(
    target: &TargetNamespace,
    cluster: &KubeBrainCluster,
    names: &Names,
) -> anyhow::Result<Observed> {
    let mut observed = Observed {
        now: Timestamp::now(),
        pod_monitors: true,
        ..Observed::default()
    };
    observed.objects = objects(target, (cluster, names), &mut observed.pod_monitors).await?;
    let external = is_external(cluster);
    let labelled = format!("{CLUSTER}={}", names.cluster);
    observed.claims = list::<PersistentVolumeClaim>(target, "persistentvolumeclaims", &labelled).await?;
    observed.pods = pods(target, cluster).await?;
    observed.bootstrap = bootstrap(target, cluster, names).await?;
    let given = given_secrets(&target.client, cluster).await;
    observed.given_secrets = given.map_err(|error| target.explain(error, "get", "the Secrets that the spec names"))?;
    let uid = cluster.uid().unwrap_or_default();
    observed.trial = ownership::take_trial(&mut observed.pods, names, &uid);
    if !external {
        ownership::keep_own(&mut observed, names, &uid);
    }
    Ok(observed)
}

/// Reads the Job that restores or copies the first data, and its pods that have not ended. It is not known to a user who may not read Jobs.
async fn bootstrap(
    target: &TargetNamespace,
    cluster: &KubeBrainCluster,
    names: &Names,
) -> anyhow::Result<ObservedBootstrap> {
    let mut seen = ObservedBootstrap::default();
    if due(cluster).is_none() {
        return Ok(seen);
    }
    let name = names.bootstrap();
    let job = match target.all::<Job>().get_opt(&name).await {
        Ok(Some(job)) => job,
        Ok(None) => return Ok(seen),
        Err(kube::Error::Api(status)) if status.code == 403 => return Ok(seen),
        Err(error) => return Err(target.explain(error, "get", &format!("Job {name}"))),
    };
    seen.pods = list::<Pod>(target, "pods", &format!("batch.kubernetes.io/job-name={name}")).await?;
    seen.pods.retain(|pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let mut owners = pod.owner_references().iter();
        owners.any(|owner| owner.controller == Some(true) && Some(&owner.uid) == job.metadata.uid.as_ref())
            && pod.metadata.deletion_timestamp.is_none()
            && !matches!(phase, Some("Failed" | "Succeeded"))
    });
    seen.job = Some(Box::new(job));
    Ok(seen)
}

/// Returns the pods with the cluster's label, or those that an external workload selects, in the order of their names.
///
/// # Errors
/// The API server refused or did not answer.
pub(super) async fn pods(target: &TargetNamespace, cluster: &KubeBrainCluster) -> anyhow::Result<Vec<Pod>> {
    let mut pods = if is_external(cluster) {
        let selector = cluster.spec.workload.selector.clone().unwrap_or_default();
        match Selector::try_from(selector) {
            Ok(selector) if !selector.selects_all() => list::<Pod>(target, "pods", &selector.to_string()).await?,
            _ => Vec::new(),
        }
    } else {
        list::<Pod>(target, "pods", &format!("{CLUSTER}={}", cluster.name_any())).await?
    };
    pods.sort_by_key(ResourceExt::name_any);
    Ok(pods)
}

/// Returns objects with the operator's label, of every kind that it creates.
async fn objects(
    target: &TargetNamespace,
    (cluster, names): (&KubeBrainCluster, &Names),
    pod_monitors: &mut bool,
) -> anyhow::Result<BTreeMap<ObjectKey, DynamicObject>> {
    let mut found = BTreeMap::new();
    let params = ListParams::default().labels(&format!("{MANAGED_BY}={MANAGER}"));
    for kind in ObjectKind::ALL {
        let resource = kind.resource();
        let api: Api<DynamicObject> = Api::namespaced_with(target.client.clone(), &target.namespace, &resource);
        let listed = match api.list(&params).await {
            Ok(listed) => listed,
            // Compare the code: an API server that does not know the group answers in plain text, without a reason.
            Err(kube::Error::Api(status)) if status.code == 404 && kind.is_optional() => {
                *pod_monitors = false;
                continue;
            }
            // The user may lack the right to kinds that this spec does not use. They have no objects, except after a change of the spec.
            Err(kube::Error::Api(status)) if status.code == 403 && !is_wanted(kind, cluster) => continue,
            Err(error) => return Err(target.explain(error, "list", &resource.plural)),
        };
        for mut object in listed.items {
            if !belongs(&object.metadata, &names.cluster) {
                continue;
            }
            object.metadata.managed_fields = None;
            name_kind(&mut object, &resource);
            found.insert(ObjectKey::new(kind, object.name_any()), object);
        }
    }
    Ok(found)
}

/// Returns true if the spec results in objects of a kind.
fn is_wanted(kind: ObjectKind, cluster: &KubeBrainCluster) -> bool {
    match kind {
        ObjectKind::Role | ObjectKind::RoleBinding | ObjectKind::Lease => {
            cluster.spec.election().backend == ElectionBackend::Lease
        }
        ObjectKind::PodMonitor => {
            let monitoring = cluster.spec.monitoring.as_ref();
            let monitor = monitoring.and_then(|monitoring| monitoring.pod_monitor.as_ref());
            monitor.is_some_and(|monitor| monitor.enabled)
        }
        _ => true,
    }
}

pub(super) async fn list<K>(target: &TargetNamespace, plural: &str, labels: &str) -> anyhow::Result<Vec<K>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(target.client.clone(), &target.namespace);
    let listed = api.list(&ListParams::default().labels(labels)).await;
    Ok(listed.map_err(|error| target.explain(error, "list", plural))?.items)
}

/// Returns the Secrets that the spec names; `None` for one that does not exist.
async fn given_secrets(client: &Client, cluster: &KubeBrainCluster) -> kube::Result<GivenSecrets> {
    let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let mut found = GivenSecrets::new();
    for name in named(&cluster.spec).into_keys().filter(|name| is_name(name)) {
        let secret = api.get_opt(&name).await?.map(Arc::new);
        found.insert(name, secret);
    }
    Ok(found)
}

/// Adds every object to `observed` that the cluster should have and that no list showed, if it exists: its label may have been removed, or
/// it may be foreign.
///
/// # Errors
/// The API server refused or did not answer, and not only for an optional kind.
pub(super) async fn missing(
    target: &TargetNamespace,
    cluster: &KubeBrainCluster,
    desired: &Desired,
    observed: &mut Observed,
) -> kube::Result<()> {
    let missing = steps::missing(cluster, desired, observed).map_err(kube::Error::SerdeError)?;
    let reads = missing.into_iter().map(async |key| {
        let resource = key.kind.resource();
        let api: Api<DynamicObject> = Api::namespaced_with(target.client.clone(), &target.namespace, &resource);
        let found = api.get_opt(&key.name).await;
        (key, resource, found)
    });
    for (key, resource, found) in futures::future::join_all(reads).await {
        match found {
            // Compare the code: an API server that does not know the group answers without a reason.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            // Treat the kind as missing in the API server.
            Err(_) if key.kind.is_optional() => observed.pod_monitors = false,
            found => {
                if let Some(mut object) = found? {
                    object.metadata.managed_fields = None;
                    name_kind(&mut object, &resource);
                    observed.objects.insert(key, object);
                }
            }
        }
    }
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(target.client.clone(), &target.namespace);
    for name in observed.missing_claims(desired) {
        observed.claims.extend(claims.get_opt(&name).await?);
    }
    Ok(())
}
