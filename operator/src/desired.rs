//! The desired state of a cluster: its spec, with what the cache shows of the objects that it names.

use crds::KubeBrainCluster;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use plan::names::{CLUSTER, MANAGED_BY, MANAGER};
use plan::objects::ObjectKind;
use plan::spec::secrets::GivenSecrets;
use plan::spec::{self, Desired};

use crate::context::Context;

/// Returns the desired state of a cluster: its spec with references resolved, or the part that still applies if the spec is refused.
/// `given` are Secrets that the spec names.
pub(crate) fn read(context: &Context, cluster: &KubeBrainCluster, given: &GivenSecrets) -> Desired {
    let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
    let tikv = cluster.spec.storage.tikv.as_ref();
    let reference = tikv.and_then(|tikv| tikv.cluster_ref.as_ref());
    let referenced = reference.and_then(|reference| context.cache.tidb_cluster(&namespace, &reference.name));
    let set = context.cache.object(ObjectKind::StatefulSet, &namespace, &name);
    let running = set.and_then(|set| i32::try_from(set.data["spec"]["replicas"].as_i64()?).ok());
    let owner = |kind, name: &str| {
        let made = given
            .get(name)
            .filter(|_| kind == ObjectKind::Secret)
            .and_then(Option::as_ref);
        // This includes Secrets of clusters that no longer exist.
        let labelled = made.filter(|secret| {
            secret
                .labels()
                .get(MANAGED_BY)
                .is_some_and(|manager| manager == MANAGER)
        });
        let labelled = labelled.and_then(|secret| secret.labels().get(CLUSTER).cloned());
        labelled.or_else(|| context.cache.owner(kind, &namespace, name))
    };
    let named = spec::references::check(cluster, &context.settings, owner);
    let now = Timestamp::now();
    let mut desired = spec::desired(cluster, &context.settings, referenced.as_deref(), running, named, now);
    // Keep the present image until it is the cluster's turn.
    if let Some(spec::ImageMove { from, .. }) = spec::image_moves(cluster, &context.settings.default_image) {
        desired.image = from;
    }
    desired
}
