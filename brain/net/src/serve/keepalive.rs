//! Pings silent connections over HTTP/2, and tells those whose clients are gone.

use std::pin::Pin;
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep, sleep_until};
use tracing::debug;

use super::connections::ConnectionState;

/// Pings of idle connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Ping after this time without traffic; `None`: never.
    pub interval: Option<Duration>,
    /// Close the connection if a ping is not answered within this time.
    pub timeout: Duration,
    /// The least time between pings of a client that has open streams.
    pub min_time: Duration,
}

/// Pings a silent client according to `--grpc-keepalive-interval` and `--grpc-keepalive-timeout`.
pub(super) struct KeepalivePings {
    options: Keepalive,
    ping: Option<PingPong>,
    wake: Pin<Box<Sleep>>,
    /// The number of bytes received as of the last check.
    received: u64,
    asked: bool,
}

impl KeepalivePings {
    pub(super) fn new(options: Keepalive, ping: Option<PingPong>) -> Self {
        let interval = options.interval.unwrap_or_default();
        Self {
            ping: ping.filter(|_| options.interval.is_some()),
            wake: Box::pin(sleep_until(Instant::now() + interval)),
            received: 0,
            asked: false,
            options,
        }
    }

    /// Completes when a ping was not answered in time.
    pub(super) async fn missed(self: Pin<&mut Self>, connection: &ConnectionState) {
        let this = self.get_mut();
        let (Some(ping), Some(interval)) = (&mut this.ping, this.options.interval) else {
            return std::future::pending().await;
        };
        loop {
            this.wake.as_mut().await;
            let received = connection.received();
            let next = if received != this.received {
                this.asked = false;
                interval
            } else if this.asked {
                return;
            } else {
                this.asked = true;
                if let Err(error) = ping.send_ping(Ping::opaque()) {
                    debug!(%error, "could not send a ping");
                }
                this.options.timeout
            };
            this.received = received;
            this.wake.as_mut().reset(Instant::now() + next);
        }
    }
}
