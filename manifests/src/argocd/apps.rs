//! An app of apps. Its sync waves: the CRD, the operator, the secrets, the cluster, and the API server on it.

use serde_json::{Value, json};

use crate::samples::{self, BRAINS, Pki};

/// A placeholder for the repository that holds this directory.
const REPOSITORY: &str = "https://git.example.org/kubebrain.git";

struct App {
    wave: i32,
    name: &'static str,
    path: &'static str,
    namespace: &'static str,
    options: &'static [&'static str],
}

const SYSTEM: &str = crate::install::NAMESPACE;

const APPS: &[App] = &[
    App {
        wave: -2,
        name: "kubebrain-definition",
        path: "manifests/yaml/crd",
        namespace: SYSTEM,
        options: &["ServerSideApply=true"],
    },
    App {
        wave: -1,
        name: "kubebrain-operator",
        path: "manifests/yaml/cluster-wide",
        namespace: SYSTEM,
        options: &["ServerSideApply=true"],
    },
    App {
        wave: 0,
        name: "tenant-secrets",
        path: "manifests/argocd/tenant/secrets",
        namespace: BRAINS,
        options: &[],
    },
    App {
        wave: 1,
        name: "tenant-cluster",
        path: "manifests/argocd/tenant/cluster",
        namespace: BRAINS,
        options: &["SkipDryRunOnMissingResource=true"],
    },
    App {
        wave: 2,
        name: "tenant-apiserver",
        path: "manifests/argocd/tenant/apiserver",
        namespace: BRAINS,
        options: &[],
    },
];

/// Returns every file by its path below argocd.
pub(super) fn files() -> Vec<(String, Vec<Value>)> {
    let mut secrets = vec![samples::namespace(BRAINS)];
    secrets.extend(samples::tenant_pki("tenant"));
    let apiserver = vec![
        samples::apiserver_deployment("tenant", &Pki::CertManager),
        samples::apiserver_service("tenant"),
    ];
    let mut files: Vec<(String, Vec<Value>)> = APPS
        .iter()
        .map(|app| (format!("apps/{}.yaml", app.name), vec![application(app)]))
        .collect();
    let root = App {
        wave: 0,
        name: "kubebrain",
        path: "manifests/argocd/apps",
        namespace: "argocd",
        options: &[],
    };
    files.extend([
        ("app-of-apps.yaml".to_owned(), vec![application(&root)]),
        ("tenant/secrets/secrets.yaml".to_owned(), secrets),
        (
            "tenant/cluster/cluster.yaml".to_owned(),
            vec![samples::tenant_cluster()],
        ),
        ("tenant/apiserver/apiserver.yaml".to_owned(), apiserver),
    ]);
    files
}

fn application(app: &App) -> Value {
    let mut object = json!({
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Application",
        "metadata": {
            "name": app.name,
            "namespace": "argocd",
            "annotations": {"argocd.argoproj.io/sync-wave": app.wave.to_string()},
        },
        "spec": {
            "project": "default",
            "source": {"repoURL": REPOSITORY, "targetRevision": "main", "path": app.path},
            "destination": {"server": "https://kubernetes.default.svc", "namespace": app.namespace},
            "syncPolicy": {
                "automated": {"prune": true, "selfHeal": true},
                "retry": {"limit": 5, "refresh": true, "backoff": {"duration": "5s", "factor": 2, "maxDuration": "1m"}},
            },
        },
    });
    if !app.options.is_empty() {
        object["spec"]["syncPolicy"]["syncOptions"] = json!(app.options);
    }
    object
}
