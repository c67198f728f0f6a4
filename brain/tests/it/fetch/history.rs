//! History is read once for all watchers that wait for it.

use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ::watch::{History, HistoryError, PrevKv, Replay, WatchLimits};
use engine::log::MemLog;
use etcd_types::types::{Committed, Event, EventKind, KeyValue};

use super::{delete, flushed};
use crate::engine::Engine;
use crate::fetch::counted::counted;

/// A history of one large revision that counts how often it is read.
struct Large(Arc<AtomicUsize>);

#[async_trait]
impl History for Large {
    async fn read(&self, from: i64, _: usize, _: PrevKv) -> Result<Vec<Arc<Committed>>, HistoryError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(1)).await; // a slow read, on a paused clock
        let kv = KeyValue {
            key: "key".into(),
            value: vec![b'v'; 1 << 20].into(),
            mod_revision: from,
            ..KeyValue::default()
        };
        let event = Event {
            kind: EventKind::Put,
            kv,
            prev_kv: None,
            is_prev_unread: false,
        };
        Ok(vec![Arc::new(Committed {
            revision: from,
            events: vec![event],
        })])
    }

    fn published(&self) -> i64 {
        2
    }

    fn compacted(&self) -> i64 {
        -1
    }
}

#[tokio::test(start_paused = true)]
async fn large_history_is_read_once_for_all_who_wait() {
    let reads = Arc::default();
    let options = WatchLimits {
        cache_bytes: 1 << 10,
        ..WatchLimits::default()
    };
    let replay = Arc::new(Replay::new(Arc::new(Large(Arc::clone(&reads))), options));
    let loads = (0..8).map(|_| replay.load(2, PrevKv::Included));
    let chunks = futures::future::join_all(loads).await;
    assert!(chunks.iter().all(|chunk| chunk.as_ref().unwrap().through() == 2));
    assert_eq!(reads.load(Ordering::SeqCst), 1, "reads");
    // It is too large for the cache, but others share it for a while, and as long as anybody has it.
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(replay.cached(2, PrevKv::Included).is_some());
    drop(chunks);
    assert!(replay.cached(2, PrevKv::Included).is_none());
}

/// Deleting keys reads no values, however large they are; a watcher that asks for them would.
#[tokio::test(start_paused = true)]
async fn previous_versions_that_exceed_memory_are_not_read() {
    const SMALL_MEMORY: u64 = 256 << 20; // history takes 16 MiB of it for one revision
    let rows = counted();
    let mut engine = Engine::start_within(MemLog::new(), rows.clone(), SMALL_MEMORY)
        .await
        .unwrap();
    let mut deleted = Vec::new();
    for keys in [15, 17] {
        for n in 0..keys {
            let key = format!("many/{n:05}");
            engine.put(key.as_bytes(), &vec![b'v'; 1 << 20]).await.unwrap();
        }
        flushed(&engine).await;
        deleted.push(delete(&mut engine, false).await.header.unwrap().revision);
    }
    let after = engine.put(b"other", b"").await.unwrap();
    rows.hooks.take();
    let from = deleted[1];
    let history = engine.history(from).await;
    let (gets, multi_gets, objects) = rows.hooks.take();
    assert_eq!((gets, multi_gets, objects), (0, 0, 0), "values were read");
    let revisions: Vec<_> = history.iter().map(|committed| committed.revision).collect();
    assert_eq!(revisions, [from, after]);
    assert_eq!(history[0].events.len(), 17);
    assert!(
        history[0]
            .events
            .iter()
            .all(|event| event.is_prev_unread && event.prev_kv.is_none())
    );
    // Whatever is read at once, it is alone.
    let all = engine
        .store
        .history
        .read(deleted[0], usize::MAX, PrevKv::Included)
        .await
        .unwrap();
    let first = &all[0].events;
    assert_eq!((all[0].revision, first.len()), (deleted[0], 15));
    let is_read = |event: &Event| event.prev_kv.as_ref().is_some_and(|kv| kv.value.len() == 1 << 20);
    assert!(first.iter().all(is_read), "they fit");
    assert!(all.iter().all(|committed| committed.revision < from));
    // Compaction takes them away, sooner or later.
    engine.compact_soon(from).await;
    rows.hooks.take();
    let compacted = engine.history(from).await;
    assert!(
        compacted[0]
            .events
            .iter()
            .all(|event| !event.is_prev_unread && event.prev_kv.is_none())
    );
    assert_eq!(rows.hooks.take().2, 0, "values were read");
    let plain = engine
        .store
        .history
        .read(from, usize::MAX, PrevKv::Omitted)
        .await
        .unwrap();
    assert!(plain[0].events.iter().all(|event| !event.is_prev_unread), "nobody asks");
    engine.stop().await.unwrap();
}
