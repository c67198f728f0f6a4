//! The laws of [`History`], for every implementation.

#![allow(clippy::unwrap_used, reason = "a law that does not hold is a failed test")]
#![allow(async_fn_in_trait, reason = "the trait is for tests")]

use bytes::Bytes;

use super::{History, HistoryError};
use crate::PrevKv;
use etcd_types::types::{Committed, Event, EventKind, Revision};

/// A fresh store at revision 1 that creates history on command; each command returns after publication.
pub trait Subject {
    /// The history to be checked.
    type History: History;

    /// Returns the history of the store.
    fn history(&self) -> &Self::History;

    /// Sets a key.
    async fn put(&mut self, key: &'static str, value: Bytes);

    /// Deletes an existing key.
    async fn delete(&mut self, key: &'static str);

    /// Compacts at a revision.
    async fn compact(&mut self, revision: Revision);
}

/// Checks all laws. Every store must be a fresh one.
pub async fn check<S: Subject>(mut fresh: impl AsyncFnMut() -> S) {
    a_fresh_store_has_no_history(fresh().await).await;
    reads_begin_where_asked_and_have_no_gap(written(fresh().await).await).await;
    events_tell_what_was_before(written(fresh().await).await).await;
    the_compacted_revision_can_be_read_and_none_before(written(fresh().await).await).await;
}

/// Writes revisions 2 to 21: every fourth deletes the key that the one before put.
async fn written<S: Subject>(mut store: S) -> S {
    for n in 0..20_u8 {
        match n % 4 {
            3 => store.delete("c").await,
            0 => store.put("a", vec![n; 100].into()).await,
            1 => store.put("b", vec![n; 1000].into()).await,
            _ => store.put("c", Bytes::new()).await,
        }
    }
    assert_eq!(store.history().published(), 21);
    store
}

async fn a_fresh_store_has_no_history(store: impl Subject) {
    let history = store.history();
    assert_eq!(history.published(), 1);
    assert!(history.compacted() < 1);
    assert_eq!(history.read(1, usize::MAX, PrevKv::Included).await.unwrap(), []);
    assert_eq!(history.read(2, usize::MAX, PrevKv::Included).await.unwrap(), []);
}

async fn reads_begin_where_asked_and_have_no_gap(store: impl Subject) {
    let history = store.history();
    for from in 1..=22 {
        for max_bytes in [0, 1, 1500, usize::MAX] {
            let read = history.read(from, max_bytes, PrevKv::Included).await.unwrap();
            let revisions: Vec<Revision> = read.iter().map(|committed| committed.revision).collect();
            let first = from.max(2);
            let expected: Vec<Revision> = (first..=21).take(revisions.len()).collect();
            assert_eq!(revisions, expected, "from {from} with {max_bytes} bytes");
            assert_eq!(revisions.is_empty(), from > 21);
            assert!(max_bytes < usize::MAX || revisions.last().is_none_or(|last| *last == 21));
            assert!(
                max_bytes > 1 || revisions.len() <= 1,
                "{} revisions in a byte",
                revisions.len()
            );
            assert!(read.iter().all(|committed| committed.events.len() == 1));
        }
    }
}

async fn events_tell_what_was_before(store: impl Subject) {
    let history = store.history();
    let read = history.read(2, usize::MAX, PrevKv::Included).await.unwrap();
    let event = |revision: usize| -> &Event { &read[revision - 2].events[0] };
    let (first, second) = (event(2), event(6));
    assert_eq!(
        (&first.kv.key[..], first.kv.version, first.kv.create_revision),
        (&b"a"[..], 1, 2)
    );
    assert_eq!((first.kind, first.prev_kv.as_ref()), (EventKind::Put, None));
    assert_eq!(
        (second.kv.version, second.kv.create_revision, second.kv.mod_revision),
        (2, 2, 6)
    );
    assert_eq!(second.prev_kv.as_ref(), Some(&first.kv));
    let plain = history.read(2, usize::MAX, PrevKv::Omitted).await.unwrap();
    let mut without = read
        .iter()
        .map(|committed| Committed::clone(committed))
        .collect::<Vec<_>>();
    without
        .iter_mut()
        .flat_map(|committed| &mut committed.events)
        .for_each(|event| event.prev_kv = None);
    assert!(plain.iter().map(|committed| &**committed).eq(&without));
    let (put, deleted, again) = (event(4), event(5), event(8));
    assert_eq!(
        (deleted.kind, deleted.prev_kv.as_ref()),
        (EventKind::Delete, Some(&put.kv))
    );
    assert_eq!(
        (deleted.kv.mod_revision, deleted.kv.create_revision, deleted.kv.version),
        (5, 0, 0)
    );
    assert!(deleted.kv.value.is_empty());
    assert_eq!(
        (again.prev_kv.as_ref(), again.kv.create_revision, again.kv.version),
        (None, 8, 1)
    );
}

async fn the_compacted_revision_can_be_read_and_none_before(mut store: impl Subject) {
    for compacted in [5, 9, 21] {
        store.compact(compacted).await;
        let history = store.history();
        assert_eq!((history.compacted(), history.published()), (compacted, 21));
        let read = history.read(compacted, usize::MAX, PrevKv::Included).await.unwrap();
        assert_eq!(read.first().map(|committed| committed.revision), Some(compacted));
        assert_eq!(i64::try_from(read.len()).unwrap(), 22 - compacted);
        // All three compacted revisions are deletions.
        assert_eq!(read[0].events[0].kind, EventKind::Delete);
        assert_eq!(&read[0].events[0].kv.key[..], b"c");
        for from in [1, compacted - 1] {
            let refused = history.read(from, usize::MAX, PrevKv::Included).await;
            assert!(
                matches!(refused, Err(HistoryError::Compacted(at)) if at == compacted),
                "{refused:?}"
            );
        }
    }
}
