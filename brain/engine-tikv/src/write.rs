//! Writes: an insert that happens once, a swap of one value, a transaction guarded by a fence.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use tikv_client::{Error as ClientError, Mutation as ClientMutation, Timestamp, Transaction, TransactionClient};
use tokio::time::Instant;

use super::error::{CallKind, MessageSize};
use super::read::{ReadAt, Ts, options};
use super::{CallLimits, Error, LONGEST_CALL_ROUND_TRIPS, Tikv};
use runtime::backoff::Backoff;

/// One change of a fenced write.
#[derive(Debug, Clone)]
pub(crate) enum Mutation {
    Put(Bytes, Bytes),
    Delete(Bytes),
}

impl Mutation {
    /// Bytes of key and value.
    pub(crate) fn len(&self) -> usize {
        match self {
            Mutation::Put(key, value) => key.len() + value.len(),
            Mutation::Delete(key) => key.len(),
        }
    }
}

/// The comparison and the writes of a fenced write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FencedWrite<'a> {
    /// The key of the fence, and its expected value.
    pub(crate) fence: &'a Bytes,
    pub(crate) expected: Option<&'a Bytes>,
    /// The primary key and its new value: the fence and its next value, or a fence shard and the expected fence.
    pub(crate) primary: &'a Bytes,
    pub(crate) new: &'a Bytes,
}

/// The outcome of a fenced write.
#[derive(Debug)]
pub(crate) enum FencedOutcome {
    /// The write is applied.
    Done,
    /// It is not: the fence holds another value.
    Other(Option<Bytes>),
}

impl Tikv {
    /// Writes a key that must not exist. [`Error::Conflict`] means that it exists, maybe because of this very call: compare the value.
    /// After any other error the key may exist, or may appear later.
    pub(crate) async fn insert(&self, key: &Bytes, value: &Bytes) -> Result<(), Error> {
        let insert = |client: TransactionClient| {
            let (key, value) = (key.to_vec(), value.to_vec());
            async move {
                let mut txn = client.begin_with_options(options().try_one_pc()).await?;
                txn.insert(key, value).await?;
                match txn.commit().await {
                    // Two phases were begun after all, and a lock is left: take it away, for the next attempt.
                    Err(error @ ClientError::OnePcFailure) => {
                        txn.rollback().await?;
                        Err(error)
                    }
                    outcome => outcome.map(|_| ()),
                }
            }
        };
        let message = MessageSize::of(value.len());
        let kind = CallKind { op: "insert", message };
        self.shared.pool.call(kind, self.limits(), insert).await
    }

    /// Sets the value of one key, or removes it, in the transaction that read it: nothing is written if the key has changed since.
    /// All attempts are one transaction, by several clients at once if TiKV is silent, and TiKV commits it once.
    pub(crate) async fn set_read(
        &self,
        key: &Bytes,
        read: &ReadAt,
        new: Option<&Bytes>,
        limits: CallLimits,
    ) -> SetRead {
        if read.value.is_none() && new.is_none() {
            return SetRead::Done;
        }
        let sent = AtomicBool::new(false);
        let set = |client| {
            sent.store(true, Ordering::Relaxed);
            set_once(client, key, read, new)
        };
        match self.shared.pool.call(CallKind::short("swap"), limits, set).await {
            Ok(SetAttempt::Won) | Err(Error::Committed) => SetRead::Done,
            Err(Error::Conflict) => SetRead::Changed,
            Ok(SetAttempt::Nothing(error)) => SetRead::Nothing(error.into()),
            Err(error) if sent.into_inner() => SetRead::Unknown(error.into()),
            Err(error) => SetRead::Nothing(error.into()),
        }
    }

