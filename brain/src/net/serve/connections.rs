//! The open connections: their limits, for one address and for all, and the choice of those to close.
//!
//! Invariant: a connection is in the table from its admission until it is closed or evicted, and is counted exactly that long.
//! Nothing here waits for a client.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::HANDSHAKE_TIMEOUT;
use super::frames::Traffic;
use super::headers::{BlockCharge, Unaccepted};
use crate::budget::{Account, AddressUse, Budget, Charge, Exceeded};
use crate::log_once::LogOnce;
use crate::metrics::NetworkMetrics;

/// The time within which an HTTP/2 client has to send its first request.
pub(super) const FIRST_REQUEST: Duration = Duration::from_secs(60);

/// The time for which a connection without open streams is kept; the second one applies when memory is short.
const IDLE: Duration = Duration::from_secs(30 * 60);
const IDLE_UNDER_PRESSURE: Duration = Duration::from_secs(60);

/// The time after which a client that reads none of the data sent to it is disconnected.
pub(super) const STALLED: Duration = Duration::from_secs(60);

/// When memory is short, a connection is closed that moves less than one part in `TURNOVER` of the memory it holds within this
/// time. Only bytes of bodies count: pings and their answers do not keep a connection open.
const TURNOVER_TIME: Duration = Duration::from_secs(5);
const TURNOVER: u64 = 64;

/// The memory of an open connection: measured for one of HTTP/2 without streams.
const CONNECTION_BYTES: usize = 40 * 1024;

/// The number of connections that are examined when room is needed and all of them have sent a request.
const LOOKED_AT: usize = 128;

/// The number of concurrent handshakes, in all and of one address.
const HANDSHAKES: usize = 1024;
const HANDSHAKES_PER_ADDRESS: usize = HANDSHAKES / 4;

/// A handshake older than this may be aborted for a newer one.
const HANDSHAKE: Duration = Duration::from_secs(1);

/// The source address of a client. IPv6 addresses are grouped by their network: one machine has many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Address(IpAddr);

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        Self(match ip.to_canonical() {
            IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() & (u128::MAX << 64)).into()),
            ip @ IpAddr::V4(_) => ip,
        })
    }
}

/// The reason why this side closes a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// No complete request arrived in time.
    NoRequest,
    /// There was no open stream for a long time.
    Idle,
    /// The client reads none of the data sent to it.
    Stalled,
    /// Room was needed for a new connection.
    Evicted,
    /// Its address has reached its limit of connections.
    Share,
    /// It exceeded its memory limit.
    Memory,
    /// Its handshake waited for the client when others needed the slot.
    Handshake,
    /// It did not answer a ping.
    Ping,
    /// The client changed its settings again and again.
    Settings,
    /// The client pinged too often.
    Pings,
    /// The client's certificate has expired.
    Certificate,
}

impl Reason {
    /// Returns the label in metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            Reason::NoRequest => "no_request",
            Reason::Idle => "idle",
            Reason::Stalled => "stalled",
            Reason::Evicted => "evicted",
            Reason::Share => "address_share",
            Reason::Memory => "memory",
            Reason::Handshake => "handshake",
            Reason::Ping => "ping_timeout",
            Reason::Settings => "settings",
            Reason::Pings => "too_many_pings",
            Reason::Certificate => "certificate_expired",
        }
    }

    /// Returns true if no request is lost by the close: there is none, or it has time to end.
    pub(super) fn is_graceful(self) -> bool {
        matches!(self, Reason::NoRequest | Reason::Idle | Reason::Certificate)
    }
}

/// About the bytes on the wire of an answer without a body.
const UNSENT_BYTES: usize = 128;

