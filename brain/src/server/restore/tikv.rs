//! A restore below a key prefix of TiKV.

use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::{RestoreRequest, RestoredStore, SnapshotSource, open_and_hash};
use crate::flags::{Config, TikvOptions};
use crate::server::claim::{IMPORTER_REGISTER, PrefixClaim};
use crate::server::import::IMPORTING_REGISTER;
use crate::server::run::Lifecycle;
use crate::server::tikv::{ONE_ATTEMPT_DOUBLINGS, connection};
use crate::server::wipe::clear;
use backup::snapshot::{FileError, RestoreOptions, UnfitSnapshot};
use cluster::prefix_owner;
use cluster::prefix_owner::{OWNER_REGISTER, OwnerError};
use engine::LogAndRows;
use engine::cas_register::{self, CasRegister as _};
use engine::log::frame::is_barrier;
use engine_tikv::{Tikv, TikvLog, TikvRegister, TikvRows};

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

/// Returns the id of this cluster if its complete store is below the key prefix. Fails if another cluster owns the prefix.
pub(super) async fn existing(config: &Config, options: &TikvOptions) -> anyhow::Result<Option<u64>> {
    let (tikv, _supervisor) = Tikv::attach(connection(options, ONE_ATTEMPT_DOUBLINGS)).await?;
    let owner = tikv.register(OWNER_REGISTER);
    Ok(prefix_owner::serving(&owner, &config.initial_cluster_token).await?)
}

/// Restores the snapshot below the key prefix, or continues a restore of it.
pub(super) async fn restore_into(
    config: &Config,
    options: &TikvOptions,
    request: &RestoreRequest<'_>,
    life: &mut Lifecycle,
) -> anyhow::Result<RestoredStore> {
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
) -> anyhow::Result<RestoredStore> {
    let found = claimed(tikv, token, claim, request.starts_over).await?;
    match open_and_hash(request, life).await {
        Ok(source) => {
            let found = match found {
                Some(part) if part.snapshot != source.identity => {
                    ensure!(
                        request.starts_over,
                        "the key prefix holds a part of another snapshot: `kubebrain wipe` it"
                    );
                    start_over(tikv, token, claim).await?;
                    None
                }
                found => found,
            };
            fill_prefix(tikv, token, (&source, request.cluster_id), found).await
        }
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

/// Deletes a part of another snapshot. The claim and the mark stay until the prefix is marked as being restored into again.
async fn start_over(tikv: &Tikv, token: &str, claim: &PrefixClaim<TikvRegister>) -> anyhow::Result<()> {
    info!("deleting a part of another snapshot");
    clear(tikv, token, claim).await?;
    Ok(prefix_owner::restore_after_wipe(&tikv.register(OWNER_REGISTER), token).await?)
}

/// Restores the snapshot into a claimed prefix, or continues with its part that was found there.
async fn fill_prefix(
    tikv: &Tikv,
    token: &str,
    (source, cluster_id): (&SnapshotSource<'_>, Option<u64>),
    found: Option<PartialRestore>,
) -> anyhow::Result<RestoredStore> {
    let (owner, register) = (tikv.register(OWNER_REGISTER), tikv.register(RESTORING_REGISTER));
    let (part, is_begun) = match found {
        Some(part) => (part, true),
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
    let summary = source.restore(engine, &options, is_begun).await.map_err(|error| {
        let is_final = error.is::<FileError>() || error.is::<UnfitSnapshot>();
        error.context(match is_final {
            true => "the key prefix holds unusable data: `kubebrain wipe` it",
            false => "the restore is incomplete: the same command continues it, `kubebrain wipe` deletes it",
        })
    })?;
    let cluster_id = prefix_owner::end_restore(&owner, token, cluster_id).await?;
    // It means nothing any more.
    if let Err(error) = cas_register::set(&register, None).await {
        warn!(
            error = format!("{error:#}"),
            "could not delete the restore marker; it is harmless"
        );
    }
    Ok(RestoredStore { summary, cluster_id })
}

/// Takes the right to fill the prefix, on which no member starts from then on. Returns what an interrupted restore has left there; `None` if
/// it had not begun to write, or if there was none.
async fn claimed(
    tikv: &Tikv,
    token: &str,
    claim: &PrefixClaim<TikvRegister>,
    starts_over: bool,
) -> anyhow::Result<Option<PartialRestore>> {
    let (owner, register) = (tikv.register(OWNER_REGISTER), tikv.register(RESTORING_REGISTER));
    if starts_over && prefix_owner::is_wiping(&owner, token).await? {
        // An earlier attempt was interrupted while it deleted a part of another snapshot, or a wipe was.
        claim.take().await?;
        ensure!(
            prefix_owner::is_wiping(&owner, token).await?,
            "another command has used the key prefix: start again"
        );
        start_over(tikv, token, claim).await?;
        return Ok(None);
    }
    // The claim of one that was killed is nothing.
    if tikv.is_empty_but(&[IMPORTER_REGISTER]).await? {
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
