//! Objects that no store shows, asked for by their names: a label that somebody took off, or an object of somebody else, is no absence.

use crds::KubeBrainCluster;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::{Api, Client};

use super::Observed;
use crate::objects::Key;
use crate::plan;
use crate::spec::Desired;
use crate::stores::received::Object;

/// Reads at a time.
const READS: usize = 8;

/// Puts every object that the cluster should have and that is not in `observed` there, if it exists. A cluster that has everything costs
/// no request.
///
/// # Errors
/// The API server refused or did not answer.
pub(crate) async fn ask(
    client: &Client,
    cluster: &KubeBrainCluster,
    desired: &Desired,
    observed: &mut Observed,
) -> kube::Result<()> {
    let wanted = plan::keys(cluster, desired, observed).map_err(kube::Error::SerdeError)?;
    let missing = wanted.into_iter().filter(|key| !observed.objects.contains_key(key));
    let missing: Vec<Key> = missing.collect();
    let reads = missing.into_iter().map(|key| async move {
        let resource = key.kind.resource();
        let api: Api<Object> = Api::namespaced_with(client.clone(), &desired.names.namespace, &resource);
        let found = match api.get_opt(&key.name).await {
            // By its code: an API server that does not know the group answers without a reason.
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            found => found?,
        };
        Ok::<_, kube::Error>(found.map(|object| (key, object.into_dynamic(&resource))))
    });
    let reads = futures::stream::iter(reads).buffer_unordered(READS);
    let found: Vec<_> = reads.try_collect().await?;
    observed.objects.extend(found.into_iter().flatten());
    Ok(())
}
