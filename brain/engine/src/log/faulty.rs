//! A faulty twin around any log: it loses, delays and repeats appends, as a network would.
//!
//! Deterministic: faults come from a script, or from a seed, or both (the script first). Delayed appends arrive on a call of
//! the test, or, in a seeded twin, before some later append, even if their slot has been destroyed since.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{AppendError, Log, LogError, LogId, Slot, check_len};

/// Appends held back at most; the oldest lands when there is one more.
const MAX_HELD_APPENDS: usize = 64;

/// The fate of one append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is written; the answer is `Unknown`.
    Lost,
    /// It is written; the answer is `Unknown`.
    Unanswered,
    /// It is held back to land later; the answer is `Unknown`.
    Late,
    /// It is written and answered as such, and a copy is held back to land later.
    Twice,
    /// Nothing is written; the answer is `Unavailable`.
    Unavailable,
    /// Nothing is written; the answer is `Full`.
    Full,
}

impl Fault {
    const TRANSIENT: [Fault; 5] = [
        Fault::Lost,
        Fault::Unanswered,
        Fault::Late,
        Fault::Twice,
        Fault::Unavailable,
    ];
}

/// A log whose appends fail on command. Clones share script, seed and delayed appends.
#[derive(Debug, Clone)]
pub struct Faulty<L> {
    inner: L,
    plan: Arc<Mutex<FaultPlan>>,
}

#[derive(Debug)]
struct FaultPlan {
    script: VecDeque<Option<Fault>>,
    dice: Option<RandomFaults>,
    held: VecDeque<(Slot, Bytes)>,
    failing_reads: usize,
    appends: u64,
}

#[derive(Debug)]
struct RandomFaults {
    rng: StdRng,
    one_in: u32,
}

impl FaultPlan {
    fn next_fault(&mut self) -> Option<Fault> {
        self.appends += 1;
        if let Some(scripted) = self.script.pop_front() {
            return scripted;
        }
        let dice = self.dice.as_mut()?;
        if dice.rng.random_range(0..dice.one_in) != 0 {
            return None;
        }
        Some(Fault::TRANSIENT[dice.rng.random_range(0..Fault::TRANSIENT.len())])
    }

    /// The held appends that land before the next one.
    fn due(&mut self) -> Option<(Slot, Bytes)> {
        let roll = self
            .dice
            .as_mut()
            .is_some_and(|dice| dice.rng.random_range(0..4u8) == 0);
        if roll || self.held.len() > MAX_HELD_APPENDS {
            self.held.pop_front()
        } else {
            None
        }
    }
}

impl<L: Log + Clone> Faulty<L> {
    /// A twin without faults until [`Faulty::fail_next`] asks for some.
    #[must_use]
    pub fn new(inner: L) -> Self {
        Self::with(inner, None)
    }

