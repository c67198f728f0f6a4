//! Puts the revisions together that a watch over all keys sends.

use prost::Message as _;

use super::source::SourceCompacted;
use crate::snapshot::RevisionEvents;
use etcd_types::pb::etcdserverpb::WatchResponse;
use etcd_types::pb::mvccpb;
use etcd_types::types::Revision;

/// The events that one watch has sent so far.
#[derive(Debug)]
pub(super) struct EventAssembler {
    /// The last complete revision.
    last: Revision,
    /// The revision that may get more events: its response was a fragment.
    open: Option<RevisionEvents>,
}

/// The source has ended a watch.
#[derive(Debug, thiserror::Error)]
#[error("the source has ended the watch: {0}")]
pub(super) struct WatchCancelled(pub(super) String);

impl EventAssembler {
    /// Expects the revision after `last` next.
    pub(super) fn new(last: Revision) -> Self {
        Self { last, open: None }
    }

    /// Returns the revisions that are complete with this response. Fails with [`SourceCompacted`] or [`WatchCancelled`] if the source has ended
    /// the watch, and if a revision is missing, comes twice, or does not decode.
    pub(super) fn take(&mut self, response: WatchResponse) -> anyhow::Result<Vec<RevisionEvents>> {
        if response.compact_revision > 0 {
            return Err(SourceCompacted(response.compact_revision).into());
        }
        if response.canceled {
            return Err(WatchCancelled(response.cancel_reason).into());
        }
        let mut complete = Vec::new();
        for event in response.events {
            let kv = decode(event)?;
            let revision = kv.mod_revision;
            match &mut self.open {
                Some(open) if open.revision == revision => open.kvs.push(kv),
                open => {
                    let before = open.as_ref().map_or(self.last, |open| open.revision);
                    anyhow::ensure!(
                        revision == before + 1,
                        "the source sent revision {revision} after revision {before}"
                    );
                    complete.extend(open.replace(RevisionEvents {
                        revision,
                        kvs: vec![kv],
                    }));
                    self.last = before;
                }
            }
        }
        if !response.fragment
            && let Some(open) = self.open.take()
        {
            self.last = open.revision;
            complete.push(open);
        }
        Ok(complete)
    }
}

/// Decodes an event. A deletion has version 0.
fn decode(event: bytes::Bytes) -> anyhow::Result<mvccpb::KeyValue> {
    let event = mvccpb::Event::decode(event)?;
    let is_delete = event.r#type() == mvccpb::event::EventType::Delete;
    let kv = event.kv.unwrap_or_default();
    anyhow::ensure!(
        is_delete == (kv.version == 0),
        "the source sent an event of revision {} that is neither a put nor a deletion",
        kv.mod_revision
    );
    Ok(kv)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(key: &'static str, revision: Revision, version: i64) -> bytes::Bytes {
        let kv = mvccpb::KeyValue {
            key: key.into(),
            mod_revision: revision,
            version,
            ..mvccpb::KeyValue::default()
        };
        let kind = if version > 0 {
            mvccpb::event::EventType::Put
        } else {
            mvccpb::event::EventType::Delete
        };
        let event = mvccpb::Event {
            r#type: kind.into(),
            kv: Some(kv),
            prev_kv: None,
        };
        event.encode_to_vec().into()
    }

    fn response(events: &[bytes::Bytes], fragment: bool) -> WatchResponse {
        WatchResponse {
            events: events.to_vec(),
            fragment,
            ..WatchResponse::default()
        }
    }

    fn keys(revised: &[RevisionEvents]) -> Vec<(Revision, Vec<(&str, i64)>)> {
        let key = |kv: &'_ mvccpb::KeyValue| kv.key.clone();
        assert!(
            revised
                .iter()
                .flat_map(|revised| &revised.kvs)
                .all(|kv| !key(kv).is_empty())
        );
        let kvs = |revised: &'_ RevisionEvents| revised.kvs.iter().map(|kv| (text(&kv.key), kv.version)).collect();
        revised.iter().map(|revised| (revised.revision, kvs(revised))).collect()
    }

    fn text(key: &[u8]) -> &'static str {
        ["a", "b", "c"].into_iter().find(|text| text.as_bytes() == key).unwrap()
    }

    #[test]
    fn revisions_are_whole_and_events_keep_their_order() {
        let mut assembler = EventAssembler::new(4);
        let first = response(
            &[event("b", 5, 1), event("a", 5, 2), event("a", 6, 0), event("c", 7, 1)],
            true,
        );
        let complete = assembler.take(first).unwrap();
        assert_eq!(keys(&complete), [(5, vec![("b", 1), ("a", 2)]), (6, vec![("a", 0)])]);
        let complete = assembler.take(response(&[event("b", 7, 0)], true)).unwrap();
        assert!(complete.is_empty());
        let complete = assembler
            .take(response(&[event("a", 7, 1), event("a", 8, 2)], false))
            .unwrap();
        assert_eq!(
            keys(&complete),
            [(7, vec![("c", 1), ("b", 0), ("a", 1)]), (8, vec![("a", 2)])]
        );
        // A progress notification.
        assert!(assembler.take(response(&[], false)).unwrap().is_empty());
        assert_eq!(
            keys(&assembler.take(response(&[event("a", 9, 3)], false)).unwrap()),
            [(9, vec![("a", 3)])]
        );
    }

    #[test]
    fn revision_that_is_missing_or_comes_again_is_refused() {
        for revisions in [&[6][..], &[4], &[5, 7], &[5, 6, 5], &[5, 4]] {
            let events: Vec<_> = revisions.iter().map(|revision| event("a", *revision, 1)).collect();
            let refused = EventAssembler::new(4).take(response(&events, false)).unwrap_err();
            assert!(
                refused.to_string().contains("after revision"),
                "{revisions:?}: {refused}"
            );
        }
        let mut assembler = EventAssembler::new(4);
        assembler.take(response(&[event("a", 5, 1)], false)).unwrap();
        let again = assembler.take(response(&[event("b", 5, 1)], false));
        assert!(again.is_err(), "a revision came in two parts");
    }

    #[test]
    fn end_of_a_watch_has_a_reason() {
        let compacted = WatchResponse {
            canceled: true,
            compact_revision: 9,
            ..WatchResponse::default()
        };
        let error = EventAssembler::new(4).take(compacted).unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(SourceCompacted(9))));
        let cancelled = WatchResponse {
            canceled: true,
            cancel_reason: "etcdserver: no leader".to_owned(),
            ..WatchResponse::default()
        };
        let error = EventAssembler::new(4).take(cancelled).unwrap_err();
        assert!(error.to_string().contains("no leader"), "{error}");
    }
}
