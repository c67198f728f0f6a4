//! Deletes backups that a retention does not keep, and segments of archives that no backup needs.

use std::fmt::Write as _;

use tracing::{info, warn};

use backup_repository::archive::{ClusterArchive, expired_segments};
use backup_repository::{BackupName, Manifest, Repository};
use retention::{Retainable, Retention};

/// A backup that stays.
struct KeptBackup {
    /// `None` if its manifest cannot be read.
    cluster: Option<String>,
    revision: i64,
}

/// The backups of a destination.
struct FoundBackups {
    readable: Vec<Manifest>,
    unreadable: Vec<KeptBackup>,
}

impl FoundBackups {
    async fn read(repository: &Repository) -> anyhow::Result<Self> {
        let (mut readable, mut unreadable) = (Vec::new(), Vec::new());
        for (name, manifest) in repository.backups().await? {
            match manifest {
                Ok(manifest) => readable.push(manifest),
                Err(error) => {
                    warn!(
                        error = &error as &dyn std::error::Error,
                        "keeping a backup that cannot be read"
                    );
                    unreadable.push(KeptBackup {
                        cluster: None,
                        revision: name.revision(),
                    });
                }
            }
        }
        Ok(Self { readable, unreadable })
    }
}

/// Deletes what the retention does not keep, the oldest one first.
pub(super) async fn prune(repository: &Repository, retention: &Retention, dry_run: bool) -> anyhow::Result<String> {
    // Segments are listed before backups: none is taken for old because its backup was not made yet.
    let archives = repository.archives().await?;
    let FoundBackups { readable, unreadable } = FoundBackups::read(repository).await?;
    let backups: Vec<_> = readable
        .into_iter()
        .map(|manifest| Retainable {
            time: manifest.name.time().into(),
            name: manifest.name.to_string(),
            cluster: manifest.cluster_id,
        })
        .collect();
    let kept = retention.apply(&backups);
    let mut text = String::new();
    let mut stays = unreadable;
    for backup in &backups {
        let name = &backup.name;
        let rules = kept.get(name.as_str()).into_iter().flatten();
        let rules: Vec<_> = rules.map(|rule| rule.as_str()).collect();
        if !rules.is_empty() {
            let parsed: BackupName = name.parse()?;
            stays.push(KeptBackup {
                cluster: Some(backup.cluster.clone()),
                revision: parsed.revision(),
            });
            text.push_str(&format!("kept {name}: {}\n", rules.join(", ")));
        } else if dry_run {
            text.push_str(&format!("would delete {name}\n"));
        } else {
            repository.delete(&name.parse()?).await?;
            info!(name, "deleted a backup");
            text.push_str(&format!("deleted {name}\n"));
        }
    }
    text.push_str(&delete_expired(repository, &archives, &stays, dry_run).await?);
    Ok(text)
}

/// Deletes the segments that no backup needs.
pub(super) async fn prune_archives(repository: &Repository) -> anyhow::Result<String> {
    // In the order of `prune`.
    let archives = repository.archives().await?;
    let FoundBackups { readable, unreadable } = FoundBackups::read(repository).await?;
    let readable = readable.into_iter().map(|manifest| KeptBackup {
        revision: manifest.name.revision(),
        cluster: Some(manifest.cluster_id),
    });
    let stays: Vec<_> = readable.chain(unreadable).collect();
    delete_expired(repository, &archives, &stays, false).await
}

/// Deletes the segments that no backup needs which stays. One that cannot be read may be of any cluster.
async fn delete_expired(
    repository: &Repository,
    archives: &[ClusterArchive],
    stays: &[KeptBackup],
    dry_run: bool,
) -> anyhow::Result<String> {
    let mut text = String::new();
    for archive in archives {
        let of_cluster = stays
            .iter()
            .filter(|backup| backup.cluster.as_ref().is_none_or(|it| *it == archive.cluster));
        let revisions: Vec<i64> = of_cluster.map(|backup| backup.revision).collect();
        let segments: Vec<_> = archive.segments.iter().map(|segment| segment.name).collect();
        let expired = expired_segments(&revisions, &segments);
        let (Some(first), Some(last)) = (expired.first(), expired.last()) else {
            continue;
        };
        if !dry_run {
            repository.delete_segments(&archive.cluster, &expired).await?;
        }
        let (done, count) = (if dry_run { "would delete" } else { "deleted" }, expired.len());
        let (cluster, from, to) = (&archive.cluster, first.first, last.last);
        writeln!(
            text,
            "{done} {count} segments of the archive of the cluster {cluster}: revisions {from} to {to}"
        )?;
    }
    Ok(text)
}
