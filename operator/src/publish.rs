//! Publishes the status of a cluster, and Events about its changes.

use crds::KubeBrainCluster;
use crds::cluster::status::KubeBrainClusterStatus;
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

/// Writes the status if it differs, and publishes Events for conditions that flipped.
pub(crate) async fn publish(
    context: &Context,
    clusters: &Api<ObjectStub>,
    cluster: &KubeBrainCluster,
    status: &KubeBrainClusterStatus,
) -> Result<(), PassError> {
    if status::is_published(cluster.status.as_ref(), status) {
        return Ok(());
    }
    if !write_status(clusters, cluster, status).await? {
        return Ok(());
    }
    for event in event::of_flips(cluster, status) {
        info!(reason = event.reason, "{}", event.note);
        context.events.publish(cluster, event).await;
    }
    Ok(())
}

/// Writes a status. Returns `false` if the object has been deleted, and may have been recreated: the status has no recipient any more.
///
/// # Errors
/// The API server refused or did not answer.
pub(crate) async fn write_status<K>(
    objects: &Api<ObjectStub>,
    object: &K,
    status: &impl Serialize,
) -> Result<bool, PassError>
where
    K: Resource<DynamicType = ()>,
{
    let body = json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": {"name": object.name_any(), "uid": object.uid()},
        "status": status,
    });
    let params = PatchParams::apply(STATUS_MANAGER).force();
    match objects
        .patch_status(&object.name_any(), &params, &Patch::Apply(body))
        .await
    {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(answer)) if answer.is_not_found() || answer.is_conflict() => Ok(false),
        Err(error) => Err(api("writing the status")(error)),
    }
}
