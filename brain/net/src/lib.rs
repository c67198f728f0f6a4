//! Ports: sockets, connections and their limits, HTTP pages, the JSON gateway.
//!
//! It must not know how a store works: others give it gRPC services, and answers for its pages.

mod binary;
mod gateway;
pub mod grpc_health;
pub mod http;
pub mod listen;
pub mod not_ready;
pub mod refusal;
pub mod require_leader;
pub mod serve;
