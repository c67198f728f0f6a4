//! The hub with its watchers, without gRPC: a store in memory, and a dispatcher that the test steps.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::model::ModelHistory;
use super::*;
use etcd_types::types::{Committed, Event, EventKind, KeyValue};

pub(super) const READ_LIMIT: Limit = Limit {
    events: usize::MAX,
    bytes: usize::MAX,
    through: Revision::MAX,
};

/// Returns a revision that puts these keys, with values of `len` bytes.
pub(super) fn revision(revision: Revision, keys: &[&str], len: usize) -> Arc<Committed> {
    let event = |key: &&str| Event {
        kind: EventKind::Put,
        kv: KeyValue {
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: vec![0; len].into(),
            create_revision: revision,
            mod_revision: revision,
            version: 1,
            ..KeyValue::default()
        },
        prev_kv: None,
        is_prev_unread: false,
    };
    let events = keys.iter().map(event).collect();
    Arc::new(Committed { revision, events })
}

pub(super) fn range(key: &str, end: &str) -> KeyRange {
    KeyRange::from_request(
        Bytes::copy_from_slice(key.as_bytes()),
        Bytes::copy_from_slice(end.as_bytes()),
    )
    .unwrap()
}

/// Formats entries as `key@revision`.
pub(super) fn brief(entries: &[Arc<Entry>]) -> String {
    let brief = |entry: &Arc<Entry>| {
        let key = String::from_utf8_lossy(&entry.event().kv.key).into_owned();
        format!("{key}@{}", entry.revision())
    };
    entries.iter().map(brief).collect::<Vec<_>>().join(" ")
}

/// A hub and its store.
struct Store {
    hub: Hub,
    history: ModelHistory,
    replay: Arc<Replay>,
    inbox: Arc<Inbox>,
}

impl Store {
    fn new(options: WatchLimits) -> Self {
        let history = ModelHistory::new();
        Self {
            hub: Hub::new(options, 1),
            replay: Arc::new(Replay::new(Arc::new(history.clone()), options)),
            history,
            inbox: Arc::new(Inbox::default()),
        }
    }

    /// Commits and publishes one revision for each list of keys, without dispatching it.
    fn publish(&self, revisions: &[&[&str]]) {
        let next = self.history.published() + 1;
        let revisions: Vec<_> = (next..)
            .zip(revisions)
            .map(|(at, keys)| revision(at, keys, 10))
            .collect();
        revisions.iter().for_each(|committed| self.history.append(committed));
        self.hub.publish(revisions);
    }

    async fn commit(&self, revisions: &[&[&str]]) {
        self.publish(revisions);
        while self.hub.dispatch().await {}
    }

    fn watch(&self, name: i64, range: KeyRange, start: Option<Revision>) -> Subscription {
        self.hub
            .subscribe(
                &self.inbox,
                name,
                range,
                EventFilter::ALL,
                WatchStart { start, shown: 0 },
            )
            .0
    }

    fn named(&self) -> Vec<i64> {
        let mut names = Vec::new();
        self.inbox.drain(|name| names.push(name));
        names
    }

    /// Reads everything available for a watcher now, with batches separated by bars.
    async fn read(&self, subscription: &mut Subscription) -> String {
        let mut batches = Vec::new();
        loop {
            let step = match subscription.step(Revision::MAX) {
                SubscriptionStep::Missing(next) => {
                    subscription.replay(&self.replay.load(next, PrevKv::Included).await.unwrap())
                }
                step => step,
            };
            match step {
                SubscriptionStep::Batch(batch) => batches.push(brief(&batch.entries)),
                SubscriptionStep::Nothing => {}
                SubscriptionStep::Synced => return batches.join(" | "),
                SubscriptionStep::Held | SubscriptionStep::Missing(_) | SubscriptionStep::TooLarge(_) => {
                    panic!("{step:?}")
                }
            }
        }
    }
}

/// From the next revision on; clients may have read up to `shown`.
fn from_now(shown: Revision) -> WatchStart {
    WatchStart { start: None, shown }
}

fn options() -> WatchLimits {
    WatchLimits::default()
}

#[tokio::test]
async fn only_watchers_concerned_are_named_and_each_once() {
    let store = Store::new(options());
    let mut a = store.watch(1, range("a", ""), None);
    let mut all = store.watch(2, range("", "\0"), None);
    let _b = store.watch(3, range("b", ""), None);
    store.commit(&[&["a"], &["c"], &["a", "c"]]).await;
    let mut named = store.named();
    named.sort_unstable();
    assert_eq!(named, [1, 2]);
    assert_eq!(store.read(&mut a).await, "a@2 a@4");
    assert_eq!(store.read(&mut all).await, "a@2 c@3 a@4 c@4");
    assert!(store.named().is_empty());
    store.commit(&[&["a"]]).await;
    assert_eq!(store.named().len(), 2);
}

