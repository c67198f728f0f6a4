//! kube-apiserver.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;

use crate::cluster_context::ClusterContext;
use crate::cluster_dir::ClusterDir;
use crate::namespace::{NODE, SERVICES};
use crate::store;
use crate::supervisor::SupervisedProgram;

/// The program's name in state and logs.
pub const NAME: &str = "kube-apiserver";

/// The ServiceAccount of the operator, as the API server knows it.
pub const OPERATOR: &str = "system:serviceaccount:kubebrain-system:kubebrain-operator";

/// Each request of the operator, one JSON object a line.
///
/// It outlives the cluster.
pub fn audit_log(home: &ClusterDir) -> PathBuf {
    home.logs().join("audit.log")
}

/// Writes the audit policy, and gives what to run, on a store that is reached at these members.
///
/// # Errors
///
/// The policy cannot be written.
pub fn program(site: &ClusterContext, members: &[store::StoreMember]) -> anyhow::Result<SupervisedProgram> {
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "users": [OPERATOR]}, {"level": "None"}],
    });
    site.home.write("config/audit.yaml", serde_yaml::to_string(&policy)?)?;
    let url = |member: &store::StoreMember| format!("http://{}", member.address);
    let urls: Vec<String> = members.iter().map(url).collect();
    let args = [
        format!("--etcd-servers={}", urls.join(",")),
        format!("--service-cluster-ip-range={SERVICES}"),
        format!("--advertise-address={NODE}"),
        format!("--bind-address={NODE}"),
        "--secure-port=6443".to_owned(),
        "--allow-privileged=true".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        site.file_flag("tls-cert-file", "pki/apiserver.crt"),
        site.file_flag("tls-private-key-file", "pki/apiserver.key"),
        site.file_flag("client-ca-file", "pki/ca.crt"),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        site.file_flag("service-account-key-file", "pki/sa.pub"),
        site.file_flag("service-account-signing-key-file", "pki/sa.key"),
        site.file_flag("kubelet-certificate-authority", "pki/ca.crt"),
        site.file_flag("kubelet-client-certificate", "pki/admin.crt"),
        site.file_flag("kubelet-client-key", "pki/admin.key"),
        // else exec and logs look the node's name up in DNS
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        site.file_flag("audit-policy-file", "config/audit.yaml"),
        format!("--audit-log-path={}", audit_log(&site.home).display()),
        // on by default from 1.36 on
        "--feature-gates=MutatingAdmissionPolicy=true".to_owned(),
        "--runtime-config=admissionregistration.k8s.io/v1beta1=true".to_owned(),
    ];
    Ok(site.kubernetes(NAME, args))
}

/// A client of the API server that a kubeconfig names.
///
/// # Errors
///
/// The file cannot be read or makes no client.
pub async fn client(kubeconfig: &Path) -> anyhow::Result<kube::Client> {
    let config = Kubeconfig::read_from(kubeconfig).with_context(|| format!("read {}", kubeconfig.display()))?;
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    kube::Client::try_from(config).with_context(|| format!("make a client from {}", kubeconfig.display()))
}

/// Checks that it is ready to serve.
///
/// # Errors
///
/// It is not, and why.
pub async fn ready(client: &kube::Client) -> anyhow::Result<()> {
    let answer = client
        .request_text(http::Request::get("/readyz").body(Vec::new())?)
        .await?;
    ensure!(answer == "ok", "/readyz says: {answer}");
    Ok(())
}
