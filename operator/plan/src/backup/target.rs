//! The place of stored objects, and the objects of the namespace by which it is reached.

use crds::KubeBrainBackup;
use crds::backup::BackupEncryption;
use crds::backup::destination::Destination;
use crds::cluster::backup::ClusterBackup;
use crds::cluster::image::LocalRef;

/// The part of a spec that says where objects are stored, and with what credentials.
#[derive(Debug, Clone, Copy)]
pub struct BackupTarget<'a> {
    pub destination: &'a Destination,
    pub encryption: Option<&'a BackupEncryption>,
    pub user_secret_ref: Option<&'a LocalRef>,
    pub service_account_name: Option<&'a str>,
}

impl<'a> From<&'a KubeBrainBackup> for BackupTarget<'a> {
    fn from(backup: &'a KubeBrainBackup) -> Self {
        let spec = &backup.spec;
        Self {
            destination: &spec.destination,
            encryption: spec.encryption.as_ref(),
            user_secret_ref: spec.user_secret_ref.as_ref(),
            service_account_name: spec.service_account_name.as_deref(),
        }
    }
}

impl<'a> From<&'a ClusterBackup> for BackupTarget<'a> {
    fn from(backup: &'a ClusterBackup) -> Self {
        Self {
            destination: &backup.destination,
            encryption: backup.encryption.as_ref(),
            user_secret_ref: backup.user_secret_ref.as_ref(),
            service_account_name: backup.service_account_name.as_deref(),
        }
    }
}

impl BackupTarget<'_> {
    /// Returns true if both are one place: buckets of the same name at two services are two.
    pub fn is_same_place(&self, other: &BackupTarget<'_>) -> bool {
        let service = |target: &BackupTarget<'_>| {
            let to = target.destination;
            let s3 = to.s3.as_ref().and_then(|s3| s3.endpoint.clone());
            let gcs = to.gcs.as_ref().and_then(|gcs| gcs.endpoint.clone());
            let azure = to
                .azure
                .as_ref()
                .map(|azure| (azure.account.clone(), azure.endpoint.clone()));
            (s3, gcs, azure)
        };
        self.location() == other.location() && service(self) == service(other)
    }

    /// Returns the place as a URL.
    pub fn location(&self) -> String {
        let to = self.destination;
        if let Some(s3) = &to.s3 {
            url("s3", &s3.bucket, s3.prefix.as_deref())
        } else if let Some(gcs) = &to.gcs {
            url("gs", &gcs.bucket, gcs.prefix.as_deref())
        } else if let Some(azure) = &to.azure {
            url("az", &azure.container, azure.prefix.as_deref())
        } else if let Some(claim) = &to.persistent_volume_claim {
            url("pvc", &claim.claim_name, claim.path.as_deref())
        } else {
            String::new()
        }
    }
}

/// Returns the URL of a place in a store.
pub(super) fn url(scheme: &str, bucket: &str, prefix: Option<&str>) -> String {
    match prefix {
        Some(prefix) => format!("{scheme}://{bucket}/{prefix}"),
        None => format!("{scheme}://{bucket}"),
    }
}
