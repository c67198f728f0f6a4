//! The socket of a connection. Small writes are gathered, and written at the end of each poll of the connection's task.
//!
//! h2 writes the parts of a response one by one, and flushes after each payload of 256 bytes or more: a system call for each of them costs
//! more than the response itself.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::time::Instant;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};

use super::connections::{CloseReason, ConnectionState};
use runtime::budget::Charge;
use telemetry::metrics::NetworkMetrics;
use tls::Io;

/// The most bytes that are gathered. They are charged to the connection's account until the socket has accepted them.
const MAX_QUEUED_BYTES: usize = 32 * 1024;

/// The time for which one poll of a connection's task may continue to read: then others get their turn.
const READ_TURN_TIME: Duration = Duration::from_millis(5);

/// Longer writes are not copied.
const MAX_COPIED_BYTES: usize = 8 * 1024;

/// A byte stream and its counters.
pub(super) struct QueuedSocket {
    io: Box<dyn Io>,
    connection: Arc<ConnectionState>,
    network: NetworkMetrics,
    gathers: bool,
    /// The beginning of the poll under way.
    polled: Instant,
    queue: BytesMut,
    /// The charge for the queue, unless that is empty.
    charge: Option<Charge>,
}

impl QueuedSocket {
    pub(super) fn new(io: Box<dyn Io>, connection: Arc<ConnectionState>, network: NetworkMetrics) -> Self {
        Self {
            io,
            connection,
            network,
            gathers: false,
            polled: Instant::now(),
            queue: BytesMut::new(),
            charge: None,
        }
    }

