//! What storage engines bring to a member, whichever it is.

use brain::api::cluster::Members;
use brain::api::elsewhere::Role;
use brain::flags::{Config, Quota};
use brain::member::lock::AnyLock;
use brain::member::peers::Peers;
use brain::serve::Server;
use election::Config as ElectionConfig;
use tokio::sync::watch;

/// What an engine brings.
pub(crate) struct Engine<L, R, C, Q> {
    pub(crate) log: L,
    pub(crate) rows: R,
    pub(crate) lock: AnyLock<C>,
    pub(crate) timing: ElectionConfig,
    pub(crate) space: Q,
    pub(crate) ids: Ids,
    pub(crate) members: Members,
    /// Told who leads.
    pub(crate) roles: watch::Sender<Role>,
    /// The others, where there are any.
    pub(crate) peers: Option<(Server, Peers)>,
}

/// Told in every answer.
#[derive(Clone, Copy)]
pub(crate) struct Ids {
    pub(crate) cluster: u64,
    pub(crate) member: u64,
}

/// The bytes that the store may occupy.
pub(crate) fn quota(config: &Config) -> Option<u64> {
    match config.limits.quota {
        Quota::Off => None,
        Quota::Bytes(bytes) => Some(bytes),
    }
}
