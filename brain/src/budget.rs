//! Bytes of memory that requests and answers take, counted for each connection and in total.
//!
//! Invariant: what is charged is given back exactly once: a [`Charge`] does so when it is dropped.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::IntGauge;

/// What all connections may take together. Clones share it.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Total>);

#[derive(Debug)]
struct Total {
    limit: usize,
    per_connection: usize,
    used: AtomicUsize,
    shown: IntGauge,
}

/// Why a charge was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Exceeded {
    /// The connection's share is used up.
    #[error("the memory of one connection is used up")]
    Connection,
    /// The budget is used up.
    #[error("the memory of all connections is used up")]
    Total,
}

impl Budget {
    /// A budget of `limit` bytes, of which one connection may take half. `shown` follows what is taken.
    #[must_use]
    pub fn new(limit: usize, shown: IntGauge) -> Self {
        Self(Arc::new(Total {
            limit,
            per_connection: limit / 2,
            used: AtomicUsize::new(0),
            shown,
        }))
    }

    /// The account of a new connection.
    #[must_use]
    pub fn account(&self) -> Account {
        Account(Arc::new(Connection {
            total: self.0.clone(),
            used: AtomicUsize::new(0),
        }))
    }

    /// Bytes that one connection may take.
    #[must_use]
    pub fn per_connection(&self) -> usize {
        self.0.per_connection
    }

    /// Bytes that are taken.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Less than an eighth is left.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.used() > self.0.limit - self.0.limit / 8
    }
}

/// What one connection takes of a budget. Clones share it.
#[derive(Debug, Clone)]
pub struct Account(Arc<Connection>);

#[derive(Debug)]
struct Connection {
    total: Arc<Total>,
    used: AtomicUsize,
}

impl Account {
    /// Takes bytes until the charge is dropped.
    ///
    /// # Errors
    /// There are not so many left.
    pub fn charge(&self, bytes: usize) -> Result<Charge, Exceeded> {
        let mut charge = Charge {
            account: self.clone(),
            bytes: 0,
        };
        charge.grow(bytes)?;
        Ok(charge)
    }

    /// Bytes that are taken.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Bytes that hardly any connection takes for long: a sixteenth of the budget.
    #[must_use]
    pub fn fair_share(&self) -> usize {
        self.0.total.limit / 16
    }

    fn take(&self, bytes: usize) -> Result<(), Exceeded> {
        let total = &self.0.total;
        add(&self.0.used, bytes, total.per_connection).ok_or(Exceeded::Connection)?;
        if add(&total.used, bytes, total.limit).is_none() {
            self.0.used.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Exceeded::Total);
        }
        total.shown.add(gauge(bytes));
        Ok(())
    }

    fn give_back(&self, bytes: usize) {
        let total = &self.0.total;
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
        total.used.fetch_sub(bytes, Ordering::Relaxed);
        total.shown.sub(gauge(bytes));
    }
}

fn add(used: &AtomicUsize, bytes: usize, limit: usize) -> Option<usize> {
    let sum = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= limit);
    used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).ok()
}

fn gauge(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Bytes that are taken until this is dropped.
#[derive(Debug)]
pub struct Charge {
    account: Account,
    bytes: usize,
}

impl Charge {
    /// Takes more bytes.
    ///
    /// # Errors
    /// There are not so many left; what was taken before stays.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Exceeded> {
        self.account.take(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Gives bytes back, at most what was taken.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.account.give_back(bytes);
    }

    /// Takes or gives back until so many bytes are taken.
    ///
    /// # Errors
    /// As [`Charge::grow`].
    pub fn set(&mut self, bytes: usize) -> Result<(), Exceeded> {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.grow(more),
            None => {
                self.shrink(self.bytes - bytes);
                Ok(())
            }
        }
    }

    /// Moves bytes, at most what was taken, into a charge of their own.
    #[must_use]
    pub fn split(&mut self, bytes: usize) -> Charge {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Charge {
            account: self.account.clone(),
            bytes,
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.give_back(self.bytes);
    }
}

/// Charges a request for its answer while that is built. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Meter(Option<Arc<Mutex<Charge>>>);

impl Meter {
    /// Charges an account.
    ///
    /// # Errors
    /// As [`Account::charge`].
    pub fn new(account: &Account) -> Result<Self, Exceeded> {
        Ok(Self(Some(Arc::new(Mutex::new(account.charge(0)?)))))
    }

    /// Charges nobody.
    #[must_use]
    pub fn unlimited() -> Self {
        Self(None)
    }

    /// Takes bytes until [`Meter::release`], or until all clones are dropped.
    ///
    /// # Errors
    /// There are not so many left.
    pub fn charge(&self, bytes: usize) -> Result<(), Exceeded> {
        match &self.0 {
            Some(charge) => charge.lock().unwrap_or_else(PoisonError::into_inner).grow(bytes),
            None => Ok(()),
        }
    }

    /// A charge of its own to the same account, for what outlives the answer; `None` where nobody is charged.
    ///
    /// # Errors
    /// There are not so many left.
    pub fn hold(&self, bytes: usize) -> Result<Option<Charge>, Exceeded> {
        let Some(charge) = &self.0 else { return Ok(None) };
        let account = charge.lock().unwrap_or_else(PoisonError::into_inner).account.clone();
        account.charge(bytes).map(Some)
    }

    /// Another meter of the same account: what it took is given back when it is dropped, whatever becomes of this one.
    #[must_use]
    pub fn another(&self) -> Self {
        let charge = self.hold(0).ok().flatten();
        Self(charge.map(|charge| Arc::new(Mutex::new(charge))))
    }

    /// Gives back what was taken: the answer is encoded, and counted in that form.
    pub fn release(&self) {
        if let Some(charge) = &self.0 {
            charge.lock().unwrap_or_else(PoisonError::into_inner).shrink(usize::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget() -> (Budget, IntGauge) {
        let shown = IntGauge::new("held", "held").unwrap();
        (Budget::new(100, shown.clone()), shown)
    }

    #[test]
    fn charges_are_bounded_per_connection_and_in_total() {
        let (budget, shown) = budget();
        let (a, b, c) = (budget.account(), budget.account(), budget.account());
        let first = a.charge(50).unwrap();
        assert_eq!(a.charge(1).unwrap_err(), Exceeded::Connection);
        let mut second = b.charge(30).unwrap();
        assert_eq!(c.charge(21).unwrap_err(), Exceeded::Total);
        assert_eq!((c.used(), budget.used(), shown.get()), (0, 80, 80));
        drop(first);
        second.grow(20).unwrap();
        assert_eq!(second.grow(usize::MAX), Err(Exceeded::Connection));
        assert_eq!((budget.used(), shown.get()), (50, 50));
        let part = second.split(40);
        drop(second);
        assert_eq!(budget.used(), 40);
        drop(part);
        assert_eq!((budget.used(), b.used(), shown.get()), (0, 0, 0));
    }

    #[test]
    fn meters_give_back_what_they_charged_once() {
        let (budget, _) = budget();
        let account = budget.account();
        let meter = Meter::new(&account).unwrap();
        let clone = meter.clone();
        clone.charge(20).unwrap();
        meter.release();
        assert_eq!(budget.used(), 0);
        clone.charge(30).unwrap();
        drop((meter, clone));
        assert_eq!(budget.used(), 0);
        Meter::unlimited().charge(usize::MAX).unwrap();
    }
}
