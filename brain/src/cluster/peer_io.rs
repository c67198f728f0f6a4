//! A connection to a member, whose bytes are counted.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::metrics::PeerBytes;
use crate::net::serve::Io;

/// A byte stream with the counters of the member at its other end.
pub(super) struct PeerIo {
    pub(super) io: Box<dyn Io>,
    pub(super) bytes: PeerBytes,
}

impl PeerIo {
    fn sent(&self, written: io::Result<usize>) -> io::Result<usize> {
        if let Ok(len) = &written {
            self.bytes.sent.inc_by(*len as u64);
        }
        written
    }
}

impl AsyncRead for PeerIo {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = ready!(Pin::new(&mut self.io).poll_read(cx, buf));
        self.bytes.received.inc_by((buf.filled().len() - before) as u64);
        Poll::Ready(read)
    }
}

impl AsyncWrite for PeerIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write(cx, buf));
        Poll::Ready(self.sent(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, bufs));
        Poll::Ready(self.sent(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
