//! Whose an object is.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crds::KubeBrainCluster;
use kube::Resource;

/// Whose an object is, by its controller reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// This cluster's.
    Ours,
    /// A cluster's that had the same name and is deleted; the garbage collector will remove the object.
    Former,
    /// Somebody else's, or nobody's: hands off.
    Foreign,
}

/// Whose the object with this metadata is, asked by the cluster `name` with `uid`.
pub(crate) fn of(metadata: &ObjectMeta, name: &str, uid: &str) -> Ownership {
    let owners = metadata.owner_references.iter().flatten();
    let Some(controller) = owners.into_iter().find(|owner| owner.controller == Some(true)) else {
        return Ownership::Foreign;
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
