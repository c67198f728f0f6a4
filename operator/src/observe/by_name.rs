//! Requests objects by name that no store shows: an object whose label was removed and a foreign object are not absent.

use std::pin::pin;

use crds::KubeBrainCluster;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::core::DynamicObject;
use kube::{Api, Client};
use plan::objects::ObjectKey;
use plan::observed::Observed;
use plan::spec::Desired;
use plan::steps;
use tracing::debug;

use crate::cache::received::WholeObject;

/// Maximum number of concurrent reads.
const CONCURRENT_READS: usize = 8;

/// The outcome of one read.
enum ReadOutcome {
    Object(Box<(ObjectKey, DynamicObject)>),
    Nothing,
    /// The kind is optional for clusters, and the object could not be read.
    Unknown,
}

/// Adds every object to `observed` that the cluster should have and that is missing there, if it exists. A complete cluster costs no
/// request.
///
/// # Errors
/// The API server refused or did not answer, and not only for an optional kind.
pub(crate) async fn ask(
    client: &Client,
    cluster: &KubeBrainCluster,
    desired: &Desired,
    observed: &mut Observed,
) -> kube::Result<()> {
    let missing = steps::missing(cluster, desired, observed).map_err(kube::Error::SerdeError)?;
    let reads = missing.into_iter().map(|key| async move {
        let resource = key.kind.resource();
        let api: Api<WholeObject> = Api::namespaced_with(client.clone(), &desired.names.namespace, &resource);
        let found = match api.get_opt(&key.name).await {
            // Compare the code: an API server that does not know the group answers without a reason.
            Err(kube::Error::Api(status)) if status.code == 404 => ReadOutcome::Nothing,
            Err(error) if key.kind.is_optional() => {
                debug!(%error, kind = resource.kind, name = key.name, "cannot read an object of an optional kind");
                ReadOutcome::Unknown
            }
            found => found?.map_or(ReadOutcome::Nothing, |object| {
                ReadOutcome::Object(Box::new((key, object.into_dynamic(&resource))))
            }),
        };
        Ok::<_, kube::Error>(found)
    });
    let mut reads = pin!(futures::stream::iter(reads).buffer_unordered(CONCURRENT_READS));
    while let Some(found) = reads.try_next().await? {
        match found {
            ReadOutcome::Object(found) => observed.objects.extend([*found]),
            ReadOutcome::Nothing => {}
            // Treat the kind as missing in the API server.
            ReadOutcome::Unknown => observed.pod_monitors = false,
        }
    }
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &desired.names.namespace);
    for name in observed.missing_claims(desired) {
        observed.claims.extend(claims.get_opt(&name).await?);
    }
    Ok(())
}
