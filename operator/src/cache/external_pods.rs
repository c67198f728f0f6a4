//! Pods that the user creates and that run the brains of a cluster. They carry labels of their owner's choice, so each such cluster has a
//! watch of its own, which ends with the cluster.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crds::KubeBrainCluster;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::core::{ApiResource, Selector};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;
use kube::{Client, ResourceExt};
use tokio::task::{AbortHandle, JoinSet};

use super::feed::WatchFeed;
use crate::work_queue::WorkQueue;

/// Maximum number of pods of a cluster that are kept, several times the maximum number of members. Further pods that match the selector are
/// ignored until they change.
const MAX_PODS: usize = 256;
/// Timeout of the first list.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which a watch checks that its cluster still exists.
const CLUSTER_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// The watches. Clones share them.
#[derive(Clone)]
pub(crate) struct ExternalPods {
    feed: WatchFeed,
    running: Arc<Mutex<RunningPodWatch>>,
}

#[derive(Default)]
struct RunningPodWatch {
    tasks: JoinSet<()>,
    watches: HashMap<ObjectRef<KubeBrainCluster>, PodWatch>,
}

struct PodWatch {
    uid: Option<String>,
    selector: String,
    pods: Store<Pod>,
    task: AbortHandle,
}

impl ExternalPods {
    pub(crate) fn new(client: Client, clusters: Store<KubeBrainCluster>, queue: Arc<WorkQueue>) -> Self {
        let feed = WatchFeed {
            client,
            namespace: None,
            clusters,
            queue,
            arrived: Arc::default(),
        };
        Self {
            feed,
            running: Arc::default(),
        }
    }

    /// Returns the pods that match the selector of `cluster`, ordered by name. The first call starts the watch.
    ///
    /// # Errors
    /// The first list takes too long.
    pub(crate) async fn of(&self, cluster: &KubeBrainCluster) -> kube::Result<Vec<Arc<Pod>>> {
        let bad = |words: String| kube::Error::Service(words.into());
        let selector = cluster.spec.workload.selector.clone().unwrap_or_default();
        // A spec with a malformed selector is refused and has no pods. It must never select every pod of the namespace.
        let selector = Selector::try_from(selector).ok();
        let Some(selector) = selector.filter(|selector| !selector.selects_all()) else {
            return Ok(Vec::new());
        };
        let store = self.store(cluster, &selector);
        let filled = tokio::time::timeout(FIRST_LIST_TIMEOUT, store.wait_until_ready()).await;
        if !matches!(filled, Ok(Ok(()))) {
            return Err(bad(
                "the pods of workload.selector could not be listed in time".to_owned()
            ));
        }
        let mut pods = store.state();
        pods.sort_by_key(|pod| pod.name_any());
        Ok(pods)
    }

    /// Returns a pod of the cluster, if it is watched.
    pub(crate) fn pod(&self, namespace: &str, cluster: &str, name: &str) -> Option<Arc<Pod>> {
        let running = self.lock();
        let watch = running.watches.get(&ObjectRef::new(cluster).within(namespace))?;
        watch.pods.get(&ObjectRef::new(name).within(namespace))
    }

    #[cfg(test)]
    pub(crate) fn watched(&self) -> usize {
        let running = self.lock();
        running
            .watches
            .values()
            .filter(|watch| !watch.task.is_finished())
            .count()
    }

    fn store(&self, cluster: &KubeBrainCluster, selector: &Selector) -> Store<Pod> {
        let object = ObjectRef::from_obj(cluster);
        let text = selector.to_string();
        let mut running = self.lock();
        while running.tasks.try_join_next().is_some() {}
        let RunningPodWatch { tasks, watches } = &mut *running;
        watches.retain(|_, watch| !watch.task.is_finished());
        if let Some(watch) = watches.get(&object) {
            if watch.selector == text && watch.uid == cluster.metadata.uid {
                return watch.pods.clone();
            }
            watch.task.abort();
        }
        let writer = Writer::default();
        let pods = writer.as_reader();
        let task = tasks.spawn(
            self.clone()
                .watch(object.clone(), cluster.metadata.uid.clone(), text.clone(), writer),
        );
        let watch = PodWatch {
            uid: cluster.metadata.uid.clone(),
            selector: text,
            pods: pods.clone(),
            task,
        };
        watches.insert(object, watch);
        pods
    }

    /// Watches until the cluster is deleted.
    async fn watch(
        self,
        cluster: ObjectRef<KubeBrainCluster>,
        uid: Option<String>,
        selector: String,
        mut writer: Writer<Pod>,
    ) {
        let clusters = self.feed.clusters.clone();
        let feed = WatchFeed {
            namespace: cluster.namespace.clone(),
            ..self.feed.clone()
        };
        let named = cluster.clone();
        let mut touched = |_: &Pod, _| vec![named.clone()];
        let events = feed.listed(&ApiResource::erase::<Pod>(&()), Some(&selector));
        let mut names = HashSet::new();
        let events = events.filter_map(|event| {
            let is_kept = match &event {
                Ok(Event::Apply(pod) | Event::InitApply(pod)) => {
                    names.contains(&pod.name_any()) || (names.len() < MAX_PODS && names.insert(pod.name_any()))
                }
                Ok(Event::Delete(pod)) => names.remove(&pod.name_any()),
                Ok(Event::Init) => {
                    names.clear();
                    true
                }
                Ok(Event::InitDone) | Err(_) => true,
            };
            let kept = is_kept.then(|| feed.kept(event, |pod| pod.light().parse()));
            std::future::ready(kept.flatten())
        });
        let watch = feed.follow(events, "pods", &mut writer, &mut touched);
        let gone = async {
            while clusters
                .get(&cluster)
                .is_some_and(|cluster| cluster.metadata.uid == uid)
            {
                tokio::time::sleep(CLUSTER_CHECK_INTERVAL).await;
            }
        };
        tokio::select! {
            () = watch => {}
            () = gone => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, RunningPodWatch> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
