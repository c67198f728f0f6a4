//! The verification of a backup by a restore into a directory that is deleted in the end.

use anyhow::{Context as _, anyhow};
use tracing::warn;

use super::point::ArchivedChanges;
use super::{BackupReader, unless};
use crate::flags::{Config, Storage};
use crate::server::restore::{RestoreInput, RestoreRequest, check_space, make_store};
use crate::server::run::Lifecycle;
use backup::snapshot::{FileError, UnfitSnapshot};
use backup_repository::{Manifest, ObjectError};
use engine::log::LogError;
use engine::rows::RowsError;

/// The space that changes take in a new store, as a multiple of what they take in the archive, where they are compressed.
const ARCHIVE_SPACE_FACTOR: u64 = 4;

/// Restores a backup, and all of the archive after it, below $TMPDIR. A store that is not what the backup says is damage of the backup.
pub(super) async fn by_restore(config: &Config, reader: &BackupReader, life: &mut Lifecycle) -> anyhow::Result<String> {
    let Manifest {
        name,
        revision,
        parts,
        snapshot,
        ..
    } = &reader.manifest;
    let leave = life.leave.clone();
    let changes = async { ArchivedChanges::after(&reader.repository, &reader.manifest, &reader.keys).await };
    let changes = unless(&leave, changes)
        .await
        .with_context(|| format!("read the archive after the backup {name}"))?;
    let directory = tempfile::Builder::new().prefix("kubebrain-verify-").tempdir();
    let directory = directory.context("create a directory in $TMPDIR")?;
    let archived = changes.stored_bytes().saturating_mul(ARCHIVE_SPACE_FACTOR);
    // The directory also holds the snapshot itself.
    let file = snapshot.bytes.div_ceil(3);
    check_space(
        directory.path(),
        snapshot.bytes.saturating_add(file).saturating_add(archived),
    )?;
    let request = RestoreRequest {
        input: RestoreInput::Backup {
            reader,
            dir: directory.path(),
            is_checked: true,
        },
        changes: (!changes.is_empty()).then_some(&changes),
        bump_revision: 0,
        cluster_id: None,
        starts_over: false,
        is_temporary: true,
    };
    let temporary = Config {
        data_dir: directory.path().join("store"),
        storage: Storage::Embedded,
        // It is not needed after a crash.
        unsafe_no_fsync: true,
        ..config.clone()
    };
    let expected = changes.goal();
    let restored = Box::pin(make_store(&temporary, &request, life)).await;
    if let Err(error) = directory.close() {
        warn!(%error, "could not delete the restored store");
    }
    let object = format!("the backup {name}");
    let restored = restored.map_err(|error| judge(error, &object))?;
    let found = restored.summary.revision;
    if found != expected {
        let what = format!("a restore is of revision {found}, expected {expected}");
        return Err(ObjectError::Damaged { object, what }.into());
    }
    Ok(format!(
        "verified {name} by a restore: revision {revision}, {} parts; {restored}\n",
        parts.len()
    ))
}

/// Tells damage of the backup from trouble of this machine.
fn judge(error: anyhow::Error, backup: &str) -> anyhow::Error {
    let is_read = error.chain().all(|cause| !cause.is::<std::io::Error>());
    let is_unfit = error.is::<UnfitSnapshot>() || (error.is::<FileError>() && is_read);
    let is_local = error
        .chain()
        .any(|cause| cause.is::<RowsError>() || cause.is::<LogError>());
    if is_local {
        return anyhow!("the restored store failed, which says nothing about {backup}: {error:#}");
    }
    if !is_unfit {
        return error;
    }
    let what = format!("{error:#}");
    let object = backup.to_owned();
    ObjectError::Damaged { object, what }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_of_the_machine_is_no_damage_of_the_backup() {
        let is_damage = |error: anyhow::Error| judge(error, "b").is::<ObjectError>();
        assert!(is_damage(FileError::Content("no keys".to_owned()).into()));
        assert!(is_damage(anyhow::Error::from(FileError::NoChecksum).context("restore")));
        assert!(!is_damage(FileError::Io(std::io::ErrorKind::StorageFull.into()).into()));
        // The exit code of an error of rows would be that of damage.
        let local = judge(RowsError::Corrupt("a table".to_owned()).into(), "b");
        assert!(!local.is::<ObjectError>() && !local.is::<RowsError>(), "{local:#}");
        let missing = || ObjectError::Missing {
            object: "parts/1".to_owned(),
        };
        assert!(is_damage(anyhow::Error::from(missing()).context("read")));
    }
}
