//! `kubebrain backup`: makes, lists, verifies, restores, exports and deletes backups, and archives of what happens after them.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tracing::{info, warn};

use crate::flags::{AttemptOptions, BackupAction, BackupChoice, BackupCommand, Config, DeletedBackup, Storage};
use crate::server::restore::{
    self, RestoreInput, RestoreRequest, RestoreResult, RestoredStore, make_store, requested_cluster_id, write_result,
};
use crate::server::run::Lifecycle;
use backup::import::{SnapshotParts, Source, SourceOptions, in_short, is_transient};
use backup::snapshot::{SnapshotFile, Spool, SpoolFile};
use backup_repository::{BackupName, CreateOptions, EncryptionKey, Manifest, ObjectError, Repository, SnapshotOrigin};
use list::{Format, Listing, describe_size};
pub(super) use point::ArchivedChanges;
use result::BackupResult;

mod archive;
mod list;
mod point;
mod prune;
mod result;
mod verify;

/// Attempts to receive a whole snapshot.
const CREATE_ATTEMPTS: u32 = 5;

/// Bytes that are written to disk at once.
const WRITE_BUFFER_BYTES: usize = 1 << 20;

/// Runs the subcommand, and ends. A signal interrupts it.
pub(crate) async fn run(config: &Config, command: &BackupCommand, mut life: Lifecycle) -> anyhow::Result<()> {
    let text = Box::pin(act(config, command, &mut life)).await;
    life.end().await?;
    io::stdout().write_all(text?.as_bytes()).context("print")
}

/// Returns the text to print.
async fn act(config: &Config, command: &BackupCommand, life: &mut Lifecycle) -> anyhow::Result<String> {
    if let Some(text) = restored_before(config, command, life).await? {
        return Ok(text);
    }
    let keys = keys(command)?;
    let writes = matches!(
        command.action,
        BackupAction::Create { .. }
            | BackupAction::Archive { .. }
            | BackupAction::Delete {
                backup: DeletedBackup::OfRequest(_),
                ..
            }
    );
    if writes {
        command.destination.prepare()?;
    }
    let repository = Repository::open(&command.destination)?;
    let leave = life.leave.clone();
    match &command.action {
        BackupAction::Create {
            source,
            request_id,
            verify,
            result_file,
        } => {
            let mut options = CreateOptions::new(keys.into_iter().next(), Spool::new(&std::env::temp_dir()));
            options.request_id.clone_from(request_id);
            let created = Box::pin(create_of_request(repository, source, options, *verify));
            let (manifest, text) = unless(&leave, created).await?;
            if let Some(file) = result_file {
                write_result(&BackupResult::new(&manifest, *verify), file)?;
            }
            Ok(text)
        }
        BackupAction::Archive { source, interval } => {
            let options = archive::ArchiveOptions {
                source: source.as_ref().clone(),
                interval: *interval,
                key: keys.into_iter().next(),
            };
            Box::pin(archive::run(config, &repository, &options, life)).await
        }
        BackupAction::List { json } => {
            let format = if *json { Format::Json } else { Format::Table };
            let listing = unless(&leave, async { Ok(Listing::read(&repository).await?) }).await?;
            list::list(&listing, format)
        }
        BackupAction::Verify { backup, restores } => {
            let reader = unless(&leave, BackupReader::open(repository, backup, keys)).await?;
            match restores {
                true => verify::by_restore(config, &reader, life).await,
                false => unless(&leave, reader.verify(&Spool::new(&std::env::temp_dir()))).await,
            }
        }
        BackupAction::Restore {
            backup,
            point,
            bump_revision,
            attempts,
        } => {
            let chosen = point::choose(repository, backup, *point, keys);
            let (reader, changes) = unless(&leave, chosen).await?;
            let how = (changes.as_ref(), *bump_revision, attempts);
            let (result, text) = restore_backup(config, &reader, how, life).await?;
            if let Some(file) = &attempts.result_file {
                write_result(&result, file)?;
            }
            Ok(text)
        }
        BackupAction::Export { backup, file } => {
            let export = async {
                let reader = BackupReader::open(repository, backup, keys).await?;
                reader.export(file).await
            };
            unless(&leave, export).await
        }
        BackupAction::Delete { backup, prune_archive } => {
            unless(&leave, delete_chosen(&repository, backup, *prune_archive)).await
        }
        BackupAction::DeleteOrphans => {
            let now = chrono::Utc::now();
            let deleted = unless(&leave, async { Ok(repository.delete_orphans(now).await?) }).await?;
            let size = describe_size(deleted.bytes);
            Ok(format!(
                "deleted {} objects without a backup, {size}\n",
                deleted.objects
            ))
        }
        BackupAction::Prune { retention, dry_run } => {
            unless(&leave, prune::prune(&repository, retention, *dry_run)).await
        }
    }
}

