//! A register in TiKV: one key, read at a fresh timestamp, written in one phase.
//!
//! A swap is a transaction that reads the key and writes it: a timestamp of PD, a read, a write. The register of an election reads
//! ahead: as soon as a value was sent, a task begins the transaction that replaces it. The next renewal is one request to TiKV then, so
//! a leader holds a lease that is a little longer than two round trips.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::read::ReadAt;
use super::write::SetRead;
use super::{CallLimits, Tikv};
use engine::cas_register::{Cas, CasRegister};
use runtime::tasks::Owned;

/// The longest delay after a value was sent before it is read back: by then TiKV has it, and only the answer is late. An earlier
/// read would not find it.
const READ_BACK_DELAY: Duration = Duration::from_millis(50);

/// Pause before a swap that had no effect is tried again, as a part of the time for an attempt.
const RETRIES_PER_ATTEMPT: u32 = 50;

/// A [`CasRegister`] in TiKV.
#[derive(Debug, Clone)]
pub struct TikvRegister {
    tikv: Tikv,
    key: Bytes,
    /// The register's own limits; `None`: those of reads and appends.
    limits: Option<CallLimits>,
    ahead: Option<ReadAhead>,
}

/// The transaction that was read ahead for the next swap. Clones share it.
#[derive(Debug, Clone, Default)]
struct ReadAhead(Arc<Mutex<NextTransaction>>);

/// The transaction that the next swap may commit.
#[derive(Debug, Default)]
enum NextTransaction {
    #[default]
    Unknown,
    /// Being read.
    Reading(Owned<Option<ReadAt>>),
    Read(ReadAt),
}

impl ReadAhead {
    fn next(&self) -> MutexGuard<'_, NextTransaction> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what was read ahead, and waits for a read in progress. A transaction is committed once, so no other caller gets it.
    async fn take(&self) -> Option<ReadAt> {
        let next = std::mem::take(&mut *self.next());
        match next {
            NextTransaction::Unknown => None,
            NextTransaction::Read(read) => Some(read),
            // A read that panicked is one that failed.
            NextTransaction::Reading(mut reading) => reading.end().await.ok().flatten(),
        }
    }
}

impl TikvRegister {
    pub(super) fn new(tikv: Tikv, key: Bytes) -> TikvRegister {
        TikvRegister {
            tikv,
            key,
            limits: None,
            ahead: None,
        }
    }

    /// A register that one member replaces again and again and that must be quick. A request ends within `deadline`. If a connection is
    /// silent for a third of that time, another one is tried.
    pub(super) fn reading_ahead(tikv: Tikv, key: Bytes, deadline: Duration) -> TikvRegister {
        let limits = CallLimits {
            attempt: deadline / 3,
            total: deadline,
        };
        TikvRegister {
            tikv,
            key,
            limits: Some(limits),
            ahead: Some(ReadAhead::default()),
        }
    }

    /// Prepares every connection for requests to this register: otherwise the first request of each also waits for PD. A connection that
    /// fails is prepared by its first request.
    pub async fn warm_up(&self) {
        self.tikv.warm_up(&self.key, self.limits().total).await;
    }

    /// The same register, with another limit on how long a request may take.
    #[must_use]
    pub fn within(&self, timeout: Duration) -> TikvRegister {
        let limits = CallLimits {
            attempt: timeout / 2,
            total: timeout,
        };
        TikvRegister {
            limits: Some(limits),
            ahead: None,
            ..self.clone()
        }
    }

    fn limits(&self) -> CallLimits {
        self.limits.unwrap_or_else(|| self.tikv.limits())
    }

    /// Reads the register by `limits`, in a transaction that can replace the value.
    async fn read(&self, limits: CallLimits) -> anyhow::Result<ReadAt> {
        let read = self.tikv.read_now(&self.key, limits).await;
        read.context("read a register of TiKV")
    }

    /// Takes what was read ahead, if it is the expected value. One that was read long ago might not conflict with what garbage
    /// collection has removed since.
    async fn take_ahead(&self, expected: Option<&Bytes>) -> Option<ReadAt> {
        let read = self.ahead.as_ref()?.take().await?;
        let is_fresh = read.begun.elapsed() < self.tikv.snapshot_age() / 2;
        (is_fresh && read.value.as_ref() == expected).then_some(read)
    }

    fn keep(&self, read: ReadAt) {
        if let Some(ahead) = &self.ahead {
            *ahead.next() = NextTransaction::Read(read);
        }
    }

    /// Begins to read back what is being sent now: when the guard is dropped, or a little later if that takes longer.
    fn read_back(&self) -> Option<DropGuard> {
        let ahead = self.ahead.as_ref()?;
        let answered = CancellationToken::new();
        let guard = answered.clone().drop_guard();
        let register = TikvRegister {
            ahead: None,
            ..self.clone()
        };
        let reading = Owned::start(async move {
            // Either way it is time to read.
            drop(tokio::time::timeout(READ_BACK_DELAY, answered.cancelled()).await);
            // If this fails, the next swap reads again.
            register.read(register.limits()).await.ok()
        });
        *ahead.next() = NextTransaction::Reading(reading);
        Some(guard)
    }
}

#[async_trait]
impl CasRegister for TikvRegister {
    async fn get(&self) -> anyhow::Result<Option<Bytes>> {
        let read = self.read(self.limits()).await?;
        let value = read.value.clone();
        self.keep(read);
        Ok(value)
    }

    async fn prepare(&self, expected: Option<&Bytes>) {
        if self.ahead.is_none() {
            return;
        }
        let read = match self.take_ahead(expected).await {
            Some(read) => Some(read),
            // The swap reads it again, and reports what fails.
            None => self.read(self.limits()).await.ok(),
        };
        if let Some(read) = read {
            self.keep(read);
        }
    }

    async fn compare_and_set(&self, expected: Option<Bytes>, new: Option<Bytes>) -> Cas {
        let own = self.limits();
        let deadline = Instant::now() + own.total;
        let mut ahead = self.take_ahead(expected.as_ref()).await;
        loop {
            let limits = CallLimits {
                total: deadline.saturating_duration_since(Instant::now()),
                ..own
            };
            let read = match ahead.take() {
                Some(read) => Ok(read),
                None => self.read(limits).await,
            };
            let read = match read {
                Ok(read) if read.value != expected => return Cas::Mismatch,
                Ok(read) => read,
                // Nothing was sent.
                Err(error) => return Cas::Unknown(error),
            };
            let _answered = self.read_back();
            let limits = CallLimits {
                total: deadline.saturating_duration_since(Instant::now()),
                ..own
            };
            let error = match self.tikv.set_read(&self.key, &read, new.as_ref(), limits).await {
                SetRead::Done => return Cas::Swapped,
                SetRead::Changed => return Cas::Mismatch,
                SetRead::Unknown(error) => return Cas::Unknown(error),
                SetRead::Nothing(error) => error,
            };
            let pause = own.attempt / RETRIES_PER_ATTEMPT;
            if Instant::now() + pause >= deadline {
                return Cas::Unknown(error);
            }
            tokio::time::sleep(pause).await;
        }
    }
}
