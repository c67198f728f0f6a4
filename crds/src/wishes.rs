//! Annotations of a `KubeBrainCluster`, or of a `KubeBrainBackup`, that request a one-time action. The operator reads them; Argo CD's actions
//! and the kubectl plugin write them.
//!
//! The status records the text of a request that was acted on. The same text is not a new request.

/// Requests that every brain be restarted that started before this time, in RFC 3339. The newest time counts.
pub const RESTART: &str = "kubebrain.io/restart";

/// Maximum time by which [`RESTART`] may be in the future, to allow for clock skew. A later time is ignored.
pub const AHEAD: std::time::Duration = std::time::Duration::from_secs(300);

/// Requests that this pod become the leader, or with [`ANY`] any pod but the current leader. Text after an `@`, such as the time, is
/// ignored: it only makes one request differ from the previous one.
pub const TRANSFER_LEADER: &str = "kubebrain.io/transfer-leader";

/// Value of [`TRANSFER_LEADER`] that lets the operator choose the leader.
pub const ANY: &str = "any";

/// Ends a copy that follows an etcd, if it is [`CUTOVER_VALUE`]; any other value is ignored. The operator copies it to the pod that makes the copy.
pub const CUTOVER: &str = "kubebrain.io/cutover";

/// The value of [`CUTOVER`].
pub const CUTOVER_VALUE: &str = "true";

/// Requests on a `KubeBrainBackup` that a complete backup be read again, and compared with what was written. Any new value is a new request.
pub const VERIFY: &str = "kubebrain.io/verify";

/// Maximum length of a value of [`VERIFY`]. A longer one is ignored.
pub const MAX_VERIFY_BYTES: usize = 256;

/// The next leader according to a value of [`TRANSFER_LEADER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Successor<'a> {
    /// The operator chooses.
    Any,
    /// The pod of this name.
    Pod(&'a str),
}

impl<'a> Successor<'a> {
    /// Parses a value of [`TRANSFER_LEADER`].
    #[must_use]
    pub fn of(wish: &'a str) -> Self {
        match wish.split_once('@').map_or(wish, |(successor, _)| successor) {
            ANY => Self::Any,
            pod => Self::Pod(pod),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_behind_the_successor_is_not_read() {
        for (wish, successor) in [
            ("any", Successor::Any),
            ("any@2026-11-21T00:00:00Z", Successor::Any),
            ("dev-1", Successor::Pod("dev-1")),
            ("dev-1@2@any", Successor::Pod("dev-1")),
            ("anybody", Successor::Pod("anybody")),
        ] {
            assert_eq!(Successor::of(wish), successor, "{wish}");
        }
    }
}