/// Returns the text for a restore that is made once, of a store that exists. Neither keys nor the destination are needed then, and they may
/// be gone by now.
async fn restored_before(config: &Config, command: &BackupCommand, life: &Lifecycle) -> anyhow::Result<Option<String>> {
    let attempts = match &command.action {
        BackupAction::Restore { attempts, .. } if attempts.once => attempts,
        _ => return Ok(None),
    };
    let Some(id) = unless(&life.leave, restore::existing(config)).await? else {
        return Ok(None);
    };
    let (result, text) = RestoreResult::existed(id, requested_cluster_id(attempts), "restored");
    if let Some(file) = &attempts.result_file {
        write_result(&result, file)?;
    }
    Ok(Some(text))
}

/// Does something until a signal comes.
async fn unless<T>(leave: &CancellationToken, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::select! {
        biased;
        () = leave.cancelled() => Err(anyhow::anyhow!("interrupted")),
        done = Box::pin(work) => done,
    }
}

async fn delete_chosen(
    repository: &Repository,
    backup: &DeletedBackup,
    prunes_archive: bool,
) -> anyhow::Result<String> {
    let mut text = match backup {
        DeletedBackup::Named(name) => delete(repository, name).await?,
        DeletedBackup::OfRequest(id) => delete_of_request(repository, id).await?,
    };
    if prunes_archive {
        text.push_str(&prune::prune_archives(repository).await?);
    }
    Ok(text)
}

async fn delete(repository: &Repository, name: &BackupName) -> anyhow::Result<String> {
    ensure!(
        repository.names().await?.contains(name),
        "there is no backup {name}: see `kubebrain backup list`"
    );
    repository.delete(name).await?;
    Ok(format!("deleted {name}\n"))
}

/// Deletes what was made for a request. There may be nothing: an earlier attempt has deleted it, or it was never made.
async fn delete_of_request(repository: &Repository, id: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    for Manifest { name, .. } in repository.of_request(id).await? {
        repository.delete(&name).await?;
        text.push_str(&format!("deleted {name}\n"));
    }
    if text.is_empty() {
        text = format!("there is no backup of the request {id}\n");
    }
    Ok(text)
}

fn keys(command: &BackupCommand) -> anyhow::Result<Vec<EncryptionKey>> {
    command.key_files.iter().map(|file| EncryptionKey::read(file)).collect()
}

/// Makes a backup, unless its request has one, and reads it again if that is wanted. Returns it with the text to print.
async fn create_of_request(
    repository: Repository,
    source: &SourceOptions,
    options: CreateOptions,
    verify: bool,
) -> anyhow::Result<(Manifest, String)> {
    let found = match &options.request_id {
        Some(id) => repository.of_request(id).await?.into_iter().next(),
        None => None,
    };
    let (manifest, mut text) = match found {
        Some(manifest) => {
            let name = &manifest.name;
            let text = format!("{name} was made for this request before\n");
            (manifest, text)
        }
        None => {
            let manifest = create(&repository, source, &options).await?;
            let text = describe_created(&manifest);
            (manifest, text)
        }
    };
    if !verify {
        return Ok((manifest, text));
    }
    let reader = BackupReader {
        repository,
        manifest,
        keys: options.key.into_iter().collect(),
    };
    let verified = reader.verify_snapshot(&options.spool).await;
    let verified = verified.with_context(|| format!("{} was made, but cannot be verified", reader.manifest.name));
    text.push_str(&verified?);
    Ok((reader.manifest, text))
}

/// Makes a backup. If the member fails while it sends the snapshot, another one is asked for another snapshot.
async fn create(repository: &Repository, source: &SourceOptions, options: &CreateOptions) -> anyhow::Result<Manifest> {
    let mut source = Source::open(source.clone()).await?;
    let mut attempts = 1;
    loop {
        let failed = match create_once(repository, &mut source, options).await {
            Ok(manifest) => return Ok(manifest),
            Err(error) => error.downcast::<Status>()?,
        };
        let error = in_short(failed.clone()).context("receive a snapshot of the member");
        if attempts == CREATE_ATTEMPTS || !is_transient(&failed) {
            return Err(error);
        }
        attempts += 1;
        source.reconnect(error).await?;
    }
}