    pub(super) fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.gathers && self.polled.elapsed() > READ_TURN_TIME {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        let len = (buf.filled().len() - before) as u64;
        self.connection.receive(len);
        self.network.received.inc_by(len);
        polled
    }

    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        if !self.gather(bufs, len) {
            ready!(self.poll_drain(cx))?;
            if !self.gather(bufs, len) {
                let polled = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
                return self.sent(polled);
            }
        }
        Poll::Ready(Ok(len))
    }

    /// Flushes what is written; gathered writes are flushed at the end of the poll.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.gathers {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.io).poll_flush(cx)
    }

    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    /// Returns the byte stream, after it has sent the gathered bytes as far as the socket accepts them.
    pub(super) fn take(&mut self) -> Box<dyn Io> {
        let drained = self.poll_drain(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(Err(error)) = drained {
            tracing::debug!(%error, "could not send the end of a connection");
        }
        std::mem::replace(&mut self.io, Box::new(tokio::io::empty()))
    }

    /// Requests the connection's task to close it.
    pub(super) fn close(&self, reason: CloseReason) {
        if self.connection.close(reason) {
            self.network.closed.with_label_values(&[reason.label()]).inc();
        }
    }

    /// Copies a write into the queue, if it is short and there is room for it.
    fn gather(&mut self, bufs: &[IoSlice<'_>], len: usize) -> bool {
        if !self.gathers || len > MAX_COPIED_BYTES || self.queue.len() + len > MAX_QUEUED_BYTES {
            return false;
        }
        if self.charge.is_none() {
            let Ok(charge) = self.connection.account.charge(MAX_QUEUED_BYTES) else {
                return false;
            };
            self.charge = Some(charge);
            self.queue.reserve(MAX_QUEUED_BYTES);
        }
        for buf in bufs {
            self.queue.extend_from_slice(buf);
        }
        true
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.queue.is_empty() {
            let polled = Pin::new(&mut self.io).poll_write(cx, &self.queue);
            match ready!(self.sent(polled))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                len => self.queue.advance(len),
            }
        }
        if self.charge.take().is_some() {
            self.queue = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }

    fn sent(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &polled {
            Poll::Ready(Ok(len)) => {
                self.network.sent.inc_by(*len as u64);
                self.connection.sent(*len);
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.connection.blocked(),
        }
        polled
    }
}

/// A socket that the task of a connection shares with its protocol.
#[derive(Clone)]
pub(super) struct SharedSocket(Arc<Mutex<QueuedSocket>>);

impl SharedSocket {
    pub(super) fn new(socket: QueuedSocket) -> Self {
        Self(Arc::new(Mutex::new(socket)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, QueuedSocket> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a task that writes to the socket. Its small writes are gathered, and sent after each poll of the task. Returns `None` if
    /// that fails.
    pub(super) async fn gathering<T>(&self, task: impl Future<Output = T>) -> Option<T> {
        let mut task = std::pin::pin!(task);
        self.lock().gathers = true;
        let connection = Arc::clone(&self.lock().connection);
        std::future::poll_fn(|cx| {
            self.lock().polled = Instant::now();
            if let Poll::Ready(done) = task.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
            let mut socket = self.lock();
            let flushed = match socket.poll_drain(cx) {
                Poll::Ready(Ok(())) => Pin::new(&mut socket.io).poll_flush(cx),
                other => other,
            };
            match flushed {
                Poll::Ready(Err(error)) => {
                    tracing::debug!(%error, "a connection failed");
                    Poll::Ready(None)
                }
                Poll::Ready(Ok(())) | Poll::Pending => {
                    if !connection.is_blocked() {
                        connection.all_sent();
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    use tokio::io::AsyncWrite;

    use super::super::connections::{AdmittedConnection, Connections};
    use super::*;
    use runtime::budget::Budget;
    use telemetry::metrics::Metrics;

    /// Records the writes that it accepts while it is open.
    #[derive(Clone, Default)]
    struct Recorder(Arc<Mutex<(bool, Vec<usize>)>>);

    impl Recorder {
        fn open(&self, is_open: bool) {
            self.0.lock().unwrap().0 = is_open;
        }

        fn writes(&self) -> Vec<usize> {
            self.0.lock().unwrap().1.clone()
        }
    }

    impl tokio::io::AsyncRead for Recorder {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Recorder {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            let mut inner = self.0.lock().unwrap();
            if !inner.0 {
                return Poll::Pending;
            }
            inner.1.push(buf.len());
            Poll::Ready(Ok(buf.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    async fn socket(budget: usize) -> (SharedSocket, Recorder, AdmittedConnection) {
        let network = Metrics::new(false).network;
        let connections = Connections::new(1, Budget::new(budget, network.held.clone()), network.clone());
        let admitted = connections.admit(None).await.unwrap();
        let recorder = Recorder::default();
        recorder.open(true);
        let socket = QueuedSocket::new(Box::new(recorder.clone()), Arc::clone(&admitted.connection), network);
        (SharedSocket::new(socket), recorder, admitted)
    }

    fn write(socket: &SharedSocket, len: usize) -> Poll<usize> {
        let bytes = vec![7; len];
        let mut cx = Context::from_waker(Waker::noop());
        let polled = socket.lock().poll_write(&mut cx, &[IoSlice::new(&bytes)]);
        polled.map(Result::unwrap)
    }

    /// Polls a task once that makes writes of these lengths, and then waits.
    async fn poll_once(socket: &SharedSocket, writes: &[usize]) {
        let task = socket.gathering(std::future::poll_fn(|_| {
            for len in writes {
                assert_eq!(write(socket, *len), Poll::Ready(*len));
            }
            Poll::<()>::Pending
        }));
        assert!(futures::poll!(std::pin::pin!(task)).is_pending());
    }

    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn a_task_that_reads_for_long_lets_others_run() {
        let (socket, _recorder, _admitted) = socket(1 << 24).await;
        for (ago, is_over) in [(Duration::ZERO, false), (2 * READ_TURN_TIME, true)] {
            let woken = Arc::new(Woken(AtomicBool::new(false)));
            let waker = woken.clone().into();
            let mut locked = socket.lock();
            locked.gathers = true;
            locked.polled = Instant::now().checked_sub(ago).unwrap();
            let mut buf = [0; 16];
            let polled = locked.poll_read(&mut Context::from_waker(&waker), &mut ReadBuf::new(&mut buf));
            // The recorder has nothing to read, and wakes no task.
            assert!(polled.is_pending());
            assert_eq!(woken.0.load(Ordering::SeqCst), is_over);
        }
    }

    #[tokio::test]
    async fn charges_of_what_waits_are_kept_while_the_socket_is_blocked() {
        let (socket, recorder, admitted) = socket(1 << 24).await;
        let account = &admitted.connection.account;
        let used = account.used();
        admitted.connection.keep_until_sent(account.charge(100).unwrap());
        assert_eq!(account.used(), used);
        recorder.open(false);
        poll_once(&socket, &[10]).await;
        let blocked = account.used();
        admitted.connection.keep_until_sent(account.charge(100).unwrap());
        for _ in 0..2 {
            poll_once(&socket, &[]).await;
            assert_eq!(account.used(), blocked + 100);
        }
        // The first bytes that are accepted are those of the oldest answers.
        admitted.connection.keep_until_sent(account.charge(7).unwrap());
        admitted.connection.sent(10);
        assert_eq!(account.used(), blocked + 7);
        recorder.open(true);
        poll_once(&socket, &[]).await;
        assert_eq!(account.used(), used);
    }

    #[tokio::test]
    async fn small_writes_of_a_poll_are_one_and_stay_in_order_with_long_ones() {
        let (socket, recorder, admitted) = socket(1 << 24).await;
        let used = admitted.connection.account.used();
        poll_once(&socket, &[100, 17, 3_000, 9]).await;
        assert_eq!(recorder.writes(), [3_126]);
        poll_once(&socket, &[1, MAX_COPIED_BYTES + 1, 2]).await;
        assert_eq!(recorder.writes()[1..], [1, MAX_COPIED_BYTES + 1, 2]);
        assert_eq!(admitted.connection.account.used(), used, "the queue is still charged");
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_fills_the_queue_and_no_more() {
        let (socket, recorder, admitted) = socket(1 << 24).await;
        let used = admitted.connection.account.used();
        poll_once(&socket, &[]).await;
        recorder.open(false);
        let accepted = std::iter::from_fn(|| write(&socket, 1_000).is_ready().then_some(1_000));
        let accepted: usize = accepted.take(1_000).sum();
        assert_eq!(accepted, MAX_QUEUED_BYTES / 1_000 * 1_000);
        assert_eq!(admitted.connection.account.used(), used + MAX_QUEUED_BYTES);
        assert!(admitted.connection.is_blocked());
        recorder.open(true);
        poll_once(&socket, &[]).await;
        assert_eq!(recorder.writes(), [accepted]);
        assert_eq!(admitted.connection.account.used(), used);
        assert!(!admitted.connection.is_blocked());
    }

    /// The connection itself takes 40 KiB of the half of the budget that it may use.
    #[tokio::test]
    async fn writes_go_on_without_memory_for_the_queue() {
        let (socket, recorder, _admitted) = socket(90_000).await;
        poll_once(&socket, &[100, 200]).await;
        assert_eq!(recorder.writes(), [100, 200]);
    }

    #[tokio::test]
    async fn take_sends_gathered_bytes() {
        let (socket, recorder, _admitted) = socket(1 << 24).await;
        poll_once(&socket, &[]).await;
        assert_eq!(write(&socket, 5), Poll::Ready(5));
        drop(socket.lock().take());
        assert_eq!(recorder.writes(), [5]);
    }
}
