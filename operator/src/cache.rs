//! All objects that passes read, kept current by watches: a settled pass makes no request to the API server.
//!
//! Objects are found by the label that the operator puts on all it creates, pods and claims by the label of their cluster. Any client may
//! set these labels. So objects that no cluster owns are not kept, and those that are kept are bounded (`received`, `clusters`). Therefore
//! an object that is missing here may still exist: a pass requests it by name before it treats it as absent (`observe`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crds::KubeBrainCluster;
use futures::future::{BoxFuture, Shared};
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::core::{DynamicObject, ObjectMeta};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, Resource, ResourceExt};
use plan::names::{self, CLUSTER, MANAGED_BY, MANAGER};
use plan::objects::ObjectKind;
use plan::ownership::{belongs, is_name_of};
use plan::spec::tidb_cluster;
use serde_json::json;

use crate::work_queue::WorkQueue;

pub(crate) mod clusters;
pub(crate) mod external_pods;
mod feed;
mod optional;
pub(crate) mod received;
pub(crate) mod unsettled;
pub(crate) mod user_secrets;

use feed::WatchFeed;
pub(crate) use feed::{list_kept, list_pages};

/// Maximum number of members in a spec.
const MAX_MEMBERS: u16 = 64;
/// Maximum time that reconciles wait for the first lists of optional kinds.
const OPTIONAL_LISTS_TIMEOUT: Duration = Duration::from_secs(5);

/// The stores of one namespace, or of all. Clones share them.
#[derive(Clone)]
pub(crate) struct Cache {
    pub(crate) clusters: Store<KubeBrainCluster>,
    /// Resolves when the clusters have been listed once, or their watch has ended. `Store::wait_until_ready` wakes only the task that
    /// polled last.
    clusters_listed: Shared<BoxFuture<'static, ()>>,
    objects: BTreeMap<ObjectKind, Store<DynamicObject>>,
    pods: Store<Pod>,
    claims: Store<PersistentVolumeClaim>,
    tidb_clusters: Store<DynamicObject>,
    known: BTreeMap<ObjectKind, Arc<AtomicBool>>,
}

/// The other end of [`Cache`].
struct CacheWriters {
    clusters: Writer<KubeBrainCluster>,
    objects: BTreeMap<ObjectKind, Writer<DynamicObject>>,
    pods: Writer<Pod>,
    claims: Writer<PersistentVolumeClaim>,
    tidb_clusters: Writer<DynamicObject>,
}

/// The watches that fill the stores. They must be polled for the stores to stay current; none ever ends.
pub(crate) type CacheFeeds = FuturesUnordered<BoxFuture<'static, ()>>;

/// Objects of one cluster by name and label, of any owner.
#[derive(Default)]
pub(crate) struct ClusterView {
    pub(crate) objects: Vec<(ObjectKind, Arc<DynamicObject>)>,
    pub(crate) pods: Vec<Arc<Pod>>,
    pub(crate) claims: Vec<Arc<PersistentVolumeClaim>>,
}

/// Opens stores of `namespace`, or of all namespaces, and the watches that fill them. Changed clusters are added to `queue`.
pub(crate) fn open(client: &Client, namespace: Option<&str>, queue: &Arc<WorkQueue>) -> (Cache, CacheFeeds) {
    let (stores, writers) = Cache::new();
    let feed = WatchFeed {
        client: client.clone(),
        namespace: namespace.map(str::to_owned),
        clusters: stores.clusters.clone(),
        queue: queue.clone(),
        arrived: Arc::default(),
    };
    let managed = format!("{MANAGED_BY}={MANAGER}");
    let feeds = CacheFeeds::new();
    feeds.push(Box::pin(feed.clone().clusters(writers.clusters)));
    // Other objects are kept only if a cluster owns them.
    let after_clusters = |watch: BoxFuture<'static, ()>| {
        feeds.push(Box::pin(stores.clusters_listed.clone().then(|()| watch)));
    };
    for (kind, mut writer) in writers.objects {
        if let Some(known) = stores.known.get(&kind) {
            let wanted = optional::OptionalKind {
                resource: kind.resource(),
                known: known.clone(),
                asked: monitored,
                source: optional::KeptObjects::Owned {
                    kind,
                    labels: managed.clone(),
                },
            };
            after_clusters(optional::run(feed.clone(), wanted, writer).boxed());
            continue;
        }
        let (feed, managed) = (feed.clone(), managed.clone());
        after_clusters(async move { feed.objects(kind, &managed, &mut writer).await }.boxed());
    }
    let pods = feed.clone().labelled(CLUSTER, is_pod_of_cluster, writers.pods);
    after_clusters(pods.boxed());
    let claims = feed.clone().labelled(CLUSTER, is_claim_of_cluster, writers.claims);
    after_clusters(claims.boxed());
    let tidb = optional::OptionalKind {
        resource: tidb_cluster(),
        known: Arc::default(),
        asked: |cluster| reference(cluster).is_some(),
        source: optional::KeptObjects::Tidb,
    };
    feeds.push(Box::pin(optional::run(feed, tidb, writers.tidb_clusters)));
    (stores, feeds)
}