#[tokio::test]
async fn watch_from_now_misses_earlier_events_dispatched_later() {
    let store = Store::new(options());
    store.publish(&[&["a"]]);
    let (mut watcher, revision) = store
        .hub
        .subscribe(&store.inbox, 0, range("a", ""), EventFilter::ALL, from_now(0));
    assert_eq!(revision, 2);
    store.commit(&[&["a"]]).await;
    assert_eq!(store.read(&mut watcher).await, "a@3");
}

#[tokio::test]
async fn watch_from_now_misses_what_clients_have_read_before_the_hub_has_it() {
    let store = Store::new(options());
    let (mut watcher, revision) = store
        .hub
        .subscribe(&store.inbox, 0, range("a", ""), EventFilter::ALL, from_now(3));
    assert_eq!(revision, 3);
    store.commit(&[&["a"], &["a"], &["a"]]).await;
    assert_eq!(store.read(&mut watcher).await, "a@4");
}

#[tokio::test]
async fn a_watch_from_between_dispatched_and_published_misses_nothing() {
    let store = Store::new(options());
    store.commit(&[&["a"], &["a"]]).await;
    store.publish(&[&["a"], &["a"]]);
    for start in 2..=6 {
        let mut watcher = store.watch(start, range("a", ""), Some(start));
        while store.hub.dispatch().await {}
        let expected: Vec<_> = (start..=5).map(|revision| format!("a@{revision}")).collect();
        assert_eq!(store.read(&mut watcher).await, expected.join(" "));
    }
}

