//! `kubebrain snapshot`: prints what is in a snapshot, or makes a new store of one.

use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use crate::data_dir::{self, Identity, RestoringDir, RestoringFrom};
use crate::flags::{Config, SnapshotCommand, Storage, TikvOptions};
use crate::server::backup::{ArchivedChanges, BackupReader};
use crate::server::claim::{IMPORTER_REGISTER, PrefixClaim};
use crate::server::embedded;
use crate::server::import::IMPORTING_REGISTER;
use crate::server::run::Lifecycle;
use crate::server::tikv::{ONE_ATTEMPT_DOUBLINGS, connection};
use backup::snapshot::{
    FileError, RestoreOptions, RestoreSummary, SnapshotFile, Spool, UnfitSnapshot, restore, resume,
};
use cluster::prefix_owner;
use cluster::prefix_owner::{OWNER_REGISTER, OwnerError};
use engine::LogAndRows;
use engine::cas_register::{self, CasRegister as _};
use engine::log::LogId;
use engine::log::frame::is_barrier;
use engine_tikv::{Tikv, TikvLog, TikvRegister, TikvRows};
use etcd_types::types::Revision;
use telemetry::metrics::Metrics;

/// The space that a restore takes on disk, as a multiple of the snapshot's: the log, the rows, and rows that are being merged.
const RESTORE_SPACE_FACTOR: u64 = 3;

/// Runs the subcommand, and ends. A signal interrupts it.
pub(crate) async fn run(config: &Config, command: &SnapshotCommand, mut life: Lifecycle) -> anyhow::Result<()> {
    let line = if command.restores {
        let request = RestoreRequest {
            input: RestoreInput::File {
                path: &command.file,
                skip_hash_check: command.skip_hash_check,
            },
            changes: None,
            bump_revision: command.bump_revision,
        };
        Box::pin(make_store(config, &request, &mut life)).await
    } else {
        print_status(command, &life).await
    };
    life.end().await?;
    writeln!(io::stdout(), "{}", line?).context("print")
}

async fn print_status(command: &SnapshotCommand, life: &Lifecycle) -> anyhow::Result<String> {
    let file = open(&command.file, command.skip_hash_check, life).await?;
    let status = interruptible(life, move || Ok(file.status()?)).await;
    let status = status.with_context(|| format!("read {}", command.file.display()))?;
    Ok(status.to_string())
}

/// A new store that is wanted.
pub(super) struct RestoreRequest<'a> {
    pub(super) input: RestoreInput<'a>,
    /// Changes that are added to the snapshot.
    pub(super) changes: Option<&'a ArchivedChanges>,
    /// The number by which the newest revision is raised; 0 changes nothing.
    pub(super) bump_revision: u64,
}

/// The snapshot that a new store is made of.
pub(super) enum RestoreInput<'a> {
    /// A file.
    File { path: &'a Path, skip_hash_check: bool },
    /// A backup, which is read into a temporary file below a directory.
    Backup { reader: &'a BackupReader, dir: &'a Path },
}

impl RestoreInput<'_> {
    /// Opens the snapshot and reads all of it, for its checksum.
    async fn open(&self, life: &Lifecycle) -> anyhow::Result<SnapshotFile> {
        match *self {
            RestoreInput::File { path, skip_hash_check } => open(path, skip_hash_check, life).await,
            RestoreInput::Backup { reader, dir } => {
                let spool = Spool::new(dir);
                tokio::select! {
                biased;
                () = life.leave.cancelled() => Err(anyhow::anyhow!("interrupted")),
                file = Box::pin(reader.read(&spool)) => file,
                }
            }
        }
    }
}

impl std::fmt::Display for RestoreInput<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RestoreInput::File { path, .. } => path.display().fmt(f),
            RestoreInput::Backup { reader, .. } => write!(f, "the backup {}", reader.manifest.name),
        }
    }
}

/// Makes a new store where the flags say. Returns a line that describes it.
pub(super) async fn make_store(
    config: &Config,
    request: &RestoreRequest<'_>,
    life: &mut Lifecycle,
) -> anyhow::Result<String> {
    let restored = match &config.storage {
        Storage::Embedded => {
            let source = open_and_hash(request, life).await?;
            into_directory(config, &source, life).await?
        }
        Storage::Tikv(options) => into_tikv(config, options, request, life).await?,
    };
    Ok(describe(&restored))
}