    /// A twin in which about one append in `one_in` meets a fault that passes, drawn from `seed`. Never `Full`.
    #[must_use]
    pub fn seeded(inner: L, seed: u64, one_in: u32) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        Self::with(
            inner,
            Some(RandomFaults {
                rng,
                one_in: one_in.max(1),
            }),
        )
    }

    fn with(inner: L, dice: Option<RandomFaults>) -> Self {
        let plan = FaultPlan {
            script: VecDeque::new(),
            dice,
            held: VecDeque::new(),
            failing_reads: 0,
            appends: 0,
        };
        Self {
            inner,
            plan: Arc::new(Mutex::new(plan)),
        }
    }

    /// The next append without a scripted fate meets `fault`.
    pub fn fail_next(&self, fault: Fault) {
        self.plan().script.push_back(Some(fault));
    }

    /// The `n`-th append from now (1 is the next) meets `fault`; those before it keep or get no fault.
    pub fn fail_nth(&self, n: usize, fault: Fault) {
        let script = &mut self.plan().script;
        let at = n.max(1) - 1;
        if script.len() <= at {
            script.resize(at + 1, None);
        }
        script[at] = Some(fault);
    }

    /// The next `n` reads, of slots or of the watermark, answer `Unavailable`.
    pub fn fail_reads(&self, n: usize) {
        self.plan().failing_reads = n;
    }

    /// Stops faults from the seed; the script and delayed appends stay.
    pub fn calm(&self) {
        self.plan().dice = None;
    }

    /// Appends that are held back.
    #[must_use]
    pub fn held(&self) -> usize {
        self.plan().held.len()
    }

    /// Appends asked for so far, with and without faults.
    #[must_use]
    pub fn appends(&self) -> u64 {
        self.plan().appends
    }

    /// Delivers all delayed appends, oldest first, and returns the answer of the log to each. With `again` they remain delayed, and are
    /// delivered another time.
    pub async fn land_late(&self, again: bool) -> Vec<(Slot, Result<(), AppendError>)> {
        let held: Vec<_> = {
            let mut plan = self.plan();
            if again {
                plan.held.iter().cloned().collect()
            } else {
                plan.held.drain(..).collect()
            }
        };
        let mut answers = Vec::with_capacity(held.len());
        for (slot, record) in held {
            answers.push((slot, self.inner.append(slot, record).await));
        }
        answers
    }

    /// The log without its faults.
    #[must_use]
    pub fn inner(&self) -> &L {
        &self.inner
    }

    fn plan(&self) -> MutexGuard<'_, FaultPlan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, slot: Slot, record: Bytes) {
        self.plan().held.push_back((slot, record));
    }

    fn may_read(&self) -> Result<(), LogError> {
        let mut plan = self.plan();
        if plan.failing_reads == 0 {
            return Ok(());
        }
        plan.failing_reads -= 1;
        Err(LogError::Unavailable(anyhow::anyhow!("read failed on command")))
    }
}

/// The answer to an append whose outcome is unknown.
fn unknown(slot: Slot, fault: Fault) -> Result<(), AppendError> {
    Err(AppendError::Unknown(
        slot,
        anyhow::anyhow!("append met the fault {fault:?}"),
    ))
}

#[async_trait]
impl<L: Log + Clone> Log for Faulty<L> {
    async fn append(&self, slot: Slot, record: Bytes) -> Result<(), AppendError> {
        check_len(&record, self.max_record_len())?;
        let (due, fault) = {
            let mut plan = self.plan();
            (plan.due(), plan.next_fault())
        };
        if let Some((slot, record)) = due {
            let late = self.inner.append(slot, record).await;
            tracing::debug!(%slot, landed = late.is_ok(), "late append");
        }
        let Some(fault) = fault else {
            return self.inner.append(slot, record).await;
        };
        match fault {
            Fault::Lost => unknown(slot, fault),
            Fault::Unanswered => match self.inner.append(slot, record).await {
                Ok(()) | Err(AppendError::Taken(..)) => unknown(slot, fault),
                Err(other) => Err(other),
            },
            Fault::Late => {
                self.hold(slot, record);
                unknown(slot, fault)
            }
            Fault::Twice => {
                self.hold(slot, record.clone());
                self.inner.append(slot, record).await
            }
            Fault::Unavailable => Err(AppendError::Unavailable(anyhow::anyhow!("refused on command"))),
            Fault::Full => Err(AppendError::Full(anyhow::anyhow!("full on command"))),
        }
    }

    async fn read(&self, from: Slot, max_bytes: usize) -> Result<Vec<(Slot, Bytes)>, LogError> {
        self.may_read()?;
        self.inner.read(from, max_bytes).await
    }

    async fn watermark(&self) -> Result<Slot, LogError> {
        self.may_read()?;
        self.inner.watermark().await
    }

    async fn raise_watermark(&self, to: Slot) -> Result<(), LogError> {
        self.inner.raise_watermark(to).await
    }

    async fn destroy_below_watermark(&self) -> Result<bool, LogError> {
        self.inner.destroy_below_watermark().await
    }

    async fn shrink(&self) -> Result<(), LogError> {
        self.inner.shrink().await
    }

    fn id(&self) -> Option<LogId> {
        self.inner.id()
    }

    fn max_record_len(&self) -> usize {
        self.inner.max_record_len()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }
}

#[cfg(test)]
mod tests;
