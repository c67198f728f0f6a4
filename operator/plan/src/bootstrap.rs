//! The first data of a cluster: a Job restores a backup or a snapshot, or copies an etcd, before any member starts.
//!
//! Invariants: a StatefulSet is created only after the status says that the restore is complete, and the program leaves a complete store as
//! it is. So nothing is overwritten, whatever is lost or repeated: the status, the Job, a pass, or the whole resource.

use crds::KubeBrainBackup;
use crds::KubeBrainCluster;
use crds::backup::BackupEncryption;
use crds::backup::destination::Destination;
use crds::cluster::bootstrap::{Bootstrap, ClaimFile, FromBackup, FromEtcd};
use crds::cluster::status::BootstrapPhase;
use crds::wishes::{CUTOVER, CUTOVER_VALUE};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

mod cutover;
mod figures;
mod progress;
mod result;
mod status;
#[cfg(test)]
mod tests;

pub use figures::{CopyFigures, are_figures_due};
pub use progress::BootstrapProgress;
pub(crate) use progress::{assess, plan};
pub use result::BootstrapResult;
pub use status::CONDITION;
pub(crate) use status::{condition, status};

use crate::backup::BackupTarget;
use crate::backup::references::{self, NamedKind, NamedObject};
use crate::names::SKIP_BOOTSTRAP;
use crate::spec::{OperatorSettings, SpecRefusal};

/// Name of the container.
pub const BOOTSTRAP_CONTAINER: &str = "bootstrap";

/// Returns the source that a cluster begins with, until it has begun, or is to begin without.
pub fn due(cluster: &KubeBrainCluster) -> Option<&Bootstrap> {
    let status = cluster.status.as_ref().and_then(|status| status.bootstrap.as_ref());
    let is_complete = status.is_some_and(|status| status.phase == BootstrapPhase::Complete);
    let skips = cluster
        .annotations()
        .get(SKIP_BOOTSTRAP)
        .is_some_and(|skips| skips == "true");
    source_of(cluster).filter(|_| !is_complete && !skips && !crate::spec::is_external(cluster))
}

/// Returns the source that a cluster begins, or began, with.
pub fn source_of(cluster: &KubeBrainCluster) -> Option<&Bootstrap> {
    let bootstrap = cluster.spec.bootstrap.as_deref()?;
    let sources = [
        bootstrap.from_backup.is_some(),
        bootstrap.from_snapshot.is_some(),
        bootstrap.from_etcd.is_some(),
    ];
    sources.contains(&true).then_some(bootstrap)
}

/// Returns the etcd that a cluster copies and follows until the cutover.
pub fn followed(bootstrap: &Bootstrap) -> Option<&FromEtcd> {
    bootstrap.from_etcd.as_ref().filter(|from| from.follow)
}

/// Returns true if the annotation of a cluster requests the cutover.
pub fn is_cutover_requested(cluster: &KubeBrainCluster) -> bool {
    cluster
        .annotations()
        .get(CUTOVER)
        .is_some_and(|value| value == CUTOVER_VALUE)
}

/// State of a bootstrap that is not complete, as far as it is known.
#[derive(Debug, Clone, Default)]
pub struct ObservedBootstrap {
    /// The Job, of any owner.
    pub job: Option<Box<Job>>,
    /// The result that a pod of the Job left.
    pub result: Option<BootstrapResult>,
    /// The failure of the last attempt, or the reason why no pod runs.
    pub trouble: Option<String>,
    /// The pods of the Job that have not ended, the oldest one first, as long as the Job has not ended either.
    pub pods: Vec<Pod>,
    /// The figures that the pod of a copy reported in this pass; `None` if it was not asked, or did not answer.
    pub figures: Option<Box<CopyFigures>>,
    /// Why the API server refuses a pod, in its words.
    pub refused_pods: Option<String>,
    /// The source for a Job. It is not looked for once the Job has ended well.
    pub source: Option<Result<BootstrapSource, BootstrapObstacle>>,
}

/// The source of a restore, and the way to it.
#[derive(Debug, Clone, PartialEq)]
pub enum BootstrapSource {
    Backup(Box<BackupSource>),
    Snapshot(ClaimFile),
    Etcd(Box<FromEtcd>),
}

/// A backup, and the way to it.
#[derive(Debug, Clone, PartialEq)]
pub struct BackupSource {
    destination: Destination,
    encryption: Option<BackupEncryption>,
    service_account_name: Option<String>,
    /// Name of the backup; `None` for the newest one.
    pub(crate) name: Option<String>,
}

