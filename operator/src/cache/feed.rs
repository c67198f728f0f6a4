//! One watch, which fills a store and triggers passes over the clusters that changed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crds::KubeBrainCluster;
use futures::{Stream, StreamExt};
use http::header::{ACCEPT, HeaderValue};
use kube::api::ListParams;
use kube::client::Body;
use kube::core::{ApiResource, DynamicObject, ObjectMeta};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use plan::objects::ObjectKind;
use plan::ownership::is_name_of;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Interval;
use tracing::{debug, warn};

use super::cluster_of;
use super::clusters::{self, SpecWeights};
use super::received::{ObjectStub, ReceivedObject, WholeObject};
use crate::work_queue::WorkQueue;

/// Number of objects per page of a list. Any client may label an object of a megabyte as the operator's.
const LIST_PAGE_OBJECTS: u32 = 8;
/// Timeout of a read of one object, or of those of one cluster.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of checks for new clusters, in addition to notifications: a list of clusters sends none.
const NEW_CLUSTERS_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of objects of one kind that are listed for a new cluster.
const MAX_EARLIER_OBJECTS: usize = 256;
/// Media types of lists and watches that return only the metadata of objects.
const METADATA_LIST_MEDIA_TYPE: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const METADATA_MEDIA_TYPE: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// Returns true if an object with this metadata is kept.
type KeepFilter = fn(&WatchFeed, &ObjectMeta) -> bool;

/// State that every watch needs.
#[derive(Clone)]
pub(super) struct WatchFeed {
    pub(super) client: Client,
    /// `None` for all.
    pub(super) namespace: Option<String>,
    pub(super) clusters: Store<KubeBrainCluster>,
    pub(super) queue: Arc<WorkQueue>,
    /// Notified when a cluster appears.
    pub(super) arrived: Arc<watch::Sender<()>>,
}

impl WatchFeed {
    /// Watches the clusters. Changes of their status start no pass, because the operator wrote them.
    pub(super) async fn clusters(self, mut writer: Writer<KubeBrainCluster>) {
        let mut seen: HashMap<ObjectRef<KubeBrainCluster>, u64> = HashMap::new();
        let mut touched = |cluster: &KubeBrainCluster, gone: bool| {
            let object = ObjectRef::from_obj(cluster);
            if gone {
                seen.remove(&object);
                return vec![object];
            }
            let digest = digest(cluster);
            let before = seen.insert(object.clone(), digest);
            // This also covers another cluster of the same name.
            if before != Some(digest) {
                self.arrived.send_replace(());
            }
            Vec::from_iter((before != Some(digest)).then_some(object))
        };
        let events = self.admitted();
        self.follow(events, "kubebrainclusters", &mut writer, &mut touched)
            .await;
    }

    /// Returns events about the clusters. Clusters that were too large beside the others are read again when the others shrink or are
    /// deleted.
    fn admitted(&self) -> impl Stream<Item = watcher::Result<Event<KubeBrainCluster>>> + use<> {
        struct AdmittedClusters<S> {
            feed: WatchFeed,
            events: S,
            weights: SpecWeights,
            /// Clusters that may fit now.
            again: VecDeque<ObjectRef<KubeBrainCluster>>,
        }
        let judge = AdmittedClusters {
            events: Box::pin(self.listed(&clusters::resource(), None)),
            feed: self.clone(),
            weights: SpecWeights::default(),
            again: VecDeque::new(),
        };
        futures::stream::unfold(judge, |mut judge| async move {
            loop {
                if let Some(cluster) = judge.again.pop_front() {
                    if let Some(object) = judge.feed.cluster(&cluster).await {
                        let admitted = admit(&mut judge.weights, Ok(Event::Apply(object)));
                        if let Some(event) = admitted {
                            return Some((event, judge));
                        }
                    }
                    continue;
                }
                let event = judge.events.next().await?;
                // A list admits all of them anew.
                let is_list = matches!(&event, Ok(Event::Init | Event::InitApply(_) | Event::InitDone));
                let admitted = admit(&mut judge.weights, event);
                if !is_list {
                    judge.again = judge.weights.take_fitting().into();
                }
                if let Some(event) = admitted {
                    return Some((event, judge));
                }
            }
        })
    }

    /// Reads the present state of a cluster.
    async fn cluster(&self, cluster: &ObjectRef<KubeBrainCluster>) -> Option<WholeObject> {
        let namespace = cluster.namespace.as_deref()?;
        let api: Api<WholeObject> = Api::namespaced_with(self.client.clone(), namespace, &clusters::resource());
        let read = tokio::time::timeout(READ_TIMEOUT, api.get_opt(&cluster.name)).await;
        // A cluster that cannot be read now stays unchanged until its next change.
        read.ok()?.ok()?
    }

