//! Lingering close: after this side has ended a connection, it reads until the client has closed it, too.
//!
//! Otherwise the kernel answers data that the client still sends with RST, and the client may never read the GOAWAY that tells it
//! which of its requests were not begun. grpc-go's server does the same.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use tls::Io;

/// The time within which a client must close a connection after this side has, while the server runs; as in grpc-go.
pub(super) const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// Takes back the byte stream of a connection from the HTTP implementation.
#[derive(Clone, Default)]
pub(super) struct ReturnedStream(Arc<Mutex<Option<Box<dyn Io>>>>);

impl ReturnedStream {
    /// Stores `io` after HTTP has ended on it.
    pub(super) fn leave(&self, io: Box<dyn Io>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(io);
    }

    /// Closes this side, and waits until the client closes the other side or is gone.
    pub(super) async fn linger(self) {
        let left = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut io) = left else {
            return;
        };
        let closed = async {
            io.shutdown().await?;
            let mut ignored = [0; 512];
            while io.read(&mut ignored).await? > 0 {}
            std::io::Result::Ok(())
        };
        // It makes no difference whether the client closed the connection or is gone.
        drop(closed.await);
    }
}
