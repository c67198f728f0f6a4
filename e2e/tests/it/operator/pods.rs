//! The pods of a cluster of brains, and what has become of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::task::JoinSet;

use super::brains::Brains;

/// The address of a pod.
pub(super) fn address(pod: &Pod) -> Option<String> {
    pod.status
        .as_ref()?
        .pod_ip
        .clone()
        .filter(|address| !address.is_empty())
}

/// Returns true if a pod serves: it is ready, and not asked to end.
pub(super) fn serves(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions
        .into_iter()
        .flatten()
        .any(|it| it.type_ == "Ready" && it.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}

/// The image of a pod's first container.
pub(super) fn image(pod: &Pod) -> &str {
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    container
        .and_then(|container| container.image.as_deref())
        .unwrap_or_default()
}

/// A pod in one line, for the reader of a failure.
pub(super) fn in_words(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_ref());
    let states: Vec<String> = containers
        .into_iter()
        .flatten()
        .map(|container| {
            let state = container.state.clone().unwrap_or_default();
            let waiting = state.waiting.and_then(|waiting| waiting.reason);
            let ended = state.terminated.and_then(|ended| ended.reason);
            format!("{} restarts, {:?}", container.restart_count, waiting.or(ended))
        })
        .collect();
    format!(
        "{} {} {} ready={} {}",
        pod.metadata.name.as_deref().unwrap_or_default(),
        status.and_then(|status| status.phase.as_deref()).unwrap_or_default(),
        image(pod),
        serves(pod),
        states.join("; "),
    )
}

/// Something that happened to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It exists, with this image.
    Made(String),
    /// It serves.
    Ready,
    /// It does not serve any more, or it has been asked to end.
    Unready,
    /// It has been asked to end, by this image.
    Ending(String),
    /// It is gone.
    Gone,
}

/// Changes of pods since the beginning, in order, and their present state.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pub(super) changes: Vec<(String, Change)>,
    pub(super) now: BTreeMap<String, Pod>,
    /// The fewest that served at a time.
    pub(super) fewest: Option<usize>,
}

impl History {
    fn pod(&mut self, pod: Pod) {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let before = self
            .now
            .get(&name)
            .filter(|before| before.metadata.uid == pod.metadata.uid);
        let (was_serving, was_ending) = (
            before.is_some_and(serves),
            before.is_some_and(|before| before.metadata.deletion_timestamp.is_some()),
        );
        let mut changes = Vec::new();
        if before.is_none() {
            changes.push(Change::Made(image(&pod).to_owned()));
        }
        if pod.metadata.deletion_timestamp.is_some() && !was_ending {
            changes.push(Change::Ending(image(&pod).to_owned()));
        }
        match (was_serving, serves(&pod)) {
            (false, true) => changes.push(Change::Ready),
            (true, false) => changes.push(Change::Unready),
            _ => {}
        }
        self.changes
            .extend(changes.into_iter().map(|change| (name.clone(), change)));
        self.now.insert(name, pod);
        self.count();
    }

    fn gone(&mut self, pod: &Pod) {
        let name = pod.metadata.name.clone().unwrap_or_default();
        if self
            .now
            .get(&name)
            .is_some_and(|now| now.metadata.uid == pod.metadata.uid)
        {
            self.now.remove(&name);
        }
        self.changes.push((name, Change::Gone));
        self.count();
    }

    fn count(&mut self) {
        let serving = self.now.values().filter(|pod| serves(pod)).count();
        self.fewest = Some(self.fewest.map_or(serving, |fewest| fewest.min(serving)));
    }

    /// Names of the pods that were asked to end, in order.
    pub(super) fn ended(&self) -> Vec<&str> {
        let ending = |(_, change): &&(String, Change)| matches!(change, Change::Ending(_));
        self.changes
            .iter()
            .filter(ending)
            .map(|(name, _)| name.as_str())
            .collect()
    }
}

/// Watches the pods of a cluster of brains until it is dropped.
pub(super) struct Watched {
    history: Arc<Mutex<History>>,
    _task: JoinSet<()>,
}

impl Watched {
    /// Begins; all pods of now are known when this returns.
    pub(super) async fn start(brains: &Brains<'_>) -> Self {
        let history = Arc::new(Mutex::new(History::default()));
        for pod in brains.pods().await {
            let mut history = history.lock().unwrap();
            history.pod(pod);
            history.fewest = None;
        }
        history.lock().unwrap().changes.clear();
        let selector = format!("kubebrain.io/cluster={},app.kubernetes.io/component=brain", brains.name);
        let api: Api<Pod> = brains.kit.api();
        let mut task = JoinSet::new();
        task.spawn(follow(api, selector, Arc::clone(&history)));
        Self { history, _task: task }
    }

    /// Returns the history until now.
    pub(super) fn history(&self) -> History {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A way to the same, for others.
    pub(super) fn shared(&self) -> Arc<Mutex<History>> {
        Arc::clone(&self.history)
    }
}

async fn follow(api: Api<Pod>, selector: String, history: Arc<Mutex<History>>) {
    let pods = watcher(api, watcher::Config::default().labels(&selector)).default_backoff();
    futures::pin_mut!(pods);
    while let Some(event) = pods.next().await {
        let mut history = history.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) => history.pod(pod),
            Ok(watcher::Event::Delete(pod)) => history.gone(&pod),
            // the watch starts again, with a list of all pods
            Ok(watcher::Event::Init | watcher::Event::InitDone) | Err(_) => {}
        }
    }
}
