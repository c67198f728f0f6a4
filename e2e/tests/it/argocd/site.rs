//! The environment of the test: Applications, clusters of brains, and what Argo CD does with them.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crds::KubeBrainCluster;
use e2e_cluster::inside;
use e2e_cluster::kubectl::Kubectl;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::runtime::wait::await_condition;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Resource, ResourceExt as _};
use programs::command::output;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::repository::Repository;
use super::servers::{NAMESPACE, Servers};
use crate::harness::Shared;

/// The namespace of the rendered cluster.
pub(super) const BRAINS: &str = "brains";
const REFRESH_ANNOTATION: &str = "argocd.argoproj.io/refresh";
/// For anything that has no limit of its own; a busy machine is slow.
const STATE_TIMEOUT: Duration = Duration::from_secs(180);

/// Argo CD, a repository that it follows, and the cluster.
pub(super) struct Site {
    pub(super) client: kube::Client,
    pub(super) kubectl: Kubectl,
    pub(super) repository: Repository,
    servers: Servers,
    harness: Shared<'static>,
}

impl Site {
    /// For use inside of the cluster's network.
    pub(super) async fn start(harness: Shared<'static>) -> Self {
        let home = harness.cluster.home();
        let kubeconfig = inside::kubeconfig(home).unwrap();
        let servers = Servers::start(&harness.cluster, &kubeconfig, &harness.progress).await;
        Self {
            client: inside::client(home).await.unwrap(),
            kubectl: harness.cluster.kubectl().with(kubeconfig),
            repository: Repository::create(&servers.repositories()),
            servers,
            harness,
        }
    }

    /// Says a line in the run's output.
    pub(super) fn say(&self, line: impl std::fmt::Display) {
        self.harness.progress.say(format_args!("  Argo CD: {line}"));
    }

    pub(super) fn applications(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("argoproj.io", "v1alpha1", "Application");
        Api::namespaced_with(self.client.clone(), NAMESPACE, &ApiResource::from_gvk(&kind))
    }

    pub(super) fn clusters(&self) -> Api<KubeBrainCluster> {
        Api::namespaced(self.client.clone(), BRAINS)
    }

    pub(super) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), BRAINS)
    }

    /// An Application as it is now.
    pub(super) async fn application(&self, name: &str) -> DynamicObject {
        self.applications().get(name).await.unwrap()
    }

    /// Has Argo CD look at the repository, as a webhook of it would.
    pub(super) async fn refresh(&self, name: &str, how: &str) {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {REFRESH_ANNOTATION: how}}}));
        let applications = self.applications();
        applications.patch(name, &PatchParams::default(), &patch).await.unwrap();
        let done = |application: &DynamicObject| !application.annotations().contains_key(REFRESH_ANNOTATION);
        self.until(applications, name, "refreshed", done).await;
    }

    /// Waits until an Application is of this revision, in step with it, and healthy; and gives it.
    pub(super) async fn until_healthy(&self, name: &str, revision: &str) -> DynamicObject {
        self.until_health(name, revision, "Healthy").await
    }

    /// As [`Site::until_healthy`], of another health.
    pub(super) async fn until_health(&self, name: &str, revision: &str, health: &str) -> DynamicObject {
        let wanted = |application: &DynamicObject| {
            text(application, "/status/sync/status") == "Synced"
                && text(application, "/status/sync/revision") == revision
                && text(application, "/status/health/status") == health
        };
        let what = format!("Synced and {health} at {revision}");
        self.until(self.applications(), name, &what, wanted).await
    }

    /// Waits until `wanted` accepts an object, and returns it.
    pub(super) async fn until<K>(&self, api: Api<K>, name: &str, what: &str, wanted: impl Fn(&K) -> bool) -> K
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let wanted = |object: Option<&K>| object.is_some_and(&wanted);
        match timeout(STATE_TIMEOUT, await_condition(api, name, wanted)).await {
            Ok(Ok(Some(object))) => object,
            Ok(Ok(None)) => panic!("{name} is gone while it is waited for: {what}"),
            Ok(Err(error)) => panic!("{name}: {what}: {error}"),
            Err(_) => panic!("{name}: not {what} after {STATE_TIMEOUT:?}\n{}", self.describe()),
        }
    }

    /// Waits until there is no such object.
    pub(super) async fn until_gone<K>(&self, api: Api<K>, name: &str)
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let gone = |object: Option<&K>| object.is_none();
        let waited = timeout(STATE_TIMEOUT, await_condition(api, name, gone)).await;
        assert!(
            waited.is_ok_and(|waited| waited.is_ok()),
            "{name} is still there after {STATE_TIMEOUT:?}\n{}",
            self.describe()
        );
    }

    /// Runs an action on a cluster as Argo CD does: its Lua of argocd-cm, and a merge patch of what that changed.
    pub(super) fn act(&self, cluster: &str, action: &str) {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, content: String| {
            let path = directory.path().join(name);
            fs::write(&path, content).unwrap();
            path
        };
        let space = ["--namespace", BRAINS, "get", "kubebraincluster", cluster];
        let live = self.kubectl.run([&space[..], &["--output=json"]].concat()).unwrap();
        let settings = [
            "--namespace",
            NAMESPACE,
            "get",
            "configmap",
            "argocd-cm",
            "--output=yaml",
        ];
        let settings = write("argocd-cm.yaml", self.kubectl.run(settings).unwrap());
        let mut run = self.servers.command_line();
        run.args(["admin", "settings", "resource-overrides", "run-action"]);
        run.arg(write("live.json", live.clone())).arg(action);
        run.arg("--argocd-cm-path").arg(settings);
        // It shows the changed object by a program that it gives two files.
        run.env("KUBECTL_EXTERNAL_DIFF", "sh -c 'cat \"$2\"' sh");
        let said = output(&mut run).unwrap();
        let (_, changed) = said.split_once("\n\n").unwrap_or_else(|| panic!("{action}: {said}"));
        let [live, changed]: [Value; 2] = [live.as_str(), changed].map(|text| serde_yaml::from_str(text).unwrap());
        let patch = merge_patch(&live, &changed).unwrap_or_else(|| panic!("{action} changed nothing"));
        self.say(format_args!("action {action} on {cluster}: {patch}"));
        let patch = format!("--patch={patch}");
        let space = ["--namespace", BRAINS, "patch", "kubebraincluster", cluster];
        self.kubectl
            .run([&space[..], &["--type=merge", &patch]].concat())
            .unwrap();
    }

    /// Applications, clusters, pods and logs, for the reader of a failure.
    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        for what in ["applications", "kubebrainclusters", "pods", "events"] {
            let format = if what == "applications" { "yaml" } else { "wide" };
            let said = self.kubectl.run(["get", what, "--all-namespaces", "--output", format]);
            text += &format!("--- {what}\n{}\n", said.unwrap_or_else(|error| format!("{error:#}")));
        }
        text + &self.servers.logs()
    }
}

