//! The gRPC side: PD and the stores.

mod answer;
mod commands;
mod endpoint;
mod gc;
mod pd;
mod shared;
mod socket;
mod store;

pub(crate) use endpoint::Endpoint;
pub use endpoint::EndpointError;
pub(crate) use gc::GcStates;
pub(crate) use pd::PdServer;
pub(crate) use shared::{PD, PdMembers, Process, Shared, is_pd, pd_process};
pub(crate) use store::StoreServer;