/// The reason why a restore does not begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootstrapObstacle {
    pub reason: &'static str,
    pub message: String,
}

impl BootstrapSource {
    /// Returns the objects of the namespace that it names.
    pub fn named(&self) -> Vec<NamedObject<'_>> {
        match self {
            Self::Backup(backup) => references::named(backup.target()),
            Self::Snapshot(file) => vec![NamedObject {
                path: "persistentVolumeClaim.claimName",
                kind: NamedKind::PersistentVolumeClaim,
                name: &file.claim_name,
            }],
            Self::Etcd(etcd) => references::of_etcd(etcd),
        }
    }

    /// Refuses a source that the operator does not allow.
    ///
    /// # Errors
    /// It names a service account, or a volume of the cluster.
    pub fn check(&self, cluster: &str, settings: &OperatorSettings) -> Result<(), SpecRefusal> {
        match self {
            Self::Backup(backup) => references::check(backup.target(), cluster, settings),
            Self::Snapshot(_) | Self::Etcd(_) => references::check_claims(&self.named(), cluster),
        }
    }
}

impl BackupSource {
    /// Returns the source that the spec describes itself; `None` if it names a KubeBrainBackup.
    pub fn of_spec(from: &FromBackup) -> Option<Self> {
        Some(Self {
            destination: from.destination.clone()?,
            encryption: from.encryption.clone(),
            service_account_name: from.service_account_name.clone(),
            name: from.name.clone(),
        })
    }

    /// Returns the backup of a resource; `found` is `None` if the resource does not exist.
    ///
    /// # Errors
    /// It is not complete.
    pub fn of_backup(name: &str, found: Option<&KubeBrainBackup>) -> Result<Self, BootstrapObstacle> {
        let waits = |what: &str| BootstrapObstacle {
            reason: "WaitingForBackup",
            message: format!("KubeBrainBackup {name} {what}"),
        };
        let backup = found.ok_or_else(|| waits("does not exist"))?;
        if backup.metadata.deletion_timestamp.is_some() {
            return Err(waits("is being deleted"));
        }
        if crate::backup::completed(backup).is_none() {
            return Err(waits(match crate::backup::has_ended(backup) {
                true => "failed",
                false => "is not complete",
            }));
        }
        let status = backup.status.as_ref();
        let stored = status.and_then(|status| status.backup_name.clone());
        let unnamed = || {
            waits(
                "has no name of its backup in the status, because its result was lost: set destination and name instead",
            )
        };
        let spec = &backup.spec;
        Ok(Self {
            destination: spec.destination.clone(),
            encryption: spec.encryption.clone(),
            service_account_name: spec.service_account_name.clone(),
            name: Some(stored.ok_or_else(unnamed)?),
        })
    }

    /// Returns the place of the backup.
    pub fn target(&self) -> BackupTarget<'_> {
        BackupTarget {
            destination: &self.destination,
            encryption: self.encryption.as_ref(),
            user_secret_ref: None,
            service_account_name: self.service_account_name.as_deref(),
        }
    }
}

/// Describes the source and the point for the status.
fn describe(bootstrap: &Bootstrap) -> String {
    if let Some(etcd) = &bootstrap.from_etcd {
        return format!("etcd at {}", etcd.endpoints.join(", "));
    }
    let from = match (&bootstrap.from_backup, &bootstrap.from_snapshot) {
        (Some(from), _) => from,
        (None, Some(snapshot)) => {
            let ClaimFile { claim_name, path } = &snapshot.persistent_volume_claim;
            return format!("snapshot pvc://{claim_name}/{path}");
        }
        (None, None) => return String::new(),
    };
    let place = match (&from.backup, BackupSource::of_spec(from)) {
        (Some(backup), _) => format!("KubeBrainBackup {}", backup.name),
        (None, Some(source)) => {
            let name = source.name.as_deref().unwrap_or("newest backup");
            format!("{name} at {}", source.target().location())
        }
        (None, None) => String::new(),
    };
    let point = match (from.revision, &from.time, from.end) {
        (Some(revision), ..) => format!(", up to revision {revision}"),
        (None, Some(time), _) => format!(", up to {time}"),
        (None, None, Some(true)) => ", up to the end of the archive".to_owned(),
        _ => String::new(),
    };
    place + &point
}

/// Returns true if a Job was created for this cluster, and not for a deleted one of its name.
fn is_own(job: &Job, cluster: &KubeBrainCluster) -> bool {
    let whose = crate::ownership::of(&job.metadata, &cluster.name_any(), &cluster.uid().unwrap_or_default());
    whose == crate::ownership::Ownership::Ours
}