/// A text in an object, empty if there is none.
pub(super) fn text<'a>(object: &'a DynamicObject, path: &str) -> &'a str {
    object.data.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// When the newest sync of an Application began.
pub(super) fn synced_at(application: &DynamicObject) -> &str {
    text(application, "/status/operationState/startedAt")
}

/// RFC 7386, of objects that differ.
fn merge_patch(from: &Value, to: &Value) -> Option<Value> {
    if from == to {
        return None;
    }
    let (Value::Object(from), Value::Object(to)) = (from, to) else {
        return Some(to.clone());
    };
    let removed = from.keys().filter(|key| !to.contains_key(*key));
    let mut patch: serde_json::Map<String, Value> = removed.map(|key| (key.clone(), Value::Null)).collect();
    for (key, value) in to {
        let change = from
            .get(key)
            .map_or(Some(value.clone()), |from| merge_patch(from, value));
        patch.extend(change.map(|change| (key.clone(), change)));
    }
    Some(Value::Object(patch))
}

/// Uids of the pods of one name that existed since this began.
pub(super) struct Incarnations {
    seen: Arc<Mutex<BTreeSet<String>>>,
    _task: JoinSet<()>,
}

impl Incarnations {
    pub(super) fn watch(site: &Site, pod: &str) -> Self {
        let seen = Arc::<Mutex<BTreeSet<String>>>::default();
        let config = watcher::Config::default().fields(&format!("metadata.name={pod}"));
        let (pods, theirs) = (watcher(site.pods(), config).default_backoff(), Arc::clone(&seen));
        let mut task = JoinSet::new();
        task.spawn(async move {
            futures::pin_mut!(pods);
            while let Some(event) = pods.next().await {
                if let Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) = event {
                    theirs.lock().unwrap().extend(pod.uid());
                }
            }
        });
        Self { seen, _task: task }
    }

    pub(super) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

#[test]
fn merge_patch_holds_what_changed() {
    let from = json!({"a": 1, "b": {"c": 2, "d": 3}, "e": [1], "f": 6});
    let to = json!({"a": 1, "b": {"c": 2, "d": 4}, "e": [2], "g": {"h": 7}});
    let patch = json!({"b": {"d": 4}, "e": [2], "f": null, "g": {"h": 7}});
    assert_eq!(merge_patch(&from, &to), Some(patch));
    assert_eq!(merge_patch(&from, &from), None);
}
