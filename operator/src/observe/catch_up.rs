//! Compares the watch stores with this process's own writes. A reconcile waits for a store that lags, or reads the object.

use std::time::Duration;

use crds::KubeBrainCluster;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::core::{ApiResource, ObjectMeta};
use kube::{Api, Client, Resource, ResourceExt};
use plan::names::bootstrap;
use plan::objects::{ObjectKey, ObjectKind};
use plan::observed::Observed;

use crate::cache::clusters;
use crate::cache::received::WholeObject;
use crate::context::Context;
use crate::expectations::{ObjectPath, PendingWrites, is_newer};

/// A store that lags a write for longer is not waited for: the object is read.
const WATCH_LAG_TIMEOUT: Duration = Duration::from_secs(10);

/// Objects from the API server that the stores do not show yet; `None` for an object that does not exist.
#[derive(Default)]
pub(crate) struct LateObjects(Vec<(WatchedKind, String, Option<WholeObject>)>);

/// Kinds of objects in the stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchedKind {
    Cluster,
    Owned(ObjectKind),
    Pod,
    Claim,
}

/// Compares the stores with the writes for the cluster. Returns `None` while they lag, because a plan would repeat the writes.
///
/// # Errors
/// The API server refused the read of an object, or did not answer.
pub(crate) async fn catch_up(context: &Context, namespace: &str, cluster: &str) -> kube::Result<Option<LateObjects>> {
    let mut late = LateObjects::default();
    for (place, pending, age) in context.expectations.pending(|place| is_of(place, namespace, cluster)) {
        let Some(watched) = WatchedKind::at(&place).filter(|_| !is_pod_of_bootstrap(&place)) else {
            context.expectations.settle(&place, &pending);
            continue;
        };
        let shown = watched.metadata(context, cluster, &place);
        if pending.is_visible(shown.as_ref()) {
            context.expectations.settle(&place, &pending);
            continue;
        }
        if pending != PendingWrites::Contested && age < WATCH_LAG_TIMEOUT {
            return Ok(None);
        }
        let live = read(&context.client, &watched.resource(), &place).await?;
        let version = |metadata: &ObjectMeta| metadata.resource_version.clone().unwrap_or_default();
        let shown = shown.as_ref().map(version);
        match live.as_ref().map(|live| version(&live.metadata)) {
            None if shown.is_none() => context.expectations.settle(&place, &pending),
            Some(live) if shown.is_some_and(|shown| shown == live || is_newer(&shown, &live)) => {
                context.expectations.settle(&place, &pending);
            }
            _ => late.0.push((watched, place.name, live)),
        }
    }
    Ok(Some(late))
}

/// Returns true if the object at `place` may belong to a cluster, judging by its name.
fn is_of(place: &ObjectPath, namespace: &str, cluster: &str) -> bool {
    let name = place.name.strip_prefix("data-").unwrap_or(&place.name);
    let belongs = |name: &str| {
        name.strip_prefix(cluster)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    place.namespace == namespace && (belongs(name) || belongs(&place.name))
}

/// Returns true if the object at `place` is a pod of a Job that restores or copies first data, judging by its name. Each pass reads these pods,
/// and no store has them. A member's name ends with an ordinal, which has at most two digits.
fn is_pod_of_bootstrap(place: &ObjectPath) -> bool {
    let of_job = |(job, suffix): (&str, &str)| job.ends_with(&bootstrap("")) && suffix.len() > 2;
    place.group.is_empty() && place.plural == "pods" && place.name.rsplit_once('-').is_some_and(of_job)
}

async fn read(client: &Client, resource: &ApiResource, place: &ObjectPath) -> kube::Result<Option<WholeObject>> {
    let api: Api<WholeObject> = Api::namespaced_with(client.clone(), &place.namespace, resource);
    api.get_opt(&place.name).await
}

impl WatchedKind {
    fn at(place: &ObjectPath) -> Option<Self> {
        let all = [Self::Cluster, Self::Pod, Self::Claim].into_iter();
        let mut all = all.chain(ObjectKind::ALL.map(Self::Owned));
        all.find(|watched| {
            let resource = watched.resource();
            resource.group == place.group && resource.plural == place.plural
        })
    }

    fn resource(self) -> ApiResource {
        match self {
            Self::Cluster => ApiResource::erase::<KubeBrainCluster>(&()),
            Self::Owned(kind) => kind.resource(),
            Self::Pod => ApiResource::erase::<Pod>(&()),
            Self::Claim => ApiResource::erase::<PersistentVolumeClaim>(&()),
        }
    }

    /// Returns the metadata of the object in the stores.
    fn metadata(self, context: &Context, cluster: &str, place: &ObjectPath) -> Option<ObjectMeta> {
        fn of<K: Resource>(object: &K) -> ObjectMeta {
            object.meta().clone()
        }
        let (stores, namespace, name) = (&context.cache, &place.namespace, &place.name);
        match self {
            Self::Cluster => stores.cluster(namespace, name).map(|object| of(&*object)),
            Self::Owned(kind) => stores.object(kind, namespace, name).map(|object| of(&*object)),
            Self::Pod => {
                let external = || context.external_pods.pod(namespace, cluster, name);
                stores.pod(namespace, name).or_else(external).map(|object| of(&*object))
            }
            Self::Claim => stores.claim(namespace, name).map(|object| of(&*object)),
        }
    }
}

impl LateObjects {
    /// Returns the cluster itself, if its store lags.
    pub(crate) fn cluster(&self) -> Option<KubeBrainCluster> {
        let mut all = self.0.iter().filter(|(watched, ..)| *watched == WatchedKind::Cluster);
        all.find_map(|(_, _, object)| clusters::read(object.clone()?))
    }

    /// Replaces the objects from the stores by those that were read.
    pub(super) fn overlay(self, observed: &mut Observed) {
        for (watched, name, object) in self.0 {
            match watched {
                WatchedKind::Cluster => {}
                WatchedKind::Owned(kind) => {
                    let key = ObjectKey::new(kind, name);
                    observed.objects.remove(&key);
                    let object = object.map(|object| object.into_dynamic(&kind.resource()));
                    observed.objects.extend(object.map(|object| (key, object)));
                }
                WatchedKind::Pod => replace(&mut observed.pods, &name, object),
                WatchedKind::Claim => replace(&mut observed.claims, &name, object),
            }
        }
        observed.pods.sort_by_key(ResourceExt::name_any);
    }
}

fn replace<K>(all: &mut Vec<K>, name: &str, object: Option<WholeObject>)
where
    K: Resource<DynamicType = ()> + serde::de::DeserializeOwned,
{
    all.retain(|each| each.meta().name.as_deref() != Some(name));
    all.extend(object.and_then(|object| object.parse()));
}
