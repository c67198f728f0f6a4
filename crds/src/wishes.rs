//! Annotations of a `KubeBrainCluster` that wish for something once: the operator reads them, Argo CD's actions write them.
//!
//! A wish that was acted on stands in the status, by its text. The same text is no new wish.

/// A time since which all brains shall have been restarted, in RFC 3339. The newest counts.
pub const RESTART: &str = "kubebrain.io/restart";

/// How far a time in [`RESTART`] may lie ahead, as clocks differ. One that lies further ahead is ignored.
pub const AHEAD: std::time::Duration = std::time::Duration::from_secs(300);

/// The pod that shall lead, or [`ANY`] for any other than the leader. A text behind an `@`, such as the time, is not read: it makes
/// one wish differ from the former one.
pub const TRANSFER_LEADER: &str = "kubebrain.io/transfer-leader";

/// In [`TRANSFER_LEADER`], a leader of the operator's choice.
pub const ANY: &str = "any";

/// Who shall lead by a value of [`TRANSFER_LEADER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Successor<'a> {
    /// The operator chooses.
    Any,
    /// The pod of this name.
    Pod(&'a str),
}

impl<'a> Successor<'a> {
    /// Reads a value of [`TRANSFER_LEADER`].
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