    /// Watches objects of one kind. Objects that no cluster owns are not kept. Renewals of Leases start no pass.
    ///
    /// The content of an object is read only if a cluster owns it; for all others only the metadata is sent. A Lease is small and changes
    /// constantly.
    pub(super) async fn objects(&self, kind: ObjectKind, labels: &str, writer: &mut Writer<DynamicObject>) {
        let mut seen: HashMap<(Option<String>, Option<String>), u64> = HashMap::new();
        let mut touched = |object: &DynamicObject, gone: bool| {
            let key = (object.metadata.namespace.clone(), object.metadata.name.clone());
            let changed = if gone {
                seen.remove(&key);
                true
            } else {
                let digest = digest_of(object);
                seen.insert(key, digest) != Some(digest)
            };
            Vec::from_iter(cluster_of(&object.metadata).filter(|_| changed))
        };
        let resource = kind.resource();
        if kind == ObjectKind::Lease {
            let events = self.listed(&resource, Some(labels)).filter_map(|event| {
                let kept = self.kept(event, |lease| {
                    let wanted = self.wants(kind, &lease.metadata);
                    wanted.then(|| lease.clone().into_dynamic(&kind.resource()))
                });
                async move { kept }
            });
            return self.follow(events, &resource.plural, writer, &mut touched).await;
        }
        let api: Api<ObjectStub> = self.dynamic(metadata_only(&self.client), &resource);
        let events = watch_pages(api, Some(labels)).filter_map(|event| self.filled(kind, event));
        self.follow(events, &resource.plural, writer, &mut touched).await;
    }