/// One connection, shared by its task and the table.
#[derive(Debug)]
pub(super) struct Connection {
    address: Option<Address>,
    opened: Instant,
    /// The deadline of its first request, in milliseconds since it was opened.
    request_due: AtomicU64,
    /// True if a complete request head has arrived.
    asked: AtomicBool,
    /// True if headers or data of a response were sent since the client's last ping.
    answered: AtomicBool,
    /// The number of requests in flight.
    streams: AtomicUsize,
    /// The end of its last request, in milliseconds since it was opened.
    idle_since: AtomicU64,
    /// The time since when the socket accepts no data, in milliseconds since it was opened; 0 while it does.
    blocked_since: AtomicU64,
    /// Bytes received.
    received: AtomicU64,
    /// The bytes of bodies moved as of the last check, and the time of that check, in milliseconds since it was opened.
    moved: AtomicU64,
    moved_at: AtomicU64,
    /// Its charge to the budget.
    pub(super) account: Account,
    /// Charges for what was passed to HTTP/2 without a charge of its own while the socket accepted nothing, oldest first.
    unsent: Mutex<VecDeque<Charge>>,
    has_unsent: AtomicBool,
    /// Charges of long header blocks whose requests were not accepted yet, oldest first.
    headers: Mutex<Unaccepted>,
    /// When the client's certificate expires, in seconds since 1970; the last moment if it shows none.
    ends: AtomicI64,
    closing: CancellationToken,
    reason: OnceLock<Reason>,
}

impl Connection {
    fn new(address: Option<Address>, account: Account) -> Self {
        Self {
            address,
            opened: Instant::now(),
            request_due: AtomicU64::new(millis(2 * HANDSHAKE_TIMEOUT)),
            asked: AtomicBool::new(false),
            answered: AtomicBool::new(false),
            streams: AtomicUsize::new(0),
            idle_since: AtomicU64::new(0),
            blocked_since: AtomicU64::new(0),
            received: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            moved_at: AtomicU64::new(0),
            account,
            unsent: Mutex::default(),
            has_unsent: AtomicBool::new(false),
            headers: Mutex::default(),
            ends: AtomicI64::new(i64::MAX),
            closing: CancellationToken::new(),
            reason: OnceLock::new(),
        }
    }

    /// Returns the milliseconds since it was opened; never 0.
    fn now(&self) -> u64 {
        millis(self.opened.elapsed()).max(1)
    }

    /// Gives the client `time` from now on for its first request.
    pub(super) fn expect_request(&self, time: Duration) {
        self.request_due.store(self.now() + millis(time), Ordering::Relaxed);
    }

    /// Records when the certificate expires that the client has shown, in seconds since 1970.
    pub(super) fn ends_at(&self, ends: i64) {
        self.ends.store(ends, Ordering::Relaxed);
    }

