//! A namespace of the shared cluster with the operator in it, seen from within the cluster's network.

use std::fmt::Debug;
use std::time::Duration;

use crds::KubeBrainCluster;
use e2e_cluster::inside;
use e2e_cluster::kubectl::Kubectl;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Resource;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, LogParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::{self, Scope};
use kube::runtime::wait::await_condition;
use programs::members;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::brains::Brains;
use crate::harness::{Harness, Shared, shared_blocking};

/// For anything that has no limit of its own; a busy machine is slow.
pub(super) const STATE_TIMEOUT: Duration = Duration::from_secs(120);
/// Between two looks at what cannot be watched.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Namespace of the operator.
pub(super) const OPERATOR_NAMESPACE: &str = "kubebrain-system";
/// Lines of the operator's log that a failure shows.
const SHOWN_LOG_LINES: i64 = 25;

/// Messages of members while they begin: DNS learns of pods some time after that, and readiness is asked for before anybody leads.
const STARTUP_MESSAGES: [&str; 2] = ["DNS does not name the members", "there is no leader yet"];

/// Tools of a test of the operator.
pub(super) struct Kit {
    pub(super) client: kube::Client,
    pub(super) namespace: String,
    pub(super) harness: Shared<'static>,
}

/// Runs a test in a fresh namespace of the shared cluster.
pub(super) fn run<F>(namespace: &str, test: impl FnOnce(Kit) -> F + Send)
where
    F: Future<Output = ()>,
{
    let harness = shared_blocking();
    for text in members::ELECTION_MESSAGES.into_iter().chain(STARTUP_MESSAGES) {
        harness.cluster.expect_log(text).unwrap();
    }
    begin(harness, namespace, test);
}

/// As [`run`], for a test that breaks something: brains and operator may log warnings about what is in the namespace.
pub(super) fn run_troubled<F>(namespace: &str, test: impl FnOnce(Kit) -> F + Send)
where
    F: Future<Output = ()>,
{
    let harness = shared_blocking();
    // the logs of its pods are in directories whose names begin with its name, and the operator names the object in each line
    for text in [format!("/pods/{namespace}_"), format!(".{namespace}\"")] {
        harness.cluster.expect_log(&text).unwrap();
    }
    begin(harness, namespace, test);
}

