//! Ports: sockets, TLS, connections and their limits, HTTP pages, the JSON gateway.

mod binary;
mod gateway;
pub mod grpc_health;
pub mod http;
pub mod listen;
pub mod not_ready;
pub mod require_leader;
pub mod serve;
