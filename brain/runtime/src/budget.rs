//! The memory of requests and responses in bytes, counted for each connection and in total.
//!
//! Invariant: every charge is released exactly once: when the [`Charge`] is dropped.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::IntGauge;

/// The most that a connection may take from the reserved part, in bytes.
const MAX_RESERVED_BYTES: usize = 256 * 1024;

/// The budget of all connections together. Clones share it.
#[derive(Debug, Clone)]
pub struct Budget(Arc<BudgetTotal>);

#[derive(Debug)]
struct BudgetTotal {
    limit: usize,
    /// The part that is reserved for connections that use little memory.
    reserved: usize,
    used: AtomicUsize,
    shown: IntGauge,
}

/// The reason why a charge was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum BudgetExceeded {
    /// The connection's share is used up.
    #[error("the memory of one connection is used up")]
    Connection,
    /// The share of the connection's address is used up.
    #[error("the memory of one address is used up")]
    Address,
    /// The budget is used up.
    #[error("the memory of all connections is used up")]
    Total,
}

impl Budget {
    /// Creates a budget of `limit` bytes: one connection may use half, one address three quarters, and the last eighth is reserved
    /// for connections that use little. `shown` is set to the bytes in use.
    #[must_use]
    pub fn new(limit: usize, shown: IntGauge) -> Self {
        Self(Arc::new(BudgetTotal {
            limit,
            reserved: limit / 8,
            used: AtomicUsize::new(0),
            shown,
        }))
    }

    /// Creates the account of a new connection, of an address if it has one.
    #[must_use]
    pub fn account(&self, address: Option<&AddressUse>) -> Account {
        Account(Arc::new(AccountState {
            total: self.0.clone(),
            address: address.cloned(),
            used: AtomicUsize::new(0),
            moved: AtomicU64::new(0),
        }))
    }

    /// Returns the bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Returns the bytes in use beyond seven eighths of the part that is not reserved: this much should be released.
    #[must_use]
    pub fn shortage(&self) -> usize {
        let common = self.0.limit - self.0.reserved;
        self.used().saturating_sub(common - common / 8)
    }
}

/// The charges of all connections of one address. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct AddressUse(Arc<AtomicUsize>);

impl AddressUse {
    /// Returns the bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The charges of one connection. Clones share it.
#[derive(Debug, Clone)]
pub struct Account(Arc<AccountState>);

#[derive(Debug)]
struct AccountState {
    total: Arc<BudgetTotal>,
    address: Option<AddressUse>,
    used: AtomicUsize,
    /// The bytes of requests received and of responses sent.
    moved: AtomicU64,
}

impl Account {
    /// Charges bytes until the charge is dropped. Fails if not enough bytes are left.
    pub fn charge(&self, bytes: usize) -> Result<Charge, BudgetExceeded> {
        let mut charge = Charge {
            account: self.clone(),
            bytes: 0,
        };
        charge.grow(bytes)?;
        Ok(charge)
    }

    /// Returns the bytes in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Returns the bytes that a connection may take from the reserved part: 256 KiB, less if the budget is small.
    #[must_use]
    pub fn small(&self) -> usize {
        MAX_RESERVED_BYTES.min(self.0.total.limit / 32)
    }

    /// Returns the bytes of requests received and of responses sent.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.0.moved.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> Result<(), BudgetExceeded> {
        let (connection, total) = (&*self.0, &*self.0.total);
        let own = add(&connection.used, bytes, total.limit / 2).ok_or(BudgetExceeded::Connection)?;
        let undo = |exceeded| {
            connection.used.fetch_sub(bytes, Ordering::Relaxed);
            exceeded
        };
        if let Some(AddressUse(address)) = &connection.address {
            add(address, bytes, total.limit / 4 * 3).ok_or_else(|| undo(BudgetExceeded::Address))?;
        }
        let limit = total.limit - if own > self.small() { total.reserved } else { 0 };
        if add(&total.used, bytes, limit).is_none() {
            if let Some(AddressUse(address)) = &connection.address {
                address.fetch_sub(bytes, Ordering::Relaxed);
            }
            return Err(undo(BudgetExceeded::Total));
        }
        total.shown.add(gauge(bytes));
        Ok(())
    }

    fn give_back(&self, bytes: usize) {
        let total = &self.0.total;
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(AddressUse(address)) = &self.0.address {
            address.fetch_sub(bytes, Ordering::Relaxed);
        }
        total.used.fetch_sub(bytes, Ordering::Relaxed);
        total.shown.sub(gauge(bytes));
    }
}

/// Adds `bytes` if the sum is within the limit; returns the sum.
fn add(used: &AtomicUsize, bytes: usize, limit: usize) -> Option<usize> {
    let sum = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= limit);
    let before = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).ok()?;
    Some(before + bytes)
}

