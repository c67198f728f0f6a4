//! Leases of the writer: which end, how many there may be, and whose keys a user may write.

pub(super) mod limit;
pub(super) mod permission;
pub(super) mod revoke_expired;
