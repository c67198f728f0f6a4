//! The objects that a backup, an archive or the first data of a cluster names. They must not be ones that the operator created for a cluster.
//!
//! Otherwise a user who may only create backups could send the keys of a cluster to a service, or write into its volume.

use crds::backup::destination::{CaBundleRef, ClaimDirectory};
use crds::cluster::bootstrap::FromEtcd;
use crds::cluster::image::LocalRef;
use crds::cluster::status::BundleKind;

use super::target::BackupTarget;
use crate::spec::{OperatorSettings, SpecRefusal};

/// Kinds of objects that a backup names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedKind {
    Secret,
    ConfigMap,
    PersistentVolumeClaim,
}

/// An object that a backup names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedObject<'a> {
    /// The field of the spec.
    pub path: &'static str,
    pub kind: NamedKind,
    pub name: &'a str,
}

impl NamedObject<'_> {
    /// Returns the refusal of an object that belongs to a cluster.
    pub fn refused(&self, cluster: &str) -> SpecRefusal {
        refusal(format!(
            "{}: {:?} {} belongs to the cluster {cluster}",
            self.path, self.kind, self.name
        ))
    }

    /// Returns the message about an object that does not exist.
    pub fn missing(&self) -> String {
        format!("{}: {:?} {} does not exist", self.path, self.kind, self.name)
    }
}

fn refusal(message: String) -> SpecRefusal {
    SpecRefusal {
        reason: "InvalidSpec",
        message,
    }
}

/// Refuses a spec that asks for what the operator does not allow.
///
/// # Errors
/// It names a service account, or a volume of the cluster.
pub fn check(target: BackupTarget<'_>, cluster: &str, settings: &OperatorSettings) -> Result<(), SpecRefusal> {
    if let Some(account) = target.service_account_name.filter(|_| !settings.allow_unsafe_pods) {
        return Err(refusal(format!(
            "serviceAccountName {account:?}: a backup may not use a service account; to allow it, start the operator with --allow-unsafe-pods"
        )));
    }
    check_claims(&named(target), cluster)
}

/// Refuses the volumes of a cluster.
///
/// # Errors
/// One of the objects is such a volume.
pub(crate) fn check_claims(named: &[NamedObject<'_>], cluster: &str) -> Result<(), SpecRefusal> {
    let own = format!("data-{cluster}-");
    let mut claims = named
        .iter()
        .filter(|named| named.kind == NamedKind::PersistentVolumeClaim);
    let is_member = |name: &str| name.strip_prefix(&own).is_some_and(|rest| rest.parse::<u16>().is_ok());
    match claims.find(|claim| is_member(claim.name)) {
        Some(claim) => Err(claim.refused(cluster)),
        None => Ok(()),
    }
}

/// Returns the objects that a spec names.
pub fn named(target: BackupTarget<'_>) -> Vec<NamedObject<'_>> {
    let to = target.destination;
    let mut all = Vec::new();
    let stores: [(_, Option<&LocalRef>, _, Option<&CaBundleRef>); 3] = [
        (
            "destination.s3.credentialsSecretRef",
            to.s3.as_ref().and_then(|s3| s3.credentials_secret_ref.as_ref()),
            "destination.s3.caBundleRef",
            to.s3.as_ref().and_then(|s3| s3.ca_bundle_ref.as_ref()),
        ),
        (
            "destination.gcs.credentialsSecretRef",
            to.gcs.as_ref().and_then(|gcs| gcs.credentials_secret_ref.as_ref()),
            "destination.gcs.caBundleRef",
            to.gcs.as_ref().and_then(|gcs| gcs.ca_bundle_ref.as_ref()),
        ),
        (
            "destination.azure.credentialsSecretRef",
            to.azure
                .as_ref()
                .and_then(|azure| azure.credentials_secret_ref.as_ref()),
            "destination.azure.caBundleRef",
            to.azure.as_ref().and_then(|azure| azure.ca_bundle_ref.as_ref()),
        ),
    ];
    for (credentials_path, credentials, ca_path, ca) in stores {
        all.extend(credentials.map(|reference| secret(credentials_path, reference.name.as_str())));
        all.extend(ca.map(|reference| bundle(ca_path, reference)));
    }
    let claim = to.persistent_volume_claim.as_ref();
    all.extend(claim.map(|ClaimDirectory { claim_name, .. }| NamedObject {
        path: "destination.persistentVolumeClaim.claimName",
        kind: NamedKind::PersistentVolumeClaim,
        name: claim_name,
    }));
    all.extend(
        target
            .encryption
            .map(|it| secret("encryption.keySecretRef", it.key_secret_ref.name.as_str())),
    );
    let user = target.user_secret_ref;
    all.extend(user.map(|reference| secret("userSecretRef", reference.name.as_str())));
    all
}

/// Returns the objects that an etcd's certificates and user are taken from.
pub(crate) fn of_etcd(etcd: &FromEtcd) -> Vec<NamedObject<'_>> {
    let tls = etcd.tls.as_ref();
    let ca = tls.and_then(|tls| tls.ca_bundle_ref.as_ref());
    let client = tls.and_then(|tls| tls.client_secret_ref.as_ref());
    let user = etcd.user_secret_ref.as_ref();
    let all = [
        ca.map(|ca| bundle("fromEtcd.tls.caBundleRef", ca)),
        client.map(|client| secret("fromEtcd.tls.clientSecretRef", &client.name)),
        user.map(|user| secret("fromEtcd.userSecretRef", &user.name)),
    ];
    all.into_iter().flatten().collect()
}

fn secret<'a>(path: &'static str, name: &'a str) -> NamedObject<'a> {
    NamedObject {
        path,
        kind: NamedKind::Secret,
        name,
    }
}

fn bundle<'a>(path: &'static str, reference: &'a CaBundleRef) -> NamedObject<'a> {
    NamedObject {
        path,
        kind: match reference.kind {
            BundleKind::ConfigMap => NamedKind::ConfigMap,
            BundleKind::Secret => NamedKind::Secret,
        },
        name: &reference.name,
    }
}
