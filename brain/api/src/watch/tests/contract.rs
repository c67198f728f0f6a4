//! The contract that etcd's clients rely on, one promise at a time.

use prometheus::IntGauge;

use super::*;
use ::watch::WatchLimits;
use etcd_types::pb::etcdserverpb::watch_create_request::FilterType;
use runtime::budget::Budget;

/// Limits so small that nearly everything comes from history.
pub(super) const TINY_LIMITS: WatchLimits = WatchLimits {
    ring_bytes: 2 << 10,
    mailbox_runs: 2,
    batch_bytes: 64,
    batch_events: 8,
    chunk_bytes: 64,
    cache_bytes: 4 << 10,
    key_bytes: 64 << 10,
};

#[tokio::test]
async fn a_watch_from_now_begins_behind_the_revision_of_its_created_response() {
    let mut member = Member::bounded().await;
    member.put("a", b"1");
    let mut stream = member.stream().await;
    let created = stream.create(one("a")).await;
    assert_eq!((created.watch_id, revision(&created), created.canceled), (0, 2, false));
    member.put("b", b"1");
    member.put("a", b"2");
    let response = stream.response().await;
    assert_eq!((brief(&response).as_str(), revision(&response)), ("a@4", 4));
    assert_eq!(
        (response.watch_id, response.created, response.fragment),
        (0, false, false)
    );
}

#[tokio::test]
async fn events_look_like_etcds() {
    let mut member = Member::bounded().await;
    let mut stream = member.stream().await;
    stream
        .create(WatchCreateRequest {
            prev_kv: true,
            ..one("a")
        })
        .await;
    stream.create(one("a")).await;
    member.put("a", b"1");
    member.put("a", b"2");
    member.commit(&[("a", None)]);
    let (mut with, mut without) = (Vec::new(), Vec::new());
    while with.len() < 3 || without.len() < 3 {
        let response = stream.response().await;
        if response.watch_id == 0 {
            &mut with
        } else {
            &mut without
        }
        .extend(events(&response));
    }
    let kv = |value: &'static [u8], version, mod_revision| mvccpb::KeyValue {
        key: Bytes::from_static(b"a"),
        create_revision: if version == 0 { 0 } else { 2 },
        mod_revision,
        version,
        value: Bytes::from_static(value),
        lease: if version == 0 { 0 } else { -5 },
    };
    let event = |kind, now: &mvccpb::KeyValue, prev: Option<mvccpb::KeyValue>| mvccpb::Event {
        r#type: kind,
        kv: Some(now.clone()),
        prev_kv: prev,
    };
    let (first, second, gone) = (kv(b"1", 1, 2), kv(b"2", 2, 3), kv(b"", 0, 4));
    let expected = [
        event(0, &first, None),
        event(0, &second, Some(first.clone())),
        event(1, &gone, Some(second.clone())),
    ];
    assert_eq!(with, expected);
    let expected = expected.map(|event| mvccpb::Event { prev_kv: None, ..event });
    assert_eq!(without, expected);
}

#[tokio::test]
async fn a_watch_from_the_past_gets_history_and_goes_on_live() {
    for bounds in [WatchLimits::default(), TINY_LIMITS] {
        let mut member = Member::start(bounds).await;
        for n in 0..100 {
            member.put(if n % 2 == 0 { "a" } else { "b" }, &[n; 40]);
        }
        let mut stream = member.stream().await;
        assert_eq!(revision(&stream.create(from(3, one("a"))).await), 101);
        let mut seen = Vec::new();
        while seen.last() != Some(&121) {
            let response = stream.response().await;
            assert!(revision(&response) <= member.hub.revision());
            seen.extend(
                events(&response)
                    .iter()
                    .map(|event| event.kv.as_ref().unwrap().mod_revision),
            );
            if seen.last() == Some(&100) {
                for n in 0..20 {
                    member.put(if n % 2 == 0 { "b" } else { "a" }, &[n; 40]);
                }
            }
        }
        let expected: Vec<_> = (4..=100).step_by(2).chain((103..=121).step_by(2)).collect();
        assert_eq!(seen, expected);
    }
}

#[tokio::test]
async fn a_watch_from_the_future_is_silent_until_then_and_so_is_progress() {
    let mut member = Member::bounded().await;
    let mut stream = member.stream().await;
    assert_eq!(revision(&stream.create(from(4, span("a", "b"))).await), 1);
    stream.ask_progress().await;
    member.put("a2", b"");
    member.put("a3", b"");
    stream.ask_progress().await;
    stream.assert_quiet().await;
    member.put("a4", b"");
    assert_eq!(brief(&stream.response().await), "a4@4");
    stream.ask_progress().await;
    let progress = stream.response().await;
    assert!(is_progress(&progress) && progress.watch_id == -1 && revision(&progress) == 4);
}

