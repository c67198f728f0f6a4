//! `kubebrain snapshot`: prints what is in a snapshot, or makes a new store of one.

use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use tracing::info;

use crate::cluster::owner;
use crate::cluster::owner::OWNER;
use crate::data_dir::{self, Identity, Restoring};
use crate::flags::{Config, SnapshotCommand, Storage, TikvOptions};
use crate::log::frame::is_barrier;
use crate::log::{Log as _, TikvLog};
use crate::metrics::Metrics;
use crate::rows::TikvRows;
use crate::server::embedded;
use crate::server::run::Lifecycle;
use crate::server::tikv::connection;
use crate::snapshot::{Restored, SnapshotFile, restore};
use crate::tikv::Tikv;

/// The space that a restore takes on disk, as a multiple of the snapshot's: the log, the rows, and rows that are being merged.
const SPACE: u64 = 3;

/// Runs the subcommand, and ends. A signal interrupts it.
pub(crate) async fn run(config: &Config, command: &SnapshotCommand, mut life: Lifecycle) -> anyhow::Result<()> {
    let line = if command.restores {
        Box::pin(make_store(config, command, &mut life)).await
    } else {
        print_status(command, &life).await
    };
    life.end().await?;
    writeln!(io::stdout(), "{}", line?).context("print")
}

async fn print_status(command: &SnapshotCommand, life: &Lifecycle) -> anyhow::Result<String> {
    let file = open(command, life).await?;
    let status = interruptible(life, move || Ok(file.status()?)).await;
    let status = status.with_context(|| format!("read {}", command.file.display()))?;
    Ok(status.to_string())
}

async fn make_store(config: &Config, command: &SnapshotCommand, life: &mut Lifecycle) -> anyhow::Result<String> {
    let file = open(command, life).await?;
    let restored = match &config.storage {
        Storage::Embedded => into_directory(config, &file, life).await?,
        Storage::Tikv(options) => into_tikv(config, options, &file, life).await?,
    };
    Ok(describe(&restored))
}

/// Opens the snapshot, all of which is read for its checksum.
async fn open(command: &SnapshotCommand, life: &Lifecycle) -> anyhow::Result<SnapshotFile> {
    let SnapshotCommand {
        file, skip_hash_check, ..
    } = command.clone();
    let opened = interruptible(life, move || Ok(SnapshotFile::open(&file, skip_hash_check)?)).await;
    opened.with_context(|| format!("open {}", command.file.display()))
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

fn describe(restored: &Restored) -> String {
    let Restored {
        revision,
        compacted,
        versions,
        leases,
    } = restored;
    format!("restored revision {revision}, compacted to {compacted}: {versions} versions, {leases} leases")
}

async fn into_directory(config: &Config, file: &SnapshotFile, life: &Lifecycle) -> anyhow::Result<Restored> {
    let target = Restoring::begin(&config.data_dir)?;
    let identity = Identity {
        format: data_dir::FORMAT,
        cluster_id: rand::random(),
        member_id: rand::random(),
        log: None,
    };
    let fill = async {
        check_space(target.path(), file.size())?;
        info!(data_dir = %target.path().display(), bytes = file.size(), "restoring a snapshot");
        let metrics = Arc::new(Metrics::new(false));
        let (log, rows) = embedded::open(config, (target.path(), None), None, &metrics).await?;
        let id = log.id();
        let restored = restore(file, (log, rows), identity.member_id).await?;
        anyhow::Ok((restored, id))
    };
    let filled = tokio::select! {
        biased;
        () = life.leave.cancelled() => Err(anyhow::anyhow!("interrupted: the restore is not complete")),
        filled = Box::pin(fill) => filled,
    };
    match filled {
        Ok((restored, log)) => {
            target.finish(&Identity { log, ..identity })?;
            Ok(restored)
        }
        Err(error) => {
            if let Err(left) = target.abandon() {
                tracing::warn!(error = &left as &dyn std::error::Error, "an incomplete store is left");
            }
            Err(error)
        }
    }
}

/// Refuses a directory whose file system has too little space: the log would wait for more.
pub(crate) fn check_space(path: &Path, size: u64) -> anyhow::Result<()> {
    let stat = rustix::fs::statvfs(path).with_context(|| format!("ask for the free space of {}", path.display()))?;
    let (free, needed) = (
        stat.f_bavail.saturating_mul(stat.f_frsize),
        size.saturating_mul(SPACE) + (64 << 20),
    );
    anyhow::ensure!(
        free >= needed,
        "{} has {free} bytes free, and a restore of this snapshot may take {needed}",
        path.display()
    );
    Ok(())
}

async fn into_tikv(
    config: &Config,
    options: &TikvOptions,
    file: &SnapshotFile,
    life: &mut Lifecycle,
) -> anyhow::Result<Restored> {
    let metrics = Metrics::new(false);
    let (tikv, supervisor) = Tikv::attach(connection(options, &metrics, 0)).await?;
    life.tasks.spawn("TiKV", supervisor.run(life.stop.clone()));
    let (register, token) = (tikv.register(OWNER), &config.initial_cluster_token);
    let fill = async {
        if !tikv.is_empty().await? {
            anyhow::bail!(owner::occupied(&register).await?);
        }
        // From now on no member starts on the prefix.
        owner::begin_restore(&register, token).await?;
        tikv.pin().await?;
        info!(prefix = options.key_prefix, bytes = file.size(), "restoring a snapshot");
        let engine = (TikvLog::keeping(tikv.clone(), is_barrier), TikvRows::new(tikv.clone()));
        let restored = restore(file, engine, rand::random())
            .await
            .context("the key prefix holds a part of the snapshot, `kubebrain wipe` it")?;
        owner::end_restore(&register, token).await?;
        Ok(restored)
    };
    tokio::select! {
        biased;
        () = life.leave.cancelled() => Err(anyhow::anyhow!("interrupted: the restore is not complete; `kubebrain wipe` the key prefix")),
        filled = Box::pin(fill) => filled,
    }
}
