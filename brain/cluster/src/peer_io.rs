//! A connection to a member, whose bytes are counted, and which ends with the certificate of that member.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use telemetry::metrics::PeerBytes;
use tls::Io;

/// A byte stream with the counters of the member at its other end.
pub(super) struct PeerIo {
    pub(super) io: Box<dyn Io>,
    pub(super) bytes: PeerBytes,
    pub(super) end: Option<CertificateEnd>,
}

/// The end of the certificate that the other side has shown.
pub(super) struct CertificateEnd {
    /// In seconds since 1970.
    at: i64,
    look: Pin<Box<Sleep>>,
}

/// The longest time until the clock, which may have been set, is looked at again.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(60);

impl CertificateEnd {
    pub(super) fn new(at: i64) -> Self {
        let look = Box::pin(sleep(Duration::ZERO));
        CertificateEnd { at, look }
    }

    /// Completes when the certificate has expired.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.look.as_mut().poll(cx));
            let Ok(left) = u64::try_from(self.at - tls::now()) else {
                return Poll::Ready(());
            };
            let next = CLOCK_CHECK_INTERVAL.min(Duration::from_secs(left + 1));
            self.look.as_mut().reset(Instant::now() + next);
        }
    }
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
        if self.end.as_mut().is_some_and(|end| end.poll(cx).is_ready()) {
            return Poll::Ready(Err(io::Error::other("the certificate of the member has expired")));
        }
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use telemetry::metrics::Metrics;

    async fn read(end: Option<i64>) -> io::Result<u8> {
        let (io, mut other) = tokio::io::duplex(16);
        let mut io = PeerIo {
            io: Box::new(io),
            bytes: Metrics::new(false).network.peers.bytes(1),
            end: end.map(CertificateEnd::new),
        };
        other.write_all(&[7]).await?;
        io.read_u8().await
    }

    #[tokio::test(start_paused = true)]
    async fn connection_ends_with_the_certificate_of_the_member() {
        assert_eq!(read(None).await.unwrap(), 7);
        assert_eq!(read(Some(tls::now() + 3_600)).await.unwrap(), 7);
        let ended = read(Some(tls::now() - 1)).await.unwrap_err();
        assert!(ended.to_string().contains("has expired"), "{ended}");
    }
}