/// Opens the snapshot, and returns the SHA-256 of its database as well.
async fn open_and_hash<'a>(request: &RestoreRequest<'a>, life: &Lifecycle) -> anyhow::Result<SnapshotSource<'a>> {
    let file = request.input.open(life).await?;
    let hashed = interruptible(life, move || Ok((file.digest()?, file))).await;
    let (digest, file) = hashed.with_context(|| format!("read {}", request.input))?;
    Ok(SnapshotSource {
        file,
        identity: request.changes.map_or(digest, |changes| changes.identity(&digest)),
        changes: request.changes,
        bump_revision: request.bump_revision,
    })
}

/// Opens a file and reads all of it, for its checksum.
async fn open(path: &Path, skip_hash_check: bool, life: &Lifecycle) -> anyhow::Result<SnapshotFile> {
    let file = path.to_owned();
    let opened = interruptible(life, move || Ok(SnapshotFile::open(&file, skip_hash_check)?)).await;
    opened.with_context(|| format!("open {}", path.display()))
}

/// Does work that blocks a thread, until a signal comes.
async fn interruptible<T: Send + 'static>(
    life: &Lifecycle,
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    tokio::select! {
    biased;
    () = life.leave.cancelled() => Err(anyhow::anyhow!("interrupted")),
    done = tokio::task::spawn_blocking(work) => done?,
    }
}

fn describe(restored: &RestoreSummary) -> String {
    let RestoreSummary {
        revision,
        compacted,
        versions,
        leases,
    } = restored;
    let compacted = describe_compaction(*compacted);
    format!("restored revision {revision}, {compacted}: {versions} versions, {leases} leases")
}

/// Says up to where a store is compacted; it is not if the revision is not positive.
pub(crate) fn describe_compaction(compacted: Revision) -> String {
    match compacted {
        1.. => format!("compacted to {compacted}"),
        _ => "not compacted".to_owned(),
    }
}

/// The snapshot that is restored.
struct SnapshotSource<'a> {
    file: SnapshotFile,
    /// SHA-256 of the database, or of that and the point that is restored: an interrupted restore continues with the same one alone.
    identity: [u8; 32],
    changes: Option<&'a ArchivedChanges>,
    bump_revision: u64,
}

impl SnapshotSource<'_> {
    /// Makes a store of it, or continues with one that is begun.
    async fn restore(
        &self,
        engine: LogAndRows,
        options: &RestoreOptions,
        is_begun: bool,
    ) -> anyhow::Result<RestoreSummary> {
        match self.changes {
            Some(changes) => changes.restore(&self.file, engine, options, is_begun).await,
            None if is_begun => resume(&self.file, engine, options).await,
            None => restore(&self.file, engine, options).await,
        }
    }
}

/// A data directory with a new store in it, and that store.
struct OpenedRestore {
    target: RestoringDir,
    from: RestoringFrom,
    engine: LogAndRows,
    /// True if it holds a part of the snapshot.
    is_begun: bool,
}

async fn into_directory(
    config: &Config,
    source: &SnapshotSource<'_>,
    life: &Lifecycle,
) -> anyhow::Result<RestoreSummary> {
    let opened = tokio::select! {
    biased;
    () = life.leave.cancelled() => Err(anyhow::anyhow!("interrupted")),
    opened = Box::pin(open_directory(config, source)) => opened,
    };
    let OpenedRestore {
        target,
        from,
        engine,
        is_begun,
    } = opened?;
    let fill = async {
        let options = RestoreOptions {
            member: from.member_id,
            bump_revision: source.bump_revision,
            spool: Some(Spool::new(target.path())),
        };
        source.restore(engine, &options, is_begun).await
    };
    let filled = tokio::select! {
    biased;
    () = life.leave.cancelled() => {
    bail!("interrupted: the restore is incomplete; the same command continues it");
    }
    filled = Box::pin(fill) => filled,
    };
    match filled {
        Ok(restored) => {
            target.finish(&Identity {
                format: data_dir::DIR_FORMAT,
                cluster_id: from.cluster_id,
                member_id: from.member_id,
                log: Some(LogId(from.log)),
            })?;
            Ok(restored)
        }
        Err(error) if error.is::<FileError>() || error.is::<UnfitSnapshot>() => {
            abandon(target);
            Err(error)
        }
        Err(error) => Err(error.context("the restore is incomplete: the same command continues it")),
    }
}

