//! Many watchers, and watchers that do not read: the others are not affected.

use super::*;
use ::watch::{History, WatchLimits};

const WATCHERS: usize = 10_000;
const STREAMS: usize = 10;

/// Opens streams with 10,000 watchers in all, which `create` makes from a number.
async fn crowd(member: &Member, create: impl Fn(usize) -> WatchCreateRequest) -> Vec<Stream> {
    let mut streams = Vec::new();
    for stream in 0..STREAMS {
        let mut watching = member.stream().await;
        let numbers: Vec<usize> = (stream * WATCHERS / STREAMS..(stream + 1) * WATCHERS / STREAMS).collect();
        for some in numbers.chunks(50) {
            for n in some {
                watching.send(RequestUnion::CreateRequest(create(*n))).await;
            }
            for _ in some {
                assert!(watching.response().await.created);
            }
        }
        streams.push(watching);
    }
    assert_eq!(member.hub.watchers(), WATCHERS as u64);
    streams
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_watchers_of_different_keys_see_each_its_own() {
    let mut member = Member::bounded().await;
    let key = |n: usize| format!("key {n:05}");
    let create = |n| WatchCreateRequest {
        key: key(n).into(),
        range_end: if n % 2 == 0 { Bytes::new() } else { key(n + 1).into() },
        ..WatchCreateRequest::default()
    };
    let mut streams = crowd(&member, create).await;
    for n in 0..WATCHERS {
        member.put(&key(n), b"");
    }
    for (at, stream) in streams.iter_mut().enumerate() {
        let mut seen = vec![false; WATCHERS / STREAMS];
        for _ in 0..WATCHERS / STREAMS {
            let response = stream.response().await;
            let id = usize::try_from(response.watch_id).unwrap();
            let n = at * (WATCHERS / STREAMS) + id;
            assert_eq!(brief(&response), format!("{}@{}", key(n), n + 2));
            assert!(!std::mem::replace(&mut seen[id], true), "seen twice");
        }
        stream.assert_quiet().await;
    }
    assert_eq!(member.history.reads(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_watchers_of_one_prefix_see_everything() {
    let mut member = Member::bounded().await;
    let mut streams = crowd(&member, |_| span("a", "b")).await;
    for _ in 0..3 {
        member.commit(&[("a/1", Some(b"")), ("a/2", Some(b""))]);
    }
    for stream in &mut streams {
        let mut seen = vec![String::new(); WATCHERS / STREAMS];
        let mut missing = 6 * WATCHERS / STREAMS;
        while missing > 0 {
            let response = stream.response().await;
            missing -= response.events.len();
            let seen = &mut seen[usize::try_from(response.watch_id).unwrap()];
            *seen = format!("{seen} {}", brief(&response));
        }
        assert!(seen.iter().all(|seen| seen == " a/1@2 a/2@2 a/1@3 a/2@3 a/1@4 a/2@4"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_that_does_not_read_costs_no_memory_and_reads_on_from_history() {
    const COUNT: usize = 2000;
    let bounds = WatchLimits {
        ring_bytes: 1 << 20,
        ..WatchLimits::default()
    };
    let mut member = Member::start(bounds).await;
    let mut stalled = member.stream().await;
    stalled.create(span("a", "b")).await;
    let mut reading = member.stream().await;
    reading.create(span("a", "b")).await;
    let value = vec![1; 8 << 10];
    let mut seen = 0;
    for n in 0..COUNT {
        member.put(&format!("a{n}"), &value);
        if n % 10 == 9 {
            while seen < n + 1 {
                seen += reading.response().await.events.len();
            }
        }
    }
    // A stream keeps one batch in memory, however many events are left to send.
    let batch = bounds.batch_bytes / value.len() + 1;
    assert!(
        member.hub.pending_events() <= batch as u64,
        "{} events pending",
        member.hub.pending_events()
    );
    assert_eq!(member.history.published(), 2001);
    let mut last = 1;
    while last < 2001 {
        let response = stalled.response().await;
        for event in events(&response) {
            last += 1;
            assert_eq!(event.kv.unwrap().mod_revision, last);
        }
    }
    assert!(member.history.reads() > 0, "the ring held everything");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_is_told_while_events_keep_coming() {
    let mut member = Member::bounded().await;
    let mut stream = member.stream().await;
    stream.create(span("a", "b")).await;
    stream.create(span("a", "c")).await;
    let mut answers = 0;
    let mut last = 0;
    while answers < 50 {
        let asked_at = member.hub.revision();
        stream.ask_progress().await;
        loop {
            // One more put for each response that is read: the stream always has events.
            member.put("a", &[0; 1000]);
            let response = stream.response().await;
            if is_progress(&response) {
                assert!(revision(&response) >= last.max(asked_at), "progress goes back");
                answers += 1;
                break;
            }
            last = last.max(revision(&response));
        }
    }
}
