//! Add-ons of every cluster: CoreDNS and volumes.

use anyhow::{Context as _, ensure};
use k8s_openapi::api::apps::v1::Deployment;

use crate::cluster_dir::ClusterDir;
use crate::volumes;

/// Objects to apply, as YAML.
///
/// # Errors
///
/// A volume's directory cannot be made.
pub fn objects(home: &ClusterDir) -> anyhow::Result<String> {
    let mut documents = include_str!("dns.yaml").to_owned();
    for object in volumes::create(home)? {
        documents.push_str("---\n");
        documents.push_str(&serde_yaml::to_string(&object)?);
    }
    Ok(documents)
}

/// Checks that the name server is ready.
///
/// # Errors
///
/// It is not, and why.
pub async fn ready(client: &kube::Client) -> anyhow::Result<()> {
    let deployment = kube::Api::<Deployment>::namespaced(client.clone(), "kube-system")
        .get("coredns")
        .await?;
    let ready = deployment.status.context("CoreDNS has no status yet")?.ready_replicas;
    ensure!(ready == Some(1), "CoreDNS is not ready yet");
    Ok(())
}
