//! Everything that passes look at, kept current by watches: a settled pass makes no request to the API server.
//!
//! Objects are found by the label that the operator puts on all it makes, pods and claims by the label of their cluster. What does
//! not carry it is not here: it shows when a write is refused. What managers of fields wrote down is not kept.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crds::KubeBrainCluster;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::core::{ApiResource, DynamicObject, ObjectMeta};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, Resource, ResourceExt};

use crate::certificates::Leaf;
use crate::names::{CLUSTER, MANAGED_BY, MANAGER, Names};
use crate::objects::Kind;
use crate::triggers::Triggers;

pub(crate) mod external;
mod feed;
pub(crate) mod given;
mod optional;

use feed::Feed;
pub(crate) use feed::name_kind;

/// Longest wait of reconciles for the first lists of optional kinds.
const OPTIONAL: Duration = Duration::from_secs(5);

/// The stores of one namespace, or of all. Clones share them.
#[derive(Clone)]
pub(crate) struct Stores {
    pub(crate) clusters: Store<KubeBrainCluster>,
    objects: BTreeMap<Kind, Store<DynamicObject>>,
    pods: Store<Pod>,
    claims: Store<PersistentVolumeClaim>,
    tidb_clusters: Store<DynamicObject>,
    known: BTreeMap<Kind, Arc<AtomicBool>>,
}

/// The other end of [`Stores`].
struct Writers {
    clusters: Writer<KubeBrainCluster>,
    objects: BTreeMap<Kind, Writer<DynamicObject>>,
    pods: Writer<Pod>,
    claims: Writer<PersistentVolumeClaim>,
    tidb_clusters: Writer<DynamicObject>,
}

/// The watches behind the stores. They have to be polled for the stores to stay current; none ever ends.
pub(crate) type Feeds = FuturesUnordered<BoxFuture<'static, ()>>;

/// Objects of one cluster by name and label, of any owner.
#[derive(Default)]
pub(crate) struct View {
    pub(crate) objects: Vec<(Kind, Arc<DynamicObject>)>,
    pub(crate) pods: Vec<Arc<Pod>>,
    pub(crate) claims: Vec<Arc<PersistentVolumeClaim>>,
}

/// A cluster of the TiDB operator.
pub(crate) fn tidb_cluster() -> ApiResource {
    ApiResource {
        group: "core.pingcap.com".to_owned(),
        version: "v1alpha1".to_owned(),
        api_version: "core.pingcap.com/v1alpha1".to_owned(),
        kind: "Cluster".to_owned(),
        plural: "clusters".to_owned(),
    }
}

/// Kinds that not every API server knows.
pub(crate) fn is_optional(kind: Kind) -> bool {
    kind.resource().group.contains(".coreos.com")
}

/// Stores of `namespace`, or of all namespaces, and the watches that fill them. Who changed is named to `triggers`.
pub(crate) fn open(client: &Client, namespace: Option<&str>, triggers: &Arc<Triggers>) -> (Stores, Feeds) {
    let (stores, writers) = Stores::new();
    let feed = Feed {
        client: client.clone(),
        namespace: namespace.map(str::to_owned),
        clusters: stores.clusters.clone(),
        triggers: triggers.clone(),
    };
    let managed = format!("{MANAGED_BY}={MANAGER}");
    let feeds = Feeds::new();
    feeds.push(Box::pin(feed.clone().clusters(writers.clusters)));
    for (kind, writer) in writers.objects {
        let resource = kind.resource();
        if let Some(known) = stores.known.get(&kind) {
            let wanted = optional::Wanted {
                resource,
                labels: Some(managed.clone()),
                known: known.clone(),
                asked: monitored,
                touched: |_, metadata| Vec::from_iter(cluster_of(metadata)),
            };
            feeds.push(Box::pin(optional::run(feed.clone(), wanted, writer)));
            continue;
        }
        let api = feed.dynamic(&resource);
        feeds.push(Box::pin(feed.clone().objects(api, managed.clone(), kind, writer)));
    }
    feeds.push(Box::pin(feed.clone().labelled(
        feed.api(),
        CLUSTER,
        "pods",
        writers.pods,
    )));
    let claims = feed
        .clone()
        .labelled(feed.api(), CLUSTER, "persistentvolumeclaims", writers.claims);
    feeds.push(Box::pin(claims));
    let tidb = optional::Wanted {
        resource: tidb_cluster(),
        labels: None,
        known: Arc::default(),
        asked: |cluster| reference(cluster).is_some(),
        touched: referring,
    };
    feeds.push(Box::pin(optional::run(feed, tidb, writers.tidb_clusters)));
    (stores, feeds)
}

/// Polls the watches for ever.
pub(crate) async fn run(mut feeds: Feeds) {
    while feeds.next().await.is_some() {}
}

/// Returns true if an object has the label of the cluster `name`, or a name that the operator would give to an object of it.
pub(crate) fn belongs(object: &ObjectMeta, name: &str) -> bool {
    let called = object.name.as_deref().unwrap_or_default();
    let below = called.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'));
    let labels = object.labels.as_ref();
    called == name || below || labels.is_some_and(|labels| labels.get(CLUSTER).is_some_and(|cluster| cluster == name))
}

