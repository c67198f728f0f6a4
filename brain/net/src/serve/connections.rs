//! The open connections: their limits, for one address and for all, and the choice of those to close.
//!
//! Invariant: a connection is in the table from its admission until it is closed or evicted, and is counted exactly that long.
//! Nothing here waits for a client.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tracing::{info, warn};

pub(super) use reason::CloseReason;
pub(super) use state::{ConnectionState, InFlight};

use runtime::budget::{AddressUse, Budget, BudgetExceeded, Charge};
use runtime::log_once::LogOnce;
use telemetry::metrics::NetworkMetrics;

mod reason;
mod state;

/// The time within which an HTTP/2 client must send its first request.
pub(super) const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The memory of an open connection: measured for one of HTTP/2 without streams.
const CONNECTION_BYTES: usize = 40 * 1024;

/// The number of connections that are examined when room is needed and all of them have sent a request.
const MAX_EXAMINED_CONNECTIONS: usize = 128;

/// The number of concurrent handshakes, in all and of one address.
const MAX_HANDSHAKES: usize = 1024;
const MAX_HANDSHAKES_PER_ADDRESS: usize = MAX_HANDSHAKES / 4;

/// A handshake older than this may be aborted for a newer one.
const MIN_ABORTED_HANDSHAKE_AGE: Duration = Duration::from_secs(1);

/// The source address of a client. IPv6 addresses are grouped by their network: one machine has many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SourceAddress(IpAddr);

impl From<IpAddr> for SourceAddress {
    fn from(ip: IpAddr) -> Self {
        Self(match ip.to_canonical() {
            IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() & (u128::MAX << 64)).into()),
            ip @ IpAddr::V4(_) => ip,
        })
    }
}

/// The open connections of one or more ports. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Connections(Arc<ConnectionsInner>);

#[derive(Debug)]
struct ConnectionsInner {
    /// The limits of open connections: in all, and of one address.
    limit: usize,
    share: usize,
    table: Mutex<ConnectionTable>,
    /// Notified when a slot becomes free.
    freed: Notify,
    handshakes: Semaphore,
    budget: Budget,
    network: NetworkMetrics,
    evictions: LogOnce,
    expired: LogOnce,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    next: u64,
    /// Ordered by age, oldest first.
    open: BTreeMap<u64, Arc<ConnectionState>>,
    order: ExamineOrder,
    addresses: HashMap<SourceAddress, AddressConnections>,
    /// The addresses, ordered by the number of their connections.
    by_count: BTreeSet<(usize, SourceAddress)>,
    /// The handshakes in progress, oldest first, with their start times.
    shaking: BTreeMap<u64, (Instant, Arc<ConnectionState>)>,
}

/// The connections of one address.
#[derive(Debug)]
struct AddressConnections {
    order: ExamineOrder,
    used: AddressUse,
    handshakes: Arc<Semaphore>,
}

/// The order in which connections are examined when room is needed.
#[derive(Debug, Default)]
struct ExamineOrder {
    /// Connections that had sent no request when they were last examined, oldest first.
    silent: BTreeSet<u64>,
    asked: BTreeSet<u64>,
    /// The first of `asked` to examine next.
    next: u64,
}

impl ExamineOrder {
    fn len(&self) -> usize {
        self.silent.len() + self.asked.len()
    }

    fn remove(&mut self, id: u64) {
        self.silent.remove(&id);
        self.asked.remove(&id);
    }

    /// Returns an idle connection: the oldest of those that never sent a request, else the next idle one of the others; at most
    /// [`MAX_EXAMINED_CONNECTIONS`] of these are examined.
    fn idle(&mut self, open: &BTreeMap<u64, Arc<ConnectionState>>) -> Option<u64> {
        while let Some(id) = self.silent.first().copied() {
            if open.get(&id).is_some_and(|open| !open.asked.load(Ordering::Relaxed)) {
                return Some(id);
            }
            self.silent.remove(&id);
            self.asked.insert(id);
        }
        let looked_at = self.asked.range(self.next..).chain(self.asked.range(..self.next));
        let mut last = self.next;
        let is_idle = |id: &&u64| {
            last = **id;
            open.get(id).is_some_and(|open| open.is_idle())
        };
        let found = looked_at.take(MAX_EXAMINED_CONNECTIONS).find(is_idle).copied();
        self.next = last + 1;
        found
    }
}

/// An admitted connection; it leaves the table on drop.
#[derive(Debug)]
pub(super) struct AdmittedConnection {
    id: u64,
    pub(super) connection: Arc<ConnectionState>,
    connections: Connections,
    /// The charge of the connection itself.
    _charge: Charge,
}