#[tokio::test]
async fn a_watcher_of_the_future_that_is_canceled_forbids_no_progress() {
    let member = Member::bounded().await;
    let mut stream = member.stream().await;
    stream.create(one("a")).await;
    stream.create(from(1000, one("a"))).await;
    stream.cancel(1).await;
    assert!(stream.response().await.canceled);
    stream.ask_progress().await;
    let progress = stream.response().await;
    assert!(is_progress(&progress) && revision(&progress) == 1, "{progress:?}");
}

#[tokio::test]
async fn a_negative_start_is_refused_as_compacted() {
    let member = Member::bounded().await;
    let mut stream = member.stream().await;
    let refused = stream.create(from(-1, one("a"))).await;
    assert_eq!(
        (refused.watch_id, refused.canceled, refused.compact_revision),
        (-1, true, 0)
    );
    assert_eq!(
        refused.cancel_reason,
        "etcdserver: mvcc: required revision has been compacted"
    );
    assert_eq!(stream.create(one("a")).await.watch_id, 0, "the id is not used up");
}

#[tokio::test]
async fn a_compacted_start_is_made_and_then_canceled_but_the_compacted_revision_is_not() {
    for bounds in [WatchLimits::default(), TINY_LIMITS] {
        let mut member = Member::start(bounds).await;
        member.put("a", &[1; 100]);
        member.commit(&[("a", None)]);
        for n in 0..50 {
            member.put("b", &[n; 100]);
        }
        member.history.compact(3);
        let mut stream = member.stream().await;
        assert!(!stream.create(from(2, one("a"))).await.canceled);
        let canceled = stream.response().await;
        assert_eq!(
            (canceled.watch_id, canceled.canceled, canceled.compact_revision),
            (0, true, 3)
        );
        assert_eq!(
            (revision(&canceled), canceled.cancel_reason.as_str(), canceled.created),
            (0, "", false)
        );
        assert_eq!(stream.create(from(3, one("a"))).await.watch_id, 1);
        assert_eq!(brief(&stream.response().await), "-a@3");
        stream.cancel(0).await;
        let canceled = stream.response().await;
        assert_eq!(
            (canceled.watch_id, canceled.canceled, canceled.compact_revision),
            (0, true, 0)
        );
        stream.cancel(0).await;
        stream.assert_quiet().await;
    }
}

#[tokio::test]
async fn previous_values_that_cannot_be_read_end_the_watches_that_ask_for_them() {
    let with_prev_kv = |create| WatchCreateRequest {
        prev_kv: true,
        ..create
    };
    for bounds in [WatchLimits::default(), TINY_LIMITS] {
        let mut member = Member::start(bounds).await;
        member.put("a", b"1");
        let mut stream = member.stream().await;
        for create in [with_prev_kv(one("a")), one("a"), with_prev_kv(one("b"))] {
            stream.create(create).await;
        }
        member.delete_unread("a");
        member.put("a", b"2");
        member.put("b", b"1");
        let (mut ended, mut plain, mut other) = (None, String::new(), String::new());
        while ended.is_none() || plain.len() < "-a@3a@4".len() || other.is_empty() {
            let response = stream.response().await;
            match response.watch_id {
                0 => assert!(ended.replace(response).is_none(), "it said more than its end"),
                1 => plain += &brief(&response).replace(' ', ""),
                _ => other += &brief(&response),
            }
        }
        assert_eq!((plain.as_str(), other.as_str()), ("-a@3a@4", "b@5"));
        let reason = "etcdserver: the previous values of revision 3 are too large for a watch";
        let is_end = |response: &WatchResponse| {
            assert_eq!((revision(response), response.cancel_reason.as_str()), (0, reason));
            assert!(response.canceled && response.events.is_empty() && response.compact_revision == 4);
        };
        is_end(&ended.unwrap());
        // A watcher that is created later gets the same answer, and one from the next revision works.
        stream.create(with_prev_kv(from(2, one("a")))).await;
        assert_eq!(brief(&stream.response().await), "a@2");
        is_end(&stream.response().await);
        stream.create(with_prev_kv(from(4, one("a")))).await;
        assert_eq!(brief(&stream.response().await), "a@4");
    }
}

