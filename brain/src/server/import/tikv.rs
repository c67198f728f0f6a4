//! A copy below a key prefix of TiKV. The register that says whose the prefix is has a mark until it is complete.

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tracing::{info, warn};

use crate::flags::TikvOptions;
use crate::server::claim::{IMPORTER_REGISTER, PrefixClaim};
use crate::server::import::{CopiedStore, PartialCopy};
use crate::server::run::Lifecycle;
use crate::server::tikv::{ONE_ATTEMPT_DOUBLINGS, connection};
use crate::server::wipe::wipe;
use backup::import::{CopyOptions, Source, collecting, copy};
use backup::snapshot::{Importer, RestoreOptions, Spool, restore};
use cluster::prefix_owner;
use cluster::prefix_owner::OWNER_REGISTER;
use engine::LogAndRows;
use engine::cas_register::{self, CasRegister as _};
use engine::log::frame::is_barrier;
use engine_tikv::{Tikv, TikvLog, TikvRegister, TikvRows};

/// The name of the register that holds an [`PrefixImport`]. It is part of the format.
pub(in crate::server) const IMPORTING_REGISTER: &str = "importing";

/// The copy of another store below a prefix: all of it up to the revision that it is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct PrefixImport {
    /// The id of the cluster that is copied.
    source: u64,
    /// The id of the member that writes the copy.
    member_id: u64,
}

/// Connects to TiKV.
pub(super) async fn attach(options: &TikvOptions, life: &mut Lifecycle) -> anyhow::Result<Tikv> {
    let (tikv, supervisor) = Tikv::attach(connection(options, ONE_ATTEMPT_DOUBLINGS)).await?;
    life.tasks.spawn("TiKV", supervisor.run(life.stop.clone()));
    Ok(tikv)
}

/// Copies below the prefix, or continues a copy, and hands the prefix over to members, as the cluster `cluster_id`, if there is one. Fails if
/// another import does the same.
pub(super) async fn copy_into(
    tikv: &Tikv,
    token: &str,
    source: &mut Source,
    (partial, cluster_id): (PartialCopy, Option<u64>),
    options: CopyOptions,
) -> anyhow::Result<CopiedStore> {
    let claim = PrefixClaim::new(tikv.register(IMPORTER_REGISTER));
    let copied = tokio::select! {
    biased;
    lost = claim.keep() => return Err(lost),
    copied = Box::pin(copy_alone(tikv, token, source, (partial, cluster_id, &claim), options)) => copied,
    };
    claim.end().await;
    copied
}

async fn copy_alone(
    tikv: &Tikv,
    token: &str,
    source: &mut Source,
    (partial, cluster_id, claim): (PartialCopy, Option<u64>, &PrefixClaim<TikvRegister>),
    options: CopyOptions,
) -> anyhow::Result<CopiedStore> {
    let (owner, register) = (tikv.register(OWNER_REGISTER), tikv.register(IMPORTING_REGISTER));
    let stored = register.get().await.context("read the source of the copy")?;
    let is_empty = tikv.is_empty().await?;
    let is_copy = !is_empty && prefix_owner::is_restoring(&owner, token).await?;
    // Data that was to go anyway, such as a copy that was begun again before.
    let is_wiped = !is_empty && prefix_owner::is_wiping(&owner, token).await?;
    let is_new = match partial {
        PartialCopy::Continue => false,
        // A wipe, which may have been begun for a new copy, deletes the data first and the register last.
        PartialCopy::ContinueOrDeleteRest => is_wiped || (is_copy && stored.is_none()),
        PartialCopy::Delete => true,
    };
    let spool = Spool::new(&std::env::temp_dir());
    let engine = LogAndRows {
        log: Arc::new(TikvLog::keeping(tikv.clone(), is_barrier)),
        rows: Arc::new(TikvRows::new(tikv.clone())),
    };
    let (importing, collected) = match &stored {
        Some(stored) if is_copy && !is_new => {
            tikv.check_pin().await?;
            let importing = resume(source, stored)?;
            claim.take().await?;
            unchanged(tikv, token, Some(stored)).await?;
            (importing, None)
        }
        None if is_copy && !is_new => {
            bail!(
                "the key prefix holds a part of a snapshot, or of a copy that cannot be resumed: use --restart to discard it; `kubebrain snapshot restore` may resume it"
            )
        }
        _ => {
            if is_new && (is_copy || is_wiped) {
                claim.take().await?;
                if is_copy {
                    unchanged(tikv, token, stored.as_ref()).await?;
                } else {
                    ensure!(prefix_owner::is_wiping(&owner, token).await?, ANOTHER_IMPORT);
                }
                info!("deleting an incomplete copy");
                wipe(tikv, token, claim).await?;
            }
            let made = collecting(source, &spool, async |source| {
                begin(tikv, token, source, claim, (engine.clone(), &spool)).await
            });
            let (importing, collected) = made.await?;
            (importing, Some(collected))
        }
    };
    let importer = Importer::open(engine.log, engine.rows, &as_member(importing.member_id)).await?;
    let summary = copy(source, importer, (options, collected), &spool).await?;
    let cluster_id = prefix_owner::end_restore(&owner, token, cluster_id).await?;
    // It means nothing any more.
    if let Err(error) = cas_register::set(&register, None).await {
        warn!(
            error = format!("{error:#}"),
            "could not delete the restore marker; it is harmless"
        );
    }
    Ok(CopiedStore { summary, cluster_id })
}

