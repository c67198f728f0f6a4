//! `kubebrain wipe`: deletes all data under the key prefix of a cluster that is no longer used.

use std::sync::Arc;
use std::time::Duration;

use crate::flags::{Config, Storage};
use anyhow::Context as _;
use bytes::Bytes;
use cluster::lock::StorageLock;
use cluster::prefix_owner;
use cluster::prefix_owner::OWNER_REGISTER;
use election::Lock as _;
use engine::cas_register::CasRegister as _;
use engine_tikv::{Reclaim, Tikv, TikvRegister, WipePart};
use tokio::time::Instant;
use tracing::info;

use crate::server::claim::{IMPORTER_REGISTER, PrefixClaim};
use crate::server::run::Lifecycle;
use crate::server::tikv::{LEADER_REGISTER, ONE_ATTEMPT_DOUBLINGS, connection};

/// The least time for which a leader's record must stay unchanged to prove that it is not renewed; its lease duration applies if
/// longer.
const MIN_LEADER_SILENCE: Duration = Duration::from_secs(5);

/// The interval at which the leader's record is read in the meantime.
const LEADER_READ_INTERVAL: Duration = Duration::from_millis(200);

/// The registers that tell others of a wipe, until its end.
const KEPT_REGISTERS: [&str; 2] = [OWNER_REGISTER, IMPORTER_REGISTER];

/// Passes over a prefix that others still write to.
const MAX_PASSES: u32 = 3;

/// Wipes the prefix, and ends. A signal interrupts it; when started again it continues.
pub(crate) async fn run(config: &Config, mut life: Lifecycle) -> anyhow::Result<()> {
    let Storage::Tikv(options) = &config.storage else {
        anyhow::bail!("only a key prefix of TiKV is wiped: delete a data directory as any other directory");
    };
    let (tikv, supervisor) = Tikv::attach(connection(options, ONE_ATTEMPT_DOUBLINGS)).await?;
    life.tasks.spawn("TiKV", supervisor.run(life.stop.clone()));
    let claim = PrefixClaim::new(tikv.register(IMPORTER_REGISTER));
    let wiped = tokio::select! {
    biased;
    () = life.leave.cancelled() => Err(anyhow::anyhow!("interrupted: start it again to continue")),
    lost = claim.keep() => Err(lost),
    wiped = wipe_unused(&tikv, &config.initial_cluster_token, &claim) => wiped,
    };
    claim.end().await;
    life.end().await?;
    wiped
}

/// Deletes everything below the prefix. Fails if a member uses it, or if a restore, an import or another wipe does.
async fn wipe_unused(tikv: &Tikv, token: &str, claim: &PrefixClaim<TikvRegister>) -> anyhow::Result<()> {
    tikv.check_pin().await?;
    if tikv.is_empty().await? {
        info!("there is nothing to wipe");
        return Ok(());
    }
    // Nothing is written below the prefix of another cluster, or of members that run.
    prefix_owner::is_wiping(&tikv.register(OWNER_REGISTER), token).await?;
    let seen = unused(&tikv.register(LEADER_REGISTER)).await?;
    claim.take().await?;
    clear_after(tikv, token, claim, (seen, Reclaim::Tried)).await?;
    release(tikv, token, claim).await
}

/// Deletes everything below a prefix on which this command holds the claim, which it gives up. Fails if a member uses it.
pub(super) async fn wipe(tikv: &Tikv, token: &str, claim: &PrefixClaim<TikvRegister>) -> anyhow::Result<()> {
    clear(tikv, token, claim).await?;
    release(tikv, token, claim).await
}

/// Deletes everything below a prefix on which this command holds the claim, but the claim, and the mark of the wipe: until that is replaced
/// no other command and no member takes the prefix for an empty one. Fails if a member uses it.
pub(super) async fn clear(tikv: &Tikv, token: &str, claim: &PrefixClaim<TikvRegister>) -> anyhow::Result<()> {
    tikv.check_pin().await?;
    let seen = unused(&tikv.register(LEADER_REGISTER)).await?;
    clear_after(tikv, token, claim, (seen, Reclaim::Required)).await
}

/// Does so if the leader's record is still the one that was seen.
async fn clear_after(
    tikv: &Tikv,
    token: &str,
    claim: &PrefixClaim<TikvRegister>,
    (seen, reclaim): (Option<Bytes>, Reclaim),
) -> anyhow::Result<()> {
    let (owner, leader) = (tikv.register(OWNER_REGISTER), tikv.register(LEADER_REGISTER));
    let unchanged = async || {
        let now = leader.get().await.context("read the leader's record")?;
        anyhow::ensure!(now == seen, "a member began to lead: stop all members first");
        Ok(())
    };
    // It may have been long ago.
    unchanged().await?;
    prefix_owner::begin_wipe(&owner, token).await?;
    info!("wiping");
    // A command that was paused may no longer have the right.
    let still_wiping = async || {
        claim.check().await?;
        anyhow::ensure!(
            prefix_owner::is_wiping(&owner, token).await?,
            "another command has used the key prefix: start again"
        );
        Ok(())
    };
    let mut deleted = tikv
        .wipe(WipePart::Data, reclaim, async || {
            unchanged().await?;
            still_wiping().await
        })
        .await?;
    for _ in 0..MAX_PASSES {
        deleted += tikv
            .wipe(WipePart::RegistersBut(&KEPT_REGISTERS), reclaim, still_wiping)
            .await?;
        if tikv.is_empty_but(&KEPT_REGISTERS).await? {
            info!(deleted, "wiped");
            return Ok(());
        }
        // A member that was about to start, or a late write of one that was killed.
        deleted += tikv.wipe(WipePart::Data, reclaim, still_wiping).await?;
    }
    anyhow::bail!("another process writes below the key prefix: stop all members first")
}

/// Deletes the mark, and gives the claim up. Nothing else is deleted, as a store may begin at once.
async fn release(tikv: &Tikv, token: &str, claim: &PrefixClaim<TikvRegister>) -> anyhow::Result<()> {
    prefix_owner::end_wipe(&tikv.register(OWNER_REGISTER), token).await?;
    claim.end().await;
    Ok(())
}

/// Waits until it is certain that the leader's lock is not renewed. Returns the bytes of the record.
async fn unused(leader: &TikvRegister) -> anyhow::Result<Option<Bytes>> {
    let lock = StorageLock::new(Arc::new(leader.clone()), "TiKV");
    let Some((record, seen)) = lock.get().await.context("read the leader's record")? else {
        return Ok(None);
    };
    if !record.is_free() {
        let until = Instant::now() + record.lease_duration.max(MIN_LEADER_SILENCE);
        info!(
            holder = record.holder_identity,
            "checking whether the leader's lock is still renewed"
        );
        while Instant::now() < until {
            tokio::time::sleep(LEADER_READ_INTERVAL).await;
            let now = leader.get().await.context("read the leader's record")?;
            anyhow::ensure!(
                now.as_ref() == Some(&seen),
                "{} holds the leader's lock and renews it: stop all members first",
                record.holder_identity
            );
        }
    }
    Ok(Some(seen))
}