/// As in etcd, where they were read from the store of the revision before.
#[tokio::test]
async fn compaction_ends_no_watch_whose_events_are_in_memory() {
    let with_prev_kv = |create| WatchCreateRequest {
        prev_kv: true,
        ..create
    };
    for start in [0, 2] {
        let mut member = Member::bounded().await;
        member.put("a", b"1");
        let mut stream = member.stream().await;
        let watched = with_prev_kv(from(start, span("a", "c")));
        stream.create(watched).await;
        if start > 0 {
            assert_eq!(brief(&stream.response().await), "a@2");
        }
        // No task of the stream runs before the compaction.
        member.delete_unread("a");
        member.put("b", b"1");
        member.put("b", b"2");
        member.history.compact(4);
        let mut received = Vec::new();
        while received.len() < 3 {
            let response = stream.response().await;
            assert!(!response.canceled, "{response:?}");
            received.extend(events(&response));
        }
        let brief = |event: &mvccpb::Event| (event.kv.as_ref().unwrap().mod_revision, event.prev_kv.is_some());
        let received: Vec<_> = received.iter().map(brief).collect();
        assert_eq!(received, [(3, false), (4, false), (5, true)]);
    }
}

/// The read of history that it waits for ends with the compaction.
#[tokio::test]
async fn compaction_during_a_read_of_history_ends_no_watch_whose_events_are_in_memory() {
    let mut member = Member::bounded().await;
    member.put("a", b"1");
    let mut stream = member.stream().await;
    stream
        .create(WatchCreateRequest {
            prev_kv: true,
            ..span("a", "c")
        })
        .await;
    member.history.fail(usize::MAX);
    member.delete_unread("a");
    member.put("b", b"1");
    while member.history.reads() == 0 {
        tokio::task::yield_now().await;
    }
    member.history.compact(4);
    member.history.fail(0);
    let mut received = String::new();
    while received.len() < "-a@3b@4".len() {
        let response = stream.response().await;
        assert!(!response.canceled, "{response:?}");
        received += &super::brief(&response).replace(' ', "");
    }
    assert_eq!(received, "-a@3b@4");
}

#[tokio::test]
async fn an_empty_range_is_refused() {
    let member = Member::bounded().await;
    let mut stream = member.stream().await;
    for refused in [stream.create(span("b", "a")).await, stream.create(span("b", "b")).await] {
        assert_eq!((refused.watch_id, refused.canceled), (-1, true));
        assert_eq!(refused.cancel_reason, "mvcc: watcher range is empty");
    }
}

#[tokio::test]
async fn ids_are_chosen_in_order_given_and_unique() {
    let member = Member::bounded().await;
    let mut stream = member.stream().await;
    let with_id = |watch_id| WatchCreateRequest { watch_id, ..one("a") };
    let mut ids = Vec::new();
    for id in [0, 1, 2, 0, 0] {
        ids.push(stream.create(with_id(id)).await.watch_id);
    }
    assert_eq!(ids, [0, 1, 2, 3, 4]);
    let refused = stream.create(with_id(2)).await;
    assert_eq!((refused.watch_id, refused.canceled), (-1, true));
    assert_eq!(
        refused.cancel_reason,
        "mvcc: duplicate watch ID provided on the WatchStream"
    );
    stream.cancel(2).await;
    let canceled = stream.response().await;
    assert_eq!(
        (canceled.watch_id, canceled.canceled, canceled.cancel_reason.as_str()),
        (2, true, "")
    );
    assert_eq!(stream.create(with_id(2)).await.watch_id, 2);
    stream.cancel(99).await;
    stream.assert_quiet().await;
}

#[tokio::test]
async fn a_canceled_watcher_is_silent_and_the_others_are_not() {
    let mut member = Member::bounded().await;
    let mut stream = member.stream().await;
    stream.create(one("a")).await;
    stream.create(one("a")).await;
    stream.cancel(0).await;
    assert!(stream.response().await.canceled);
    member.put("a", b"");
    assert_eq!(stream.response().await.watch_id, 1);
    stream.assert_quiet().await;
    assert_eq!(member.hub.watchers(), 1);
}

#[tokio::test]
async fn all_events_of_a_revision_come_in_one_response() {
    for bounds in [WatchLimits::default(), TINY_LIMITS] {
        let mut member = Member::start(bounds).await;
        let mut stream = member.stream().await;
        stream.create(span("a", "b")).await;
        let changes: Vec<Change<'_>> = (0..100)
            .map(|n| (if n % 2 == 0 { "a" } else { "c" }, Some(&[0; 20][..])))
            .collect();
        for _ in 0..10 {
            member.commit(&changes);
        }
        let mut revisions = 0;
        while revisions < 10 {
            let response = stream.response().await;
            assert_eq!(response.events.len() % 50, 0, "a revision is torn");
            revisions += response.events.len() / 50;
        }
    }
}

