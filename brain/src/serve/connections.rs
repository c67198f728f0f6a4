//! The connections that are open: how many there may be, of one address and of all, and which of them are closed.
//!
//! Invariant: a connection is in the table from its admission until it is closed or evicted, and is counted exactly that
//! long. Nothing here waits for a client.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::PATIENCE;
use crate::budget::{Account, Budget};
use crate::log_once::LogOnce;
use crate::metrics::NetworkMetrics;

/// How long a client that speaks HTTP/2 may wait with its first request.
pub(super) const FIRST_REQUEST: Duration = Duration::from_secs(60);

/// How long a connection without open streams is kept.
const IDLE: Duration = Duration::from_secs(30 * 60);

/// How long a client may take nothing of what is sent to it.
pub(super) const STALLED: Duration = Duration::from_secs(60);

/// A connection that took nothing for so long is closed where memory is short.
const STALLED_UNDER_PRESSURE: Duration = Duration::from_secs(5);

/// Handshakes that are under way at a time, and how many of them may be of one address.
const HANDSHAKES: usize = 1024;
const HANDSHAKES_PER_ADDRESS: usize = HANDSHAKES / 4;

/// Where clients come from. Addresses of IPv6 are told apart by their network: one machine has many.
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

/// Why a connection is closed by this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// No complete request came in time.
    NoRequest,
    /// There was no open stream for long.
    Idle,
    /// The client takes nothing of what is sent to it.
    Stalled,
    /// Room for a newcomer was needed.
    Evicted,
    /// Its address has as many connections as it may have.
    Share,
    /// It exceeded its memory.
    Memory,
    /// It did not answer a ping.
    Ping,
}

impl Reason {
    /// The label of metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            Reason::NoRequest => "no_request",
            Reason::Idle => "idle",
            Reason::Stalled => "stalled",
            Reason::Evicted => "evicted",
            Reason::Share => "address_share",
            Reason::Memory => "memory",
            Reason::Ping => "ping_timeout",
        }
    }

    /// Nothing is lost with it.
    pub(super) fn is_graceful(self) -> bool {
        matches!(self, Reason::NoRequest | Reason::Idle)
    }
}

/// One connection, as its task and the table see it.
#[derive(Debug)]
pub(super) struct Connection {
    address: Option<Address>,
    opened: Instant,
    /// When it has to have sent a request, in milliseconds since it was opened.
    request_due: AtomicU64,
    /// A whole request head has come.
    asked: AtomicBool,
    /// Requests under way.
    streams: AtomicUsize,
    /// When the last request ended, in milliseconds since it was opened.
    idle_since: AtomicU64,
    /// Since when the socket takes nothing, in milliseconds since it was opened; 0 while it does.
    blocked_since: AtomicU64,
    /// Bytes received.
    received: AtomicU64,
    /// When bytes were sent last, in milliseconds since it was opened.
    sent_at: AtomicU64,
    /// What it takes of the budget.
    pub(super) account: Account,
    closing: CancellationToken,
    reason: OnceLock<Reason>,
}

impl Connection {
    fn new(address: Option<Address>, account: Account) -> Self {
        Self {
            address,
            opened: Instant::now(),
            request_due: AtomicU64::new(millis(2 * PATIENCE)),
            asked: AtomicBool::new(false),
            streams: AtomicUsize::new(0),
            idle_since: AtomicU64::new(0),
            blocked_since: AtomicU64::new(0),
            received: AtomicU64::new(0),
            sent_at: AtomicU64::new(0),
            account,
            closing: CancellationToken::new(),
            reason: OnceLock::new(),
        }
    }

    /// Milliseconds since it was opened; never 0.
    fn now(&self) -> u64 {
        millis(self.opened.elapsed()).max(1)
    }

    /// From now on the client has `time` to send its first request.
    pub(super) fn expect_request(&self, time: Duration) {
        self.request_due.store(self.now() + millis(time), Ordering::Relaxed);
    }

