//! History is read once for all watchers that wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use brain::types::{Committed, Event, EventKind, KeyValue};
use brain::watch::{History, HistoryError, Options, PrevKv, Replay};

/// A history of one large revision that counts how often it is read.
struct Large(Arc<AtomicUsize>);

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
    let options = Options {
        cache_bytes: 1 << 10,
        ..Options::default()
    };
    let replay = Arc::new(Replay::new(Large(Arc::clone(&reads)), options));
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
