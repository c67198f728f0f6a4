//! Authentication of a connection before its first request is read.

use std::io;
use std::pin::Pin;

use tls::Io;

/// The authenticated member at the other end of a connection. Requests carry it as an extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerId(pub u64);

/// The outcome of an admission.
pub type AdmissionFuture<'a> = Pin<Box<dyn Future<Output = io::Result<PeerId>> + Send + 'a>>;

/// Authenticates a connection. One that fails is closed.
pub trait Admission: Send + Sync + 'static {
    /// Runs the handshake with the other end, before HTTP. May be dropped at any time.
    fn admit<'a>(&'a self, io: &'a mut dyn Io) -> AdmissionFuture<'a>;
}
