//! The laws of [`Lock`], as code that every implementation must pass.

use std::time::Duration;

use anyhow::{Context, ensure};

use crate::{Lock, LockError, Record, Timestamp};

/// Runs the laws on an empty `lock`, and leaves records in it. `again` is a second handle on the same record.
///
/// # Errors
/// The law that does not hold.
pub async fn check<L: Lock>(lock: &L, again: &L) -> anyhow::Result<()> {
    ensure!(lock.get().await?.is_none(), "the lock is not empty");
    let first = record("a", 1);
    let v1 = lock.create(&first).await.context("create in an empty lock")?;
    conflicts(again.create(&record("b", 1)).await, "create over a record")?;
    shows(again, &first).await?;

    let second = record("b", 2);
    let v2 = again
        .update(&second, &v1)
        .await
        .context("update of the current version")?;
    conflicts(lock.update(&record("a", 3), &v1).await, "update of an older version")?;
    shows(lock, &second).await?;

    let v3 = again
        .update(&first, &v2)
        .await
        .context("update that restores an older record")?;
    conflicts(
        lock.update(&second, &v1).await,
        "update of a version whose record was restored",
    )?;
    let (seen, version) = lock.get().await?.context("the record vanished")?;
    ensure!(seen == first, "{seen:?} is not what was written");
    lock.update(&second, &version)
        .await
        .context("update of the version that was read")?;
    conflicts(again.update(&first, &v3).await, "update of a version that was replaced")?;
    shows(again, &second).await
}

async fn shows<L: Lock>(lock: &L, expected: &Record) -> anyhow::Result<()> {
    let (seen, _) = lock.get().await?.context("the record vanished")?;
    ensure!(seen == *expected, "{seen:?} is read, {expected:?} was written");
    Ok(())
}

fn conflicts<V>(outcome: Result<V, LockError>, what: &str) -> anyhow::Result<()> {
    match outcome {
        Err(LockError::Conflict) => Ok(()),
        Err(error) => Err(anyhow::Error::new(error).context(format!("{what} must conflict"))),
        Ok(_) => anyhow::bail!("{what} must conflict, and was done"),
    }
}

fn record(holder: &str, transitions: u32) -> Record {
    let time = Timestamp::from_second(1_700_000_000 + i64::from(transitions)).ok();
    Record {
        holder_identity: holder.to_owned(),
        lease_duration: Duration::from_secs(2),
        acquire_time: time,
        renew_time: time,
        leader_transitions: transitions,
    }
}
