//! Detects another process that runs under this member's name.
//!
//! The lock may name an earlier run of this member: no process renews that record any more. If it is renewed, there are two
//! processes of one name, because a member was started twice, or because two clusters have the same configuration, with addresses
//! that mean something else on each machine. Neither could reach the other members: the later one ends.

use std::time::Duration;

use anyhow::bail;
use election::{Lock, Record};
use tokio_util::sync::CancellationToken;

use super::peers::name_of;

/// Reads the lock until it names no other process of this name, and then waits for `stop`. Fails if another running process holds
/// the lock under this name.
pub async fn watch<K: Lock>(lock: K, identity: String, every: Duration, stop: CancellationToken) -> anyhow::Result<()> {
    let looked = async {
        let mut before: Option<Record> = None;
        loop {
            match lock.get().await {
                Ok(Some((record, _))) if is_namesake(&record, &identity) => {
                    let lives = before.as_ref().is_some_and(|before| {
                        before.holder_identity == record.holder_identity && before.renew_time != record.renew_time
                    });
                    if lives {
                        bail!(
                            "another process leads as member {:?}: this one was started twice, or two clusters share the storage, its key prefix and the names of members",
                            name_of(&identity)
                        );
                    }
                    before = Some(record);
                }
                Ok(_) => return Ok(()),
                Err(error) => tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "cannot check for another process with the name of this member"
                ),
            }
            tokio::time::sleep(every).await;
        }
    };
    tokio::select! {
    () = stop.cancelled() => return Ok(()),
    looked = looked => looked?,
    }
    stop.cancelled().await;
    Ok(())
}

fn is_namesake(record: &Record, identity: &str) -> bool {
    record.holder_identity != identity && name_of(&record.holder_identity) == name_of(identity)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::StorageLock;
    use engine::cas_register::mem::MemRegister;
    use std::sync::Arc;

    const PROBE_INTERVAL: Duration = Duration::from_millis(400);

    fn held_by(identity: &str) -> Record {
        Record {
            holder_identity: identity.to_owned(),
            ..Record::default()
        }
    }

    fn renewed(record: &Record, second: i64) -> Record {
        Record {
            renew_time: election::Timestamp::from_second(second).ok(),
            ..record.clone()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_namesake_that_renews_the_lock_ends_this_one() {
        let lock = StorageLock::new(Arc::new(MemRegister::new()), "test");
        let version = lock.create(&renewed(&held_by("a_1"), 1)).await.unwrap();
        let stop = CancellationToken::new();
        let watched = watch(lock.clone(), "a_2".to_owned(), PROBE_INTERVAL, stop);
        tokio::pin!(watched);
        let early = tokio::time::timeout(10 * PROBE_INTERVAL, &mut watched).await;
        assert!(early.is_err(), "a lock that nobody renews is an earlier life's");
        lock.update(&renewed(&held_by("a_1"), 2), &version).await.unwrap();
        let error = tokio::time::timeout(10 * PROBE_INTERVAL, watched)
            .await
            .unwrap()
            .unwrap_err();
        assert!(error.to_string().contains("leads as member \"a\""), "{error:#}");
    }

    #[tokio::test(start_paused = true)]
    async fn others_and_this_one_may_renew() {
        for holder in ["b_1", "a_2", ""] {
            let lock = StorageLock::new(Arc::new(MemRegister::new()), "test");
            let version = lock.create(&renewed(&held_by(holder), 1)).await.unwrap();
            let stop = CancellationToken::new();
            let watched = watch(lock.clone(), "a_2".to_owned(), PROBE_INTERVAL, stop.clone());
            tokio::pin!(watched);
            assert!(tokio::time::timeout(PROBE_INTERVAL, &mut watched).await.is_err());
            lock.update(&renewed(&held_by(holder), 2), &version).await.unwrap();
            assert!(
                tokio::time::timeout(10 * PROBE_INTERVAL, &mut watched).await.is_err(),
                "{holder}"
            );
            stop.cancel();
            watched.await.unwrap();
        }
    }
}
