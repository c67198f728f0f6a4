//! The byte stream of a connection: counted, and inspected before HTTP takes over.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Instant;

use bytes::{Buf as _, Bytes};
use futures::FutureExt as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};

use super::connections::{CloseReason, ConnectionState, FIRST_REQUEST_TIMEOUT};
use super::frames::{FRAME_HEADER_BYTES, FrameFollower, PREFACE, SETTINGS};
use super::headers::{FollowOutcome, HeaderBlocks};
use super::lingering_close::ReturnedStream;
use super::socket::{QueuedSocket, SharedSocket};
use telemetry::metrics::NetworkMetrics;
use tls::Io;

const WINDOW_UPDATE: u8 = 8;

/// GOAWAY without an error: no stream was begun.
const GOAWAY_FRAME: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The code ENHANCE_YOUR_CALM at the end of a GOAWAY, and the debug data that grpc-go adds after it for a client that pings too often:
/// grpc-go's clients ping less when they receive it.
const ENHANCE_YOUR_CALM: u32 = 11;
const TOO_MANY_PINGS: &[u8] = b"too_many_pings";

/// The most bytes that are kept of those that a client sends before its first request. If it sends more, h2 takes over.
const MAX_KEPT_BYTES: usize = 1024;

/// The most bytes of HTTP/1 that are read at a time.
const HTTP1_READ_BYTES: usize = 32 * 1024;

/// Counts the bytes of a connection and records when it was idle. On drop the wrapped I/O is handed over to be closed later.
pub(super) struct CountedStream {
    socket: SharedSocket,
    /// The bytes that were read ahead; they are read again.
    read: Bytes,
    /// The number of bytes, at the beginning of the next write, that were already sent.
    sent_ahead: usize,
    connection: Arc<ConnectionState>,
    /// The frames of the client, while they are watched. Apart, because connections are many.
    frames: Option<Box<FrameFollower>>,
    /// Its header blocks, while frames are watched.
    headers: Option<Box<HeaderBlocks>>,
    /// Bytes that were followed, to be passed on next.
    followed: Bytes,
    /// True if the client speaks HTTP/1.
    is_http1: bool,
    /// True if the client sent too many SETTINGS or PINGs, or headers for which there is no memory.
    is_flooded: bool,
    left: ReturnedStream,
}

impl CountedStream {
    pub(super) fn new(
        io: Box<dyn Io>,
        connection: Arc<ConnectionState>,
        network: NetworkMetrics,
        left: ReturnedStream,
    ) -> Self {
        Self {
            socket: SharedSocket::new(QueuedSocket::new(io, Arc::clone(&connection), network)),
            read: Bytes::new(),
            sent_ahead: 0,
            connection,
            frames: None,
            headers: None,
            followed: Bytes::new(),
            is_http1: false,
            is_flooded: false,
            left,
        }
    }

    /// Begins to count SETTINGS, and PINGs if there is a least time between them, and closes the connection of a client that sends too
    /// many. Begins to follow header blocks, too. The next read must begin at the preface.
    pub(super) fn watch_frames(&mut self, ping_min_time: Option<Duration>) {
        self.frames = Some(Box::new(FrameFollower::new(Instant::now(), ping_min_time)));
        self.headers = Some(Box::new(HeaderBlocks::new()));
    }

    /// Begins to charge the heads of HTTP/1. hyper's buffer may grow to the length of the longest head: so that it does not for bodies, no
    /// more than [`HTTP1_READ_BYTES`] bytes are read at a time.
    pub(super) fn watch_heads(&mut self) {
        self.is_http1 = true;
    }

    pub(super) fn socket(&self) -> SharedSocket {
        self.socket.clone()
    }

    /// Sends SETTINGS as soon as `is_open` completes or the HTTP/2 client sends anything but its own SETTINGS, and waits for the
    /// latter. Until then the connection needs no memory for h2, which then reads everything again and whose own SETTINGS, the same
    /// ones, are not sent a second time.
    pub(super) async fn read_settings(&mut self, settings: &[u8], is_open: impl Future<Output = ()>) -> io::Result<()> {
        if settings.is_empty() {
            return Ok(());
        }
        let mut seen = std::mem::take(&mut self.read).to_vec();
        tokio::select! {
            biased;
            () = is_open => {}
            asked = self.read_request(&mut seen) => asked?,
        }
        self.write_all(settings).await?;
        self.flush().await?;
        self.sent_ahead = settings.len();
        // The client may have waited for a long time.
        self.connection.expect_request(FIRST_REQUEST_TIMEOUT);
        self.read_request(&mut seen).await?;
        self.read = Bytes::from(seen);
        Ok(())
    }