/// Returns true if `name` is that of an object with certificates of the cluster `cluster`.
fn is_name_of(cluster: &str, kind: Kind, name: &str) -> bool {
    let names = Names {
        cluster: cluster.to_owned(),
        namespace: String::new(),
        domain: String::new(),
    };
    match kind {
        Kind::Secret => names.authority() == name || Leaf::ALL.iter().any(|leaf| names.leaf(*leaf) == name),
        Kind::ConfigMap => names.bundle() == name,
        _ => false,
    }
}

/// The cluster that an object belongs to, by its label.
fn cluster_of(object: &ObjectMeta) -> Option<ObjectRef<KubeBrainCluster>> {
    let name = object.labels.as_ref()?.get(CLUSTER)?;
    Some(ObjectRef::new(name).within(object.namespace.as_deref()?))
}

/// Returns true if a cluster asks for the kinds of the Prometheus operator.
fn monitored(cluster: &KubeBrainCluster) -> bool {
    let monitoring = cluster.spec.monitoring.as_ref();
    monitoring.is_some_and(|monitoring| monitoring.pod_monitor.as_ref().is_some_and(|monitor| monitor.enabled))
}

/// The name of the TiDB operator's cluster that a cluster takes its placement drivers from.
fn reference(cluster: &KubeBrainCluster) -> Option<&String> {
    let tikv = cluster.spec.storage.tikv.as_ref()?;
    tikv.cluster_ref.as_ref().map(|reference| &reference.name)
}

/// The clusters that take their placement drivers from the TiDB operator's cluster with this metadata.
fn referring(feed: &Feed, metadata: &ObjectMeta) -> Vec<ObjectRef<KubeBrainCluster>> {
    let refers = |cluster: &KubeBrainCluster| {
        cluster.metadata.namespace == metadata.namespace
            && reference(cluster).is_some_and(|name| Some(name) == metadata.name.as_ref())
    };
    let found = feed.clusters.state_filter(refers);
    found.iter().map(|cluster| ObjectRef::from_obj(&**cluster)).collect()
}

impl Stores {
    fn new() -> (Self, Writers) {
        let objects: BTreeMap<Kind, Writer<DynamicObject>> = Kind::ALL
            .into_iter()
            .map(|kind| (kind, Writer::new(kind.resource())))
            .collect();
        let writers = Writers {
            clusters: Writer::default(),
            objects,
            pods: Writer::default(),
            claims: Writer::default(),
            tidb_clusters: Writer::new(tidb_cluster()),
        };
        let optional = Kind::ALL.into_iter().filter(|kind| is_optional(*kind));
        let stores = Self {
            clusters: writers.clusters.as_reader(),
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

    /// Waits until every store was filled once; for kinds that may not exist, only for a while: an API server that cannot tell
    /// must not keep clusters waiting.
    pub(crate) async fn filled(&self) {
        // An error means that the watches are gone, and the passes with them.
        drop(self.clusters.wait_until_ready().await);
        drop(self.pods.wait_until_ready().await);
        drop(self.claims.wait_until_ready().await);
        for (_, store) in self.objects.iter().filter(|(kind, _)| !is_optional(**kind)) {
            drop(store.wait_until_ready().await);
        }
        let optional = async {
            drop(self.tidb_clusters.wait_until_ready().await);
            for (_, store) in self.objects.iter().filter(|(kind, _)| is_optional(**kind)) {
                drop(store.wait_until_ready().await);
            }
        };
        // An object that is missing then is found by its name when it is written.
        drop(tokio::time::timeout(OPTIONAL, optional).await);
    }

    /// Returns true if the API server has a kind.
    pub(crate) fn knows(&self, kind: Kind) -> bool {
        self.known.get(&kind).is_none_or(|known| known.load(Ordering::Relaxed))
    }

    pub(crate) fn cluster(&self, namespace: &str, name: &str) -> Option<Arc<KubeBrainCluster>> {
        self.clusters.get(&ObjectRef::new(name).within(namespace))
    }

    pub(crate) fn object(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        let key = ObjectRef::new_with(name, kind.resource()).within(namespace);
        self.objects.get(&kind)?.get(&key)
    }

    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.pods.get(&ObjectRef::new(name).within(namespace))
    }

    pub(crate) fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        self.claims.get(&ObjectRef::new(name).within(namespace))
    }

    /// The cluster that an object was made for, or will be: its Secrets have their names before they exist.
    pub(crate) fn owner(&self, kind: Kind, namespace: &str, name: &str) -> Option<String> {
        let made = self.object(kind, namespace, name);
        let labelled = made.and_then(|object| object.labels().get(CLUSTER).cloned());
        labelled.or_else(|| {
            let found = self.clusters.find(|cluster| {
                cluster.metadata.namespace.as_deref() == Some(namespace) && is_name_of(&cluster.name_any(), kind, name)
            });
            found.map(|cluster| cluster.name_any())
        })
    }

    /// The cluster of the TiDB operator of this name.
    pub(crate) fn tidb_cluster(&self, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        let key = ObjectRef::new_with(name, tidb_cluster()).within(namespace);
        self.tidb_clusters.get(&key)
    }

    /// Objects of the cluster `name`: objects that carry its label or stand where its own would, pods and claims with its
    /// label. Pods are ordered by name.
    pub(crate) fn view(&self, namespace: &str, name: &str) -> View {
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
        View {
            objects: objects.collect(),
            pods,
            claims,
        }
    }
}

impl Feed {
    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        match &self.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    fn dynamic(&self, resource: &ApiResource) -> Api<DynamicObject> {
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, resource),
            None => Api::all_with(self.client.clone(), resource),
        }
    }
}
