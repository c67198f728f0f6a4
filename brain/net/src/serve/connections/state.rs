//! The state of one connection, shared by its task and the table of all.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::CloseReason;
use crate::serve::HANDSHAKE_TIMEOUT;
use crate::serve::connections::SourceAddress;
use crate::serve::frames::StreamActivity;
use crate::serve::headers::{BlockCharge, UnacceptedBlocks};
use runtime::budget::{Account, Charge};

/// The time for which a connection without open streams is kept; the second one applies when memory is short.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(30 * 60);
const IDLE_TIMEOUT_UNDER_PRESSURE: Duration = Duration::from_secs(60);

/// The time after which a client that reads none of the data sent to it is disconnected.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// When memory is short, a connection is closed that moves less than one part in `TURNOVER_DIVISOR` of the memory it holds within this
/// time. Only bytes of bodies count: pings and their answers do not keep a connection open.
const TURNOVER_INTERVAL: Duration = Duration::from_secs(5);
const TURNOVER_DIVISOR: u64 = 64;

/// About the bytes on the wire of an answer without a body.
const EMPTY_ANSWER_BYTES: usize = 128;

/// The most bytes of empty lines before a request of HTTP/1. hyper scans all of them again for each read. Go accepts four bytes, and only
/// after a POST request.
const MAX_BLANK_BYTES: usize = 16;

/// The part of a head of HTTP/1 that is not charged while it arrives.
const UNCHARGED_HEAD_BYTES: usize = 16 * 1024;

/// One connection, shared by its task and the table.
#[derive(Debug)]
pub(in crate::serve) struct ConnectionState {
    pub(super) address: Option<SourceAddress>,
    opened: Instant,
    /// The deadline of its first request, in milliseconds since it was opened.
    request_due: AtomicU64,
    /// True if a complete request head has arrived.
    pub(super) asked: AtomicBool,
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
    pub(in crate::serve) account: Account,
    /// Charges for what was passed to HTTP/2 without a charge of its own while the socket accepted nothing, oldest first.
    unsent: Mutex<VecDeque<Charge>>,
    has_unsent: AtomicBool,
    /// Charges of long header blocks whose requests were not accepted yet, oldest first.
    headers: Mutex<UnacceptedBlocks>,
    /// The head of HTTP/1 under way.
    head: Mutex<Http1Head>,
    /// When the client's certificate expires, in seconds since 1970; the last moment if it shows none.
    ends: AtomicI64,
    closing: CancellationToken,
    pub(super) reason: OnceLock<CloseReason>,
}

