//! The types of a storage engine's parts.

use engine::cas_register::CasRegister;
use engine::log::Log;
use engine::rows::Rows;
use store::sequencer::SpaceQuota;

/// A storage engine: the types that a member's store consists of.
pub trait Engine: Send + Sync + 'static {
    /// Records of writes, in the order of their slots.
    type Log: Log;
    /// Versions of keys, indexed.
    type Rows: Rows;
    /// The register that holds the leader lock.
    type Register: CasRegister;
    /// The bound on the space that the store may occupy.
    type Space: SpaceQuota + Clone;
}
