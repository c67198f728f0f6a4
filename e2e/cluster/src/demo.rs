//! The way of a user: install the operator, ask for a brain, put an API server of one's own on it.
//!
//! Everything goes through kubectl and public objects. The tests go the same way.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use programs::progress::Progress;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::images;
use crate::kubectl::Kubectl;
use crate::namespace::TENANT_SERVICE;
use crate::tenant::Tenant;

/// The namespace of the sample.
pub const NAMESPACE: &str = "brains";
/// The name of the sample.
pub const BRAIN: &str = "dev";
/// For any single thing to get ready.
const WAIT_TIMEOUT: &str = "--timeout=120s";
/// For a new definition to get its first condition.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A file or directory of the workspace.
fn workspace(path: &str) -> anyhow::Result<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .context("the crate is not in a workspace")?;
    Ok(workspace.join(path))
}

/// Installs the definitions of the resources and the operator.
///
/// # Errors
///
/// kubectl's; an operator that does not get ready is described.
pub fn install_operator(kubectl: &Kubectl, progress: &Progress) -> anyhow::Result<()> {
    let manifests = workspace("manifests/yaml")?;
    progress.during("operator installed: kubectl apply -k manifests/yaml", || {
        kubectl.run(["apply".as_ref(), "--kustomize".as_ref(), manifests.as_os_str()])?;
        established(kubectl, "crd/kubebrainclusters.kubebrain.io")?;
        established(kubectl, "crd/kubebrainbackups.kubebrain.io")?;
        established(kubectl, "crd/kubebrainbackupschedules.kubebrain.io")?;
        let rollout = [
            "--namespace",
            "kubebrain-system",
            "rollout",
            "status",
            "deployment/kubebrain-operator",
            WAIT_TIMEOUT,
        ];
        kubectl
            .run(rollout)
            .map(drop)
            .map_err(|error| explain(kubectl, "kubebrain-system", error))
    })
}

/// Asks for a brain and waits until it is Ready.
///
/// # Errors
///
/// kubectl's; a brain that does not get ready is described.
pub fn create_brain(cluster: &Cluster, progress: &Progress) -> anyhow::Result<()> {
    let kubectl = cluster.kubectl();
    let sample = workspace("manifests/yaml/samples/embedded.yaml")?;
    progress.during(
        "KubeBrainCluster Ready: kubectl apply -f manifests/yaml/samples/embedded.yaml",
        || {
            kubectl.run(["apply".as_ref(), "--filename".as_ref(), sample.as_os_str()])?;
            let object = format!("kubebraincluster/{BRAIN}");
            let wait = [
                "--namespace",
                NAMESPACE,
                "wait",
                "--for=condition=Ready",
                &object,
                WAIT_TIMEOUT,
            ];
            kubectl
                .run(wait)
                .map(drop)
                .map_err(|error| explain(kubectl, NAMESPACE, error))
        },
    )
}

/// Starts a second API server, as a pod whose store is the brain, and gives kubectl for it.
///
/// # Errors
///
/// kubectl's; a server that does not get ready is described.
pub fn start_tenant(cluster: &Cluster, progress: &Progress) -> anyhow::Result<Kubectl> {
    let kubectl = cluster.kubectl();
    progress.during(
        "tenant's kube-apiserver ready, its store is the brain, over mTLS",
        || {
            let url = format!("https://127.0.0.1:{}", cluster.port("tenant")?);
            let tenant = Tenant {
                name: "tenant",
                namespace: NAMESPACE,
                brain: BRAIN,
                members: 1,
                address: TENANT_SERVICE,
            };
            tenant.create(cluster.home(), kubectl, &url)?;
            let rollout = [
                "--namespace",
                NAMESPACE,
                "rollout",
                "status",
                "deployment/tenant-apiserver",
                WAIT_TIMEOUT,
            ];
            kubectl
                .run(rollout)
                .map_err(|error| explain(kubectl, NAMESPACE, error))?;
            Ok(cluster.tenant())
        },
    )
}