    /// Reads until the client has sent something that needs an answer. Cancel safe.
    async fn read_request(&mut self, seen: &mut Vec<u8>) -> io::Result<()> {
        while says_no_more_than_settings(seen) {
            let mut buf = [0; 128];
            match self.read(&mut buf).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => seen.extend_from_slice(&buf[..len]),
            }
        }
        Ok(())
    }

    /// Sends GOAWAY to a client none of whose requests was begun, if it reads. `settings` must be sent first, unless they were already.
    pub(super) fn go_away(mut self, settings: &[u8]) {
        let settings = match std::mem::take(&mut self.sent_ahead) {
            0 => settings,
            _ => &[],
        };
        // The client may be gone.
        drop(self.write_all(&[settings, &GOAWAY_FRAME].concat()).now_or_never());
    }

    /// Returns true if the client sends the HTTP/2 preface. The bytes are read again later.
    pub(super) async fn read_preface(&mut self) -> io::Result<bool> {
        let mut buf = [0; PREFACE.len()];
        let mut len = 0;
        while len < PREFACE.len() && buf[..len] == PREFACE[..len] {
            match self.read(&mut buf[len..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => len += read,
            }
        }
        self.read = Bytes::copy_from_slice(&buf[..len]);
        Ok(buf[..len] == *PREFACE)
    }

    /// Writes bytes that end with h2's GOAWAY, to a client that pings too often, with the reason that gRPC clients look for: h2 cannot
    /// send one. Returns `None` for other bytes.
    fn explain_goaway(&self, cx: &mut Context<'_>, buf: &[u8]) -> Option<Poll<io::Result<usize>>> {
        let at = buf.len().checked_sub(GOAWAY_FRAME.len())?;
        let (before, goaway) = buf.split_at(at);
        if goaway[..FRAME_HEADER_BYTES] != GOAWAY_FRAME[..FRAME_HEADER_BYTES]
            || !goaway.ends_with(&ENHANCE_YOUR_CALM.to_be_bytes())
        {
            return None;
        }
        let mut socket = self.socket.lock();
        if !before.is_empty() {
            // It is written alone, next.
            return Some(socket.poll_write(cx, &[io::IoSlice::new(before)]));
        }
        let mut explained = [goaway, TOO_MANY_PINGS].concat();
        explained[2] += TOO_MANY_PINGS.len() as u8;
        let polled = socket.poll_write(cx, &[io::IoSlice::new(&explained)]);
        Some(polled.map_ok(|sent| match explained.len() - sent {
            0 => goaway.len(),
            // It is the last frame. Its end is lost.
            _ => sent.min(goaway.len()),
        }))
    }

    /// Returns the number of bytes of `buf` that were already sent, if any were.
    fn skip(&mut self, buf: &[u8]) -> Option<usize> {
        let len = self.sent_ahead.min(buf.len());
        self.sent_ahead -= len;
        (len > 0).then_some(len)
    }
}

impl Drop for CountedStream {
    fn drop(&mut self) {
        let io = self.socket.lock().take();
        self.left.leave(io);
    }
}

/// Returns true if a client has sent its preface, and nothing after it that needs an answer yet.
fn says_no_more_than_settings(seen: &[u8]) -> bool {
    let mut rest = seen.strip_prefix(PREFACE).unwrap_or_default();
    while let Some((head, behind)) = rest.split_first_chunk::<FRAME_HEADER_BYTES>() {
        let len = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        if ![SETTINGS, WINDOW_UPDATE].contains(&head[3]) || len > MAX_KEPT_BYTES {
            return false;
        }
        match behind.get(len..) {
            Some(next) => rest = next,
            None => break,
        }
    }
    seen.len() < MAX_KEPT_BYTES
}