/// Opens what an interrupted restore of this snapshot has left, or a new store.
async fn open_directory(config: &Config, source: &SnapshotSource<'_>) -> anyhow::Result<OpenedRestore> {
    let metrics = Arc::new(Metrics::new(false));
    if let Some((target, from)) = RestoringDir::resume_restore(&config.data_dir, &source.identity)? {
        let log = Some(LogId(from.log));
        let engine = embedded::open(config, target.path(), log, None, &metrics).await;
        let engine = engine.with_context(|| {
            format!(
                "cannot resume the interrupted restore: try again, or delete {}",
                target.path().display()
            )
        })?;
        return Ok(OpenedRestore {
            target,
            from,
            engine,
            is_begun: true,
        });
    }
    let target = RestoringDir::begin(&config.data_dir)?;
    let opened = begin(config, source, &target, &metrics).await;
    match opened {
        Ok((from, engine)) => Ok(OpenedRestore {
            target,
            from,
            engine,
            is_begun: false,
        }),
        Err(error) => {
            abandon(target);
            Err(error)
        }
    }
}

/// Makes a new store in the directory, and records which snapshot is restored into it.
async fn begin(
    config: &Config,
    source: &SnapshotSource<'_>,
    target: &RestoringDir,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<(RestoringFrom, LogAndRows)> {
    let bytes = source.file.size();
    check_space(target.path(), bytes)?;
    info!(data_dir = %target.path().display(), bytes, "restoring a snapshot");
    let engine = embedded::open(config, target.path(), None, None, metrics).await?;
    let from = RestoringFrom {
        format: data_dir::DIR_FORMAT,
        snapshot: source.identity,
        cluster_id: rand::random(),
        member_id: rand::random(),
        log: engine.log.id().context("the log has no id")?.0,
    };
    target.set_restoring(&from)?;
    Ok((from, engine))
}

fn abandon(target: RestoringDir) {
    if let Err(left) = target.abandon() {
        warn!(
            error = &left as &dyn std::error::Error,
            "could not delete an incomplete store"
        );
    }
}

/// Refuses a directory whose file system has too little space: the log would wait for more.
pub(crate) fn check_space(path: &Path, size: u64) -> anyhow::Result<()> {
    let stat = rustix::fs::statvfs(path).with_context(|| format!("ask for the free space of {}", path.display()))?;
    // The restore leaves the reserve alone.
    let (free, needed) = (
        stat.f_bavail.saturating_mul(stat.f_frsize),
        size.saturating_mul(RESTORE_SPACE_FACTOR)
            .saturating_add(Spool::new(path).reserve()?),
    );
    ensure!(
        free >= needed,
        "{} has {free} bytes free, and a restore of this snapshot may take {needed}",
        path.display()
    );
    Ok(())
}

/// The name of the register that holds a [`PartialRestore`]. It is part of the format.
const RESTORING_REGISTER: &str = "restoring";

/// The snapshot that a key prefix holds a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct PartialRestore {
    /// SHA-256 of the snapshot's database.
    snapshot: [u8; 32],
    /// The id of the member that writes the store.
    member_id: u64,
}

async fn into_tikv(
    config: &Config,
    options: &TikvOptions,
    request: &RestoreRequest<'_>,
    life: &mut Lifecycle,
) -> anyhow::Result<RestoreSummary> {
    let (tikv, supervisor) = Tikv::attach(connection(options, ONE_ATTEMPT_DOUBLINGS)).await?;
    life.tasks.spawn("TiKV", supervisor.run(life.stop.clone()));
    let claim = PrefixClaim::new(tikv.register(IMPORTER_REGISTER));
    let token = &config.initial_cluster_token;
    let restored = tokio::select! {
    biased;
    () = life.leave.cancelled() => {
    Err(anyhow::anyhow!("interrupted: if the restore has begun, the same command continues it"))
    }
    lost = claim.keep() => Err(lost),
    restored = Box::pin(into_prefix(&tikv, token, &claim, request, life)) => restored,
    };
    claim.end().await;
    restored
}

