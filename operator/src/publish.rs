//! Publishes the status of a cluster, and Events about its changes.

use crds::KubeBrainCluster;
use crds::cluster::status::KubeBrainClusterStatus;
use crds::cluster::tls::TlsMode;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource, ResourceExt as _};
use plan::names::STATUS_MANAGER;
use plan::{event, status};
use serde::Serialize;
use serde_json::json;
use tracing::info;

use crate::cache::received::ObjectStub;
use crate::context::Context;
use crate::pass::{PassError, api};

/// A status that the API server has.
#[derive(Debug)]
pub(crate) struct StoredStatus {
    /// The resource version of its object.
    pub(crate) version: Option<String>,
}

/// Writes the status if it differs, and publishes Events for conditions that flipped. Returns `None` if it was not written, because the
/// object was deleted, or because it was written by others and this status could hide what they recorded.
pub(crate) async fn publish(
    context: &Context,
    clusters: &Api<ObjectStub>,
    cluster: &KubeBrainCluster,
    status: &KubeBrainClusterStatus,
) -> Result<Option<StoredStatus>, PassError> {
    if status::is_published(cluster.status.as_ref(), status) {
        let version = cluster.resource_version();
        return Ok(Some(StoredStatus { version }));
    }
    // Two operators may act for a moment: one that has not seen the other's record of a new authority must not remove it.
    let precondition = match cluster.spec.tls.mode {
        TlsMode::Operator if status.ca.is_none() => Precondition::Unchanged,
        _ => Precondition::Exists,
    };
    let Some(stored) = write_status(clusters, cluster, precondition, status).await? else {
        return Ok(None);
    };
    for event in event::of_flips(cluster, status) {
        info!(reason = event.reason, "{}", event.note);
        context.events.publish(cluster, event).await;
    }
    Ok(Some(stored))
}

/// The condition on which the status of an object is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precondition {
    /// It is this object, and not another one of the same name.
    Exists,
    /// It was not written since it was read, either.
    Unchanged,
}

/// Writes a status. Returns `None` if the object has been deleted, and may have been recreated: the status has no recipient any more. Also
/// if the precondition does not hold.
///
/// # Errors
/// The API server refused or did not answer.
pub(crate) async fn write_status<K>(
    objects: &Api<ObjectStub>,
    object: &K,
    precondition: Precondition,
    status: &impl Serialize,
) -> Result<Option<StoredStatus>, PassError>
where
    K: Resource<DynamicType = ()>,
{
    let mut body = json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": {"name": object.name_any(), "uid": object.uid()},
        "status": status,
    });
    if precondition == Precondition::Unchanged {
        body["metadata"]["resourceVersion"] = json!(object.resource_version());
    }
    let params = PatchParams::apply(STATUS_MANAGER).force();
    match objects
        .patch_status(&object.name_any(), &params, &Patch::Apply(body))
        .await
    {
        Ok(stub) => Ok(Some(StoredStatus {
            version: stub.metadata.resource_version,
        })),
        Err(kube::Error::Api(answer)) if answer.is_not_found() || answer.is_conflict() => Ok(None),
        Err(error) => Err(api("writing the status")(error)),
    }
}