    /// Makes all changes and sets the primary key, as one transaction, if the fence has the expected value. Returns
    /// [`FencedOutcome::Done`] also if that had been done before. After an error the outcome is unknown: repeat the same call.
    pub(crate) async fn write(
        &self,
        behind: FencedWrite<'_>,
        changes: &[Mutation],
        limits: CallLimits,
    ) -> Result<FencedOutcome, Error> {
        let pool = &self.shared.pool;
        let mut pauses = Backoff::new(limits.attempt / 1000, limits.attempt / 20);
        let attempt = pool.stretched(limits.attempt, LONGEST_CALL_ROUND_TRIPS);
        let deadline = Instant::now() + limits.total.max(attempt);
        // The client sends a long change by itself.
        let message = MessageSize::of(changes.iter().map(Mutation::len).max().unwrap_or(0));
        loop {
            let begun = AtomicU64::new(0);
            let left = deadline.saturating_duration_since(Instant::now());
            let write = |client| write_once(client, behind, changes, &begun);
            let error = match pool.attempt_once("write", attempt.min(left), write).await {
                Ok(None) => return Ok(FencedOutcome::Done),
                Ok(Some(found)) if found.as_ref() == Some(behind.new) => return Ok(FencedOutcome::Done),
                Ok(Some(found)) => return Ok(FencedOutcome::Other(found)),
                Err(error) => error.of(message),
            };
            self.end_failed(Ts(begun.into_inner()), behind.primary, &error).await;
            let hopeless = matches!(error, Error::Full(_) | Error::TooLarge(_));
            let pause = pauses.next_delay();
            if hopeless || Instant::now() + pause >= deadline {
                return Err(error);
            }
            tracing::debug!(error = &error as &dyn std::error::Error, "repeating a write");
            tokio::time::sleep(pause).await;
        }
    }

