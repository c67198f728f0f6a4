//! The owned objects, rendered from the spec alone. Pure.
//!
//! Invariant: the same spec renders to the same bytes, so a difference from the live object always has a cause.

use std::collections::BTreeMap;

use crds::KubeBrainCluster;
use crds::cluster::workload::WorkloadType;
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference, Secret, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::core::{ApiResource, DynamicObject, TypeMeta};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde_json::Value;

use crate::certificates::{CertificatePair, Leaf};
use crate::drift;
use crate::names::{Names, RESTART_HASH, is_reserved};
use crate::spec::Desired;

mod bootstrap;
mod epoch;
mod lease;
mod merge;
pub mod pod;
pub mod resources;
mod services;
mod statefulset;
#[cfg(test)]
mod tests;
pub mod trial;
mod wipe;

pub use epoch::Epoch;
pub use lease::{TOKEN_VOLUME, competes_by_lease};
pub use pod::BRAIN_CONTAINER;

/// Annotations that belong to other tools and are not inherited.
const FOREIGN_ANNOTATIONS: [&str; 3] = ["argocd.argoproj.io/", "kubectl.kubernetes.io/", "meta.helm.sh/"];

/// Returns true if objects of a cluster inherit an annotation of this key. Annotations in the operator's own group record how an object was
/// rendered and what was done with it, so they are not inherited.
pub fn is_inherited(key: &str) -> bool {
    !is_reserved(key) && !FOREIGN_ANNOTATIONS.iter().any(|prefix| key.starts_with(prefix))
}

/// Kinds of objects that a cluster owns, in the order in which they are applied: objects are applied before the objects that mount them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    ServiceAccount,
    Role,
    RoleBinding,
    Lease,
    Secret,
    ConfigMap,
    Service,
    PodDisruptionBudget,
    StatefulSet,
    PodMonitor,
}

impl ObjectKind {
    pub const ALL: [Self; 10] = [
        Self::ServiceAccount,
        Self::Role,
        Self::RoleBinding,
        Self::Lease,
        Self::Secret,
        Self::ConfigMap,
        Self::Service,
        Self::PodDisruptionBudget,
        Self::StatefulSet,
        Self::PodMonitor,
    ];

    /// Kinds that not every API server knows.
    pub fn is_optional(self) -> bool {
        self.resource().group.contains(".coreos.com")
    }

    /// Returns group, version, kind and plural.
    pub fn resource(self) -> ApiResource {
        let (group, version, kind, plural) = match self {
            Self::ServiceAccount => ("", "v1", "ServiceAccount", "serviceaccounts"),
            Self::Role => ("rbac.authorization.k8s.io", "v1", "Role", "roles"),
            Self::RoleBinding => ("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings"),
            Self::Lease => ("coordination.k8s.io", "v1", "Lease", "leases"),
            Self::Secret => ("", "v1", "Secret", "secrets"),
            Self::ConfigMap => ("", "v1", "ConfigMap", "configmaps"),
            Self::Service => ("", "v1", "Service", "services"),
            Self::PodDisruptionBudget => ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
            Self::StatefulSet => ("apps", "v1", "StatefulSet", "statefulsets"),
            Self::PodMonitor => ("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors"),
        };
        let api_version = if group.is_empty() {
            version.to_owned()
        } else {
            format!("{group}/{version}")
        };
        ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version,
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        }
    }
}

/// Sets the kind of an object: objects of a list have none, and they are compared with rendered objects, which do.
pub fn name_kind(object: &mut DynamicObject, resource: &ApiResource) {
    object.types = Some(TypeMeta {
        api_version: resource.api_version.clone(),
        kind: resource.kind.clone(),
    });
}

/// Identifies an object in a cluster's namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    pub kind: ObjectKind,
    pub name: String,
}

impl ObjectKey {
    pub fn new(kind: ObjectKind, name: impl Into<String>) -> Self {
        Self {
            kind,
            name: name.into(),
        }
    }

    /// Returns the reference to the object for an Event.
    pub fn reference(&self) -> ObjectReference {
        let resource = self.kind.resource();
        ObjectReference {
            api_version: Some(resource.api_version),
            kind: Some(resource.kind),
            name: Some(self.name.clone()),
            ..ObjectReference::default()
        }
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {}", self.kind, self.name)
    }
}

/// A wanted object: complete, with owner and hash.
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    pub key: ObjectKey,
    pub body: Value,
}