impl Connections {
    pub(super) fn new(limit: usize, budget: Budget, network: NetworkMetrics) -> Self {
        Self(Arc::new(ConnectionsInner {
            limit: limit.max(2),
            share: (limit / 2).max(1),
            table: Mutex::default(),
            freed: Notify::new(),
            handshakes: Semaphore::new(MAX_HANDSHAKES),
            budget,
            network,
            evictions: LogOnce::default(),
            expired: LogOnce::default(),
        }))
    }

    /// Admits a connection. If there is no slot, the oldest idle connection is closed for it: one of the same address if that has
    /// reached its share, else one of the address with the most connections. If all are busy, the new connection waits, or is
    /// refused if its address has reached its share.
    pub(super) async fn admit(&self, ip: Option<IpAddr>) -> Option<AdmittedConnection> {
        let address = ip.map(SourceAddress::from);
        loop {
            let freed = self.0.freed.notified();
            match self.try_admit(address) {
                Ok(admitted) => return admitted,
                Err(ConnectionsFull) => freed.await,
            }
        }
    }

    fn try_admit(&self, address: Option<SourceAddress>) -> Result<Option<AdmittedConnection>, ConnectionsFull> {
        let mut table = self.table();
        let of_address = address.and_then(|address| table.addresses.get(&address));
        if of_address.is_some_and(|source| source.order.len() >= self.0.share) && !self.evict(&mut table, address) {
            self.count(CloseReason::Share);
            return Ok(None);
        }
        if table.open.len() >= self.0.limit {
            let heaviest = table.by_count.last().map(|(_, address)| *address);
            if !self.evict(&mut table, heaviest) && !self.evict(&mut table, None) {
                return Err(ConnectionsFull);
            }
        }
        let used = address.map(|address| {
            let source = table.addresses.get(&address);
            source.map_or_else(AddressUse::default, |source| source.used.clone())
        });
        let connection = Arc::new(ConnectionState::new(address, self.0.budget.account(used.as_ref())));
        let charge = match connection.account.charge(CONNECTION_BYTES) {
            Ok(charge) => charge,
            // Its memory is released when its task has ended.
            Err(BudgetExceeded::Total) if self.evict(&mut table, address) || self.evict(&mut table, None) => {
                return Err(ConnectionsFull);
            }
            Err(_) => {
                self.count(CloseReason::Memory);
                return Ok(None);
            }
        };
        let id = table.insert(&connection, used);
        Ok(Some(AdmittedConnection {
            id,
            connection,
            connections: self.clone(),
            _charge: charge,
        }))
    }

    /// Closes an idle connection, of an address or of any: see [`ExamineOrder::idle`].
    fn evict(&self, table: &mut ConnectionTable, address: Option<SourceAddress>) -> bool {
        let ConnectionTable {
            open, order, addresses, ..
        } = table;
        let order = match address {
            Some(address) => addresses.get_mut(&address).map(|source| &mut source.order),
            None => Some(order),
        };
        let Some(id) = order.and_then(|order| order.idle(open)) else {
            return false;
        };
        if let Some(connection) = table.open.get(&id).cloned() {
            self.close(&connection, CloseReason::Evicted);
        }
        table.remove(id);
        true
    }

    /// Closes expired connections, and stagnant ones when memory is short. `clock` is the time in seconds since 1970.
    pub(super) fn sweep(&self, clock: i64) {
        let shortage = self.0.budget.shortage();
        let mut overdue = Vec::new();
        let (mut stagnant, mut freed) = (Vec::new(), 0);
        {
            let table = self.table();
            for connection in table.open.values() {
                if connection.reason.get().is_some() {
                    freed += connection.account.used();
                } else if let Some(reason) = connection.overdue(shortage > 0, clock) {
                    freed += connection.account.used();
                    overdue.push((reason, Arc::clone(connection)));
                } else if shortage > 0 && connection.is_stagnant() {
                    stagnant.push(Arc::clone(connection));
                }
            }
            // The connections of the address that holds the most memory come first, and of them the one that holds the most.
            let of_address = |connection: &ConnectionState| {
                let source = connection.address.and_then(|address| table.addresses.get(&address));
                source.map_or(0, |source| source.used.used())
            };
            stagnant.sort_by_cached_key(|connection| (of_address(connection), connection.account.used()));
        }
        while freed < shortage
            && let Some(connection) = stagnant.pop()
        {
            freed += connection.account.used();
            overdue.push((CloseReason::Memory, connection));
        }
        for (reason, connection) in overdue {
            self.close(&connection, reason);
        }
    }

