//! A lock in memory, for tests. On demand it loses requests and answers and delivers late, as a lock across a network does.
//!
//! It uses tokio's time, so that a paused clock controls it. A request in flight arrives even if its sender gave up.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep_until};

use crate::{Lock, LockError, Record};

/// The faults of the network to the lock. The default has none.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// The share of requests that never arrive.
    pub lose_request: f64,
    /// The share of answers that never arrive.
    pub lose_answer: f64,
    /// The delay of each direction.
    pub delay: Range<Duration>,
    /// The share of requests that arrive later than that, by `late`.
    pub hold_back: f64,
    /// See `hold_back`.
    pub late: Duration,
}

/// One handle on the lock; clones share the record and the faults.
#[derive(Clone, Debug)]
pub struct MemoryLock(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    record: Option<(Record, u64)>,
    writes: u64,
    faults: Faults,
    rng: StdRng,
    /// The requests that were sent and have not arrived, by time of arrival.
    under_way: BTreeMap<(Instant, u64), Request>,
    /// The answers that have not been fetched, by request.
    answers: BTreeMap<u64, Answer>,
    requests: u64,
}

#[derive(Debug)]
enum Request {
    Get,
    /// The expected version; `None`: there must be no record.
    Write(Record, Option<u64>),
}

type Answer = Result<Option<(Record, u64)>, LockError>;

impl MemoryLock {
    /// Creates an empty lock; `seed` decides which faults happen.
    #[must_use]
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            record: None,
            writes: 0,
            faults,
            rng: StdRng::seed_from_u64(seed),
            under_way: BTreeMap::new(),
            answers: BTreeMap::new(),
            requests: 0,
        })))
    }

    /// Replaces the faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.inner().faults = faults;
    }

    /// Returns the current record.
    #[must_use]
    pub fn record(&self) -> Option<Record> {
        let mut inner = self.inner();
        inner.deliver(Instant::now());
        inner.record.as_ref().map(|(record, _)| record.clone())
    }

    /// Returns the number of requests sent so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.inner().requests
    }

    /// Sets or removes the record by force, as an administrator can.
    pub fn force(&self, record: Option<Record>) {
        let mut inner = self.inner();
        inner.deliver(Instant::now());
        inner.writes += 1;
        inner.record = record.map(|record| (record, inner.writes));
    }

    async fn ask(&self, request: Request) -> Answer {
        let (id, answered) = self.inner().send(request, Instant::now());
        let Some(answered) = answered else {
            return std::future::pending().await;
        };
        sleep_until(answered).await;
        let mut inner = self.inner();
        inner.deliver(Instant::now());
        inner
            .answers
            .remove(&id)
            .unwrap_or_else(|| Err(LockError::Failed(anyhow::anyhow!("no such request"))))
    }

    async fn write(&self, record: &Record, expected: Option<u64>) -> Result<u64, LockError> {
        match self.ask(Request::Write(record.clone(), expected)).await? {
            Some((_, version)) => Ok(version),
            None => Err(LockError::Failed(anyhow::anyhow!("a write was answered like a read"))),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Sends a request; returns its number and the time at which its answer arrives, if it does.
    fn send(&mut self, request: Request, now: Instant) -> (u64, Option<Instant>) {
        self.requests += 1;
        let id = self.requests;
        let mut arrives = now + self.way();
        if self.happens(self.faults.hold_back) {
            arrives += self.faults.late;
        }
        let arrived = !self.happens(self.faults.lose_request);
        if arrived {
            self.under_way.insert((arrives, id), request);
        }
        let answered = arrived && !self.happens(self.faults.lose_answer);
        let back = self.way();
        (id, answered.then(|| arrives + back))
    }

    fn deliver(&mut self, now: Instant) {
        while let Some(first) = self.under_way.first_entry().filter(|first| first.key().0 <= now) {
            let ((_, id), request) = first.remove_entry();
            let answer = self.execute(request);
            self.answers.insert(id, answer);
        }
    }

    fn execute(&mut self, request: Request) -> Answer {
        if let Request::Write(record, expected) = request {
            if self.record.as_ref().map(|(_, version)| *version) != expected {
                return Err(LockError::Conflict);
            }
            self.writes += 1;
            self.record = Some((record, self.writes));
        }
        Ok(self.record.clone())
    }

    fn happens(&mut self, share: f64) -> bool {
        share > 0.0 && self.rng.random_bool(share)
    }

    fn way(&mut self) -> Duration {
        let Range { start, end } = self.faults.delay;
        if start < end {
            self.rng.random_range(start..end)
        } else {
            start
        }
    }
}

impl Lock for MemoryLock {
    type Version = u64;

    async fn get(&self) -> Result<Option<(Record, u64)>, LockError> {
        self.ask(Request::Get).await
    }

    async fn create(&self, record: &Record) -> Result<u64, LockError> {
        self.write(record, None).await
    }

    async fn update(&self, record: &Record, expected: &u64) -> Result<u64, LockError> {
        self.write(record, Some(*expected)).await
    }

    fn describe(&self) -> String {
        "memory".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_memory_lock_keeps_the_laws() {
        let delay = Duration::from_millis(1)..Duration::from_millis(9);
        for faults in [
            Faults::default(),
            Faults {
                delay,
                ..Faults::default()
            },
        ] {
            let lock = MemoryLock::new(1, faults);
            crate::laws::check(&lock, &lock.clone()).await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_held_back_arrives_after_its_sender_left() {
        let late = Duration::from_secs(5);
        let lock = MemoryLock::new(
            1,
            Faults {
                hold_back: 1.0,
                late,
                ..Faults::default()
            },
        );
        let record = Record::default();
        let asked = tokio::time::timeout(Duration::from_secs(1), lock.create(&record)).await;
        assert!(asked.is_err());
        assert_eq!(lock.record(), None);
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(lock.record(), Some(record));
    }
}
