//! One watch: it fills a store, and names the clusters that changed.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::sync::Arc;

use crds::KubeBrainCluster;
use futures::StreamExt;
use kube::core::{ApiResource, DynamicObject, TypeMeta};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tracing::{debug, warn};

use super::cluster_of;
use crate::objects::Kind;
use crate::triggers::Triggers;

/// Fields that every watch needs.
#[derive(Clone)]
pub(super) struct Feed {
    pub(super) client: Client,
    /// `None` for all.
    pub(super) namespace: Option<String>,
    pub(super) clusters: Store<KubeBrainCluster>,
    pub(super) triggers: Arc<Triggers>,
}

impl Feed {
    /// Watches the clusters. Changes of their status start no pass: the operator wrote them.
    pub(super) async fn clusters(self, mut writer: Writer<KubeBrainCluster>) {
        let mut seen: HashMap<ObjectRef<KubeBrainCluster>, u64> = HashMap::new();
        let mut touched = |cluster: &KubeBrainCluster, gone: bool| {
            let object = ObjectRef::from_obj(cluster);
            if gone {
                seen.remove(&object);
                return vec![object];
            }
            let digest = digest(cluster);
            let changed = seen.insert(object.clone(), digest) != Some(digest);
            Vec::from_iter(changed.then_some(object))
        };
        let api = self.api();
        self.follow(
            api,
            watcher::Config::default(),
            "kubebrainclusters",
            &mut writer,
            &mut touched,
            |_| {},
        )
        .await;
    }

    /// Watches objects of one kind. Renewals of Leases start no pass.
    pub(super) async fn objects(
        self,
        api: Api<DynamicObject>,
        labels: String,
        kind: Kind,
        mut writer: Writer<DynamicObject>,
    ) {
        let config = watcher::Config::default().labels(&labels);
        let plural = kind.resource().plural;
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
        let types = kind.resource();
        self.follow(api, config, &plural, &mut writer, &mut touched, move |object| {
            name_kind(object, &types)
        })
        .await;
    }

    /// Watches objects that carry a label, whatever its value.
    pub(super) async fn labelled<K>(self, api: Api<K>, label: &str, plural: &str, mut writer: Writer<K>)
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let config = watcher::Config::default().labels(label);
        let mut touched = |object: &K, _| Vec::from_iter(cluster_of(object.meta()));
        self.follow(api, config, plural, &mut writer, &mut touched, |_| {})
            .await;
    }

    /// Fills a store for ever. `touched` names the clusters that a change or a deletion concerns, `complete`
    /// adds what the API server left out.
    pub(super) async fn follow<K, D>(
        &self,
        api: Api<K>,
        config: watcher::Config,
        plural: &str,
        writer: &mut Writer<K>,
        touched: &mut impl FnMut(&K, bool) -> Vec<ObjectRef<KubeBrainCluster>>,
        complete: impl Fn(&mut K),
    ) where
        D: Clone + Eq + Hash,
        K: Resource<DynamicType = D> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let pruned = watcher(api, config).modify(|object| {
            object.meta_mut().managed_fields = None;
            complete(object);
        });
        let mut events = pin!(pruned.default_backoff());
        let mut failing = false;
        while let Some(event) = events.next().await {
            let event = match event {
                Ok(event) => event,
                Err(error) => {
                    // Only the first of a row: a kind that may not be watched would fill the log.
                    if failing {
                        debug!(%error, plural, "a watch is still interrupted");
                    } else {
                        warn!(%error, plural, "a watch is interrupted");
                    }
                    failing = true;
                    continue;
                }
            };
            failing = false;
            writer.apply_watcher_event(&event);
            match &event {
                Event::Apply(object) => self.name(touched(object, false)),
                Event::Delete(object) => self.name(touched(object, true)),
                // No other event names objects that were deleted while nobody watched.
                Event::InitDone => self.name_all(),
                // All are named at the end of the list; `touched` has seen them then.
                Event::InitApply(object) => drop(touched(object, false)),
                Event::Init => {}
            }
        }
    }

    fn name(&self, clusters: Vec<ObjectRef<KubeBrainCluster>>) {
        clusters.into_iter().for_each(|cluster| self.triggers.add(cluster));
    }

    /// Asks for a pass over every cluster.
    pub(super) fn name_all(&self) {
        for cluster in self.clusters.state() {
            self.triggers.add(ObjectRef::from_obj(&*cluster));
        }
    }
}

/// Names the kind of an object: those of a list do not, and they are compared with rendered ones, which do.
pub(crate) fn name_kind(object: &mut DynamicObject, resource: &ApiResource) {
    object.types = Some(TypeMeta {
        api_version: resource.api_version.clone(),
        kind: resource.kind.clone(),
    });
}

/// Digest of the parts of an object whose change starts a pass: everything but its version, and the time at which a leader renewed a Lease.
fn digest_of(object: &DynamicObject) -> u64 {
    let mut object = object.clone();
    object.metadata.resource_version = None;
    if let Some(spec) = object.data.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("renewTime");
    }
    let mut hasher = DefaultHasher::new();
    // An object that does not serialise, and none does that, starts no pass.
    serde_json::to_string(&object).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

/// Digest of the parts of a cluster whose change starts a pass.
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