impl Object {
    pub fn new<T: Serialize>(kind: ObjectKind, name: &str, typed: &T) -> Result<Self, serde_json::Error> {
        let mut object = Self {
            key: ObjectKey::new(kind, name),
            body: serde_json::to_value(typed)?,
        };
        // Objects that are not rolled out have no template: a null would claim the field.
        drop_nulls(&mut object.body);
        object.stamp();
        Ok(object)
    }

    /// Updates the hash after a change of the body.
    pub fn stamp(&mut self) {
        if let Some(annotations) = self
            .body
            .pointer_mut("/metadata/annotations")
            .and_then(Value::as_object_mut)
        {
            annotations.remove(drift::APPLIED_HASH);
        }
        drift::stamp(&mut self.body);
    }
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|_, value| !value.is_null());
            object.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// Renders objects of one cluster.
pub struct Renderer<'a> {
    cluster: &'a KubeBrainCluster,
    desired: &'a Desired,
    epoch: Epoch,
}

impl<'a> Renderer<'a> {
    /// Creates a renderer of the newest epoch.
    pub fn new(cluster: &'a KubeBrainCluster, desired: &'a Desired) -> Self {
        Self::of_epoch(Epoch::NEWEST, cluster, desired)
    }

    pub fn of_epoch(epoch: Epoch, cluster: &'a KubeBrainCluster, desired: &'a Desired) -> Self {
        Self {
            cluster,
            desired,
            epoch,
        }
    }

    /// Creates a renderer for the live StatefulSet: of its epoch, unless the pods are replaced anyway.
    ///
    /// # Errors
    /// The template fails to serialise.
    pub fn beside(
        live: Option<&DynamicObject>,
        cluster: &'a KubeBrainCluster,
        desired: &'a Desired,
    ) -> Result<Self, serde_json::Error> {
        let newest = Self::new(cluster, desired);
        let Some((live, epoch)) = live.and_then(|live| Some((live, Epoch::of(live)?))) else {
            return Ok(newest);
        };
        let recorded = Self::of_epoch(epoch, cluster, desired);
        let hash = |template: &Value| template["metadata"]["annotations"][RESTART_HASH].clone();
        let unchanged = hash(&recorded.template()?) == hash(&live.data["spec"]["template"]);
        Ok(if unchanged { recorded } else { newest })
    }

    fn names(&self) -> &Names {
        &self.desired.names
    }

    /// Returns the name of the pods' ServiceAccount. The one with the cluster's name is the cluster's own, even if the spec names it.
    fn account(&self) -> &str {
        let settings = self.cluster.spec.pod.as_ref();
        let named = settings.and_then(|pod| pod.service_account_name.as_deref());
        named.unwrap_or(&self.names().cluster)
    }

    /// Renders all objects except certificates. `pod_monitors` is true if the API server knows that kind.
    ///
    /// # Errors
    /// An object fails to serialise.
    pub fn all(&self, pod_monitors: bool) -> Result<Vec<Object>, serde_json::Error> {
        let names = self.names();
        let spec = &self.cluster.spec;
        let mut objects = Vec::new();
        let external = spec.workload.type_ == WorkloadType::External;
        if !external && self.account() == names.cluster {
            // Cloud providers give an account the role that its annotations name, so it inherits none.
            let metadata = ObjectMeta {
                annotations: Some(BTreeMap::new()),
                ..self.metadata(&names.cluster)
            };
            let account = ServiceAccount {
                metadata,
                automount_service_account_token: Some(false),
                ..ServiceAccount::default()
            };
            objects.push(Object::new(ObjectKind::ServiceAccount, &names.cluster, &account)?);
        }
        objects.extend(self.leader_lock()?);
        for service in [
            Some(self.headless()),
            Some(self.client_service()),
            self.leader_service(),
        ]
        .into_iter()
        .flatten()
        {
            objects.push(Object::new(ObjectKind::Service, &service.name_any(), &service)?);
        }
        if let Some(budget) = self.disruption_budget().filter(|_| !external) {
            objects.push(Object::new(ObjectKind::PodDisruptionBudget, &names.cluster, &budget)?);
        }
        if !external {
            objects.push(Object::new(
                ObjectKind::StatefulSet,
                &names.cluster,
                &self.stateful_set()?,
            )?);
        }
        if let Some(monitor) = self.pod_monitor().filter(|_| pod_monitors) {
            objects.push(Object::new(ObjectKind::PodMonitor, &names.cluster, &monitor)?);
        }
        if let Some(monitor) = self.archive_monitor().filter(|_| pod_monitors) {
            objects.push(Object::new(ObjectKind::PodMonitor, &names.archive_monitor(), &monitor)?);
        }
        Ok(objects)
    }

