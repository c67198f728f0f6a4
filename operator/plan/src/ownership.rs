//! The owner of an object.

use crds::KubeBrainCluster;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DynamicObject;
use kube::{Resource, ResourceExt};

use crate::certificates::Leaf;
use crate::names::{CLUSTER, MANAGED_BY, MANAGER, Names};
use crate::objects::{ObjectKey, ObjectKind};
use crate::observed::Observed;

/// The owner of an object by its controller reference, or by its labels if it has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// It belongs to this cluster.
    Ours,
    /// It belongs to a deleted cluster of the same name; the garbage collector will remove it.
    Former,
    /// It is left from a cluster of that name that was deleted without its objects, and has no controller.
    Orphaned,
    /// It belongs to another owner and must not be touched.
    Foreign,
}

/// Returns the owner of the object with this metadata, as seen by the cluster `name` with `uid`.
pub fn of(metadata: &ObjectMeta, name: &str, uid: &str) -> Ownership {
    let owners = metadata.owner_references.iter().flatten();
    let Some(controller) = owners.into_iter().find(|owner| owner.controller == Some(true)) else {
        let labelled = |key: &str, value: &str| {
            let labels = metadata.labels.as_ref();
            labels
                .and_then(|labels| labels.get(key))
                .is_some_and(|found| found == value)
        };
        return if labelled(CLUSTER, name) && labelled(MANAGED_BY, MANAGER) {
            Ownership::Orphaned
        } else {
            Ownership::Foreign
        };
    };
    let group = controller.api_version.split('/').next().unwrap_or_default();
    if controller.kind != KubeBrainCluster::kind(&()) || group != crds::GROUP || controller.name != name {
        return Ownership::Foreign;
    }
    if controller.uid == uid {
        Ownership::Ours
    } else {
        Ownership::Former
    }
}

/// Drops pods and claims that only carry the labels of the cluster `names` with `uid`: they are neither changed nor counted.
///
/// A pod belongs to the cluster if the cluster's StatefulSet controls it. A claim that must outlive its pod has no owner; it is identified
/// by the name that the StatefulSet controller gives it, and by the label.
pub fn keep_own(observed: &mut Observed, names: &Names, uid: &str) {
    let set = observed
        .objects
        .get(&ObjectKey::new(ObjectKind::StatefulSet, &names.cluster));
    let own = |set: &&DynamicObject| {
        let whose = of(&set.metadata, &names.cluster, uid);
        matches!(whose, Ownership::Ours | Ownership::Orphaned)
    };
    let set = set.filter(own);
    let set = set.and_then(|set| set.metadata.uid.clone());
    observed
        .pods
        .retain(|pod| set.is_some() && controller(pod) == set.as_deref());
    let pods = &observed.pods;
    observed.claims.retain(|claim| is_own_claim(claim, pods, names));
}

/// Removes the pod in which a template is tried from all pods with the cluster's label, and returns it.
pub fn take_trial(pods: &mut Vec<Pod>, names: &Names, uid: &str) -> Option<Pod> {
    let is_trial =
        |pod: &Pod| pod.name_any() == names.trial() && of(&pod.metadata, &names.cluster, uid) == Ownership::Ours;
    let at = pods.iter().position(is_trial)?;
    Some(pods.remove(at))
}

/// Returns the uid of the StatefulSet that controls a pod.
pub fn controller(pod: &Pod) -> Option<&str> {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true))?;
    (controller.kind == "StatefulSet").then_some(controller.uid.as_str())
}

fn is_own_claim(claim: &PersistentVolumeClaim, pods: &[Pod], names: &Names) -> bool {
    let name = claim.name_any();
    let ordinal = name
        .strip_prefix("data-")
        .and_then(|name| name.strip_prefix(names.cluster.as_str()))
        .and_then(|name| name.strip_prefix('-'));
    let is_ordinal = |text: &str| text.parse::<u32>().is_ok_and(|number| number.to_string() == text);
    // Even without a label it is the claim that a pod mounts.
    let is_mounted = || {
        pods.iter()
            .any(|pod| name.strip_prefix("data-") == Some(&pod.name_any()))
    };
    ordinal.is_some_and(is_ordinal)
        && match claim.labels().get(CLUSTER) {
            Some(label) => *label == names.cluster,
            None => is_mounted(),
        }
}

/// Returns true if an object has the label of the cluster `name`, or a name that the operator would give to an object of it.
pub fn belongs(object: &ObjectMeta, name: &str) -> bool {
    let called = object.name.as_deref().unwrap_or_default();
    let below = called.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'));
    let labels = object.labels.as_ref();
    called == name || below || labels.is_some_and(|labels| labels.get(CLUSTER).is_some_and(|cluster| cluster == name))
}

/// Returns true if `name` is one that the operator gives to an object of this kind of the cluster `cluster`.
pub fn is_name_of(cluster: &str, kind: ObjectKind, name: &str) -> bool {
    let names = Names {
        cluster: cluster.to_owned(),
        namespace: String::new(),
        domain: String::new(),
    };
    match kind {
        ObjectKind::Secret => names.authority() == name || Leaf::ALL.iter().any(|leaf| names.leaf(*leaf) == name),
        ObjectKind::ConfigMap => names.bundle() == name,
        ObjectKind::Service => [names.headless(), names.client(), names.leader()]
            .iter()
            .any(|own| own == name),
        ObjectKind::Role | ObjectKind::RoleBinding | ObjectKind::Lease => names.lease() == name,
        ObjectKind::PodMonitor => cluster == name || names.archive_monitor() == name,
        ObjectKind::ServiceAccount | ObjectKind::PodDisruptionBudget | ObjectKind::StatefulSet => cluster == name,
    }
}
