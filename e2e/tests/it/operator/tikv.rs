//! What brains in pods store in: the TiKV stand-in as a pod, or the cluster that `TIKV_PD` names.

use std::path::{Path, PathBuf};

use e2e::images;
use e2e::relay::Relay;
use e2e::tikv::REAL;
use e2e::tikv::real::Addresses;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::kit::{Kit, LIMIT};
use super::pods;

/// The stand-in's pod, and its Service.
const NAME: &str = "pd";

/// TiKV for the brains of one namespace.
pub(super) struct Tikv {
    /// What goes into `storage.tikv.pdEndpoints`.
    pub(super) pd: String,
    /// The way to a real cluster, for pods.
    relay: Option<Relay>,
}

impl Tikv {
    /// Starts the stand-in with three stores and its data in memory, or opens the way to the real cluster.
    pub(super) async fn start(kit: &Kit) -> Self {
        if let Ok(pd) = std::env::var(REAL) {
            return Self::real(kit, &pd).await;
        }
        kit.apply(
            &stand_in()
                .iter()
                .map(Value::to_string)
                .collect::<Vec<_>>()
                .join("\n---\n"),
        )
        .await;
        kit.until::<Pod>(NAME, "serving", LIMIT, pods::serves).await;
        Self {
            pd: format!("{NAME}.{}.svc:2379", kit.namespace),
            relay: None,
        }
    }

    async fn real(kit: &Kit, pd: &str) -> Self {
        let real = Addresses::ask(pd).await.unwrap();
        assert!(
            real.all().iter().all(|address| !address.ip().is_loopback()),
            "{REAL}={pd}: pods reach no loopback address"
        );
        let inside = PathBuf::from("/run/netns").join(kit.harness().cluster.home().netns());
        let relay = Relay::start(Path::new("/proc/self/ns/net"), &[inside], &real.all()).unwrap();
        Self {
            pd: real.endpoints(),
            relay: Some(relay),
        }
    }

    /// Whether it is no real cluster.
    pub(super) fn is_stand_in(&self) -> bool {
        self.relay.is_none()
    }
}

/// The pod and its Service. A pod of its own address: that is what clients are told by PD.
fn stand_in() -> [Value; 2] {
    let args = [
        "--pd-listen=0.0.0.0:2379",
        "--store-listen=0.0.0.0:20160",
        "--store-listen=0.0.0.0:20161",
        "--store-listen=0.0.0.0:20162",
        "--control-listen=0.0.0.0:12380",
        "--advertise-host=$(POD_IP)",
    ];
    let address = json!({"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}});
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "labels": {"app": NAME}},
        "spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "tikv",
                "image": images::TIKV,
                "imagePullPolicy": "Never",
                "args": args,
                "env": [address],
                "readinessProbe": {"tcpSocket": {"port": 2379}, "periodSeconds": 1},
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    });
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME},
        "spec": {"selector": {"app": NAME}, "ports": [{"name": "pd", "port": 2379}]},
    });
    [pod, service]
}
