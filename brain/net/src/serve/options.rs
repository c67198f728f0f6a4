//! The options of ports, as flags give them.

use std::time::Duration;

use super::keepalive::Keepalive;
use crate::http::BrowserPolicy;
use crate::listen::SocketOptions;
use tls::TlsPolicy;

/// The options of ports.
#[derive(Debug, Clone)]
pub struct PortOptions {
    /// TLS versions and suites.
    pub tls_policy: TlsPolicy,
    /// Socket options of TCP listeners.
    pub socket: SocketOptions,
    /// Pings of idle connections.
    pub keepalive: Keepalive,
    /// The access of browsers.
    pub browsers: BrowserPolicy,
    /// True if the JSON gateway is served to clients.
    pub grpc_gateway: bool,
    /// The limits of requests.
    pub limits: PortLimits,
}

/// The limits of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortLimits {
    /// Longest message of a client in bytes.
    pub max_receive_bytes: usize,
    /// Most operations in one list of a txn.
    pub max_txn_ops: usize,
    /// Most streams open at a time on one connection.
    pub max_concurrent_streams: u32,
    /// Bytes of memory that requests and responses in flight may take.
    pub max_inflight_bytes: usize,
}

/// The defaults of etcd's flags, and 1 GiB in flight.
impl Default for PortOptions {
    fn default() -> Self {
        Self {
            tls_policy: TlsPolicy::default(),
            socket: SocketOptions::default(),
            keepalive: Keepalive {
                interval: Some(Duration::from_secs(7200)),
                timeout: Duration::from_secs(20),
                min_time: Duration::from_secs(5),
            },
            browsers: BrowserPolicy::default(),
            grpc_gateway: true,
            limits: PortLimits {
                max_receive_bytes: 2 << 20,
                max_txn_ops: 128,
                max_concurrent_streams: u32::MAX,
                max_inflight_bytes: 1 << 30,
            },
        }
    }
}