fn describe_created(manifest: &Manifest) -> String {
    let (stored, size) = (
        describe_size(manifest.stored_bytes()),
        describe_size(manifest.snapshot.bytes),
    );
    let Manifest {
        name, revision, parts, ..
    } = manifest;
    let parts = parts.len();
    format!("created {name}: revision {revision}, a snapshot of {size}, stored as {stored} in {parts} parts\n")
}

/// The error is a [`Status`] if the member failed.
async fn create_once(
    repository: &Repository,
    source: &mut Source,
    options: &CreateOptions,
) -> anyhow::Result<Manifest> {
    let time = chrono::Utc::now();
    let mut parts = source.snapshot_parts().await?;
    let revision = parts.revision.context(
        "the member does not say which revision it sends: it is an etcd, or a kubebrain before 0.3. `etcdctl snapshot save` makes a file of it",
    )?;
    let first = parts.next().await?.unwrap_or_default();
    let origin = SnapshotOrigin {
        cluster_id: source.cluster_id(),
        revision,
        version: first.version,
        time,
    };
    let rest = futures::stream::try_unfold(parts, async |mut parts: SnapshotParts| {
        let next = parts.next().await?;
        anyhow::Ok(next.map(|next| (next.blob, parts)))
    });
    let first = futures::stream::once(std::future::ready(anyhow::Ok::<Bytes>(first.blob)));
    let snapshot = futures::StreamExt::chain(first, rest);
    Box::pin(repository.create(origin, snapshot, options)).await
}

/// Makes a store of a backup. Returns the result with the text to print.
async fn restore_backup(
    config: &Config,
    reader: &BackupReader,
    (changes, bump_revision, attempts): (Option<&ArchivedChanges>, u64, &AttemptOptions),
    life: &mut Lifecycle,
) -> anyhow::Result<(RestoreResult, String)> {
    let dir = match &config.storage {
        Storage::Embedded => existing(&config.data_dir),
        Storage::Tikv(_) => std::env::temp_dir(),
    };
    let request = RestoreRequest {
        input: RestoreInput::Backup {
            reader,
            dir: &dir,
            is_checked: false,
        },
        changes,
        bump_revision,
        cluster_id: requested_cluster_id(attempts),
        starts_over: attempts.once,
        is_temporary: false,
    };
    let restored: RestoredStore = make_store(config, &request, life).await?;
    let result = RestoreResult::made(
        restored.cluster_id,
        restored.summary.revision,
        Some(&reader.manifest.name),
    );
    Ok((result, format!("{restored}\n")))
}

/// Returns the directory, or the nearest one above it that exists.
fn existing(dir: &Path) -> PathBuf {
    let found = dir.ancestors().find(|dir| dir.is_dir());
    found.map_or_else(|| PathBuf::from("."), Path::to_owned)
}

/// A backup that is read.
pub(super) struct BackupReader {
    repository: Repository,
    pub(super) manifest: Manifest,
    keys: Vec<EncryptionKey>,
}

impl BackupReader {
    async fn open(repository: Repository, backup: &BackupChoice, keys: Vec<EncryptionKey>) -> anyhow::Result<Self> {
        let manifest = match backup {
            BackupChoice::Latest => {
                let newest = of_one_cluster(&repository).await?.pop();
                newest.context("the destination has no backup")?
            }
            BackupChoice::Named(name) => repository.manifest(name).await?,
        };
        Ok(Self {
            repository,
            manifest,
            keys,
        })
    }

    /// Reads the snapshot into a temporary file, and compares it with its checksum.
    pub(super) async fn read(&self, spool: &Spool) -> anyhow::Result<SnapshotFile> {
        let name = &self.manifest.name;
        info!(%name, bytes = self.manifest.snapshot.bytes, "reading a backup");
        let out = BufWriter::with_capacity(WRITE_BUFFER_BYTES, spool.file()?);
        let read = self.repository.read_snapshot(&self.manifest, &self.keys, out).await;
        let out: BufWriter<SpoolFile> = read.with_context(|| format!("read the backup {name}"))?;
        let file = out.into_inner()?.into_file();
        let (expected, object) = (self.manifest.snapshot.sha256.0, name.to_string());
        let checked = tokio::task::spawn_blocking(move || {
            let file = SnapshotFile::of(file, false)?;
            let digest = file.digest()?;
            if digest != expected {
                let what = "its parts hold another snapshot than the manifest says".to_owned();
                return Err(ObjectError::Damaged { object, what }.into());
            }
            anyhow::Ok(file)
        });
        checked.await?.with_context(|| format!("read the backup {name}"))
    }