    /// Makes each of these writes, some or all of them at once; they all expect the same fence and leave it. As many
    /// transactions are begun, and the fence is read once after that: a writer that takes it later writes their primary keys later.
    pub(crate) async fn write_all(
        &self,
        writes: &[(FencedWrite<'_>, Vec<Mutation>)],
        limits: impl Fn(&[Mutation]) -> CallLimits,
    ) -> Result<FencedOutcome, Error> {
        let Some((first, _)) = writes.first() else {
            return Ok(FencedOutcome::Done);
        };
        let pool = &self.shared.pool;
        let begin = writes.iter().map(|(_, changes)| {
            let limit = pool.stretched(limits(changes).attempt, LONGEST_CALL_ROUND_TRIPS);
            let frees_space = frees_space(changes);
            async move {
                let picked = pool.pick().ok()?;
                let begin = |client: TransactionClient| async move { begin(&client, frees_space).await };
                let txn = pool
                    .attempt_by(&picked, "begin", CallLimits::once(limit), begin)
                    .await
                    .ok()?;
                Some((picked, txn))
            }
        });
        let begun = join_all(begin).await;
        // Writes that fail from here on are repeated, one by one.
        let expected = match self.get_now(first.fence, self.limits()).await {
            Ok(found) if found.as_ref() != first.expected => return Ok(FencedOutcome::Other(found)),
            found => found.is_ok(),
        };
        let finish = writes.iter().zip(begun).map(|((behind, changes), begun)| {
            let limits = limits(changes);
            async move {
                if let Some((picked, txn)) = begun.filter(|_| expected) {
                    let at = Ts::of(&txn.start_timestamp());
                    let commit = |_| commit(txn, *behind, changes);
                    let limit = pool.stretched(limits.attempt, LONGEST_CALL_ROUND_TRIPS);
                    match pool.attempt_by(&picked, "write", CallLimits::once(limit), commit).await {
                        Ok(()) => return Ok(FencedOutcome::Done),
                        Err(error) => self.end_failed(at, behind.primary, &error).await,
                    }
                }
                self.write(*behind, changes, limits).await
            }
        });
        let written = try_join_all(finish).await?;
        let other = written
            .into_iter()
            .find(|written| matches!(written, FencedOutcome::Other(_)));
        Ok(other.unwrap_or(FencedOutcome::Done))
    }

    /// Ends the transaction of a failed write, whose locks would block its repetition. The primary key decides the rest; a
    /// rollback of all keys could tear the write, if the primary one was committed.
    async fn end_failed(&self, begun: Ts, primary: &Bytes, error: &Error) {
        if begun.0 == 0 {
            return; // nothing was written
        }
        let (from, to) = match error {
            Error::Locked(_) => self.keys().whole(),
            _ => (primary.clone(), Bytes::from([primary.as_ref(), &[0]].concat())),
        };
        if let Err(error) = self.end_transactions(begun, &from, &to).await {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "cannot roll back a failed write"
            );
        }
    }
}

/// The outcome of [`Tikv::set_read`].
#[derive(Debug)]
pub(crate) enum SetRead {
    /// The value is set.
    Done,
    /// It is not: another client has set or removed it since it was read.
    Changed,
    /// It is not, and no longer can be: read it again.
    Nothing(anyhow::Error),
    /// It may be set, now or later.
    Unknown(anyhow::Error),
}

/// The outcome of one attempt to set what was read.
enum SetAttempt {
    Won,
    /// It failed and can have no effect any more.
    Nothing(ClientError),
}

async fn set_once(
    client: TransactionClient,
    key: &Bytes,
    read: &ReadAt,
    new: Option<&Bytes>,
) -> Result<SetAttempt, ClientError> {
    // Every commit of the key after the read conflicts with this one, in one phase, too.
    // The write is tiny. Without it no member leads and nothing is deleted.
    let options = options().try_one_pc().on_almost_full_disk();
    let mut txn = client.begin_at(read.at.timestamp(), options);
    let key = key.to_vec();
    match (&read.value, new) {
        (None, Some(new)) => txn.insert(key, new.to_vec()).await?,
        (Some(_), Some(new)) => txn.put(key, new.to_vec()).await?,
        (_, None) => txn.delete(key).await?,
    }
    match txn.commit().await {
        Ok(_) => Ok(SetAttempt::Won),
        Err(error) if super::error::is_final(&error) => Err(error),
        // One key: this decides it. An answer that it is committed comes back as an error of its own.
        Err(error) => txn.rollback().await.map(|()| SetAttempt::Nothing(error)),
    }
}

/// Returns `None` if it was committed, else the fence that it found. Records the timestamp of the transaction that it begins.
async fn write_once(
    client: TransactionClient,
    behind: FencedWrite<'_>,
    changes: &[Mutation],
    begun: &AtomicU64,
) -> Result<Option<Option<Bytes>>, ClientError> {
    // As in a swap, the read makes whatever changes the fence or a fence shard later conflict with this one.
    let mut txn = begin(&client, frees_space(changes)).await?;
    let found = txn.get(behind.fence.to_vec()).await?.map(Bytes::from);
    if found.as_ref() != behind.expected {
        return Ok(Some(found));
    }
    begun.store(Ts::of(&txn.start_timestamp()).0, Ordering::Relaxed);
    commit(txn, behind, changes).await.map(|()| None)
}

/// Begins a transaction that commits in one phase if it is one piece in one region, and in two phases otherwise.
/// One that frees space commits on a disk that is almost full, too.
async fn begin(client: &TransactionClient, frees_space: bool) -> Result<Transaction, ClientError> {
    let options = options().try_one_pc();
    let options = if frees_space {
        options.on_almost_full_disk()
    } else {
        options
    };
    client.begin_with_options(options).await
}

fn frees_space(changes: &[Mutation]) -> bool {
    changes.iter().all(|change| matches!(change, Mutation::Delete(_)))
}

async fn commit(mut txn: Transaction, behind: FencedWrite<'_>, changes: &[Mutation]) -> Result<(), ClientError> {
    // The first key is the primary one.
    txn.put(behind.primary.to_vec(), behind.new.to_vec()).await?;
    let changes = changes.iter().map(|change| match change {
        Mutation::Put(key, value) => ClientMutation::Put(key.to_vec().into(), value.to_vec()),
        Mutation::Delete(key) => ClientMutation::Delete(key.to_vec().into()),
    });
    txn.batch_mutate(changes).await?;
    let committed: Option<Timestamp> = txn.commit().await?;
    tracing::trace!(?committed, "committed");
    Ok(())
}