/// Waits until objects of a definition can be made. kubectl fails as long as a new definition has no conditions at all.
fn established(kubectl: &Kubectl, definition: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + ACCEPT_TIMEOUT;
    loop {
        match kubectl.run(["wait", "--for=condition=Established", definition, WAIT_TIMEOUT]) {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() >= deadline || !error.to_string().contains("accessor error") => {
                return Err(error);
            }
            Err(_) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

/// Creates objects through the tenant's API server and reads them back.
///
/// # Errors
///
/// kubectl's, or something is not as it was written.
pub fn use_tenant(tenant: &Kubectl, progress: &Progress) -> anyhow::Result<()> {
    progress.during(
        "objects created through it: a namespace, ConfigMaps, a definition and an object of it",
        || {
            tenant.apply(include_str!("tenant-objects.yaml"))?;
            let kind = "crd/pens.example.org";
            established(tenant, kind)?;
            tenant.run([
                "wait",
                "--for=jsonpath={.status.acceptedNames.kind}=Pen",
                kind,
                WAIT_TIMEOUT,
            ])?;
            tenant.apply(
                "{apiVersion: example.org/v1, kind: Pen, metadata: {name: red, namespace: shop}, spec: {ink: red}}",
            )?;
            let ink = tenant.run([
                "--namespace",
                "shop",
                "get",
                "pen",
                "red",
                "--output",
                "jsonpath={.spec.ink}",
            ])?;
            ensure!(ink == "red", "the pen's ink reads {ink:?}");
            tenant.run([
                "--namespace",
                "shop",
                "patch",
                "configmap",
                "prices",
                "--patch",
                r#"{"data": {"pen": "3"}}"#,
            ])?;
            let price = tenant.run([
                "--namespace",
                "shop",
                "get",
                "configmap",
                "prices",
                "--output",
                "jsonpath={.data.pen}",
            ])?;
            ensure!(price == "3", "the price reads {price:?}");
            Ok(())
        },
    )
}

/// Describes what runs now, and how to use and stop it.
///
/// # Errors
///
/// kubectl's.
pub fn summary(cluster: &Cluster, tenant: &Kubectl) -> anyhow::Result<String> {
    let brains = cluster
        .kubectl()
        .run(["get", "kubebraincluster", "--all-namespaces", "--output", "wide"])?;
    let pods = cluster
        .kubectl()
        .run(["get", "pods", "--namespace", NAMESPACE, "--output", "wide"])?;
    let objects = tenant.run(["get", "configmaps,pens", "--namespace", "shop"])?;
    let programs = cluster
        .kubectl()
        .program()
        .parent()
        .context("kubectl has no parent directory")?
        .display()
        .to_string();
    let home = cluster.home();
    Ok(format!(
        "\nA Kubernetes whose own store is kubebrain ({store}) runs the operator, which made a brain:\n\n{brains}\n{pods}\n\
         A second kube-apiserver runs in a pod, on that brain (image {brain}). Through it:\n\n{objects}\n\
         Look around:\n\n  \
         export PATH=$PATH:{programs}\n  \
         kubectl --kubeconfig {outer} get pods --all-namespaces\n  \
         kubectl --kubeconfig {inner} get namespaces\n\n\
         Logs: {logs}\nStop:  make demo-down\n",
        store = cluster.store_url()?,
        brain = images::BRAIN,
        outer = home.kubeconfig().display(),
        inner = home.tenant_kubeconfig().display(),
        logs = home.logs().display(),
    ))
}

/// Adds the objects, events and logs of a namespace to an error.
fn explain(kubectl: &Kubectl, namespace: &str, error: anyhow::Error) -> anyhow::Error {
    let ask = |args: &[&str]| kubectl.run(args).unwrap_or_else(|failed| format!("({failed})\n"));
    let objects = ask(&[
        "--namespace",
        namespace,
        "get",
        "kubebraincluster,statefulset,deployment,pods,pvc,secrets",
    ]);
    let events = ask(&["--namespace", namespace, "get", "events", "--sort-by=.lastTimestamp"]);
    let logs = ask(&[
        "--namespace",
        namespace,
        "logs",
        "--all-containers",
        "--prefix",
        "--tail=10",
        "--selector=!none",
        "--ignore-errors",
    ]);
    anyhow::anyhow!("{error:#}\n--- objects\n{objects}--- events\n{events}--- logs\n{logs}")
}