/// Runs a test in a cluster of its own, where anything may log warnings.
pub(super) fn run_alone<F>(harness: Shared<'static>, namespace: &str, test: impl FnOnce(Kit) -> F + Send)
where
    F: Future<Output = ()>,
{
    harness.cluster.expect_log("").unwrap();
    begin(harness, namespace, test);
}

fn begin<F>(harness: Shared<'static>, namespace: &str, test: impl FnOnce(Kit) -> F + Send)
where
    F: Future<Output = ()>,
{
    harness.operator();
    let home = harness.cluster.home().clone();
    let ran = inside::run(&home, async || {
        let client = inside::client(&home).await.unwrap();
        let kit = Kit {
            client,
            namespace: namespace.to_owned(),
            harness,
        };
        kit.create_namespace().await;
        let clusters = kit.api::<KubeBrainCluster>();
        Box::pin(test(kit)).await;
        // their pods would take the machine's time from other tests; the namespace ends with the cluster
        let all = ListParams::default();
        clusters
            .delete_collection(&DeleteParams::background(), &all)
            .await
            .unwrap();
    });
    ran.unwrap();
}

impl Kit {
    async fn create_namespace(&self) {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}});
        self.try_apply(&namespace).await.unwrap();
    }

    /// The harness of all tests.
    pub(super) fn harness(&self) -> &Harness {
        &self.harness
    }

    /// kubectl as the cluster's administrator, from within its network.
    pub(super) fn kubectl(&self) -> Kubectl {
        let cluster = &self.harness().cluster;
        cluster.kubectl().with(inside::kubeconfig(cluster.home()).unwrap())
    }

    /// Objects of the namespace.
    pub(super) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Says a line in the run's output.
    pub(super) fn say(&self, line: impl std::fmt::Display) {
        self.harness()
            .progress
            .say(format_args!("  {}: {line}", self.namespace));
    }

    /// Prints a number, and its goal if there is one.
    pub(super) fn number(&self, what: &str, took: Duration, goal: Option<Duration>) {
        let goal = goal.map(|goal| {
            let met = if took <= goal { "met" } else { "not met" };
            format!(" (goal {} ms: {met})", goal.as_millis())
        });
        self.say(format_args!(
            "Number: {what}: {} ms{}",
            took.as_millis(),
            goal.unwrap_or_default()
        ));
    }

    /// Server-side apply of an object; one that names no namespace goes to this one.
    pub(super) async fn try_apply(&self, object: &Value) -> kube::Result<DynamicObject> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let kind = GroupVersionKind::gvk(group, version, &kind);
        let (resource, capabilities) = discovery::pinned_kind(&self.client, &kind).await?;
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or(&self.namespace);
        let api: Api<DynamicObject> = match capabilities.scope {
            Scope::Cluster => Api::all_with(self.client.clone(), &resource),
            Scope::Namespaced => Api::namespaced_with(self.client.clone(), namespace, &resource),
        };
        let name = text(&object["metadata"]["name"]);
        api.patch(&name, &PatchParams::apply("e2e").force(), &Patch::Apply(object))
            .await
    }

    /// Defines a resource of another project, with a schema that accepts everything.
    pub(super) async fn define(&self, group: &str, version: &str, kind: &str) {
        let plural = format!("{}s", kind.to_lowercase());
        let name = format!("{plural}.{group}");
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": name},
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
                "versions": [{
                    "name": version,
                    "served": true,
                    "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
                    "subresources": {"status": {}},
                }],
            },
        });
        self.try_apply(&definition).await.unwrap();
        self.eventually("defined", async || {
            let object = format!("crd/{name}");
            let waited = self.kubectl().run(["wait", "--for=condition=Established", &object]);
            waited.map(drop).map_err(|error| format!("{error:#}"))
        })
        .await;
    }

    /// A `KubeBrainCluster` with this spec, applied.
    pub(super) async fn brains(&self, name: &str, spec: Value) -> Brains<'_> {
        self.try_brains(name, spec).await.unwrap()
    }

    /// As [`Kit::brains`], if the API server takes it.
    pub(super) async fn try_brains(&self, name: &str, spec: Value) -> kube::Result<Brains<'_>> {
        let object = json!({
            "apiVersion": "kubebrain.io/v1alpha1",
            "kind": "KubeBrainCluster",
            "metadata": {"name": name},
            "spec": spec,
        });
        self.try_apply(&object).await?;
        Ok(Brains::new(self, name))
    }

    /// Waits until `wanted` accepts an object, and returns it; a caller that needs the time measures it.
    pub(super) async fn until<K>(&self, name: &str, what: &str, limit: Duration, wanted: impl Fn(&K) -> bool) -> K
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + 'static,
        K::DynamicType: Default,
    {
        let wanted = |object: Option<&K>| object.is_some_and(&wanted);
        let reached = Box::pin(await_condition(self.api::<K>(), name, wanted));
        match timeout(limit, reached).await {
            Ok(Ok(Some(object))) => object,
            Ok(Ok(None)) => panic!("{name} is gone while it is waited for: {what}"),
            Ok(Err(error)) => panic!("{name}: {what}: {error}"),
            Err(_) => panic!(
                "{name}: not {what} after {limit:?}\n{}",
                Box::pin(self.describe()).await
            ),
        }
    }

    /// Waits until there is no such object.
    pub(super) async fn until_gone<K>(&self, name: &str)
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + 'static,
        K::DynamicType: Default,
    {
        let gone = |object: Option<&K>| object.is_none();
        if timeout(STATE_TIMEOUT, await_condition(self.api::<K>(), name, gone))
            .await
            .is_err()
        {
            panic!(
                "{name} is still there after {STATE_TIMEOUT:?}\n{}",
                Box::pin(self.describe()).await
            );
        }
    }

    /// Asks again and again until there is an answer.
    pub(super) async fn eventually<T>(&self, what: &str, ask: impl AsyncFn() -> Result<T, String>) -> T {
        let deadline = Instant::now() + STATE_TIMEOUT;
        loop {
            match ask().await {
                Ok(answer) => return answer,
                Err(why) if Instant::now() > deadline => {
                    panic!(
                        "not {what} after {STATE_TIMEOUT:?}: {why}\n{}",
                        Box::pin(self.describe()).await
                    )
                }
                Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Describes the namespace for the reader of a failure: clusters with their status, pods, events, the operator's log.
    pub(super) async fn describe(&self) -> String {
        let mut text = String::new();
        match self.api::<KubeBrainCluster>().list(&ListParams::default()).await {
            Ok(clusters) => {
                for cluster in clusters {
                    text += &format!("--- {}\n", super::brains::in_words(&cluster));
                }
            }
            Err(error) => text += &format!("--- no clusters: {error}\n"),
        }
        text += "--- pods\n";
        for pod in self.list::<Pod>().await {
            text += &format!("{}\n", super::pods::in_words(&pod));
        }
        text += "--- events\n";
        for event in self.list::<Event>().await {
            let object = event.involved_object;
            text += &format!(
                "{}/{} {}: {} (x{})\n",
                object.kind.unwrap_or_default(),
                object.name.unwrap_or_default(),
                event.reason.unwrap_or_default(),
                event.message.unwrap_or_default(),
                event.count.unwrap_or(1),
            );
        }
        text + &self.operator_log().await
    }

    pub(super) async fn list<K>(&self) -> Vec<K>
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        // a failure has been found already: that of the listing is of no interest
        let listed = self.api::<K>().list(&ListParams::default()).await;
        listed.map(|list| list.items).unwrap_or_default()
    }

    /// The operator's pods.
    pub(super) fn operator_pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), OPERATOR_NAMESPACE)
    }

    /// The end of the log of each of the operator's pods, of lines about this namespace and of warnings.
    async fn operator_log(&self) -> String {
        let pods = self.operator_pods();
        let mut text = String::new();
        for pod in pods
            .list(&ListParams::default())
            .await
            .map(|list| list.items)
            .unwrap_or_default()
        {
            let name = pod.metadata.name.unwrap_or_default();
            let tail = LogParams {
                tail_lines: Some(40 * SHOWN_LOG_LINES),
                ..LogParams::default()
            };
            let log = pods.logs(&name, &tail).await.unwrap_or_else(|error| error.to_string());
            let ours = |line: &&str| line.contains(&self.namespace) || line.contains("ERROR") || line.contains("WARN");
            let lines: Vec<&str> = log.lines().filter(ours).collect();
            let shown = lines.len().saturating_sub(usize::try_from(SHOWN_LOG_LINES).unwrap());
            text += &format!("--- log of {name}\n{}\n", lines[shown..].join("\n"));
        }
        text
    }
}