    /// A request began; it ends when this is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> InFlight {
        self.asked.store(true, Ordering::Relaxed);
        self.streams.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(self))
    }

    /// Bytes came.
    pub(super) fn receive(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that came so far.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// The socket took bytes.
    pub(super) fn sent(&self) {
        self.blocked_since.store(0, Ordering::Relaxed);
        self.sent_at.store(self.now(), Ordering::Relaxed);
    }

    /// The socket took none.
    pub(super) fn blocked(&self) {
        let now = self.now();
        let _ = self
            .blocked_since
            .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The socket takes nothing.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked_since.load(Ordering::Relaxed) != 0
    }

    /// Has its task end it. Only the first reason counts.
    pub(super) fn close(&self, reason: Reason) {
        if self.reason.set(reason).is_ok() {
            self.closing.cancel();
        }
    }

    /// Waits until it is to be closed.
    pub(super) async fn closed(&self) -> Reason {
        self.closing.cancelled().await;
        self.reason.get().copied().unwrap_or(Reason::Evicted)
    }

    /// It has no request under way.
    fn is_idle(&self) -> bool {
        self.streams.load(Ordering::Relaxed) == 0
    }

    /// Why it is to be closed now, if it is.
    fn overdue(&self, pressure: bool) -> Option<Reason> {
        let now = self.now();
        let since = |at: u64| now.saturating_sub(at);
        let blocked = self.blocked_since.load(Ordering::Relaxed);
        if blocked != 0 && since(blocked) > millis(STALLED) {
            return Some(Reason::Stalled);
        }
        if !self.asked.load(Ordering::Relaxed) {
            return (now > self.request_due.load(Ordering::Relaxed)).then_some(Reason::NoRequest);
        }
        if self.is_idle() && since(self.idle_since.load(Ordering::Relaxed)) > millis(IDLE) {
            return Some(Reason::Idle);
        }
        let takes_nothing = since(self.sent_at.load(Ordering::Relaxed)) > millis(STALLED_UNDER_PRESSURE);
        (pressure && takes_nothing && self.account.used() > self.account.fair_share()).then_some(Reason::Memory)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A request under way.
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
    /// Connections that may be open, and how many of them of one address.
    limit: usize,
    share: usize,
    table: Mutex<Table>,
    /// A place became free.
    freed: Notify,
    handshakes: Semaphore,
    budget: Budget,
    network: NetworkMetrics,
    evictions: LogOnce,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// Oldest first.
    open: BTreeMap<u64, Arc<Connection>>,
    addresses: HashMap<Address, Source>,
}

/// What one address has.
#[derive(Debug)]
struct Source {
    connections: usize,
    handshakes: Arc<Semaphore>,
}

/// A connection that was admitted; it leaves the table when this is dropped.
#[derive(Debug)]
pub(super) struct Admitted {
    id: u64,
    pub(super) connection: Arc<Connection>,
    connections: Connections,
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
        }))
    }

    /// Gives a connection its place. Where there is none, the oldest of those that do nothing gives up its own: of the same
    /// address where that has its share, else of the address that has the most. If all are busy, the newcomer waits, or is
    /// refused where its address has its share.
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
        if of_address.is_some_and(|source| source.connections >= self.0.share) && !self.evict(&mut table, address) {
            self.count(Reason::Share);
            return Ok(None);
        }
        if table.open.len() >= self.0.limit {
            let heaviest = table.addresses.iter().max_by_key(|(_, source)| source.connections);
            let heaviest = heaviest.map(|(address, _)| *address);
            if !self.evict(&mut table, heaviest) && !self.evict(&mut table, None) {
                return Err(Full);
            }
        }
        let connection = Arc::new(Connection::new(address, self.0.budget.account()));
        let id = table.next;
        table.next += 1;
        table.open.insert(id, Arc::clone(&connection));
        if let Some(address) = address {
            let source = table.addresses.entry(address).or_insert_with(|| Source {
                connections: 0,
                handshakes: Arc::new(Semaphore::new(HANDSHAKES_PER_ADDRESS)),
            });
            source.connections += 1;
        }
        Ok(Some(Admitted {
            id,
            connection,
            connections: self.clone(),
        }))
    }

    /// Closes the oldest connection that does nothing, one that never asked anything before others; of an address, or of any.
    fn evict(&self, table: &mut Table, address: Option<Address>) -> bool {
        let of_address = |connection: &Connection| address.is_none() || connection.address == address;
        let evictable = |(id, connection): (&u64, &Arc<Connection>)| {
            let may = of_address(connection) && connection.is_idle();
            may.then(|| (connection.asked.load(Ordering::Relaxed), *id))
        };
        let Some((_, id)) = table.open.iter().filter_map(evictable).min() else {
            return false;
        };
        if let Some(connection) = table.open.get(&id).cloned() {
            self.close(&connection, Reason::Evicted);
        }
        table.remove(id);
        true
    }

    /// Closes connections whose time is over.
    pub(super) fn sweep(&self) {
        let pressure = self.0.budget.is_short();
        let overdue: Vec<_> = {
            let table = self.table();
            let overdue = |connection: &Arc<Connection>| Some((connection.overdue(pressure)?, Arc::clone(connection)));
            table.open.values().filter_map(overdue).collect()
        };
        for (reason, connection) in overdue {
            self.close(&connection, reason);
        }
    }

    fn close(&self, connection: &Connection, reason: Reason) {
        if connection.reason.get().is_some() {
            return;
        }
        connection.close(reason);
        self.count(reason);
    }

    /// Counts a connection as closed by this side, and warns of it where a client may miss it.
    pub(super) fn count(&self, reason: Reason) {
        self.0.network.closed.with_label_values(&[reason.label()]).inc();
        if !reason.is_graceful()
            && let Some(count) = self.0.evictions.due()
        {
            warn!(
                reason = reason.label(),
                count, "connections of clients are closed because of what they hold or do not take"
            );
        }
    }

    /// Waits for a turn to shake hands: one of the address first, so that one address takes no turns from others.
    pub(super) async fn handshake(&self, connection: &Connection) -> Option<Turn<'_>> {
        let own = connection
            .address
            .and_then(|address| Some(Arc::clone(&self.table().addresses.get(&address)?.handshakes)));
        let own = match own {
            Some(turns) => Some(turns.acquire_owned().await.ok()?),
            None => None,
        };
        let of_all = self.0.handshakes.acquire().await.ok()?;
        Some(Turn {
            _of_address: own,
            _of_all: of_all,
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All places are taken by connections that do something.
struct Full;

/// A turn to shake hands.
pub(super) struct Turn<'a> {
    _of_address: Option<OwnedSemaphorePermit>,
    _of_all: tokio::sync::SemaphorePermit<'a>,
}

impl Table {
    fn remove(&mut self, id: u64) {
        let Some(connection) = self.open.remove(&id) else {
            return;
        };
        if let Some(address) = connection.address
            && let Some(source) = self.addresses.get_mut(&address)
        {
            source.connections -= 1;
            if source.connections == 0 {
                self.addresses.remove(&address);
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
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    fn connections(limit: usize) -> Connections {
        let network = Metrics::new(false).network;
        Connections::new(limit, Budget::new(1 << 20, network.held.clone()), network)
    }

    fn ip(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    fn reason(admitted: &Admitted) -> Option<Reason> {
        admitted.connection.reason.get().copied()
    }

    #[tokio::test]
    async fn oldest_idle_connection_of_the_heaviest_address_makes_room() {
        let connections = connections(4);
        let mut open = Vec::new();
        for address in [2, 1, 1, 3] {
            open.push(connections.admit(ip(address)).await.unwrap());
        }
        let busy = open[1].connection.begin();
        let newcomer = connections.admit(ip(4)).await.unwrap();
        let reasons: Vec<_> = open.iter().map(reason).collect();
        assert_eq!(reasons, [None, None, Some(Reason::Evicted), None]);
        drop((busy, newcomer));
        // Nothing of the address itself is idle: its share is what it has.
        let first = connections.admit(ip(1)).await.unwrap();
        let work: Vec<_> = [&open[1], &first].map(|open| open.connection.begin()).into();
        assert!(connections.admit(ip(1)).await.is_none());
        assert_eq!(
            connections.0.network.closed.with_label_values(&["address_share"]).get(),
            1
        );
        drop(work);
        assert!(connections.admit(ip(1)).await.is_some());
        assert_eq!(reason(&open[1]), Some(Reason::Evicted));
    }

    #[tokio::test]
    async fn newcomers_wait_while_all_are_busy() {
        let connections = connections(2);
        let open = [
            connections.admit(ip(1)).await.unwrap(),
            connections.admit(ip(2)).await.unwrap(),
        ];
        let work = open.each_ref().map(|open| open.connection.begin());
        let waiting = connections.admit(ip(3));
        tokio::pin!(waiting);
        assert!(futures::poll!(&mut waiting).is_pending());
        let [first, _second] = open;
        drop(first);
        assert!(waiting.await.is_some());
        drop(work);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_are_closed_when_their_time_is_over() {
        let connections = connections(9);
        let mut open = Vec::new();
        for address in 0..5 {
            open.push(connections.admit(ip(address)).await.unwrap());
        }
        let [_silent, polite, served, busy, stuck] = &open[..] else {
            unreachable!()
        };
        polite.connection.expect_request(FIRST_REQUEST);
        drop(served.connection.begin());
        let _work = busy.connection.begin();
        let _blocked = stuck.connection.begin();
        stuck.connection.blocked();
        let mut closed = Vec::new();
        for age in [2 * PATIENCE, FIRST_REQUEST + Duration::from_millis(1), IDLE] {
            tokio::time::advance(age - Duration::from_millis(1)).await;
            connections.sweep();
            closed.push(
                open.iter()
                    .map(|open| reason(open).map(Reason::label))
                    .collect::<Vec<_>>(),
            );
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        tokio::time::advance(Duration::from_millis(2)).await;
        connections.sweep();
        closed.push(open.iter().map(|open| reason(open).map(Reason::label)).collect());
        assert_eq!(closed[0], [None; 5]);
        assert_eq!(
            closed[1],
            [Some("no_request"), Some("no_request"), None, None, Some("stalled")]
        );
        assert_eq!(
            closed[3],
            [
                Some("no_request"),
                Some("no_request"),
                Some("idle"),
                None,
                Some("stalled")
            ]
        );
    }

    #[tokio::test]
    async fn turns_of_one_address_leave_turns_for_others() {
        let connections = connections(9);
        let (greedy, other) = (
            connections.admit(ip(1)).await.unwrap(),
            connections.admit(ip(2)).await.unwrap(),
        );
        let mut turns = Vec::new();
        for _ in 0..HANDSHAKES_PER_ADDRESS {
            turns.push(connections.handshake(&greedy.connection).await);
        }
        let next = connections.handshake(&greedy.connection);
        tokio::pin!(next);
        assert!(futures::poll!(&mut next).is_pending());
        assert!(connections.handshake(&other.connection).await.is_some());
        turns.pop();
        assert!(next.await.is_some());
    }
}
