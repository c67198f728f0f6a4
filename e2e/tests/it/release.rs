//! The chart on a real API server: a release is installed, upgraded and uninstalled, and its admission policies refuse.

use std::process::Command;
use std::time::Duration;

use e2e_cluster::kubectl::Kubectl;
use programs::progress::Progress;
use programs::server::{Program, Server};
use programs::tools::cache::ToolCache;
use programs::tools::go;
use serde_json::{Value, json};

use crate::chart;
use crate::harness::deadline;
use crate::lease::ApiServer;

const RELEASE: &str = "kubebrain-operator";
const NAMESPACE: &str = "kubebrain-system";
const OPERATOR: &str = "system:serviceaccount:kubebrain-system:kubebrain-operator";

/// An API server with nothing but its store, and the release in it.
struct ClusterContext {
    api: ApiServer,
    store: Server,
    kubectl: Kubectl,
}

impl ClusterContext {
    async fn start() -> Self {
        let store = Server::start(&Program::etcd(&Progress::stderr()).unwrap(), &[]).unwrap();
        let api = ApiServer::start(store.endpoint()).await;
        let programs = go::KUBERNETES
            .build(&ToolCache::open().unwrap(), &Progress::stderr())
            .unwrap();
        let kubectl = Kubectl::new(&programs, api.kubeconfig());
        kubectl.run(["create", "namespace", "brains"]).unwrap();
        Self { api, store, kubectl }
    }

    /// Helm with the chart and these values.
    #[track_caller]
    fn with_chart(&self, verb: &[&str], values: &Value) {
        let chart = chart::manifests("helm/kubebrain-operator");
        let kubeconfig = self.api.kubeconfig();
        let space = ["--namespace", NAMESPACE, "--kubeconfig", kubeconfig.to_str().unwrap()];
        let arguments = [verb, &[RELEASE, chart.to_str().unwrap()], &space].concat();
        chart::said(chart::helm(&arguments, values));
    }

    /// Kinds and names of our objects among these kinds.
    fn ours(&self, kinds: &str) -> Vec<String> {
        let all = self
            .kubectl
            .run(["get", kinds, "--all-namespaces", "--output", "name"])
            .unwrap();
        all.lines()
            .filter(|name| name.contains("kubebrain"))
            .map(str::to_owned)
            .collect()
    }

    /// Returns the API server's answer to the creation of this object by another user.
    fn create(&self, user: Option<&str>, object: &Value) -> Result<String, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), object.to_string()).unwrap();
        let mut command: Command = self.kubectl.command();
        command
            .args(["create", "--dry-run=server", "--filename"])
            .arg(file.path());
        if let Some(user) = user {
            command.args(["--as", user, "--as-group", "system:masters"]);
        }
        let output = command.output().unwrap();
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout).unwrap()),
            false => Err(String::from_utf8(output.stderr).unwrap()),
        }
    }

    fn stop(self) {
        drop(self.api);
        self.store.stop().unwrap();
    }
}

fn cluster(mut more: Value) -> Value {
    more["version"] = json!("1.0.0");
    more["storage"] = json!({"type": "Embedded", "embedded": {"size": "1Gi"}});
    json!({
        "apiVersion": "kubebrain.io/v1alpha1",
        "kind": "KubeBrainCluster",
        "metadata": {"name": "dev", "namespace": "brains"},
        "spec": more,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_installed_upgraded_and_uninstalled() {
    let _deadline = deadline();
    let site = ClusterContext::start().await;
    site.with_chart(&["install", "--create-namespace"], &json!({}));
    let mine = cluster(json!({}));
    site.kubectl.apply(&mine.to_string()).unwrap();
    assert_eq!(site.ours("clusterroles").len(), 3);

    // To other namespaces: the Role comes, the ClusterRole goes.
    let values = json!({"watchNamespaces": ["brains"], "aggregatedRoles": {"create": false}});
    site.with_chart(&["upgrade"], &values);
    assert_eq!(site.ours("clusterroles"), Vec::<String>::new());
    let role = site
        .kubectl
        .run(["--namespace", "brains", "get", "role", RELEASE, "--output", "name"])
        .unwrap();
    assert!(role.contains(RELEASE), "{role}");

    let kubeconfig = site.api.kubeconfig();
    let space = ["--namespace", NAMESPACE, "--kubeconfig", kubeconfig.to_str().unwrap()];
    chart::said(chart::helm_alone(&[&["uninstall", RELEASE][..], &space].concat()));
    assert_eq!(
        site.ours("deployments,roles,rolebindings,poddisruptionbudgets"),
        Vec::<String>::new()
    );
    // Definition and clusters stay, and a new release takes the definition over.
    assert_eq!(site.ours("kubebrainclusters").len(), 1);
    site.with_chart(&["install"], &json!({}));
    site.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admission_policies_refuse_on_a_real_api_server() {
    let _deadline = deadline();
    let site = ClusterContext::start().await;
    let values = json!({"admissionPolicies": {"children": {"enabled": true}, "podTemplates": {"enabled": true}}});
    site.with_chart(&["install", "--create-namespace"], &values);

    // A policy works a moment after it was made.
    let bad = cluster(json!({"podTemplate": {"spec": {"hostNetwork": true}}}));
    let working = async {
        while site.create(None, &bad).is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), working).await.unwrap();

    let pod = |spec: Value| json!({"podTemplate": {"spec": spec}});
    for (spec, message) in [
        (pod(json!({"hostNetwork": true})), "hostNetwork must not be true"),
        (pod(json!({"hostPID": true})), "hostPID must not be true"),
        (pod(json!({"hostIPC": true})), "hostIPC must not be true"),
        (
            pod(json!({"containers": [{"name": "brain", "securityContext": {"privileged": true}}]})),
            "may be privileged",
        ),
        (
            pod(json!({"volumes": [{"name": "a", "hostPath": {"path": "/"}}]})),
            "must not have a hostPath",
        ),
        (
            pod(json!({"initContainers": [{"name": "a", "ports": [{"hostPort": 80}]}]})),
            "may have a hostPort",
        ),
        (
            pod(json!({"serviceAccountName": "admin"})),
            "must be the cluster's own account",
        ),
        (
            json!({"pod": {"serviceAccountName": "admin"}}),
            "must be the cluster's own account",
        ),
    ] {
        let refused = site.create(None, &cluster(spec)).unwrap_err();
        assert!(refused.contains(message), "{message}: {refused}");
    }
    for spec in [
        json!({}),
        json!({"podTemplate": null}),
        pod(json!(null)),
        pod(json!({"hostNetwork": false, "containers": null, "serviceAccountName": null})),
        pod(json!({"containers": [{"name": "brain", "securityContext": null, "ports": null}]})),
    ] {
        site.create(None, &cluster(spec.clone()))
            .unwrap_or_else(|error| panic!("{spec}: {error}"));
    }

    let planted = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "dev-ca",
            "namespace": "brains",
            "labels": {"app.kubernetes.io/managed-by": "kubebrain-operator"},
        },
    });
    let refused = site.create(None, &planted).unwrap_err();
    assert!(
        refused.contains("the KubeBrain operator manages this object"),
        "{refused}"
    );
    for writer in [OPERATOR, "system:serviceaccount:kube-system:generic-garbage-collector"] {
        site.create(Some(writer), &planted).unwrap();
    }
    site.stop();
}