    /// Returns objects that an earlier spec may have wanted but this one does not.
    pub fn unwanted(&self, objects: &[Object]) -> Vec<ObjectKey> {
        let names = self.names();
        let optional = [
            ObjectKey::new(ObjectKind::ServiceAccount, &names.cluster),
            ObjectKey::new(ObjectKind::Role, names.lease()),
            ObjectKey::new(ObjectKind::RoleBinding, names.lease()),
            ObjectKey::new(ObjectKind::Lease, names.lease()),
            ObjectKey::new(ObjectKind::Service, names.leader()),
            ObjectKey::new(ObjectKind::PodDisruptionBudget, &names.cluster),
            ObjectKey::new(ObjectKind::PodMonitor, &names.cluster),
            ObjectKey::new(ObjectKind::PodMonitor, names.archive_monitor()),
        ];
        optional
            .into_iter()
            .filter(|key| objects.iter().all(|object| object.key != *key))
            .collect()
    }

    /// Renders the Secret with the authority's key. No pod mounts it.
    ///
    /// # Errors
    /// It fails to serialise.
    pub fn authority_secret(&self, data: &BTreeMap<String, String>) -> Result<Object, serde_json::Error> {
        let data: Vec<(&str, &String)> = data.iter().map(|(key, text)| (key.as_str(), text)).collect();
        self.secret(&self.names().authority(), "Opaque", &data)
    }

    /// Renders the certificates that clients trust, for pods to mount.
    ///
    /// # Errors
    /// It fails to serialise.
    pub fn bundle(&self, bundle: &str) -> Result<Object, serde_json::Error> {
        let name = self.names().bundle();
        let data = BTreeMap::from([("ca.crt".to_owned(), bundle.to_owned())]);
        let map = ConfigMap {
            metadata: self.metadata(&name),
            data: Some(data),
            ..ConfigMap::default()
        };
        Object::new(ObjectKind::ConfigMap, &name, &map)
    }

    /// Renders the Secret of one certificate.
    ///
    /// # Errors
    /// It fails to serialise.
    pub fn leaf_secret(&self, leaf: Leaf, pair: &CertificatePair, bundle: &str) -> Result<Object, serde_json::Error> {
        let bundle = bundle.to_owned();
        let data = [
            ("tls.crt", &pair.certificate),
            ("tls.key", &pair.key),
            ("ca.crt", &bundle),
        ];
        self.secret(&self.names().leaf(leaf), "kubernetes.io/tls", &data)
    }

    fn secret(&self, name: &str, type_: &str, data: &[(&str, &String)]) -> Result<Object, serde_json::Error> {
        let bytes = |text: &String| k8s_openapi::ByteString(text.clone().into_bytes());
        let secret = Secret {
            metadata: self.metadata(name),
            type_: Some(type_.to_owned()),
            data: Some(
                data.iter()
                    .map(|(key, text)| ((*key).to_owned(), bytes(text)))
                    .collect(),
            ),
            ..Secret::default()
        };
        Object::new(ObjectKind::Secret, name, &secret)
    }

    /// Returns name, namespace, labels, inherited metadata and owner of every object.
    fn metadata(&self, name: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(self.names().namespace.clone()),
            labels: Some(self.labels()),
            annotations: Some(self.annotations()),
            owner_references: Some(vec![self.owner()]),
            ..ObjectMeta::default()
        }
    }

    /// Returns the operator's labels merged over the inherited ones. Labels in its own group are never inherited, because Services select
    /// by them.
    fn labels(&self) -> BTreeMap<String, String> {
        let inherited = self
            .cluster
            .spec
            .inherited_metadata
            .iter()
            .flat_map(|metadata| metadata.labels.clone());
        let mut labels: BTreeMap<String, String> = inherited.filter(|(key, _)| !is_reserved(key)).collect();
        labels.extend(self.names().labels());
        labels
    }

    fn annotations(&self) -> BTreeMap<String, String> {
        let inherited = self
            .cluster
            .spec
            .inherited_metadata
            .iter()
            .flat_map(|metadata| metadata.annotations.clone());
        inherited.filter(|(key, _)| is_inherited(key)).collect()
    }

    fn owner(&self) -> OwnerReference {
        OwnerReference {
            api_version: KubeBrainCluster::api_version(&()).into_owned(),
            kind: KubeBrainCluster::kind(&()).into_owned(),
            name: self.names().cluster.clone(),
            uid: self.cluster.uid().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }
}
