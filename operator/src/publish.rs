//! Publishes the status of a cluster, and Events about its changes.

use crds::KubeBrainCluster;
use crds::cluster::status::KubeBrainClusterStatus;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource, ResourceExt as _};
use plan::names::STATUS_MANAGER;
use plan::{event, status};
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
    let body = json!({
        "apiVersion": KubeBrainCluster::api_version(&()),
        "kind": KubeBrainCluster::kind(&()),
        "metadata": {"name": cluster.name_any(), "uid": cluster.uid()},
        "status": status,
    });
    let params = PatchParams::apply(STATUS_MANAGER).force();
    match clusters
        .patch_status(&cluster.name_any(), &params, &Patch::Apply(body))
        .await
    {
        Ok(_) => {}
        // The cluster has been deleted, and may have been recreated: this status has no recipient any more.
        Err(kube::Error::Api(answer)) if answer.is_not_found() || answer.is_conflict() => return Ok(()),
        Err(error) => return Err(api("writing the status")(error)),
    }
    for event in event::of_flips(cluster, status) {
        info!(reason = event.reason, "{}", event.note);
        context.events.publish(cluster, event).await;
    }
    Ok(())
}