fn gauge(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Bytes that are charged until this is dropped.
#[derive(Debug)]
pub struct Charge {
    account: Account,
    bytes: usize,
}

impl Charge {
    /// Charges more bytes. Fails if not enough bytes are left; the earlier charge stays.
    pub fn grow(&mut self, bytes: usize) -> Result<(), BudgetExceeded> {
        self.account.take(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Releases bytes, at most the charged ones.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.account.give_back(bytes);
    }

    /// Charges or releases bytes until exactly `bytes` are charged. Fails as [`Charge::grow`].
    pub fn set(&mut self, bytes: usize) -> Result<(), BudgetExceeded> {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.grow(more),
            None => {
                self.shrink(self.bytes - bytes);
                Ok(())
            }
        }
    }

    /// Returns the charged bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts bytes that were received from the client or sent to it.
    pub fn moved(&self, bytes: usize) {
        self.account.0.moved.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Moves bytes, at most the charged ones, into a new charge.
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

/// Charges the response of a request while it is built. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Meter(Option<Arc<Mutex<Charge>>>);

impl Meter {
    /// Creates a meter that charges an account. Fails as [`Account::charge`].
    pub fn new(account: &Account) -> Result<Self, BudgetExceeded> {
        Ok(Self(Some(Arc::new(Mutex::new(account.charge(0)?)))))
    }

    /// Creates a meter that charges no account.
    #[must_use]
    pub fn unlimited() -> Self {
        Self(None)
    }

    /// Charges bytes until [`Meter::release`], or until all clones are dropped. Fails if not enough bytes are left.
    pub fn charge(&self, bytes: usize) -> Result<(), BudgetExceeded> {
        match &self.0 {
            Some(charge) => charge.lock().unwrap_or_else(PoisonError::into_inner).grow(bytes),
            None => Ok(()),
        }
    }

    /// Returns a separate charge to the same account, for data that outlives the response; `None` if the meter charges no account. Fails if
    /// not enough bytes are left.
    pub fn hold(&self, bytes: usize) -> Result<Option<Charge>, BudgetExceeded> {
        let Some(charge) = &self.0 else { return Ok(None) };
        let account = charge.lock().unwrap_or_else(PoisonError::into_inner).account.clone();
        account.charge(bytes).map(Some)
    }

    /// Returns another meter of the same account: its charge is released when it is dropped, independent of this one.
    #[must_use]
    pub fn another(&self) -> Self {
        let charge = self.hold(0).ok().flatten();
        Self(charge.map(|charge| Arc::new(Mutex::new(charge))))
    }

    /// Releases the charge: the response is encoded, and charged in that form.
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
        let (a, b, c) = (budget.account(None), budget.account(None), budget.account(None));
        let first = a.charge(50).unwrap();
        assert_eq!(a.charge(1).unwrap_err(), BudgetExceeded::Connection);
        let mut second = b.charge(30).unwrap();
        assert_eq!(c.charge(21).unwrap_err(), BudgetExceeded::Total);
        assert_eq!((c.used(), budget.used(), shown.get()), (0, 80, 80));
        drop(first);
        second.grow(20).unwrap();
        assert_eq!(second.grow(usize::MAX), Err(BudgetExceeded::Connection));
        assert_eq!((budget.used(), shown.get()), (50, 50));
        let part = second.split(40);
        drop(second);
        assert_eq!(budget.used(), 40);
        drop(part);
        assert_eq!((budget.used(), b.used(), shown.get()), (0, 0, 0));
    }

    #[test]
    fn last_eighth_is_for_connections_that_take_little() {
        let (budget, _) = budget();
        let (a, b, small) = (budget.account(None), budget.account(None), budget.account(None));
        let first = a.charge(50).unwrap();
        let _second = b.charge(38).unwrap();
        assert_eq!((budget.shortage() > 0, small.small()), (true, 3));
        assert_eq!(b.charge(1).unwrap_err(), BudgetExceeded::Total);
        let _little = small.charge(3).unwrap();
        assert_eq!(small.charge(1).unwrap_err(), BudgetExceeded::Total);
        drop(first);
        assert_eq!(budget.shortage(), 0);
        small.charge(1).unwrap();
    }

    #[test]
    fn address_has_three_quarters() {
        let (budget, _) = budget();
        let address = AddressUse::default();
        let [a, b] = [(); 2].map(|()| budget.account(Some(&address)));
        let _first = a.charge(50).unwrap();
        let second = b.charge(25).unwrap();
        assert_eq!(b.charge(1).unwrap_err(), BudgetExceeded::Address);
        assert_eq!((address.used(), b.used(), budget.used()), (75, 25, 75));
        let _other = budget.account(None).charge(12).unwrap();
        drop(second);
        assert_eq!((address.used(), budget.used()), (50, 62));
    }

    #[test]
    fn meters_give_back_what_they_charged_once() {
        let (budget, _) = budget();
        let account = budget.account(None);
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