    /// Reads all of a backup, and the segments that follow it.
    async fn verify(&self, spool: &Spool) -> anyhow::Result<String> {
        let text = self.verify_snapshot(spool).await?;
        let name = &self.manifest.name;
        let archive = async {
            let changes = ArchivedChanges::after(&self.repository, &self.manifest, &self.keys).await?;
            changes.verify().await
        };
        let about =
            || format!("the backup {name} itself is as it was written, but the archive after it cannot be verified");
        Ok(text + &archive.await.with_context(about)?)
    }

    async fn verify_snapshot(&self, spool: &Spool) -> anyhow::Result<String> {
        let (_, keys) = self.read_checked(spool).await?;
        let Manifest {
            name, revision, parts, ..
        } = &self.manifest;
        let parts = parts.len();
        Ok(format!(
            "verified {name}: revision {revision}, {keys} keys, {parts} parts\n"
        ))
    }

    /// Reads the snapshot into a temporary file, and all that is in it. Returns the number of its keys, too.
    pub(super) async fn read_checked(&self, spool: &Spool) -> anyhow::Result<(SnapshotFile, u64)> {
        let file = self.read(spool).await?;
        let Manifest { name, revision, .. } = &self.manifest;
        let (checked, file) = tokio::task::spawn_blocking(move || (file.check(), file)).await?;
        // Its bytes are those of the manifest, so it was made so.
        let damaged = |what: String| ObjectError::Damaged {
            object: format!("the snapshot of the backup {name}"),
            what,
        };
        let (status, found) = checked.map_err(|error| damaged(format!("{error:#}")))?;
        if found != *revision {
            return Err(damaged(format!("it is of revision {found}, expected {revision}")).into());
        }
        Ok((file, status.total_keys))
    }

    async fn export(&self, path: &Path) -> anyhow::Result<String> {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let dir = dir.unwrap_or(Path::new(".")).to_owned();
        ensure!(!path.exists(), "{} exists already", path.display());
        // It is checked before there is a file of this name.
        let mut part = path.as_os_str().to_owned();
        part.push(format!(".{:08x}.part", rand::random::<u32>()));
        let part = PathBuf::from(part);
        let created = OpenOptions::new().read(true).write(true).create_new(true).open(&part);
        let file = created.with_context(|| format!("create {}", part.display()))?;
        let unfinished = Unfinished(&part);
        let read = self
            .repository
            .read_snapshot(&self.manifest, &self.keys, BufWriter::new(file));
        let name = &self.manifest.name;
        let file = read
            .await
            .with_context(|| format!("read the backup {name}"))?
            .into_inner()?;
        let checked = tokio::task::spawn_blocking(move || {
            file.sync_all()?;
            anyhow::Ok(SnapshotFile::of(file, false)?.size())
        });
        let bytes = checked.await?.with_context(|| format!("read the backup {name}"))?;
        std::fs::rename(unfinished.0, path).with_context(|| format!("create {}", path.display()))?;
        std::mem::forget(unfinished);
        File::open(&dir)?.sync_all()?;
        let (size, path) = (describe_size(bytes), path.display());
        Ok(format!(
            "exported {name} to {path}: revision {}, {size}\n",
            self.manifest.revision
        ))
    }
}

/// A file that is deleted when this is dropped.
struct Unfinished<'a>(&'a Path);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(self.0) {
            warn!(%error, file = %self.0.display(), "could not delete an unfinished file");
        }
    }
}

/// Returns all backups, the oldest one first. Fails if one cannot be read, or if there are those of several clusters.
async fn of_one_cluster(repository: &Repository) -> anyhow::Result<Vec<Manifest>> {
    let mut all: Vec<Manifest> = Vec::new();
    for (_, manifest) in repository.backups().await? {
        let manifest = manifest.context("the latest backup is unknown: name one")?;
        if let Some(other) = all.last() {
            ensure!(
                other.cluster_id == manifest.cluster_id,
                "the destination has backups of the clusters {} and {}: name one, see `kubebrain backup list`",
                other.cluster_id,
                manifest.cluster_id
            );
        }
        all.push(manifest);
    }
    Ok(all)
}
