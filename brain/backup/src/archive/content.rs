//! The stored form of changes: one message for each revision, preceded by its length.

use std::collections::HashMap;

use anyhow::Context as _;
use bytes::Bytes;
use prost::Message;

use crate::snapshot::{LeaseTime, RevisionEvents};
use etcd_types::pb::mvccpb;
use etcd_types::types::Revision;

/// A revision with all its changes. Deletions have version 0. Field numbers are part of the format.
#[derive(Clone, PartialEq, Message)]
struct StoredRevision {
    #[prost(int64, tag = "1")]
    revision: Revision,
    #[prost(message, repeated, tag = "2")]
    kvs: Vec<mvccpb::KeyValue>,
    /// Leases that keys of this revision name, as far as they were not stored before.
    #[prost(message, repeated, tag = "3")]
    leases: Vec<StoredLease>,
}

/// A lease. Its number of seconds is the one that was granted.
#[derive(Clone, PartialEq, Message)]
struct StoredLease {
    #[prost(int64, tag = "1")]
    id: i64,
    #[prost(int64, tag = "2")]
    ttl: i64,
}

/// Encodes revisions, each with those of the leases that its keys name. Each lease is stored once.
pub(super) fn encode(revised: Vec<RevisionEvents>, leases: Vec<LeaseTime>) -> Vec<u8> {
    let mut ttls: HashMap<i64, i64> = leases.into_iter().map(|lease| (lease.id, lease.ttl)).collect();
    let mut content = Vec::new();
    for RevisionEvents { revision, kvs } in revised {
        let named = kvs.iter().filter_map(|kv| Some((kv.lease, ttls.remove(&kv.lease)?)));
        let leases = named.map(|(id, ttl)| StoredLease { id, ttl }).collect();
        let stored = StoredRevision { revision, kvs, leases };
        stored
            .encode_length_delimited(&mut content)
            .expect("a vector takes all");
    }
    content
}

/// A decoded revision, and the times to live of leases, by id.
pub(super) struct ArchivedRevision {
    pub(super) events: RevisionEvents,
    pub(super) leases: Vec<(i64, i64)>,
}

/// Takes the next revision off the content; returns `None` at the end.
pub(super) fn decode_next(content: &mut Bytes) -> anyhow::Result<Option<ArchivedRevision>> {
    if content.is_empty() {
        return Ok(None);
    }
    let stored = StoredRevision::decode_length_delimited(content).context("decode a revision of the archive")?;
    let StoredRevision { revision, kvs, leases } = stored;
    Ok(Some(ArchivedRevision {
        events: RevisionEvents { revision, kvs },
        leases: leases.into_iter().map(|lease| (lease.id, lease.ttl)).collect(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv(key: &'static str, revision: Revision, version: i64, lease: i64) -> mvccpb::KeyValue {
        mvccpb::KeyValue {
            key: key.into(),
            value: "v".into(),
            mod_revision: revision,
            create_revision: revision,
            version,
            lease,
        }
    }

    fn revised() -> (Vec<RevisionEvents>, Vec<LeaseTime>) {
        let kvs = [
            vec![kv("a", 5, 1, 7), kv("b", 5, 1, 7)],
            vec![kv("a", 6, 1, 8), kv("b", 6, 0, 0)],
        ];
        let revised = kvs
            .into_iter()
            .zip(5..)
            .map(|(kvs, revision)| RevisionEvents { revision, kvs });
        let lease = |id, ttl| LeaseTime { id, ttl, remaining: 1 };
        (revised.collect(), vec![lease(7, 60), lease(8, 600)])
    }

    #[test]
    fn revisions_are_read_back_with_the_leases_that_they_name() {
        let (events, leases) = revised();
        let mut content = Bytes::from(encode(events, leases));
        for (expected, lease) in revised().0.into_iter().zip([(7, 60), (8, 600)]) {
            let found = decode_next(&mut content).unwrap().unwrap();
            assert_eq!(
                (found.events.revision, found.events.kvs),
                (expected.revision, expected.kvs)
            );
            assert_eq!(found.leases, [lease]);
        }
        assert!(decode_next(&mut content).unwrap().is_none());
    }

    #[test]
    fn truncated_content_is_refused() {
        let (events, leases) = revised();
        let content = Bytes::from(encode(events, leases));
        let mut cut = content.slice(..content.len() - 1);
        assert!(decode_next(&mut cut).unwrap().is_some());
        assert!(decode_next(&mut cut).is_err());
    }

    /// A format that users have stored.
    #[test]
    fn format_stays() {
        let (mut events, leases) = revised();
        let content = encode(events.drain(..1).collect(), leases);
        let hex: String = content.iter().map(|byte| format!("{byte:02x}")).collect();
        let stored = "280805120e0a01611005180520012a01763007120e0a01621005180520012a017630071a040807103c";
        assert_eq!(hex, stored);
    }
}