    /// Watches pods or claims that carry a cluster's label and a name that those of this cluster have. Objects that existed before their
    /// cluster appeared are listed when it appears, because no event reports them.
    pub(super) async fn labelled<K>(self, label: &str, wants: KeepFilter, mut writer: Writer<K>)
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let resource = ApiResource::erase::<K>(&());
        let mut touched = |object: &K, _| Vec::from_iter(cluster_of(object.meta()));
        let events = self.with_earlier(&resource, label, wants).filter_map(|event| {
            let kept = self.kept(event, |object| {
                let wanted = wants(&self, &object.metadata);
                wanted.then(|| object.bounded().parse()).flatten()
            });
            async move { kept }
        });
        self.follow(events, &resource.plural, &mut writer, &mut touched).await;
    }

    /// Lists and watches objects with this label, and lists those of each cluster that appears later.
    ///
    /// No event is taken from the watch during such a list. So the list is at least as new as all events taken before, and later events
    /// come after it.
    fn with_earlier(
        &self,
        resource: &ApiResource,
        label: &str,
        wants: KeepFilter,
    ) -> impl Stream<Item = watcher::Result<Event<WholeObject>>> + Send + use<> {
        let merged = MergedWatch {
            events: Box::pin(self.listed(resource, Some(label))),
            feed: self.clone(),
            resource: resource.clone(),
            label: label.to_owned(),
            wants,
            arrived: self.arrived.subscribe(),
            look: tokio::time::interval(NEW_CLUSTERS_INTERVAL),
            known: self.present(),
            found: VecDeque::new(),
            is_listing: true,
        };
        futures::stream::unfold(merged, |mut merged| async move {
            loop {
                if let Some(object) = merged.found.pop_front() {
                    return Some((Ok(Event::Apply(object)), merged));
                }
                tokio::select! {
                    event = merged.events.next() => {
                        let event = event?;
                        match &event {
                            Ok(Event::Init) => merged.is_listing = true,
                            Ok(Event::InitDone) => merged.is_listing = false,
                            _ => {}
                        }
                        return Some((event, merged));
                    }
                    // Only when no list of the watch is in progress, because its end replaces the whole store.
                    _ = merged.arrived.changed(), if !merged.is_listing => {}
                    _ = merged.look.tick(), if !merged.is_listing => {}
                }
                merged.look_for_clusters().await;
            }
        })
    }

    /// Returns the existing clusters, with their uids.
    fn present(&self) -> HashSet<(ObjectRef<KubeBrainCluster>, Option<String>)> {
        let clusters = self.clusters.state();
        let identity = |cluster: &Arc<KubeBrainCluster>| (ObjectRef::from_obj(&**cluster), cluster.uid());
        clusters.iter().map(identity).collect()
    }

    /// Returns the objects to keep that carry the label of a cluster.
    async fn earlier(
        &self,
        (resource, label, wants): (&ApiResource, &str, KeepFilter),
        cluster: &ObjectRef<KubeBrainCluster>,
    ) -> kube::Result<Vec<WholeObject>> {
        let namespace = cluster.namespace.as_deref().unwrap_or_default();
        let api: Api<WholeObject> = Api::namespaced_with(self.client.clone(), namespace, resource);
        let params = ListParams::default().labels(&format!("{label}={}", cluster.name));
        let list = list_kept(&api, params, MAX_EARLIER_OBJECTS, |object| {
            wants(self, &object.metadata)
        });
        let late = || kube::Error::Service("the list was not answered in time".into());
        tokio::time::timeout(READ_TIMEOUT, list)
            .await
            .unwrap_or_else(|_| Err(late()))
    }

    /// Lists and watches whole objects, each with bounded size.
    pub(super) fn listed(
        &self,
        resource: &ApiResource,
        labels: Option<&str>,
    ) -> impl Stream<Item = watcher::Result<Event<WholeObject>>> + Send + use<> {
        watch_pages(self.dynamic(self.client.clone(), resource), labels)
    }

    /// Returns an event about objects that are kept. An object that is no longer kept counts as deleted in the store.
    pub(super) fn kept<K: DeserializeOwned>(
        &self,
        event: watcher::Result<Event<WholeObject>>,
        keep: impl Fn(&WholeObject) -> Option<K>,
    ) -> Option<watcher::Result<Event<K>>> {
        let gone = |object: &WholeObject| {
            let bare = WholeObject {
                metadata: object.metadata.clone(),
                ..WholeObject::default()
            };
            bare.parse().map(Event::Delete)
        };
        let event = match event {
            Err(error) => return Some(Err(error)),
            Ok(event) => event,
        };
        let kept = match event {
            Event::Init => Some(Event::Init),
            Event::InitDone => Some(Event::InitDone),
            Event::InitApply(object) => keep(&object).map(Event::InitApply),
            Event::Apply(object) => keep(&object).map(Event::Apply).or_else(|| gone(&object)),
            Event::Delete(object) => gone(&object),
        };
        kept.map(Ok)
    }

    /// The same for objects received as metadata only. An object that cannot be read is no longer kept: a pass that misses it
    /// requests it by name.
    async fn filled(
        &self,
        kind: ObjectKind,
        event: watcher::Result<Event<ObjectStub>>,
    ) -> Option<watcher::Result<Event<DynamicObject>>> {
        let event = match event {
            Err(error) => return Some(Err(error)),
            Ok(event) => event,
        };
        let gone = |stub: ObjectStub| Event::Delete(stub.into_dynamic(&kind.resource()));
        let filled = match event {
            Event::Init => Event::Init,
            Event::InitDone => Event::InitDone,
            Event::InitApply(stub) => Event::InitApply(self.read(kind, &stub.metadata).await?),
            Event::Apply(stub) => match self.read(kind, &stub.metadata).await {
                Some(object) => Event::Apply(object),
                None => gone(stub),
            },
            Event::Delete(stub) => gone(stub),
        };
        Some(Ok(filled))
    }

    /// Returns the object with this metadata, if a cluster owns it.
    async fn read(&self, kind: ObjectKind, metadata: &ObjectMeta) -> Option<DynamicObject> {
        if !self.wants(kind, metadata) {
            return None;
        }
        let (namespace, name) = (metadata.namespace.as_deref()?, metadata.name.as_deref()?);
        let resource = kind.resource();
        let api: Api<WholeObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        match tokio::time::timeout(READ_TIMEOUT, api.get_opt(name)).await {
            Ok(Ok(found)) => found.map(|object| object.into_dynamic(&resource)),
            Ok(Err(error)) => {
                debug!(%error, namespace, name, "cannot read an object");
                None
            }
            Err(_) => {
                debug!(namespace, name, "timed out reading an object");
                None
            }
        }
    }

    /// Returns true if a cluster has an object with this metadata, according to its owner or its label, and its name.
    fn wants(&self, kind: ObjectKind, metadata: &ObjectMeta) -> bool {
        let mut owners = metadata.owner_references.iter().flatten();
        let owner = match owners.find(|owner| owner.controller == Some(true)) {
            Some(owner) if owner.kind != KubeBrainCluster::kind(&()) => None,
            Some(owner) => Some(owner.name.clone()),
            None => cluster_of(metadata).map(|cluster| cluster.name),
        };
        let named = |cluster: &String| is_name_of(cluster, kind, metadata.name.as_deref().unwrap_or_default());
        owner
            .filter(named)
            .is_some_and(|cluster| self.exists(&cluster, metadata))
    }

    /// Returns true if a cluster of this name exists in the namespace of an object.
    pub(super) fn exists(&self, cluster: &str, beside: &ObjectMeta) -> bool {
        let namespace = beside.namespace.as_deref().unwrap_or_default();
        self.clusters.get(&ObjectRef::new(cluster).within(namespace)).is_some()
    }

    fn dynamic<const WHOLE: bool>(&self, client: Client, resource: &ApiResource) -> Api<ReceivedObject<WHOLE>> {
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, resource),
            None => Api::all_with(client, resource),
        }
    }

    /// Fills a store forever. `touched` returns the clusters that a change or a deletion affects.
    pub(super) async fn follow<K, D>(
        &self,
        events: impl Stream<Item = watcher::Result<Event<K>>>,
        plural: &str,
        writer: &mut Writer<K>,
        touched: &mut impl FnMut(&K, bool) -> Vec<ObjectRef<KubeBrainCluster>>,
    ) where
        D: Clone + Eq + Hash,
        K: Resource<DynamicType = D> + Clone + 'static,
    {
        let mut events = pin!(events);
        let mut failing = false;
        // Places in the store; the deletion of any other object affects no cluster.
        let mut stored: HashSet<(Option<String>, Option<String>)> = HashSet::new();
        let place = |object: &K| (object.meta().namespace.clone(), object.meta().name.clone());
        while let Some(event) = events.next().await {
            let event = match event {
                Ok(event) => event,
                Err(error) => {
                    // Warn only for the first error in a row: a kind that may not be watched would fill the log.
                    if failing {
                        debug!(%error, plural, "watch is still interrupted");
                    } else {
                        warn!(%error, plural, "watch interrupted; will retry");
                    }
                    failing = true;
                    continue;
                }
            };
            failing = false;
            if matches!(&event, Event::Delete(object) if !stored.remove(&place(object))) {
                continue;
            }
            writer.apply_watcher_event(&event);
            match &event {
                Event::Apply(object) => {
                    stored.insert(place(object));
                    self.name(touched(object, false));
                }
                Event::Delete(object) => self.name(touched(object, true)),
                // No other event reports objects that were deleted while no watch was running.
                Event::InitDone => self.name_all(),
                // All clusters are triggered at the end of the list; `touched` has recorded the objects by then.
                Event::InitApply(object) => {
                    stored.insert(place(object));
                    drop(touched(object, false));
                }
                Event::Init => stored.clear(),
            }
        }
    }

    fn name(&self, clusters: Vec<ObjectRef<KubeBrainCluster>>) {
        clusters.into_iter().for_each(|cluster| self.queue.add(cluster));
    }

    /// Triggers a pass over every cluster.
    pub(super) fn name_all(&self) {
        for cluster in self.clusters.state() {
            self.queue.add(ObjectRef::from_obj(&*cluster));
        }
    }
}