impl CountedStream {
    /// Reads what was read ahead, else from the socket.
    fn poll_raw(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.read.is_empty() {
            return self.socket.lock().poll_read(cx, buf);
        }
        let len = self.read.len().min(buf.remaining());
        buf.put_slice(&self.read[..len]);
        self.read.advance(len);
        if self.read.is_empty() {
            // Not kept as long as the connection.
            self.read = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }

    /// Reads from a client of HTTP/1.
    fn poll_http1(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let room = buf.remaining().min(HTTP1_READ_BYTES);
        let mut part = ReadBuf::new(buf.initialize_unfilled_to(room));
        ready!(self.poll_raw(cx, &mut part))?;
        if let Err(reason) = self.connection.read_head(part.filled()) {
            self.is_flooded = true;
            self.socket.lock().close(reason);
            return Poll::Pending;
        }
        let len = part.filled().len();
        buf.advance(len);
        Poll::Ready(Ok(()))
    }

    /// Follows the frames in what was read from `before` on. Returns the reason to close the connection, if there is one.
    fn follow(&mut self, buf: &mut ReadBuf<'_>, before: usize) -> Option<CloseReason> {
        let frames = self.frames.as_mut()?;
        if let Some(reason) = frames.flood(&buf.filled()[before..], Instant::now(), &*self.connection) {
            return Some(reason);
        }
        let headers = self.headers.as_mut()?;
        let mut done = Vec::new();
        let fresh = &mut buf.filled_mut()[before..];
        let followed = headers.follow(fresh, &self.connection.account, &mut done);
        self.connection.keep_headers(done);
        match followed {
            Ok(FollowOutcome::Here(len)) => buf.set_filled(before + len),
            Ok(FollowOutcome::Instead(bytes)) => {
                self.followed = bytes;
                buf.set_filled(before);
            }
            Err(_) => return Some(CloseReason::Memory),
        }
        None
    }

    fn pass_on(&mut self, buf: &mut ReadBuf<'_>) {
        let len = self.followed.len().min(buf.remaining());
        buf.put_slice(&self.followed.split_to(len));
        if self.followed.is_empty() {
            self.followed = Bytes::new();
        }
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        loop {
            if this.is_flooded {
                // Its task was woken to close it; nothing more is taken from it.
                return Poll::Pending;
            }
            if !this.followed.is_empty() {
                this.pass_on(buf);
                return Poll::Ready(Ok(()));
            }
            if this.is_http1 {
                return this.poll_http1(cx, buf);
            }
            ready!(this.poll_raw(cx, buf))?;
            if buf.filled().len() == before {
                // The end of the stream, or a buffer without room, which no caller passes.
                if let Some(headers) = &mut this.headers {
                    this.followed = headers.take_held();
                    this.pass_on(buf);
                }
                return Poll::Ready(Ok(()));
            }
            if let Some(reason) = this.follow(buf, before) {
                this.is_flooded = true;
                buf.set_filled(before);
                this.socket.lock().close(reason);
                return Poll::Pending;
            }
            // The bytes that were read may have been held back.
            if buf.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if let Some(len) = self.skip(buf) {
            return Poll::Ready(Ok(len));
        }
        if self.connection.reason() == Some(CloseReason::Pings)
            && let Some(polled) = self.explain_goaway(cx, buf)
        {
            return polled;
        }
        self.socket.lock().poll_write(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Some(len) = bufs.iter().find_map(|buf| self.skip(buf)) {
            return Poll::Ready(Ok(len));
        }
        if self.connection.reason() == Some(CloseReason::Pings)
            && let Some(buf) = bufs.iter().find(|buf| !buf.is_empty())
            && let Some(polled) = self.explain_goaway(cx, buf)
        {
            return polled;
        }
        self.socket.lock().poll_write(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.lock().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.lock().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.lock().poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS_FRAME: [u8; 15] = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0];
    const ACK: [u8; 9] = [0, 0, 0, 4, 1, 0, 0, 0, 0];
    const WINDOW_UPDATE_FRAME: [u8; 13] = [0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 1, 0, 0];

    #[test]
    fn settings_and_windows_need_no_answer_and_all_else_does() {
        let quiet = [PREFACE, &SETTINGS_FRAME, &WINDOW_UPDATE_FRAME, &ACK].concat();
        for len in PREFACE.len()..=quiet.len() {
            assert!(says_no_more_than_settings(&quiet[..len]), "{len} bytes");
        }
        for kind in [0_u8, 1, 2, 3, 5, 6, 7, 9, 10, 255] {
            let frame = [0, 0, 1, kind, 0, 0, 0, 0, 1];
            assert!(
                !says_no_more_than_settings(&[&quiet[..], &frame].concat()),
                "type {kind}"
            );
        }
        let long = [0xff, 0xff, 0xff, SETTINGS, 0, 0, 0, 0, 0];
        assert!(!says_no_more_than_settings(&[PREFACE, &long].concat()), "a long frame");
        let many = [PREFACE, &ACK.repeat(MAX_KEPT_BYTES)].concat();
        assert!(!says_no_more_than_settings(&many), "many frames");
    }
}
