//! What a source does after it was compared with its copy: leases of keys run out although no client writes.

use std::collections::HashSet;

use bytes::Bytes;

use crate::snapshot::RevisionEvents;
use etcd_types::types::Revision;

/// Tells the writes of clients from the ends of leases. A client that deletes a key with a lease is taken for the end of the lease: either
/// way the deletion is copied.
#[derive(Debug)]
pub(super) struct ChangesSinceComparison {
    /// The keys that had leases.
    leased: HashSet<Bytes>,
    /// The first revision that a client wrote.
    written: Option<Revision>,
}

impl ChangesSinceComparison {
    /// Nothing has changed yet.
    pub(super) fn new(leased: HashSet<Bytes>) -> Self {
        Self { leased, written: None }
    }

    /// Notes revisions of the source, in order.
    pub(super) fn note(&mut self, revised: &[RevisionEvents]) {
        let by_client = |revised: &&RevisionEvents| {
            let mut kvs = revised.kvs.iter();
            kvs.any(|kv| kv.version > 0 || !self.leased.contains(&kv.key))
        };
        self.written = self
            .written
            .or_else(|| revised.iter().find(by_client).map(|revised| revised.revision));
    }

    /// Returns the first revision that a client wrote.
    pub(super) fn written(&self) -> Option<Revision> {
        self.written
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
        let since = || ChangesSinceComparison::new(["a".into(), "b".into()].into());
        let mut changes = since();
        changes.note(&[revised(5, &[("a", 0), ("b", 0)])]);
        assert_eq!(changes.written(), None);
        changes.note(&[revised(6, &[("a", 0)]), revised(7, &[("a", 0), ("c", 0)])]);
        changes.note(&[revised(8, &[("c", 0)])]);
        assert_eq!(changes.written(), Some(7));
        let mut changes = since();
        changes.note(&[revised(5, &[("a", 2)])]);
        assert_eq!(changes.written(), Some(5));
    }
}