/// Watches the clusters of the TiDB operator. Only their status of the placement drivers is kept.
async fn tidb_clusters(feed: &WatchFeed, writer: &mut Writer<DynamicObject>) {
    let mut touched = |cluster: &DynamicObject, _| referring(feed, &cluster.metadata);
    let events = feed.listed(&tidb_cluster(), None).filter_map(|event| {
        let kept = feed.kept(event, |cluster| {
            let status = cluster.content.get("status");
            let kept = |field: &str| status.map(|status| status[field].clone()).unwrap_or_default();
            let mut bare = cluster.clone();
            let status = json!({"pd": kept("pd"), "id": kept("id")});
            bare.content = serde_json::Map::from_iter([("status".to_owned(), status)]);
            Some(bare.into_dynamic(&tidb_cluster()))
        });
        std::future::ready(kept)
    });
    let plural = tidb_cluster().plural;
    feed.follow(events, &plural, writer, &mut touched).await;
}

/// Returns true if a pod's label names a cluster, and the pod has a name and a controller as the StatefulSet of that cluster gives them, or
/// if it is the cluster's trial.
fn is_pod_of_cluster(feed: &WatchFeed, pod: &ObjectMeta) -> bool {
    let Some(cluster) = cluster_of(pod).map(|cluster| cluster.name) else {
        return false;
    };
    let mut owners = pod.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true));
    let named = controller.filter(|owner| owner.name == cluster);
    let is_known = named.is_some_and(|owner| match owner.kind.as_str() {
        "StatefulSet" => is_ordinal(pod, &format!("{cluster}-")),
        kind => kind == KubeBrainCluster::kind(&()) && pod.name.as_deref() == Some(&names::trial(&cluster)),
    });
    is_known && feed.exists(&cluster, pod)
}

/// The same for a claim, which has no owner if it must outlive its pod.
fn is_claim_of_cluster(feed: &WatchFeed, claim: &ObjectMeta) -> bool {
    cluster_of(claim).is_some_and(|cluster| {
        is_ordinal(claim, &format!("data-{}-", cluster.name)) && feed.exists(&cluster.name, claim)
    })
}

/// Returns true if the name is `prefix` followed by the ordinal of a pod. Any client may create objects with higher ordinals.
fn is_ordinal(object: &ObjectMeta, prefix: &str) -> bool {
    let name = object.name.as_deref().unwrap_or_default();
    let ordinal = name.strip_prefix(prefix).and_then(|rest| rest.parse::<u16>().ok());
    ordinal.is_some_and(|ordinal| ordinal < MAX_MEMBERS && format!("{prefix}{ordinal}") == name)
}

/// Polls the watches forever.
pub(crate) async fn run(mut feeds: CacheFeeds) {
    while feeds.next().await.is_some() {}
}

/// Returns the cluster that an object belongs to, by its label.
fn cluster_of(object: &ObjectMeta) -> Option<ObjectRef<KubeBrainCluster>> {
    let name = object.labels.as_ref()?.get(CLUSTER)?;
    Some(ObjectRef::new(name).within(object.namespace.as_deref()?))
}

/// Returns true if a cluster uses the kinds of the Prometheus operator.
fn monitored(cluster: &KubeBrainCluster) -> bool {
    let monitoring = cluster.spec.monitoring.as_ref();
    monitoring.is_some_and(|monitoring| monitoring.pod_monitor.as_ref().is_some_and(|monitor| monitor.enabled))
}

/// Returns the name of the TiDB operator's cluster that provides the placement drivers of a cluster.
fn reference(cluster: &KubeBrainCluster) -> Option<&String> {
    let tikv = cluster.spec.storage.tikv.as_ref()?;
    tikv.cluster_ref.as_ref().map(|reference| &reference.name)
}

/// Returns the clusters whose placement drivers come from the TiDB operator's cluster with this metadata.
fn referring(feed: &WatchFeed, metadata: &ObjectMeta) -> Vec<ObjectRef<KubeBrainCluster>> {
    let refers = |cluster: &KubeBrainCluster| {
        cluster.metadata.namespace == metadata.namespace
            && reference(cluster).is_some_and(|name| Some(name) == metadata.name.as_ref())
    };
    let found = feed.clusters.state_filter(refers);
    found.iter().map(|cluster| ObjectRef::from_obj(&**cluster)).collect()
}

