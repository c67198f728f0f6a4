//! Lingering close: from a connection that this side has ended is read until the client has closed it, too.
//!
//! Else the kernel answers what the client still sends with RST, and the client may never read the GOAWAY that tells it which of its
//! requests were not begun. grpc-go's server does the same.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::admission::Io;

/// How long a client may take to close a connection after this side has; as in grpc-go.
const LINGER: Duration = Duration::from_secs(1);

/// Where the bytes of a connection are left by whoever spoke HTTP over them.
#[derive(Clone, Default)]
pub(super) struct Left(Arc<Mutex<Option<Box<dyn Io>>>>);

impl Left {
    /// Nobody speaks HTTP over `io` any more.
    pub(super) fn leave(&self, io: Box<dyn Io>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(io);
    }

    /// Closes this side, and waits for the client to close the other, or to be gone.
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
        // Whether it has closed or is gone is the same from here on.
        drop(timeout(LINGER, closed).await);
    }
}