#[tokio::test]
async fn large_revision_is_looked_up_in_steps_and_nobody_misses_any_of_it() {
    const MANY: i64 = 300;
    let store = Store::new(options());
    let keys: Vec<String> = (0..MANY).map(|n| format!("a{n:03}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    // Ranges that differ: more matches than are made at once.
    let ranged = |n: i64| range("a", &format!("b{n:03}"));
    let mut watchers: Vec<_> = (0..MANY).map(|n| store.watch(n, ranged(n), None)).collect();
    store.publish(&[&keys, &["a"]]);
    let mut dispatching = Box::pin(async { while store.hub.dispatch().await {} });
    assert!(futures::poll!(&mut dispatching).is_pending());
    assert!(store.named().is_empty(), "some got a part of the revision");
    watchers.push(store.watch(MANY, ranged(0), Some(2)));
    let mut from_next = store.watch(MANY + 1, ranged(1), Some(3));
    let mut from_now = store.watch(MANY + 2, ranged(2), None);
    dispatching.await;
    store.commit(&[&["a"]]).await;
    let all = format!("{}@2 a@3 a@4", keys.join("@2 "));
    for watcher in &mut watchers {
        assert_eq!(store.read(watcher).await.replace(" | ", " "), all);
    }
    assert_eq!(store.read(&mut from_next).await, "a@3 a@4");
    assert_eq!(store.read(&mut from_now).await, "a@4");
}

#[tokio::test]
async fn a_full_mailbox_makes_its_watcher_catch_up_and_lose_nothing() {
    let store = Store::new(WatchLimits {
        mailbox_runs: 2,
        ..options()
    });
    let mut watcher = store.watch(0, range("a", ""), None);
    for _ in 0..5 {
        store.commit(&[&["a"], &["b"]]).await;
    }
    assert_eq!(store.named(), [0]);
    assert_eq!(store.hub.lagging_watchers(), 0, "it does not know yet");
    assert!(matches!(watcher.step(Revision::MAX), SubscriptionStep::Nothing));
    assert_eq!((store.hub.lagging_watchers(), watcher.is_behind()), (1, true));
    assert_eq!(store.read(&mut watcher).await, "a@2 a@4 a@6 a@8 a@10");
    assert_eq!((store.hub.lagging_watchers(), store.history.reads()), (0, 0));
    store.commit(&[&["a"]]).await;
    assert_eq!(store.read(&mut watcher).await, "a@12");
}

#[tokio::test]
async fn a_watcher_that_falls_behind_does_not_go_back_to_what_did_not_concern_it() {
    let store = Store::new(WatchLimits {
        ring_bytes: 2000,
        mailbox_runs: 1,
        ..options()
    });
    let mut watcher = store.watch(0, range("a", ""), None);
    for _ in 0..50 {
        store.commit(&[&["b"]]).await;
    }
    store.history.compact(52);
    store
        .commit(&[&["a"], &["b"], &["a"], &["b"], &["b"], &["b"], &["b"]])
        .await;
    assert!(matches!(watcher.step(Revision::MAX), SubscriptionStep::Nothing));
    assert_eq!((watcher.next(), watcher.is_behind()), (52, true));
    assert_eq!(store.read(&mut watcher).await, "a@52 a@54");
}

#[tokio::test]
async fn runs_that_touch_take_one_place() {
    let store = Store::new(WatchLimits {
        mailbox_runs: 1,
        ..options()
    });
    let mut watcher = store.watch(0, range("a", "b"), None);
    for _ in 0..50 {
        store.commit(&[&["a1", "a2"], &["a3"]]).await;
    }
    assert!(matches!(watcher.step(Revision::MAX), SubscriptionStep::Batch(batch) if batch.entries.len() == 150));
}

#[tokio::test]
async fn a_position_that_fell_off_the_ring_is_read_from_history() {
    let store = Store::new(WatchLimits {
        ring_bytes: 4000,
        ..options()
    });
    let mut watcher = store.watch(0, range("a", ""), None);
    for _ in 0..50 {
        store.commit(&[&["a"]]).await;
    }
    let expected: Vec<_> = (2..=51).map(|revision| format!("a@{revision}")).collect();
    assert_eq!(store.read(&mut watcher).await.replace(" | ", " "), expected.join(" "));
    assert!(store.history.reads() > 0);
    assert!(!watcher.is_behind());
}

#[tokio::test]
async fn a_dispatcher_that_is_too_late_sends_everyone_to_history() {
    let store = Store::new(WatchLimits {
        ring_bytes: 4000,
        ..options()
    });
    let mut watchers = [
        store.watch(0, range("a", ""), None),
        store.watch(1, range("b", ""), None),
    ];
    store.commit(&[&["a"]]).await;
    for _ in 0..50 {
        store.publish(&[&["a"], &["b"]]);
    }
    while store.hub.dispatch().await {}
    assert_eq!(*store.hub.dispatched().borrow(), 102);
    for (watcher, (key, from)) in watchers.iter_mut().zip([("a", 3), ("b", 4)]) {
        let first = if key == "a" { "a@2 ".to_owned() } else { String::new() };
        let rest: Vec<_> = (from..=102)
            .step_by(2)
            .map(|revision| format!("{key}@{revision}"))
            .collect();
        assert_eq!(store.read(watcher).await.replace(" | ", " "), first + &rest.join(" "));
    }
}

#[tokio::test]
async fn a_live_watcher_is_held_at_a_revision() {
    let store = Store::new(options());
    let mut watcher = store.watch(0, range("a", ""), None);
    store.commit(&[&["a"], &["a"], &["b"], &["a"]]).await;
    assert!(watcher.has_pending(2));
    assert!(matches!(watcher.step(3), SubscriptionStep::Batch(batch) if brief(&batch.entries) == "a@2 a@3"));
    assert!(matches!(watcher.step(3), SubscriptionStep::Held));
    assert!(!watcher.has_pending(4) && watcher.has_pending(5));
    assert!(matches!(watcher.step(4), SubscriptionStep::Held));
    assert!(matches!(watcher.step(5), SubscriptionStep::Batch(batch) if brief(&batch.entries) == "a@5"));
    assert!(!watcher.has_pending(5));
}

#[tokio::test]
async fn batches_end_between_revisions() {
    let store = Store::new(WatchLimits {
        batch_bytes: 1,
        ..options()
    });
    let mut live = store.watch(0, range("a", "c"), None);
    store.commit(&[&["a", "z", "b"], &["a", "b"], &["z"], &["b"]]).await;
    assert_eq!(store.read(&mut live).await, "a@2 b@2 | a@3 b@3 | b@5");
    let mut late = store.watch(1, range("a", "c"), Some(2));
    assert_eq!(store.read(&mut late).await, "a@2 b@2 | a@3 b@3 | b@5");
}

#[tokio::test]
async fn a_batch_that_catches_up_names_the_newest_revision() {
    let store = Store::new(options());
    store.commit(&[&["a"], &["b"]]).await;
    let mut watcher = store.watch(0, range("a", ""), Some(2));
    assert!(matches!(watcher.step(Revision::MAX), SubscriptionStep::Batch(batch) if batch.revision == 3));
}

#[tokio::test]
async fn a_revision_published_twice_is_seen_once() {
    let store = Store::new(options());
    let mut watcher = store.watch(0, range("a", ""), None);
    store.commit(&[&["a"], &["a"]]).await;
    store.hub.publish([revision(2, &["a"], 1), revision(3, &["a"], 1)]);
    while store.hub.dispatch().await {}
    assert_eq!(store.read(&mut watcher).await, "a@2 a@3");
}

#[tokio::test]
async fn watchers_that_lag_together_share_their_reads() {
    let store = Store::new(WatchLimits {
        ring_bytes: 0,
        ..options()
    });
    for _ in 0..20 {
        store.commit(&[&["a"], &["b"]]).await;
    }
    let mut watchers: Vec<_> = (0..100)
        .map(|name| store.watch(name, range("a", "b"), Some(2)))
        .collect();
    assert_eq!(store.hub.lagging_watchers(), 100);
    for watcher in &mut watchers {
        assert_eq!(store.read(watcher).await.matches("a@").count(), 20);
    }
    assert_eq!(store.history.reads(), 1);
}

#[tokio::test(start_paused = true)]
async fn history_is_read_again_until_it_answers_and_not_if_it_is_compacted() {
    let store = Store::new(options());
    store.commit(&[&["a"], &["a"], &["a"]]).await;
    store.history.fail(10);
    assert_eq!(store.replay.load(2, PrevKv::Included).await.unwrap().through(), 4);
    store.history.compact(3);
    assert_eq!(store.replay.load(1, PrevKv::Included).await.unwrap_err(), 3);
}

#[tokio::test(start_paused = true)]
async fn abandoned_read_of_history_delays_no_other() {
    let store = Store::new(WatchLimits {
        chunk_bytes: 1,
        cache_bytes: 1,
        ..options()
    });
    store.commit(&[&["a"] as &[&str]; 12]).await;
    let load = |from| store.replay.load(from, PrevKv::Included);
    // More than there are reads at a time. They are begun, and not polled again.
    let mut stalled: Vec<_> = (2..=10).map(|from| Box::pin(load(from))).collect();
    for load in &mut stalled {
        assert!(futures::poll!(load).is_pending());
    }
    for from in 11..=13 {
        let chunk = tokio::time::timeout(Duration::from_secs(60), load(from)).await;
        assert_eq!(chunk.expect("it waits for another").unwrap().from(), from);
    }
    for load in stalled {
        load.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn stream_that_is_not_polled_keeps_no_history() {
    let store = Store::new(WatchLimits {
        chunk_bytes: 1,
        cache_bytes: 1,
        ..options()
    });
    store.commit(&[&["a"] as &[&str]; 3]).await;
    let load = || store.replay.load(2, PrevKv::Included);
    let mut stalled = Box::pin(load());
    assert!(futures::poll!(&mut stalled).is_pending());
    let chunk = Arc::downgrade(&load().await.unwrap());
    assert!(chunk.upgrade().is_some(), "others may want it, too");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(chunk.upgrade().is_none());
    assert_eq!(stalled.await.unwrap().from(), 2);
}

#[tokio::test]
async fn the_cache_of_history_is_bounded() {
    let store = Store::new(WatchLimits {
        chunk_bytes: 1,
        cache_bytes: 2000,
        ..options()
    });
    store.commit(&[&["a"] as &[&str]; 50]).await;
    for from in 2..=51 {
        store.replay.load(from, PrevKv::Included).await.unwrap();
    }
    let cached = (2..=51)
        .filter(|revision| store.replay.cached(*revision, PrevKv::Included).is_some())
        .count();
    assert!((1..10).contains(&cached), "{cached} chunks are cached");
    assert!(store.replay.cached(51, PrevKv::Included).is_some() && store.replay.cached(2, PrevKv::Included).is_none());
}

#[test]
fn watchers_with_previous_versions_are_counted_while_they_watch() {
    let store = Store::new(options());
    let count = store.hub.watchers_with_prev_kv();
    let mut watchers = [1, 2].map(|name| store.watch(name, range("a", "b"), None));
    for _ in 0..2 {
        watchers[0].want_prev_kv(0);
        assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 1);
    }
    drop(watchers);
    assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn an_idle_watcher_takes_little_memory() {
    // The size of its parts here; about 400 bytes are in the index and the stream's map.
    let size = size_of::<Subscription>() + size_of::<mailbox::Mailbox>();
    assert!(size < 600, "{size} bytes");
}