/// A watch, and lists of objects that existed before their cluster appeared.
struct MergedWatch<S> {
    feed: WatchFeed,
    resource: ApiResource,
    label: String,
    wants: KeepFilter,
    events: S,
    arrived: watch::Receiver<()>,
    look: Interval,
    /// Clusters whose objects are known.
    known: HashSet<(ObjectRef<KubeBrainCluster>, Option<String>)>,
    found: VecDeque<WholeObject>,
    /// True while the watch lists all objects again.
    is_listing: bool,
}

impl<S> MergedWatch<S> {
    /// Lists the objects of clusters that appeared. If a list fails, it is retried later.
    async fn look_for_clusters(&mut self) {
        let present = self.feed.present();
        self.known.retain(|known| present.contains(known));
        for cluster in present {
            if self.known.contains(&cluster) {
                continue;
            }
            let kind = (&self.resource, self.label.as_str(), self.wants);
            match self.feed.earlier(kind, &cluster.0).await {
                Ok(found) => {
                    self.found.extend(found);
                    self.known.insert(cluster);
                }
                Err(error) => {
                    debug!(%error, plural = self.resource.plural, "cannot list objects that existed before a cluster");
                }
            }
        }
    }
}

/// Lists in small pages, and keeps at most `most` objects: any client may label any number of large objects.
///
/// # Errors
/// The API server refused or did not answer.
pub(crate) async fn list_kept<K>(
    api: &Api<K>,
    params: ListParams,
    most: usize,
    keep: impl Fn(&K) -> bool,
) -> kube::Result<Vec<K>>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut kept = Vec::new();
    let listed = list_pages(api, params, |page| {
        let room = most.saturating_sub(kept.len());
        kept.extend(page.into_iter().filter(|object| keep(object)).take(room));
        kept.len() < most
    });
    listed.await?;
    Ok(kept)
}