/// Claims the prefix before the file is read, which may take minutes: until then a member could begin a store there. A claim of an empty
/// prefix is taken back if the file is of no use.
async fn into_prefix(
    tikv: &Tikv,
    token: &str,
    claim: &PrefixClaim<TikvRegister>,
    request: &RestoreRequest<'_>,
    life: &Lifecycle,
) -> anyhow::Result<RestoreSummary> {
    let found = claimed(tikv, token, claim).await?;
    match open_and_hash(request, life).await {
        Ok(source) => fill_prefix(tikv, token, &source, found).await,
        Err(error) => {
            if found.is_none()
                && let Err(left) = prefix_owner::abandon_restore(&tikv.register(OWNER_REGISTER), token).await
            {
                warn!(
                    error = &left as &dyn std::error::Error,
                    "the key prefix remains claimed for a restore: `kubebrain wipe` it"
                );
            }
            Err(error)
        }
    }
}

/// Restores the snapshot into a claimed prefix, or continues with the part that was found there.
async fn fill_prefix(
    tikv: &Tikv,
    token: &str,
    source: &SnapshotSource<'_>,
    found: Option<PartialRestore>,
) -> anyhow::Result<RestoreSummary> {
    let (owner, register) = (tikv.register(OWNER_REGISTER), tikv.register(RESTORING_REGISTER));
    let (part, is_begun) = match found {
        Some(part) => {
            ensure!(
                part.snapshot == source.identity,
                "the key prefix holds a part of another snapshot: `kubebrain wipe` it"
            );
            (part, true)
        }
        None => {
            tikv.pin().await?;
            let part = PartialRestore {
                snapshot: source.identity,
                member_id: rand::random(),
            };
            let noted = cas_register::set(&register, Some(serde_json::to_vec(&part)?.into())).await;
            noted.context("record the snapshot of the restore")?;
            (part, false)
        }
    };
    info!(bytes = source.file.size(), "restoring a snapshot");
    let engine = LogAndRows {
        log: Arc::new(TikvLog::keeping(tikv.clone(), is_barrier)),
        rows: Arc::new(TikvRows::new(tikv.clone())),
    };
    let options = RestoreOptions {
        member: part.member_id,
        bump_revision: source.bump_revision,
        spool: None,
    };
    let restored = source.restore(engine, &options, is_begun).await.map_err(|error| {
        let is_final = error.is::<FileError>() || error.is::<UnfitSnapshot>();
        error.context(match is_final {
            true => "the key prefix holds unusable data: `kubebrain wipe` it",
            false => "the restore is incomplete: the same command continues it, `kubebrain wipe` deletes it",
        })
    })?;
    prefix_owner::end_restore(&owner, token).await?;
    // It means nothing any more.
    if let Err(error) = cas_register::set(&register, None).await {
        warn!(
            error = format!("{error:#}"),
            "could not delete the restore marker; it is harmless"
        );
    }
    Ok(restored)
}

/// Takes the right to fill the prefix, on which no member starts from then on. Returns what an interrupted restore has left there; `None` if
/// it had not begun to write, or if there was none.
async fn claimed(
    tikv: &Tikv,
    token: &str,
    claim: &PrefixClaim<TikvRegister>,
) -> anyhow::Result<Option<PartialRestore>> {
    let (owner, register) = (tikv.register(OWNER_REGISTER), tikv.register(RESTORING_REGISTER));
    if tikv.is_empty().await? {
        prefix_owner::begin_restore(&owner, token).await?;
    } else {
        let occupied = prefix_owner::occupied(&owner).await?;
        let is_import = tikv.register(IMPORTING_REGISTER).get().await?.is_some();
        if is_import || !matches!(occupied, OwnerError::Restoring) {
            bail!(occupied);
        }
        // Fails if it is another cluster's.
        prefix_owner::is_restoring(&owner, token).await?;
        tikv.check_pin().await?;
    }
    claim.take().await?;
    // Another restore, an import or a wipe may have come first.
    ensure!(
        prefix_owner::is_restoring(&owner, token).await? && tikv.register(IMPORTING_REGISTER).get().await?.is_none(),
        "another command has used the key prefix: start again"
    );
    match register.get().await? {
        Some(stored) => {
            let part = serde_json::from_slice(&stored);
            Ok(Some(part.context(
                "the snapshot of the restore is unknown: `kubebrain wipe` the key prefix",
            )?))
        }
        None => Ok(None),
    }
}
