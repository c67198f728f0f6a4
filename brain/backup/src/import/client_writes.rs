//! Writes of clients among the changes of a source: leases of keys run out although no client writes.

use std::collections::HashSet;

use bytes::Bytes;
use tokio::time::{Duration, Instant};

use crate::snapshot::RevisionEvents;
use etcd_types::types::Revision;

/// Tells the writes of clients from the ends of leases, from a moment on. A client that deletes a key with a lease is taken for the end of the
/// lease: either way the deletion is copied.
#[derive(Debug)]
pub(super) struct ClientWrites {
    since: Instant,
    /// The keys that had leases then.
    leased: HashSet<Bytes>,
    /// The first revision that a client wrote.
    first: Option<Revision>,
}

impl ClientWrites {
    /// Begins now.
    pub(super) fn new(leased: HashSet<Bytes>) -> Self {
        Self {
            since: Instant::now(),
            leased,
            first: None,
        }
    }

    /// Notes revisions of the source, in order.
    pub(super) fn note(&mut self, revised: &[RevisionEvents]) {
        let by_client = |revised: &&RevisionEvents| {
            let mut kvs = revised.kvs.iter();
            kvs.any(|kv| kv.version > 0 || !self.leased.contains(&kv.key))
        };
        self.first = self
            .first
            .or_else(|| revised.iter().find(by_client).map(|revised| revised.revision));
    }

    /// Returns the first revision that a client wrote.
    pub(super) fn first(&self) -> Option<Revision> {
        self.first
    }

    /// Returns how long it has looked.
    pub(super) fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etcd_types::pb::mvccpb;

    fn revised(revision: Revision, changes: &[(&'static str, i64)]) -> RevisionEvents {
        let kvs = changes.iter().map(|(key, version)| mvccpb::KeyValue {
            key: (*key).into(),
            version: *version,
            mod_revision: revision,
            ..Default::default()
        });
        RevisionEvents {
            revision,
            kvs: kvs.collect(),
        }
    }

    #[test]
    fn only_deletions_of_keys_with_leases_are_no_writes() {
        let since = || ClientWrites::new(["a".into(), "b".into()].into());
        let mut writes = since();
        writes.note(&[revised(5, &[("a", 0), ("b", 0)])]);
        assert_eq!(writes.first(), None);
        writes.note(&[revised(6, &[("a", 0)]), revised(7, &[("a", 0), ("c", 0)])]);
        writes.note(&[revised(8, &[("c", 0)])]);
        assert_eq!(writes.first(), Some(7));
        let mut writes = since();
        writes.note(&[revised(5, &[("a", 2)])]);
        assert_eq!(writes.first(), Some(5));
    }
}
