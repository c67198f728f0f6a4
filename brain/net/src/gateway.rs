//! The JSON gateway: RPCs as HTTP requests with JSON bodies, mapped as etcd maps them with grpc-gateway.
//!
//! A request becomes the RPC that a gRPC client would send, and takes the same path from there; its answer becomes JSON. All methods and
//! messages are known by their descriptors.

pub(crate) use body::longest;
pub(crate) use json_to_grpc::{GatewayCall, failure};
pub(crate) use methods::{MethodLookup, find};

mod body;
mod error;
mod json;
mod json_to_grpc;
mod metadata;
mod methods;
mod numbers;
mod protojson;
mod syntax;
mod translation_limit;
mod values;
pub(crate) mod websocket;
