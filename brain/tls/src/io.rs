//! Byte streams over any transport.

use tokio::io::{AsyncRead, AsyncWrite};

/// A byte stream over any transport.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}