/// Lists in small pages, until `take` returns false.
///
/// # Errors
/// The API server refused or did not answer.
pub(crate) async fn list_pages<K>(
    api: &Api<K>,
    mut params: ListParams,
    mut take: impl FnMut(Vec<K>) -> bool,
) -> kube::Result<()>
where
    K: Clone + Debug + DeserializeOwned,
{
    params = params.limit(LIST_PAGE_OBJECTS);
    loop {
        let page = api.list(&params).await?;
        let next = page.metadata.continue_.filter(|next| !next.is_empty());
        let wants_more = take(page.items);
        match next.filter(|_| wants_more) {
            Some(next) => params = params.continue_token(&next),
            None => return Ok(()),
        }
    }
}

/// Lists in pages, then watches.
pub(super) fn watch_pages<const WHOLE: bool>(
    api: Api<ReceivedObject<WHOLE>>,
    labels: Option<&str>,
) -> impl Stream<Item = watcher::Result<Event<ReceivedObject<WHOLE>>>> + Send + use<WHOLE> {
    let mut config = watcher::Config::default().page_size(LIST_PAGE_OBJECTS);
    config.label_selector = labels.map(str::to_owned);
    watcher(api, config).default_backoff()
}

/// Returns a client that requests only the metadata of objects.
fn metadata_only(client: &Client) -> Client {
    let inner = client.clone();
    let service = tower::service_fn(move |mut request: http::Request<Body>| {
        let query = request.uri().query().unwrap_or_default();
        let watches = query.split('&').any(|part| part == "watch=true");
        let accept = if watches {
            METADATA_MEDIA_TYPE
        } else {
            METADATA_LIST_MEDIA_TYPE
        };
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(accept));
        let client = inner.clone();
        async move { client.send(request).await }
    });
    Client::new(service, client.default_namespace())
}

/// Returns an event about clusters in the form in which they are kept. Objects that are not clusters of this version are dropped.
fn admit(
    weights: &mut SpecWeights,
    event: watcher::Result<Event<WholeObject>>,
) -> Option<watcher::Result<Event<KubeBrainCluster>>> {
    let event = match event {
        Err(error) => return Some(Err(error)),
        Ok(event) => event,
    };
    let mut admit = |object: WholeObject| {
        let (namespace, name) = (object.namespace(), object.name_any());
        let cluster = weights.admit(object);
        if cluster.is_none() {
            warn!(
                namespace,
                name, "ignoring an object that is not a KubeBrainCluster of this version"
            );
        }
        cluster
    };
    let admitted = match event {
        Event::Init => {
            weights.clear();
            Some(Event::Init)
        }
        Event::InitDone => Some(Event::InitDone),
        Event::InitApply(object) => admit(object).map(Event::InitApply),
        Event::Apply(object) => admit(object).map(Event::Apply),
        Event::Delete(object) => {
            let cluster = clusters::read(object);
            if let Some(cluster) = &cluster {
                weights.forget(cluster);
            }
            cluster.map(Event::Delete)
        }
    };
    admitted.map(Ok)
}

/// Returns the digest of the parts of an object whose change starts a pass: all but its version, and the time when a leader renewed a
/// Lease.
fn digest_of(object: &DynamicObject) -> u64 {
    let mut object = object.clone();
    object.metadata.resource_version = None;
    if let Some(spec) = object.data.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("renewTime");
    }
    let mut hasher = DefaultHasher::new();
    // An object that fails to serialise, which never happens, starts no pass.
    serde_json::to_string(&object).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

/// Returns the digest of the parts of a cluster whose change starts a pass.
fn digest(cluster: &KubeBrainCluster) -> u64 {
    let mut hasher = DefaultHasher::new();
    let metadata = &cluster.metadata;
    metadata.uid.hash(&mut hasher);
    metadata.generation.hash(&mut hasher);
    cluster.annotations().hash(&mut hasher);
    cluster.labels().hash(&mut hasher);
    cluster.finalizers().hash(&mut hasher);
    metadata.deletion_timestamp.is_some().hash(&mut hasher);
    hasher.finish()
}