    fn close(&self, connection: &ConnectionState, reason: CloseReason) {
        if connection.close(reason) {
            self.count(reason);
        }
    }

    /// Counts a connection as closed by this side, and logs a warning if a client may lose a request.
    pub(super) fn count(&self, reason: CloseReason) {
        self.0.network.closed.with_label_values(&[reason.label()]).inc();
        if reason == CloseReason::Certificate
            && let Some(count) = self.0.expired.due()
        {
            info!(count, "closed connections: their client certificates have expired");
        }
        if !reason.is_graceful()
            && let Some(count) = self.0.evictions.due()
        {
            warn!(
                reason = reason.label(),
                count, "closed client connections to free memory"
            );
        }
    }

    /// Waits for a handshake slot: first for one of the address, so that one address takes no slots from others. If there is none,
    /// the oldest handshake in progress is aborted, unless it has just begun.
    pub(super) async fn handshake(&self, connection: &Arc<ConnectionState>) -> Option<HandshakeSlot<'_>> {
        let address = connection.address;
        let own = address.and_then(|address| Some(Arc::clone(&self.table().addresses.get(&address)?.handshakes)));
        let own = match own {
            Some(turns) => {
                if turns.available_permits() == 0 {
                    self.give_up_handshake(address);
                }
                Some(turns.acquire_owned().await.ok()?)
            }
            None => None,
        };
        if self.0.handshakes.available_permits() == 0 {
            self.give_up_handshake(None);
        }
        let of_all = self.0.handshakes.acquire().await.ok()?;
        let mut table = self.table();
        let id = table.next;
        table.next += 1;
        table.shaking.insert(id, (Instant::now(), Arc::clone(connection)));
        Some(HandshakeSlot {
            id,
            connections: self,
            _of_address: own,
            _of_all: of_all,
        })
    }

    /// Closes the connection with the oldest handshake, of an address or of any.
    fn give_up_handshake(&self, address: Option<SourceAddress>) {
        let oldest = {
            let table = self.table();
            let of_address = |connection: &ConnectionState| address.is_none() || connection.address == address;
            let may = |(begun, connection): &&(Instant, Arc<ConnectionState>)| {
                of_address(connection)
                    && connection.reason.get().is_none()
                    && begun.elapsed() > MIN_ABORTED_HANDSHAKE_AGE
            };
            table
                .shaking
                .values()
                .find(may)
                .map(|(_, connection)| Arc::clone(connection))
        };
        if let Some(connection) = oldest {
            self.close(&connection, CloseReason::Handshake);
        }
    }

    fn table(&self) -> MutexGuard<'_, ConnectionTable> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All slots are taken by busy connections.
struct ConnectionsFull;

/// A handshake slot.
pub(super) struct HandshakeSlot<'a> {
    id: u64,
    connections: &'a Connections,
    _of_address: Option<OwnedSemaphorePermit>,
    _of_all: tokio::sync::SemaphorePermit<'a>,
}

impl Drop for HandshakeSlot<'_> {
    fn drop(&mut self) {
        self.connections.table().shaking.remove(&self.id);
    }
}

impl ConnectionTable {
    fn insert(&mut self, connection: &Arc<ConnectionState>, used: Option<AddressUse>) -> u64 {
        let id = self.next;
        self.next += 1;
        self.open.insert(id, Arc::clone(connection));
        self.order.silent.insert(id);
        if let Some(address) = connection.address {
            let source = self.addresses.entry(address).or_insert_with(|| AddressConnections {
                order: ExamineOrder::default(),
                used: used.unwrap_or_default(),
                handshakes: Arc::new(Semaphore::new(MAX_HANDSHAKES_PER_ADDRESS)),
            });
            let before = source.order.len();
            source.order.silent.insert(id);
            self.by_count.remove(&(before, address));
            self.by_count.insert((before + 1, address));
        }
        id
    }

    fn remove(&mut self, id: u64) {
        let Some(connection) = self.open.remove(&id) else {
            return;
        };
        self.order.remove(id);
        if let Some(address) = connection.address
            && let Some(source) = self.addresses.get_mut(&address)
        {
            self.by_count.remove(&(source.order.len(), address));
            source.order.remove(id);
            match source.order.len() {
                0 => drop(self.addresses.remove(&address)),
                left => {
                    self.by_count.insert((left, address));
                }
            }
        }
    }
}

impl Drop for AdmittedConnection {
    fn drop(&mut self) {
        self.connections.table().remove(self.id);
        self.connections.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests;
