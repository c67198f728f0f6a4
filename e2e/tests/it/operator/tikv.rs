//! TiKV for brains in pods: the mock of TiKV as a pod, or the cluster that `TIKV_PD` names.

use std::path::{Path, PathBuf};

use e2e_cluster::images;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::Api;
use kube::runtime::wait::await_condition;
use programs::tcp_proxy::TcpProxy;
use programs::tikv::REAL_PD_VARIABLE;
use programs::tikv::real::PdAddresses;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::kit::{Kit, STATE_TIMEOUT};
use super::pods;

/// The mock's pod, and its Service.
const NAME: &str = "pd";
/// Mount path of the mock's certificates.
const TLS: &str = "/tls";

/// TiKV for the brains of one namespace.
pub(super) struct Tikv {
    /// Value for `storage.tikv.pdEndpoints`.
    pub(super) pd: String,
    /// The way to a real cluster, for pods.
    relay: Option<TcpProxy>,
}

impl Tikv {
    /// Starts the mock with three stores and its data in memory, or opens the way to the real cluster.
    pub(super) async fn start(kit: &Kit) -> Self {
        if let Ok(pd) = std::env::var(REAL_PD_VARIABLE) {
            return Self::real(kit, &pd).await;
        }
        MockTikv::new(NAME).start(kit).await;
        Self {
            pd: MockTikv::new(NAME).pd(kit),
            relay: None,
        }
    }

    async fn real(kit: &Kit, pd: &str) -> Self {
        let real = PdAddresses::ask(pd).await.unwrap();
        assert!(
            real.all().iter().all(|address| !address.ip().is_loopback()),
            "{REAL_PD_VARIABLE}={pd}: pods reach no loopback address"
        );
        let inside = PathBuf::from("/run/netns").join(kit.harness().cluster.home().netns());
        let relay = TcpProxy::start(Path::new("/proc/self/ns/net"), &[inside], &real.all()).unwrap();
        Self {
            pd: real.endpoints(),
            relay: Some(relay),
        }
    }

    /// Returns true if it is no real cluster.
    pub(super) fn is_mock(&self) -> bool {
        self.relay.is_none()
    }
}

/// The mock of a test that needs one with settings of its own: a pod, and a Service that leads to it.
#[derive(Clone, Copy)]
pub(super) struct MockTikv<'a> {
    /// Of the pod and of the Service.
    pub(super) name: &'a str,
    /// Its namespace, if it does not run beside the brains.
    pub(super) namespace: Option<&'a str>,
    /// The id that PD gives.
    pub(super) cluster_id: u64,
    /// The Secret with its certificate, if it speaks TLS.
    pub(super) tls: Option<&'a str>,
}

impl<'a> MockTikv<'a> {
    pub(super) fn new(name: &'a str) -> Self {
        Self {
            name,
            namespace: None,
            cluster_id: 7,
            tls: None,
        }
    }

    /// The name under which PD and stores are reached.
    pub(super) fn host(&self, kit: &Kit) -> String {
        format!("{}.{}.svc", self.name, self.namespace.unwrap_or(&kit.namespace))
    }

    /// Returns the value for `storage.tikv.pdEndpoints`.
    pub(super) fn pd(&self, kit: &Kit) -> String {
        format!("{}:2379", self.host(kit))
    }

    /// Starts it, and waits until it serves and its Service leads to it: until kube-proxy knows the pod, connections are refused.
    pub(super) async fn start(&self, kit: &Kit) {
        for object in [self.pod(kit), self.service(self.name)] {
            kit.try_apply(&object).await.unwrap();
        }
        let pods = Api::<Pod>::namespaced(kit.client.clone(), self.namespace.unwrap_or(&kit.namespace));
        let serves = await_condition(pods, self.name, |pod: Option<&Pod>| pod.is_some_and(pods::serves));
        timeout(STATE_TIMEOUT, serves)
            .await
            .expect("TiKV serves in time")
            .unwrap();
        let address = self.service_address(kit).await;
        kit.eventually("TiKV takes connections", async || {
            TcpStream::connect(&address)
                .await
                .map_err(|error| format!("{address}: {error}"))?;
            Ok(())
        })
        .await;
    }

    /// The address at which its Service leads to PD.
    async fn service_address(&self, kit: &Kit) -> String {
        let services = Api::<Service>::namespaced(kit.client.clone(), self.namespace.unwrap_or(&kit.namespace));
        let service = services.get(self.name).await.unwrap();
        format!("{}:2379", service.spec.and_then(|spec| spec.cluster_ip).unwrap())
    }

    /// Points its Service, one beside the brains and without TLS, at the mock of another name, or at nothing if there is none. Waits
    /// until connections go there: kube-proxy learns of the change a second or more after the API server.
    pub(super) async fn lead_to(&self, kit: &Kit, other: &str) {
        kit.try_apply(&self.service(other)).await.unwrap();
        let address = self.service_address(kit).await;
        let pod = kit.api::<Pod>().get_opt(other).await.unwrap();
        let expected = pod.map(|pod| pod.status.and_then(|status| status.pod_ip).unwrap());
        kit.eventually(&format!("led to {other}"), async || {
            let asked = PdAddresses::ask(&address).await;
            let answers = asked.ok().map(|found| found.pd[0].ip().to_string());
            if answers == expected {
                Ok(())
            } else {
                Err(format!("{answers:?} answers, not {expected:?}"))
            }
        })
        .await;
    }

    /// Clients get its address from PD, or its name if that is in its certificate.
    fn pod(&self, kit: &Kit) -> Value {
        let host = self.tls.map_or("$(POD_IP)".to_owned(), |_| self.host(kit));
        let mut args = vec![
            "--pd-listen=0.0.0.0:2379".to_owned(),
            "--store-listen=0.0.0.0:20160".to_owned(),
            "--store-listen=0.0.0.0:20161".to_owned(),
            "--store-listen=0.0.0.0:20162".to_owned(),
            "--control-listen=0.0.0.0:12380".to_owned(),
            format!("--advertise-host={host}"),
            format!("--cluster-id={}", self.cluster_id),
        ];
        let (mut mounts, mut volumes) = (json!([]), json!([]));
        if let Some(secret) = self.tls {
            args.extend([
                format!("--ca={TLS}/ca.crt"),
                format!("--cert={TLS}/tls.crt"),
                format!("--key={TLS}/tls.key"),
            ]);
            mounts = json!([{"name": "tls", "mountPath": TLS, "readOnly": true}]);
            volumes = json!([{"name": "tls", "secret": {"secretName": secret}}]);
        }
        let address = json!({"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}});
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "namespace": self.namespace, "labels": {"app": self.name}},
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
                    // Everything waits for it. Without a request it gets no CPU for seconds while other pods are busy. It stays until the
                    // cluster ends, so the requests of all tests together must fit on the node.
                    "resources": {"requests": {"cpu": "20m", "memory": "32Mi"}},
                    "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                    "volumeMounts": mounts,
                }],
                "volumes": volumes,
            },
        })
    }

    fn service(&self, leads_to: &str) -> Value {
        let ports = [("pd", 2379), ("store-1", 20160), ("store-2", 20161), ("store-3", 20162)];
        let ports = ports.map(|(name, port)| json!({"name": name, "port": port}));
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {"selector": {"app": leads_to}, "ports": ports},
        })
    }
}
