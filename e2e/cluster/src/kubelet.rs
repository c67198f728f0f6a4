//! kubelet and kube-proxy: the cluster's one node.

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use crate::cluster_context::ClusterContext;
use crate::namespace::{DNS_SERVICE, NODE, PODS};
use crate::supervisor::SupervisedProgram;

/// The program's name in state and logs.
pub const NAME: &str = "kubelet";
/// The program's name in state and logs.
pub const PROXY: &str = "kube-proxy";
/// The node's name.
pub const NODE_NAME: &str = "node1";

/// Kernel settings of the whole machine that a kubelet changes.
pub const SYSCTLS: [&str; 6] = [
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/panic_on_oom",
    "/proc/sys/kernel/panic",
    "/proc/sys/kernel/panic_on_oops",
    "/proc/sys/kernel/keys/root_maxkeys",
    "/proc/sys/kernel/keys/root_maxbytes",
];

/// Writes the kubelet's configuration, and tells what to run.
///
/// # Errors
///
/// A file cannot be written.
pub fn program(site: &ClusterContext) -> anyhow::Result<SupervisedProgram> {
    let home = &site.home;
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": home.path("pki/ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": home.path("pki/node.crt"),
        "tlsPrivateKeyFile": home.path("pki/node.key"),
        "containerRuntimeEndpoint": format!("unix://{}", home.containerd_socket().display()),
        "cgroupDriver": "cgroupfs",
        // below it two kubelets of one machine do not meet
        "cgroupRoot": format!("/{}", home.cgroup()),
        "enforceNodeAllocatable": [],
        "failSwapOn": false,
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        "podLogsDir": home.logs().join("pods"),
        "volumePluginDir": home.node().join("plugins"),
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        // pods come and go quickly in tests
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
        "nodeStatusUpdateFrequency": "5s",
        // how soon a pod sees a changed Secret: certificates of tests live for minutes
        "syncFrequency": "5s",
        "maxPods": 110,
    });
    home.write("config/kubelet.yaml", serde_yaml::to_string(&config)?)?;
    let args = [
        site.file_flag("config", "config/kubelet.yaml"),
        site.file_flag("kubeconfig", "config/node.kubeconfig"),
        format!("--hostname-override={NODE_NAME}"),
        format!("--node-ip={NODE}"),
        format!("--root-dir={}", home.node().join("kubelet").display()),
    ];
    Ok(site.kubernetes(NAME, args))
}

/// Writes kube-proxy's configuration, and tells what to run.
///
/// # Errors
///
/// A file cannot be written.
pub fn proxy(site: &ClusterContext) -> anyhow::Result<SupervisedProgram> {
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": site.kubeconfig("proxy")},
        "mode": "iptables",
        "clusterCIDR": PODS,
        "hostnameOverride": NODE_NAME,
        // settings of the machine that a network of its own may not change
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    });
    site.home.write("config/proxy.yaml", serde_yaml::to_string(&config)?)?;
    Ok(site.kubernetes(PROXY, [site.file_flag("config", "config/proxy.yaml")]))
}

/// Checks that the node is Ready.
///
/// # Errors
///
/// It is not, and why.
pub async fn ready(client: &kube::Client) -> anyhow::Result<()> {
    let node = kube::Api::<Node>::all(client.clone())
        .get(NODE_NAME)
        .await
        .context("get the node")?;
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    let ready = conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")
        .context("the node has no status yet")?;
    ensure!(
        ready.status == "True",
        "the node says: {}",
        ready.message.as_deref().unwrap_or("nothing")
    );
    Ok(())
}
