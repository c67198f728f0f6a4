use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::watch::WatchOptions;
use ::watch::model::ModelHistory;
use ::watch::{Hub, Replay};
use etcd_types::types::{Committed, Event, EventKind, KeyValue};
use runtime::budget::Budget;

fn watchers() -> Watchers {
    let hub = Hub::new(
        ::watch::WatchLimits {
            key_bytes: 1 << 10,
            ..::watch::WatchLimits::default()
        },
        1,
    );
    let options = WatchOptions {
        max_request_bytes: 1 << 20,
        progress_notify_interval: Duration::from_secs(600),
        cluster_id: 1,
        member_id: 1,
        raft_term: Arc::new(AtomicU64::new(1)),
        has_leader: watch::Sender::new(true).subscribe(),
        stop: CancellationToken::new(),
        guard: None,
    };
    let shared = WatchContext {
        replay: Arc::new(Replay::new(Arc::new(ModelHistory::new()), *hub.options())),
        hub,
        options,
    };
    Watchers::new(
        Arc::new(shared),
        Arc::default(),
        (Meter::unlimited(), Credentials::default()),
    )
}

/// Publishes a put of `a`, and leaves the dispatcher time to process it.
async fn put(watchers: &Watchers, revision: Revision) {
    let kv = KeyValue {
        key: Bytes::from_static(b"a"),
        mod_revision: revision,
        ..KeyValue::default()
    };
    let event = Event {
        kind: EventKind::Put,
        kv,
        prev_kv: None,
        is_prev_unread: false,
    };
    let committed = Committed {
        revision,
        events: vec![event],
    };
    let hub = watchers.shared.hub.clone();
    let mut dispatched = hub.dispatched();
    hub.publish([Arc::new(committed)]);
    tokio::select! {
    stopped = hub.run(CancellationToken::new()) => panic!("{stopped:?}"),
    reached = dispatched.wait_for(|reached| *reached >= revision) => drop(reached.unwrap()),
    }
}

fn create(key: &'static [u8], progress_notify: bool) -> WatchCreateRequest {
    WatchCreateRequest {
        key: Bytes::from_static(key),
        progress_notify,
        ..WatchCreateRequest::default()
    }
}

#[tokio::test]
async fn a_tick_skips_who_had_an_event_since_the_last_or_has_one_to_come() {
    let mut watchers = watchers();
    watchers.create(create(b"a", true));
    watchers.create(create(b"b", false));
    assert_eq!(watchers.notified(), [0]);
    let told = |ticked: Option<WatchResponse>| ticked.map(|response| response.header.unwrap().revision);
    assert_eq!(told(watchers.tick(0, 1)), Some(1));
    put(&watchers, 2).await;
    assert_eq!(told(watchers.tick(0, 2)), None, "the event is still to come");
    watchers.collect();
    assert_eq!(watchers.turn(Revision::MAX).unwrap().responses.len(), 1);
    assert_eq!(told(watchers.tick(0, 2)), None, "the event said it");
    assert_eq!(told(watchers.tick(0, 1)), None, "it would go back");
    assert_eq!(told(watchers.tick(0, 2)), Some(2));
    assert_eq!(told(watchers.tick(9, 2)), None, "there is no such watcher");
}

#[tokio::test]
async fn watcher_with_more_events_goes_behind_waiting_ones() {
    let mut watchers = watchers();
    for _ in 0..3 {
        watchers.create(create(b"a", false));
    }
    put(&watchers, 2).await;
    watchers.collect();
    let order: Vec<_> = std::iter::from_fn(|| watchers.turn(Revision::MAX))
        .map(|turn| turn.id)
        .collect();
    assert_eq!(
        order,
        [0, 1, 2, 0, 1, 2],
        "one batch for each, then a look that finds nothing"
    );
}