#[tokio::test]
async fn filters_drop_events_and_a_response_without_any_is_not_sent() {
    let mut member = Member::bounded().await;
    let mut stream = member.stream().await;
    let filtered = |filter: FilterType| WatchCreateRequest {
        filters: vec![filter.into(), 77],
        progress_notify: true,
        ..one("a")
    };
    stream.create(filtered(FilterType::Noput)).await;
    member.put("a", b"");
    member.put("a", b"");
    stream.ask_progress().await;
    let progress = stream.response().await;
    assert!(is_progress(&progress) && revision(&progress) == 3, "{progress:?}");
    stream.create(filtered(FilterType::Nodelete)).await;
    member.commit(&[("a", None)]);
    let response = stream.response().await;
    assert_eq!((response.watch_id, brief(&response).as_str()), (0, "-a@4"));
    member.put("a", b"");
    let response = stream.response().await;
    assert_eq!((response.watch_id, brief(&response).as_str()), (1, "a@5"));
}

#[tokio::test]
async fn long_responses_are_cut_if_asked_and_only_then() {
    let overhead = super::super::FRAGMENT_OVERHEAD_BYTES;
    let mut member = Member::start_with(WatchLimits::default(), Duration::from_secs(600), 0).await;
    let mut stream = member.stream().await;
    stream.create(fragmented(span("a", "b"))).await;
    stream.create(span("a", "b")).await;
    let value = vec![7; 100 << 10];
    let keys: Vec<String> = (0..12).map(|n| format!("a{n:02}")).collect();
    let changes: Vec<Change<'_>> = keys.iter().map(|key| (key.as_str(), Some(&value[..]))).collect();
    member.commit(&changes);
    let (mut cut, mut whole) = (Vec::new(), Vec::new());
    while whole.is_empty() || cut.last().is_none_or(|last: &WatchResponse| last.fragment) {
        let response = stream.response().await;
        let is_whole = response.watch_id == 1;
        assert!(
            !is_whole || cut.last().is_none_or(|last| !last.fragment),
            "in between fragments"
        );
        if is_whole { &mut whole } else { &mut cut }.push(response);
    }
    assert_eq!((whole.len(), whole[0].events.len(), whole[0].fragment), (1, 12, false));
    assert_eq!(cut.iter().map(|part| part.events.len()).collect::<Vec<_>>(), [5, 5, 2]);
    assert!(
        cut.iter()
            .all(|part| part.encoded_len() < overhead && revision(part) == 2)
    );
    let parts: Vec<Bytes> = cut.into_iter().flat_map(|part| part.events).collect();
    assert_eq!(parts, whole[0].events);
}

#[tokio::test]
async fn a_watcher_without_memory_for_its_fragments_ends_and_others_of_its_stream_go_on() {
    let budget = Budget::new(1200 << 10, IntGauge::new("held", "held").unwrap());
    let account = budget.account(None);
    let meter = Meter::new(&account).unwrap();
    let mut member = Member::start_metered(WatchLimits::default(), Duration::from_secs(600), 0, meter).await;
    let mut stream = member.stream().await;
    stream.create(fragmented(span("a", "b"))).await;
    stream.create(one("z")).await;
    let value = vec![7; 100 << 10];
    let keys: Vec<String> = (0..12).map(|n| format!("a{n:02}")).collect();
    let changes: Vec<Change<'_>> = keys.iter().map(|key| (key.as_str(), Some(&value[..]))).collect();
    member.commit(&changes);
    let end = stream.response().await;
    assert_eq!(
        (end.watch_id, end.canceled, end.compact_revision),
        (0, true, 3),
        "{end:?}"
    );
    assert_eq!(end.cancel_reason, "etcdserver: too many requests");
    assert_eq!(revision(&end), 0, "no progress");
    member.put("z", b"");
    let response = stream.response().await;
    assert_eq!((response.watch_id, brief(&response).as_str()), (1, "z@3"));
    // Five keys fit while five others are sent.
    stream.create(fragmented(span("a", "b"))).await;
    member.commit(&changes[..10]);
    for fragment in [true, false] {
        let response = stream.response().await;
        assert_eq!((response.events.len(), response.fragment), (5, fragment));
    }
    drop(stream);
}