    /// Counts a request as in flight until the guard is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> InFlight {
        self.asked.store(true, Ordering::Relaxed);
        self.streams.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(self))
    }

    /// Records that headers or data of a response are sent.
    pub(super) fn answer(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    /// Returns the reason why it is to be closed, if it is.
    pub(super) fn reason(&self) -> Option<Reason> {
        self.reason.get().copied()
    }

    /// Counts received bytes.
    pub(super) fn receive(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes received so far.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Records that the socket accepted bytes. The frames of answers take turns: by so many bytes some of what waited was sent.
    pub(super) fn sent(&self, bytes: usize) {
        self.blocked_since.store(0, Ordering::Relaxed);
        if self.has_unsent.load(Ordering::Acquire) {
            let mut unsent = self.unsent();
            let sent = bytes.div_ceil(UNSENT_BYTES).min(unsent.len());
            unsent.drain(..sent);
        }
    }

    /// Records that the socket accepted no data.
    pub(super) fn blocked(&self) {
        let now = self.now();
        let _ = self
            .blocked_since
            .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns true if the socket accepts no data.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked_since.load(Ordering::Relaxed) != 0
    }

    /// Keeps a charge for what HTTP/2 holds without a charge of its own, if the socket accepts nothing now.
    pub(super) fn keep_until_sent(&self, charge: Charge) {
        if self.is_blocked() {
            self.unsent().push_back(charge);
            self.has_unsent.store(true, Ordering::Release);
        }
    }

    /// Releases those charges: HTTP/2 holds nothing any more.
    pub(super) fn all_sent(&self) {
        if self.has_unsent.swap(false, Ordering::AcqRel) {
            *self.unsent() = VecDeque::new();
        }
    }

    fn unsent(&self) -> MutexGuard<'_, VecDeque<Charge>> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps charges of header blocks until their requests are accepted.
    pub(super) fn keep_headers(&self, charges: Vec<BlockCharge>) {
        if !charges.is_empty() {
            self.headers().keep(charges);
        }
    }

    /// Returns the charge of the header block of a request, if it has one, when it is accepted.
    pub(super) fn take_headers(&self, stream: u32) -> Option<Charge> {
        self.headers().accept(stream)
    }

    fn headers(&self) -> MutexGuard<'_, Unaccepted> {
        self.headers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests its task to close it. Only the first reason counts; false for others.
    pub(super) fn close(&self, reason: Reason) -> bool {
        let is_first = self.reason.set(reason).is_ok();
        if is_first {
            self.closing.cancel();
        }
        is_first
    }

    /// Returns true if it is to be closed.
    pub(super) fn is_closing(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// Waits until it is to be closed.
    pub(super) async fn closed(&self) -> Reason {
        self.closing.cancelled().await;
        self.reason.get().copied().unwrap_or(Reason::Evicted)
    }

    /// Returns true if it has no request in flight.
    fn is_idle(&self) -> bool {
        self.streams.load(Ordering::Relaxed) == 0
    }

    /// Returns the reason to close it now, if there is one. `clock` is the time in seconds since 1970.
    fn overdue(&self, pressure: bool, clock: i64) -> Option<Reason> {
        if clock > self.ends.load(Ordering::Relaxed) {
            return Some(Reason::Certificate);
        }
        let now = self.now();
        let since = |at: u64| now.saturating_sub(at);
        let blocked = self.blocked_since.load(Ordering::Relaxed);
        if blocked != 0 && since(blocked) > millis(STALLED) {
            return Some(Reason::Stalled);
        }
        if !self.asked.load(Ordering::Relaxed) {
            return (now > self.request_due.load(Ordering::Relaxed)).then_some(Reason::NoRequest);
        }
        let idle = if pressure { IDLE_UNDER_PRESSURE } else { IDLE };
        (self.is_idle() && since(self.idle_since.load(Ordering::Relaxed)) > millis(idle)).then_some(Reason::Idle)
    }

    /// Returns true if it holds much memory and has moved few bytes for [`TURNOVER_TIME`].
    fn is_stagnant(&self) -> bool {
        let used = self.account.used();
        let (now, moved) = (self.now(), self.account.moved());
        let since = moved.saturating_sub(self.moved.load(Ordering::Relaxed));
        if used <= self.account.small() || since > used as u64 / TURNOVER {
            self.moved.store(moved, Ordering::Relaxed);
            self.moved_at.store(now, Ordering::Relaxed);
            return false;
        }
        now.saturating_sub(self.moved_at.load(Ordering::Relaxed)) > millis(TURNOVER_TIME)
    }
}

impl Traffic for Connection {
    fn has_streams(&self) -> bool {
        !self.is_idle()
    }

    fn take_answered(&self) -> bool {
        self.answered.swap(false, Ordering::Relaxed)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct InFlight(Arc<Connection>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.idle_since.store(self.0.now(), Ordering::Relaxed);
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The open connections of one or more ports. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// The limits of open connections: in all, and of one address.
    limit: usize,
    share: usize,
    table: Mutex<Table>,
    /// Notified when a slot becomes free.
    freed: Notify,
    handshakes: Semaphore,
    budget: Budget,
    network: NetworkMetrics,
    evictions: LogOnce,
    expired: LogOnce,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// Ordered by age, oldest first.
    open: BTreeMap<u64, Arc<Connection>>,
    order: Order,
    addresses: HashMap<Address, Source>,
    /// The addresses, ordered by the number of their connections.
    by_count: BTreeSet<(usize, Address)>,
    /// The handshakes in progress, oldest first, with their start times.
    shaking: BTreeMap<u64, (Instant, Arc<Connection>)>,
}

/// The connections of one address.
#[derive(Debug)]
struct Source {
    order: Order,
    used: AddressUse,
    handshakes: Arc<Semaphore>,
}

/// The order in which connections are examined when room is needed.
#[derive(Debug, Default)]
struct Order {
    /// Connections that had sent no request when they were last examined, oldest first.
    silent: BTreeSet<u64>,
    asked: BTreeSet<u64>,
    /// The first of `asked` to examine next.
    next: u64,
}

impl Order {
    fn len(&self) -> usize {
        self.silent.len() + self.asked.len()
    }

    fn remove(&mut self, id: u64) {
        self.silent.remove(&id);
        self.asked.remove(&id);
    }

    /// Returns an idle connection: the oldest of those that never sent a request, else the next idle one of the others, of which at
    /// most [`LOOKED_AT`] are examined.
    fn idle(&mut self, open: &BTreeMap<u64, Arc<Connection>>) -> Option<u64> {
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
        let found = looked_at.take(LOOKED_AT).find(is_idle).copied();
        self.next = last + 1;
        found
    }
}

/// An admitted connection; it leaves the table on drop.
#[derive(Debug)]
pub(super) struct Admitted {
    id: u64,
    pub(super) connection: Arc<Connection>,
    connections: Connections,
    /// The charge of the connection itself.
    _charge: Charge,
}

impl Connections {
    pub(super) fn new(limit: usize, budget: Budget, network: NetworkMetrics) -> Self {
        Self(Arc::new(Shared {
            limit: limit.max(2),
            share: (limit / 2).max(1),
            table: Mutex::default(),
            freed: Notify::new(),
            handshakes: Semaphore::new(HANDSHAKES),
            budget,
            network,
            evictions: LogOnce::default(),
            expired: LogOnce::default(),
        }))
    }

    /// Admits a connection. If there is no slot, the oldest idle connection is closed for it: one of the same address if that has
    /// reached its share, else one of the address with the most connections. If all are busy, the new connection waits, or is
    /// refused if its address has reached its share.
    pub(super) async fn admit(&self, ip: Option<IpAddr>) -> Option<Admitted> {
        let address = ip.map(Address::from);
        loop {
            let freed = self.0.freed.notified();
            match self.try_admit(address) {
                Ok(admitted) => return admitted,
                Err(Full) => freed.await,
            }
        }
    }

    fn try_admit(&self, address: Option<Address>) -> Result<Option<Admitted>, Full> {
        let mut table = self.table();
        let of_address = address.and_then(|address| table.addresses.get(&address));
        if of_address.is_some_and(|source| source.order.len() >= self.0.share) && !self.evict(&mut table, address) {
            self.count(Reason::Share);
            return Ok(None);
        }
        if table.open.len() >= self.0.limit {
            let heaviest = table.by_count.last().map(|(_, address)| *address);
            if !self.evict(&mut table, heaviest) && !self.evict(&mut table, None) {
                return Err(Full);
            }
        }
        let used = address.map(|address| {
            let source = table.addresses.get(&address);
            source.map_or_else(AddressUse::default, |source| source.used.clone())
        });
        let connection = Arc::new(Connection::new(address, self.0.budget.account(used.as_ref())));
        let charge = match connection.account.charge(CONNECTION_BYTES) {
            Ok(charge) => charge,
            // Its memory is released when its task has ended.
            Err(Exceeded::Total) if self.evict(&mut table, address) || self.evict(&mut table, None) => {
                return Err(Full);
            }
            Err(_) => {
                self.count(Reason::Memory);
                return Ok(None);
            }
        };
        let id = table.insert(&connection, used);
        Ok(Some(Admitted {
            id,
            connection,
            connections: self.clone(),
            _charge: charge,
        }))
    }

    /// Closes an idle connection, of an address or of any: see [`Order::idle`].
    fn evict(&self, table: &mut Table, address: Option<Address>) -> bool {
        let Table {
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
            self.close(&connection, Reason::Evicted);
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
            let of_address = |connection: &Connection| {
                let source = connection.address.and_then(|address| table.addresses.get(&address));
                source.map_or(0, |source| source.used.used())
            };
            stagnant.sort_by_cached_key(|connection| (of_address(connection), connection.account.used()));
        }
        while freed < shortage
            && let Some(connection) = stagnant.pop()
        {
            freed += connection.account.used();
            overdue.push((Reason::Memory, connection));
        }
        for (reason, connection) in overdue {
            self.close(&connection, reason);
        }
    }

    fn close(&self, connection: &Connection, reason: Reason) {
        if connection.close(reason) {
            self.count(reason);
        }
    }

    /// Counts a connection as closed by this side, and logs a warning if a client may lose a request.
    pub(super) fn count(&self, reason: Reason) {
        self.0.network.closed.with_label_values(&[reason.label()]).inc();
        if reason == Reason::Certificate
            && let Some(count) = self.0.expired.due()
        {
            info!(
                count,
                "connections are closed: the certificates that opened them have expired"
            );
        }
        if !reason.is_graceful()
            && let Some(count) = self.0.evictions.due()
        {
            warn!(
                reason = reason.label(),
                count, "connections of clients are closed because of what they hold or do not take"
            );
        }
    }

    /// Waits for a handshake slot: first for one of the address, so that one address takes no slots from others. If there is none,
    /// the oldest handshake in progress is aborted, unless it has just begun.
    pub(super) async fn handshake(&self, connection: &Arc<Connection>) -> Option<Turn<'_>> {
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
        Some(Turn {
            id,
            connections: self,
            _of_address: own,
            _of_all: of_all,
        })
    }

    /// Closes the connection with the oldest handshake, of an address or of any.
    fn give_up_handshake(&self, address: Option<Address>) {
        let oldest = {
            let table = self.table();
            let of_address = |connection: &Connection| address.is_none() || connection.address == address;
            let may = |(begun, connection): &&(Instant, Arc<Connection>)| {
                of_address(connection) && connection.reason.get().is_none() && begun.elapsed() > HANDSHAKE
            };
            table
                .shaking
                .values()
                .find(may)
                .map(|(_, connection)| Arc::clone(connection))
        };
        if let Some(connection) = oldest {
            self.close(&connection, Reason::Handshake);
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All slots are taken by busy connections.
struct Full;

/// A handshake slot.
pub(super) struct Turn<'a> {
    id: u64,
    connections: &'a Connections,
    _of_address: Option<OwnedSemaphorePermit>,
    _of_all: tokio::sync::SemaphorePermit<'a>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.connections.table().shaking.remove(&self.id);
    }
}

impl Table {
    fn insert(&mut self, connection: &Arc<Connection>, used: Option<AddressUse>) -> u64 {
        let id = self.next;
        self.next += 1;
        self.open.insert(id, Arc::clone(connection));
        self.order.silent.insert(id);
        if let Some(address) = connection.address {
            let source = self.addresses.entry(address).or_insert_with(|| Source {
                order: Order::default(),
                used: used.unwrap_or_default(),
                handshakes: Arc::new(Semaphore::new(HANDSHAKES_PER_ADDRESS)),
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

impl Drop for Admitted {
    fn drop(&mut self) {
        self.connections.table().remove(self.id);
        self.connections.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests;