/// Another import came first.
const ANOTHER_IMPORT: &str = "another import finished or deleted the copy: start again";

/// Fails if another import finished or deleted the copy before this one had the claim.
async fn unchanged(tikv: &Tikv, token: &str, stored: Option<&Bytes>) -> anyhow::Result<()> {
    let now = tikv
        .register(IMPORTING_REGISTER)
        .get()
        .await
        .context("read the source of the copy")?;
    ensure!(
        now.as_ref() == stored && prefix_owner::is_restoring(&tikv.register(OWNER_REGISTER), token).await?,
        ANOTHER_IMPORT
    );
    Ok(())
}

fn resume(source: &Source, stored: &Bytes) -> anyhow::Result<PrefixImport> {
    let importing: PrefixImport =
        serde_json::from_slice(stored).context("the source of the copy is unknown: use --restart")?;
    ensure!(
        importing.source == source.cluster_id(),
        "the key prefix holds a copy of the cluster {:x}, and the endpoints are of {:x}: --restart deletes it",
        importing.source,
        source.cluster_id()
    );
    info!("continuing a copy");
    Ok(importing)
}

/// Makes a store of a snapshot.
async fn begin(
    tikv: &Tikv,
    token: &str,
    source: &mut Source,
    claim: &PrefixClaim<TikvRegister>,
    (engine, spool): (LogAndRows, &Spool),
) -> anyhow::Result<PrefixImport> {
    let (owner, register) = (tikv.register(OWNER_REGISTER), tikv.register(IMPORTING_REGISTER));
    // The claim of one that was killed is nothing.
    if !tikv.is_empty_but(&[IMPORTER_REGISTER]).await? {
        bail!(prefix_owner::occupied(&owner).await?);
    }
    info!("copying the source");
    // Before anything is written: it may be too large for the disk.
    let file = source.snapshot(spool).await?;
    // From now on no member starts on the prefix.
    prefix_owner::begin_restore(&owner, token).await?;
    claim.take().await?;
    unchanged(tikv, token, None).await?;
    tikv.pin().await?;
    let importing = PrefixImport {
        source: source.cluster_id(),
        member_id: rand::random(),
    };
    let restored = restore(&file, engine, &as_member(importing.member_id)).await;
    let restored = restored.context("the key prefix holds a part of a copy, which --restart deletes")?;
    info!(
        revision = restored.revision,
        versions = restored.versions,
        "created a store from the snapshot"
    );
    let noted = cas_register::set(&register, Some(serde_json::to_vec(&importing)?.into())).await;
    noted.context("record the source of the copy")?;
    Ok(importing)
}

fn as_member(member: u64) -> RestoreOptions {
    RestoreOptions {
        member,
        ..RestoreOptions::default()
    }
}
