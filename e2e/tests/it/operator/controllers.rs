//! Kubernetes' controllers on a tenant's API server.

use std::process::Stdio;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::runtime::wait::await_condition;
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::kit::{Kit, STATE_TIMEOUT};

const PROGRAM: &str = "kube-controller-manager";
/// Labels pods of the Deployment.
const WEB: &str = "app=web";

/// kube-controller-manager of one tenant: a process in the cluster's network that ends with this.
pub(super) struct Controllers {
    tenant: kube::Client,
    lease: Lease,
    _process: Child,
}

impl Controllers {
    /// Starts it as the administrator of the tenant with this name, and waits until it works.
    pub(super) async fn start(kit: &Kit, name: &str, tenant: &kube::Client) -> Self {
        let cluster = &kit.harness().cluster;
        let home = cluster.home();
        let log = home.open_log(&format!("{name}-controller-manager")).unwrap();
        let flag = |flag: &str, file: String| format!("--{flag}={}", home.path(file).display());
        let process = Command::new(cluster.kubectl().program().with_file_name(PROGRAM))
            .arg(flag("kubeconfig", format!("{name}.kubeconfig")))
            .arg(flag("service-account-private-key-file", format!("pki/{name}-sa.key")))
            .args(["--use-service-account-credentials=true", "--secure-port=0"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let leases = Api::<Lease>::namespaced(tenant.clone(), "kube-system");
        let held = await_condition(leases, PROGRAM, |lease: Option<&Lease>| {
            lease.is_some_and(|lease| lease.spec.as_ref().is_some_and(|spec| spec.holder_identity.is_some()))
        });
        let lease = timeout(STATE_TIMEOUT, held)
            .await
            .expect("controllers in time")
            .unwrap();
        Self {
            tenant: tenant.clone(),
            lease: lease.unwrap(),
            _process: process,
        }
    }

    /// Applies a Deployment with this many replicas, and waits until there are as many pods. No node runs them.
    pub(super) async fn scale(&self, kit: &Kit, replicas: usize) {
        let deployment = json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "web", "image": "web"}]},
                },
            },
        });
        let deployments = Api::<Deployment>::default_namespaced(self.tenant.clone());
        let params = PatchParams::apply("e2e").force();
        deployments
            .patch("web", &params, &Patch::Apply(deployment))
            .await
            .unwrap();
        let pods = Api::<Pod>::default_namespaced(self.tenant.clone());
        kit.eventually("scaled by the tenant's controllers", async || {
            let pods = pods.list(&ListParams::default().labels(WEB)).await;
            let there = pods.map_err(|error| error.to_string())?.items.len();
            (there == replicas)
                .then_some(())
                .ok_or(format!("{there} pods of {replicas}"))
        })
        .await;
    }

    /// Checks that they have worked all the time: their Lease still has the same holder.
    pub(super) async fn check(&self) {
        let leases = Api::<Lease>::namespaced(self.tenant.clone(), "kube-system");
        let holder = |lease: Lease| lease.spec.map(|spec| (spec.holder_identity, spec.lease_transitions));
        let now = leases.get(PROGRAM).await.unwrap();
        assert_eq!(
            holder(now),
            holder(self.lease.clone()),
            "the controllers lost their Lease"
        );
    }
}
