//! Ports: sockets, TLS, connections and their limits, HTTP pages.

pub mod http;
pub mod listen;
pub mod require_leader;
pub mod serve;
pub mod tls;
