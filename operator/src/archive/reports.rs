//! Archives and backups of clusters for their status, between the passes that find them and those that write them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crds::cluster::status::LastBackup;
use crds::{KubeBrainBackup, KubeBrainCluster};
use kube::ResourceExt as _;
use kube::runtime::reflector::{ObjectRef, Store};
use plan::archive::{ArchivePosition, CONDITION, ObservedArchive, concerns, has_failed, is_news};
use plan::backup::completed;
use plan::last_apply::UnchangedApply;
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::work_queue::WorkQueue;

/// Minimum interval between passes over a cluster that are asked for the same news.
const ASK_INTERVAL: Duration = Duration::from_secs(30);

/// The archives and backups of the clusters in one cache, as far as they are known. Clones share it.
#[derive(Clone)]
pub(crate) struct BackupReports {
    known: Arc<Mutex<HashMap<ObjectRef<KubeBrainCluster>, KnownBackups>>>,
    clusters: Store<KubeBrainCluster>,
    /// Clusters that need a pass.
    passes: Arc<WorkQueue>,
    /// Clusters whose archive needs one.
    archives: Arc<WorkQueue>,
    /// Backups that are shown as damaged.
    damaged: Arc<Mutex<HashSet<ObjectRef<KubeBrainBackup>>>>,
    metrics: Metrics,
}

#[derive(Default)]
struct KnownBackups {
    /// The uid of the cluster that `archive` is of.
    uid: Option<String>,
    archive: ObservedArchive,
    /// The time when a pass over the cluster was last asked for.
    asked: Option<Instant>,
    last_backup: Option<LastBackup>,
    /// The last apply of the Deployment, if it changed nothing.
    unchanged: Option<UnchangedApply>,
}

impl BackupReports {
    pub(crate) fn new(clusters: Store<KubeBrainCluster>, passes: Arc<WorkQueue>, metrics: Metrics) -> Self {
        Self {
            damaged: Arc::default(),
            metrics,
            known: Arc::default(),
            clusters,
            passes,
            archives: Arc::default(),
        }
    }

    /// Returns the queue of clusters whose archive needs a pass.
    pub(crate) fn archives(&self) -> Arc<WorkQueue> {
        self.archives.clone()
    }

    /// Asks for a pass over the archive of a cluster, if it may have one.
    pub(crate) fn ask(&self, cluster: &KubeBrainCluster) {
        if concerns(cluster) {
            self.archives.add(ObjectRef::from_obj(cluster));
        }
    }

    /// Records what a pass over an archive found. If the status does not say so yet, it asks for a pass over the cluster, but not again and
    /// again: passes over that cluster may fail.
    pub(crate) fn report(&self, cluster: &KubeBrainCluster, archive: ObservedArchive) {
        let object = ObjectRef::from_obj(cluster);
        let is_news = is_news(cluster, &archive) && cluster.metadata.deletion_timestamp.is_none();
        let asks = self.with(&object, |known| {
            let is_same = known.uid == cluster.uid() && known.archive.says_the_same_as(&archive);
            let is_early = known.asked.is_some_and(|asked| asked.elapsed() < ASK_INTERVAL);
            known.uid = cluster.uid();
            known.archive = archive;
            let asks = is_news && !(is_same && is_early);
            if asks {
                known.asked = Some(Instant::now());
            }
            asks
        });
        if asks {
            self.passes.add(object);
        }
    }

    /// Records a backup of the operator, if it is complete.
    pub(crate) fn backed_up(&self, backup: &KubeBrainBackup) {
        let Some(complete) = completed(backup) else {
            return;
        };
        let namespace = backup.namespace().unwrap_or_default();
        let object = ObjectRef::new(&backup.spec.cluster_name).within(&namespace);
        if self.clusters.get(&object).is_none() {
            return;
        }
        let is_newest = self.with(&object, |known| {
            let newest = known.last_backup.as_ref().map(|last| last.completion_time.0);
            let is_newest = newest.is_none_or(|newest| newest < complete.completion_time.0);
            if is_newest {
                known.last_backup = Some(complete);
            }
            is_newest
        });
        if is_newest {
            self.passes.add(object);
        }
    }

    /// Shows whether the last verification of a backup found damage.
    pub(crate) fn verified(&self, backup: &KubeBrainBackup, is_damaged: bool) {
        let place = ObjectRef::from_obj(backup);
        let mut damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = match is_damaged {
            true => damaged.insert(place.clone()),
            false => damaged.remove(&place),
        };
        if is_news {
            self.metrics.damaged_backup(&place, is_damaged);
        }
    }

    /// Shows no backup as damaged, until it is observed again.
    pub(crate) fn forget_damage(&self) {
        let mut damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        for place in damaged.drain() {
            self.metrics.damaged_backup(&place, false);
        }
    }

    /// Returns what is known of the archive of a cluster.
    pub(crate) fn archive(&self, cluster: &KubeBrainCluster) -> ObservedArchive {
        let known = self.lock();
        let found = known.get(&ObjectRef::from_obj(cluster));
        let found = found.filter(|known| known.uid == cluster.uid());
        found.map(|known| known.archive.clone()).unwrap_or_default()
    }

    /// Returns the newest backup of a cluster that was complete.
    pub(crate) fn last_backup(&self, cluster: &KubeBrainCluster) -> Option<LastBackup> {
        self.lock().get(&ObjectRef::from_obj(cluster))?.last_backup.clone()
    }

    /// Records an apply of the Deployment of an archive that changed nothing.
    pub(crate) fn left_unchanged(&self, cluster: &KubeBrainCluster, apply: Option<UnchangedApply>) {
        self.with(&ObjectRef::from_obj(cluster), |known| known.unchanged = apply);
    }

    /// Returns true if this apply of the Deployment of an archive is known to change nothing.
    pub(crate) fn is_unchanged_by(&self, cluster: &KubeBrainCluster, apply: Option<&UnchangedApply>) -> bool {
        let known = self.lock();
        let last = known
            .get(&ObjectRef::from_obj(cluster))
            .and_then(|known| known.unchanged.as_ref());
        last.is_some() && last == apply
    }

    /// Returns the last known position of an archive: that of the last pass, or that in the status.
    pub(crate) fn position(&self, cluster: &KubeBrainCluster) -> Option<ArchivePosition> {
        match self.archive(cluster) {
            ObservedArchive::Reported(report) => report.position,
            ObservedArchive::Unknown => ArchivePosition::of(cluster),
            ObservedArchive::Absent => None,
        }
    }

    /// Returns true if the archive of a cluster had failed as of the last pass, or as the status says.
    pub(crate) fn has_failed(&self, cluster: &KubeBrainCluster) -> bool {
        match self.archive(cluster) {
            ObservedArchive::Reported(report) => has_failed(&report.condition.reason),
            ObservedArchive::Unknown => {
                let conditions = cluster.status.as_ref().and_then(|status| status.conditions.as_ref());
                let mut conditions = conditions.into_iter().flatten();
                conditions.any(|condition| condition.type_ == CONDITION && has_failed(&condition.reason))
            }
            ObservedArchive::Absent => false,
        }
    }

    /// Changes what is known of a cluster. Before another one is added, those that no longer exist are forgotten.
    fn with<T>(&self, object: &ObjectRef<KubeBrainCluster>, change: impl FnOnce(&mut KnownBackups) -> T) -> T {
        let mut all = self.lock();
        if !all.contains_key(object) {
            all.retain(|object, _| self.clusters.get(object).is_some());
        }
        change(all.entry(object.clone()).or_default())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectRef<KubeBrainCluster>, KnownBackups>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
