//! The parts of a member that depend on its storage engine.

use engine::log::DynLog;
use engine::rows::DynRows;
use std::sync::Arc;
use store::sequencer::DynSpaceQuota;

use crate::flags::{Config, Quota, Storage};
use cluster::forward::Role;
use cluster::lock::ElectionLock;
use cluster::members::Members;
use cluster::membership::RemoveMember;
use cluster::peers::Peers;
use election::Config as ElectionConfig;
use engine_local::rows;
use mvcc::row::OBJECT_HEADER_BYTES;
use net::http::member::StorageInUse;
use net::serve::Server;
use runtime::own_thread::OwnThread;
use tokio::sync::watch;

/// A storage engine that is open, and the parts that come with it.
pub(crate) struct OpenEngine {
    pub(crate) log: DynLog,
    pub(crate) rows: DynRows,
    pub(crate) lock: ElectionLock,
    pub(crate) timing: ElectionConfig,
    /// Runs the election, which must renew its lock however many requests there are.
    pub(crate) election_thread: OwnThread,
    pub(crate) space: DynSpaceQuota,
    pub(crate) ids: HeaderIds,
    /// Description of the storage, for `/member`.
    pub(crate) storage: StorageInUse,
    pub(crate) members: Members,
    /// Removes members that are gone.
    pub(crate) remove: Option<Arc<dyn RemoveMember>>,
    /// Publishes the role of this member.
    pub(crate) roles: watch::Sender<Role>,
    /// The port for peers and the connections to them, if there are any.
    pub(crate) peers: Option<(Server, Peers)>,
}

/// The ids in every response header.
#[derive(Clone, Copy)]
pub(crate) struct HeaderIds {
    pub(crate) cluster: u64,
    pub(crate) member: u64,
}

/// Lowers `--max-request-bytes` to the engine's limit: otherwise a larger value could be acknowledged and never become a row.
pub(crate) fn cap_requests(config: &mut Config) {
    let (engine, longest) = match config.storage {
        Storage::Embedded => ("the embedded store", rows::MAX_VALUE_LEN),
        Storage::Tikv(_) => ("TiKV", engine_tikv::MAX_VALUE_LEN),
    };
    let (asked, longest) = (config.limits.max_request_bytes, longest - OBJECT_HEADER_BYTES);
    if asked > longest {
        tracing::warn!(
            "--max-request-bytes of {asked} is more than {engine} accepts: requests of more than {longest} bytes are refused"
        );
        config.limits.max_request_bytes = longest;
    }
}

/// Returns the bytes that the store may occupy.
pub(crate) fn quota(config: &Config) -> Option<u64> {
    match config.limits.quota {
        Quota::Off => None,
        Quota::Bytes(bytes) => Some(bytes),
    }
}