impl Cache {
    fn new() -> (Self, CacheWriters) {
        let objects: BTreeMap<ObjectKind, Writer<DynamicObject>> = ObjectKind::ALL
            .into_iter()
            .map(|kind| (kind, Writer::new(kind.resource())))
            .collect();
        let writers = CacheWriters {
            clusters: Writer::default(),
            objects,
            pods: Writer::default(),
            claims: Writer::default(),
            tidb_clusters: Writer::new(tidb_cluster()),
        };
        let optional = ObjectKind::ALL.into_iter().filter(|kind| kind.is_optional());
        let clusters = writers.clusters.as_reader();
        let listed = clusters.clone();
        let stores = Self {
            clusters,
            // An error means that the watches have ended, and the passes with them.
            clusters_listed: async move { drop(listed.wait_until_ready().await) }.boxed().shared(),
            objects: writers
                .objects
                .iter()
                .map(|(kind, writer)| (*kind, writer.as_reader()))
                .collect(),
            pods: writers.pods.as_reader(),
            claims: writers.claims.as_reader(),
            tidb_clusters: writers.tidb_clusters.as_reader(),
            known: optional.map(|kind| (kind, Arc::default())).collect(),
        };
        (stores, writers)
    }

    /// Waits until every store has been filled once. It waits only for a while for optional kinds: an API server that does not answer for
    /// them must not keep clusters waiting.
    pub(crate) async fn filled(&self) {
        self.clusters_listed.clone().await;
        drop(self.pods.wait_until_ready().await);
        drop(self.claims.wait_until_ready().await);
        for (_, store) in self.objects.iter().filter(|(kind, _)| !kind.is_optional()) {
            drop(store.wait_until_ready().await);
        }
        let optional = async {
            drop(self.tidb_clusters.wait_until_ready().await);
            for (_, store) in self.objects.iter().filter(|(kind, _)| kind.is_optional()) {
                drop(store.wait_until_ready().await);
            }
        };
        // An object that is still missing then is found by its name when it is written.
        drop(tokio::time::timeout(OPTIONAL_LISTS_TIMEOUT, optional).await);
    }

    /// Returns true if the API server has a kind.
    pub(crate) fn knows(&self, kind: ObjectKind) -> bool {
        self.known.get(&kind).is_none_or(|known| known.load(Ordering::Relaxed))
    }

    pub(crate) fn cluster(&self, namespace: &str, name: &str) -> Option<Arc<KubeBrainCluster>> {
        self.clusters.get(&ObjectRef::new(name).within(namespace))
    }

    pub(crate) fn object(&self, kind: ObjectKind, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        let key = ObjectRef::new_with(name, kind.resource()).within(namespace);
        self.objects.get(&kind)?.get(&key)
    }

    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.pods.get(&ObjectRef::new(name).within(namespace))
    }

    pub(crate) fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        self.claims.get(&ObjectRef::new(name).within(namespace))
    }

    /// Returns the cluster that an object of this name was or will be created for.
    pub(crate) fn owner(&self, kind: ObjectKind, namespace: &str, name: &str) -> Option<String> {
        let found = self.clusters.find(|cluster| {
            cluster.metadata.namespace.as_deref() == Some(namespace) && is_name_of(&cluster.name_any(), kind, name)
        });
        found.map(|cluster| cluster.name_any())
    }

    /// Returns the TiDB operator's cluster of this name.
    pub(crate) fn tidb_cluster(&self, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        let key = ObjectRef::new_with(name, tidb_cluster()).within(namespace);
        self.tidb_clusters.get(&key)
    }

    /// Returns the objects of the cluster `name`: objects that carry its label or have the name of one of its own, and pods and claims with
    /// its label. Pods are ordered by name.
    pub(crate) fn view(&self, namespace: &str, name: &str) -> ClusterView {
        let labelled = |labels: &BTreeMap<String, String>| labels.get(CLUSTER).is_some_and(|cluster| cluster == name);
        let inside = |of: Option<&str>| of == Some(namespace);
        let objects = self.objects.iter().flat_map(|(kind, store)| {
            let found = store
                .state_filter(|object| inside(object.metadata.namespace.as_deref()) && belongs(&object.metadata, name));
            found.into_iter().map(|object| (*kind, object))
        });
        let mut pods = self
            .pods
            .state_filter(|pod| inside(pod.metadata.namespace.as_deref()) && labelled(pod.labels()));
        pods.sort_by_key(|pod| pod.name_any());
        let claims = self
            .claims
            .state_filter(|claim| inside(claim.metadata.namespace.as_deref()) && labelled(claim.labels()));
        ClusterView {
            objects: objects.collect(),
            pods,
            claims,
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;

    use super::*;

    #[test]
    fn every_task_that_waits_for_the_clusters_is_woken() {
        let (stores, mut writers) = Cache::new();
        let mut waiting: CacheFeeds = (0..3).map(|_| stores.clusters_listed.clone().boxed()).collect();
        // All of them start waiting.
        assert!(waiting.next().now_or_never().is_none());
        writers.clusters.apply_watcher_event(&Event::Init);
        writers.clusters.apply_watcher_event(&Event::InitDone);
        let woken = waiting.collect::<Vec<()>>().now_or_never();
        assert_eq!(woken.map(|all| all.len()), Some(3));
    }
}