#[tokio::test]
async fn watcher_that_was_served_waits_for_no_history() {
    let mut watchers = watchers();
    watchers.create(WatchCreateRequest {
        start_revision: 1,
        ..create(b"a", false)
    });
    assert!(watchers.turn(Revision::MAX).unwrap().responses.is_empty());
    assert_eq!(watchers.wanted(), Some((1, 0)));
    // Another stream has it loaded, and an event queues the watcher once more.
    watchers.shared.replay.load(1, PrevKv::Omitted).await.unwrap();
    watchers.enqueue(0);
    watchers.turn(Revision::MAX).unwrap();
    assert_eq!(watchers.wanted(), None);
}

#[tokio::test]
async fn history_without_previous_versions_is_not_for_a_new_watcher_of_the_same_id_that_wants_them() {
    let mut watchers = watchers();
    let request = |prev_kv| WatchCreateRequest {
        start_revision: 1,
        watch_id: 7,
        prev_kv,
        ..create(b"a", false)
    };
    watchers.create(request(false));
    watchers.turn(Revision::MAX).unwrap();
    let wanted = watchers.wanted().unwrap();
    let chunk = watchers.shared.replay.load(wanted.0, PrevKv::Omitted).await;
    watchers.cancel(7).unwrap();
    watchers.create(request(true));
    while watchers.turn(Revision::MAX).is_some() {}
    assert_eq!(watchers.wanted(), Some(wanted));
    watchers.loaded(wanted, chunk);
    while watchers.turn(Revision::MAX).is_some() {}
    assert_eq!(watchers.wanted(), Some(wanted), "it is still to be read");
    assert_eq!(watchers.prev_kv(7), PrevKv::Included);
}

#[tokio::test]
async fn held_watcher_waits_for_its_release() {
    let mut watchers = watchers();
    watchers.create(create(b"a", false));
    put(&watchers, 2).await;
    assert_eq!(watchers.owing(2).len(), 1);
    assert!(watchers.owing(1).is_empty());
    assert!(watchers.turn(1).unwrap().responses.is_empty());
    assert!(!watchers.has_turn());
    watchers.release();
    assert_eq!(watchers.turn(2).unwrap().responses.len(), 1);
}

#[test]
fn watchers_are_charged_until_they_are_gone() {
    let gauge = prometheus::IntGauge::new("held", "held").unwrap();
    let account = Budget::new(40 << 10, gauge).account(None);
    let mut watchers = watchers();
    watchers.meter = Meter::new(&account).unwrap();
    let mut made = Vec::new();
    let refused = loop {
        // Bounds of 2 MiB are cut to the length that a key of maximum size can distinguish.
        let number = made.len().to_string();
        let create = WatchCreateRequest {
            key: number.into(),
            range_end: vec![0xff; 2 << 20].into(),
            ..WatchCreateRequest::default()
        };
        let created = watchers.create(create);
        if created.canceled {
            break created;
        }
        made.push(created.watch_id);
    };
    assert!((2..20).contains(&made.len()), "{} watchers", made.len());
    assert_eq!(
        (refused.created, &*refused.cancel_reason),
        (true, "etcdserver: too many requests")
    );
    let before = account.used();
    watchers.cancel(made[0]).unwrap();
    assert!(account.used() < before);
    assert!(!watchers.create(create(b"a", false)).canceled);
    drop(watchers);
    assert_eq!(account.used(), 0);
}

#[tokio::test]
async fn many_watchers_of_an_ended_stream_are_dropped_by_the_dispatcher() {
    let mut watchers = watchers();
    for _ in 0..5000 {
        assert!(!watchers.create(create(b"a", false)).canceled);
    }
    let hub = watchers.shared.hub.clone();
    drop(watchers);
    assert_eq!(hub.watchers(), 5000, "all were dropped at once");
    let stop = CancellationToken::new();
    let gone = async {
        while hub.watchers() > 0 {
            tokio::task::yield_now().await;
        }
        stop.cancel();
    };
    let (ran, ()) = tokio::join!(hub.clone().run(stop.clone()), gone);
    ran.unwrap();
}
