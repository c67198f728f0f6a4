//! The parts of a cluster that its backup needs: the way to the brains, and settings for pods.

use crds::KubeBrainCluster;
use crds::backup::status::BackupRuntime;
use crds::cluster::tls::TlsMode;
use k8s_openapi::api::core::v1::{ConfigMapProjection, VolumeProjection};
use kube::ResourceExt;

use crate::certificates::Leaf;
use crate::names::{CLIENT_PORT, Names};
use crate::objects::pod::{from_secret, item};
use crate::spec::{OperatorSettings, chosen_image, is_newer_image, newer_default};

/// The way to a cluster's brains.
#[derive(Debug, Clone)]
pub struct ClusterAccess {
    pub(super) endpoint: String,
    /// Files `ca.crt`, `tls.crt` and `tls.key`; `None` without TLS.
    pub(super) certificates: Option<Vec<VolumeProjection>>,
}

impl ClusterAccess {
    /// Returns the client Service of a cluster, and the certificate with which the operator itself connects to it.
    pub fn of(cluster: &KubeBrainCluster, settings: &OperatorSettings) -> Self {
        let names = Names {
            cluster: cluster.name_any(),
            namespace: cluster.namespace().unwrap_or_default(),
            domain: settings.cluster_domain.clone(),
        };
        let tls = &cluster.spec.tls;
        let certificates = (tls.mode != TlsMode::Disabled).then(|| {
            let pair = |secret: &str| from_secret(secret, vec![item("tls.crt", "tls.crt"), item("tls.key", "tls.key")]);
            match &tls.secrets {
                Some(given) => vec![
                    from_secret(&given.ca_bundle.name, vec![item(&given.ca_bundle.key, "ca.crt")]),
                    pair(&given.operator_client.name),
                ],
                None => vec![
                    from_config_map(&names.bundle(), "ca.crt"),
                    pair(&names.leaf(Leaf::OperatorClient)),
                ],
            }
        });
        let scheme = if certificates.is_some() { "https" } else { "http" };
        Self {
            endpoint: format!("{scheme}://{}:{CLIENT_PORT}", names.host(&names.client())),
            certificates,
        }
    }
}

/// Returns the CA certificates in a ConfigMap as the file `ca.crt`.
pub(super) fn from_config_map(name: &str, key: &str) -> VolumeProjection {
    VolumeProjection {
        config_map: Some(ConfigMapProjection {
            name: name.to_owned(),
            items: Some(vec![item(key, "ca.crt")]),
            ..ConfigMapProjection::default()
        }),
        ..VolumeProjection::default()
    }
}

/// Returns the settings of a cluster for the pods of a backup.
pub fn runtime(cluster: &KubeBrainCluster, settings: &OperatorSettings) -> BackupRuntime {
    let present = cluster.status.as_ref().and_then(|status| status.image.clone());
    let image = cluster.spec.image.as_ref();
    BackupRuntime {
        image: present.unwrap_or_else(|| chosen_image(cluster, &settings.default_image)),
        image_pull_policy: image.and_then(|image| image.pull_policy),
        image_pull_secrets: cluster.spec.image_pull_secrets.clone(),
        run_as: cluster.spec.pod.as_ref().and_then(|pod| pod.run_as),
    }
}

/// Returns the settings for the pods that verify a backup, which was made with `made`. A program of a later version says more about damage, and
/// reads all formats of the earlier ones, so the highest version counts among the images of the backup and of the cluster, and the default,
/// which must be of the same repository to be pulled in the same way. Versions are known by tags alone: an image with a digest stays.
pub fn verifying_runtime(
    made: &BackupRuntime,
    cluster: Option<&KubeBrainCluster>,
    settings: &OperatorSettings,
) -> BackupRuntime {
    let present = cluster.map(|cluster| runtime(cluster, settings));
    let present = present.filter(|present| is_newer_image(&present.image, &made.image));
    let mut chosen = present.unwrap_or_else(|| made.clone());
    if let Some(default) = newer_default(&chosen.image, &settings.default_image) {
        default.clone_into(&mut chosen.image);
    }
    chosen
}

/// Returns why a backup cannot begin yet, if it cannot; `cluster` is `None` if it does not exist.
pub fn waits_for(name: &str, cluster: Option<&KubeBrainCluster>) -> Option<String> {
    let Some(cluster) = cluster else {
        return Some(format!("KubeBrainCluster {name} does not exist"));
    };
    if cluster.metadata.deletion_timestamp.is_some() {
        return Some(format!("KubeBrainCluster {name} is being deleted"));
    }
    let conditions = cluster.status.as_ref().and_then(|status| status.conditions.as_ref());
    let available = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "Available");
    match available {
        Some(available) if available.status == "True" => None,
        Some(available) => Some(format!(
            "KubeBrainCluster {name} is not available: {}",
            available.message
        )),
        None => Some(format!("KubeBrainCluster {name} is not available yet")),
    }
}