impl ConnectionState {
    pub(super) fn new(address: Option<SourceAddress>, account: Account) -> Self {
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
            head: Mutex::default(),
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
    pub(in crate::serve) fn expect_request(&self, time: Duration) {
        self.request_due.store(self.now() + millis(time), Ordering::Relaxed);
    }

    /// Records when the certificate expires that the client has shown, in seconds since 1970.
    pub(in crate::serve) fn ends_at(&self, ends: i64) {
        self.ends.store(ends, Ordering::Relaxed);
    }

    /// Counts a request as in flight until the guard is dropped.
    pub(in crate::serve) fn begin(self: &Arc<Self>) -> InFlight {
        self.asked.store(true, Ordering::Relaxed);
        self.streams.fetch_add(1, Ordering::Relaxed);
        let mut head = self.head();
        (head.bytes, head.blank) = (0, 0);
        drop(head);
        InFlight(Arc::clone(self))
    }

    /// Records that headers or data of a response are sent.
    pub(in crate::serve) fn answer(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    /// Returns the reason to close it, if there is one.
    pub(in crate::serve) fn reason(&self) -> Option<CloseReason> {
        self.reason.get().copied()
    }

    /// Counts received bytes.
    pub(in crate::serve) fn receive(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes received so far.
    pub(in crate::serve) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Records that the socket accepted bytes, and releases the oldest charges of frames that waited: about one for each [`EMPTY_ANSWER_BYTES`].
    pub(in crate::serve) fn sent(&self, bytes: usize) {
        self.blocked_since.store(0, Ordering::Relaxed);
        if self.has_unsent.load(Ordering::Acquire) {
            let mut unsent = self.unsent();
            let sent = bytes.div_ceil(EMPTY_ANSWER_BYTES).min(unsent.len());
            unsent.drain(..sent);
        }
    }

    /// Records that the socket accepted no data.
    pub(in crate::serve) fn blocked(&self) {
        let now = self.now();
        let _ = self
            .blocked_since
            .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns true if the socket accepts no data.
    pub(in crate::serve) fn is_blocked(&self) -> bool {
        self.blocked_since.load(Ordering::Relaxed) != 0
    }

    /// Keeps a charge for what HTTP/2 holds without a charge of its own, if the socket accepts nothing now.
    pub(in crate::serve) fn keep_until_sent(&self, charge: Charge) {
        if self.is_blocked() {
            self.unsent().push_back(charge);
            self.has_unsent.store(true, Ordering::Release);
        }
    }

    /// Releases those charges: HTTP/2 holds nothing any more.
    pub(in crate::serve) fn all_sent(&self) {
        if self.has_unsent.swap(false, Ordering::AcqRel) {
            *self.unsent() = VecDeque::new();
        }
    }

    fn unsent(&self) -> MutexGuard<'_, VecDeque<Charge>> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps charges of header blocks until their requests are accepted.
    pub(in crate::serve) fn keep_headers(&self, charges: Vec<BlockCharge>) {
        if !charges.is_empty() {
            self.headers().keep(charges);
        }
    }

    /// Returns the charge of the header block of a request, if it has one, when it is accepted.
    pub(in crate::serve) fn take_headers(&self, stream: u32) -> Option<Charge> {
        self.headers().accept(stream)
    }

    /// Charges bytes of HTTP/1 that arrive before their request begins: the head of the next one. It is charged for twice their length, for
    /// they are read into one buffer that doubles, and as long as the connection is open: hyper keeps that buffer. Returns the reason to
    /// close the connection, if there is one.
    pub(in crate::serve) fn read_head(&self, bytes: &[u8]) -> Result<(), CloseReason> {
        if !self.is_idle() {
            return Ok(());
        }
        let mut head = self.head();
        if head.blank == head.bytes {
            let blank = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            head.blank += blank;
            if head.blank > MAX_BLANK_BYTES {
                return Err(CloseReason::Blank);
            }
        }
        head.bytes += bytes.len();
        let needed = 2 * head.bytes;
        if head.bytes > UNCHARGED_HEAD_BYTES && needed > head.charged {
            // The charge of before is kept until there is a larger one.
            head.charge = Some(self.account.charge(needed).map_err(|_| CloseReason::Memory)?);
            head.charged = needed;
        }
        Ok(())
    }

    fn head(&self) -> MutexGuard<'_, Http1Head> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn headers(&self) -> MutexGuard<'_, UnacceptedBlocks> {
        self.headers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests its task to close it. Only the first reason counts; false for others.
    pub(in crate::serve) fn close(&self, reason: CloseReason) -> bool {
        let is_first = self.reason.set(reason).is_ok();
        if is_first {
            self.closing.cancel();
        }
        is_first
    }

    /// Returns true if it must be closed.
    pub(in crate::serve) fn is_closing(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// Waits until it must be closed.
    pub(in crate::serve) async fn closed(&self) -> CloseReason {
        self.closing.cancelled().await;
        self.reason.get().copied().unwrap_or(CloseReason::Evicted)
    }

    /// Returns true if it has no request in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.streams.load(Ordering::Relaxed) == 0
    }

    /// Returns the reason to close it now, if there is one. `clock` is the time in seconds since 1970.
    pub(super) fn overdue(&self, pressure: bool, clock: i64) -> Option<CloseReason> {
        if clock > self.ends.load(Ordering::Relaxed) {
            return Some(CloseReason::Certificate);
        }
        let now = self.now();
        let since = |at: u64| now.saturating_sub(at);
        let blocked = self.blocked_since.load(Ordering::Relaxed);
        if blocked != 0 && since(blocked) > millis(STALL_TIMEOUT) {
            return Some(CloseReason::Stalled);
        }
        if !self.asked.load(Ordering::Relaxed) {
            return (now > self.request_due.load(Ordering::Relaxed)).then_some(CloseReason::NoRequest);
        }
        let idle = if pressure {
            IDLE_TIMEOUT_UNDER_PRESSURE
        } else {
            IDLE_TIMEOUT
        };
        (self.is_idle() && since(self.idle_since.load(Ordering::Relaxed)) > millis(idle)).then_some(CloseReason::Idle)
    }

    /// Returns true if it holds much memory and has moved few bytes for [`TURNOVER_INTERVAL`].
    pub(super) fn is_stagnant(&self) -> bool {
        let used = self.account.used();
        let (now, moved) = (self.now(), self.account.moved());
        let since = moved.saturating_sub(self.moved.load(Ordering::Relaxed));
        if used <= self.account.small() || since > used as u64 / TURNOVER_DIVISOR {
            self.moved.store(moved, Ordering::Relaxed);
            self.moved_at.store(now, Ordering::Relaxed);
            return false;
        }
        now.saturating_sub(self.moved_at.load(Ordering::Relaxed)) > millis(TURNOVER_INTERVAL)
    }
}

impl StreamActivity for ConnectionState {
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

/// The head of HTTP/1 under way.
#[derive(Debug, Default)]
struct Http1Head {
    /// Its bytes so far.
    bytes: usize,
    /// Those of them that end empty lines before its first line.
    blank: usize,
    /// The charge for the longest one, and its bytes.
    charge: Option<Charge>,
    charged: usize,
}

/// A request in flight.
#[derive(Debug)]
pub(in crate::serve) struct InFlight(Arc<ConnectionState>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.idle_since.store(self.0.now(), Ordering::Relaxed);
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}
