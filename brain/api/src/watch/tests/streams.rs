//! Progress of whole streams, and their ends.

use tonic::Code;

use super::contract::TINY_LIMITS;
use super::*;
use ::watch::WatchLimits;

#[tokio::test]
async fn progress_waits_for_those_who_lag_and_for_what_is_being_published() {
    let mut member = Member::start(TINY_LIMITS).await;
    for n in 0..100 {
        member.put("a", &[n; 40]);
    }
    let mut stream = member.stream().await;
    stream.create(one("z")).await;
    stream.create(from(2, one("a"))).await;
    let late = member.remember(&[("a", Some(b"late"))]);
    stream.ask_progress().await;
    stream.ask_progress().await;
    member.hub.publish([late]);
    let mut last = 0;
    loop {
        let response = stream.response().await;
        if is_progress(&response) {
            assert_eq!((response.watch_id, revision(&response), last), (-1, 102, 102));
            break;
        }
        last = events(&response).last().unwrap().kv.as_ref().unwrap().mod_revision;
    }
}

#[tokio::test]
async fn an_answer_on_the_heels_of_another_waits_for_who_was_held_for_that() {
    let mut member = Member::start(WatchLimits {
        batch_bytes: 64, // two turns for who has two events
        ..WatchLimits::default()
    })
    .await;
    let mut stream = member.stream().await;
    stream.create(one("busy")).await;
    stream.create(one("held")).await;
    let first = member.remember(&[("busy", Some(&[1; 64]))]);
    let second = member.remember(&[("busy", Some(&[2; 64]))]);
    stream.ask_progress().await;
    stream.assert_quiet().await;
    let third = member.remember(&[("held", Some(b"3"))]);
    stream.ask_progress().await;
    stream.assert_quiet().await;
    member.hub.publish([first, second, third]);
    let mut told = Vec::new();
    for _ in 0..5 {
        let response = stream.response().await;
        told.push(if is_progress(&response) {
            revision(&response).to_string()
        } else {
            brief(&response)
        });
    }
    assert_eq!(told, ["busy@2", "busy@3", "3", "held@4", "4"]);
}

#[tokio::test]
async fn a_stream_without_watchers_makes_no_progress() {
    let member = Member::bounded().await;
    let mut stream = member.stream().await;
    stream.ask_progress().await;
    stream.assert_quiet().await;
}

#[tokio::test]
async fn periodic_progress_is_for_quiet_watchers_that_want_it() {
    let mut member = Member::start_with(WatchLimits::default(), Duration::ZERO, 1 << 20).await;
    let mut stream = member.stream().await;
    stream.create(one("a")).await;
    let notified = |create| WatchCreateRequest {
        progress_notify: true,
        ..create
    };
    stream.create(notified(one("b"))).await;
    stream.create(notified(from(1000, one("c")))).await;
    member.put("a", b"");
    assert_eq!(brief(&stream.response().await), "a@2");
    for _ in 0..3 {
        let progress = stream.response().await;
        assert!(is_progress(&progress), "{progress:?}");
        assert_eq!((progress.watch_id, revision(&progress)), (1, 2));
    }
}

#[tokio::test]
async fn a_client_that_requires_a_leader_is_told_when_there_is_none() {
    let mut member = Member::bounded().await;
    let mut requiring = member.try_stream(true).await.unwrap();
    let mut other = member.stream().await;
    requiring.create(one("a")).await;
    other.create(one("a")).await;
    member.leader.send_replace(false);
    let status = requiring.next().await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unavailable, "etcdserver: no leader")
    );
    let status = member.try_stream(true).await.err().unwrap();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unavailable, "etcdserver: no leader")
    );
    member.put("a", b"");
    assert_eq!(brief(&other.response().await), "a@2");
}

#[tokio::test]
async fn streams_end_when_the_server_stops() {
    let member = Member::bounded().await;
    let mut stream = member.stream().await;
    stream.create(one("a")).await;
    member.stop.cancel();
    let status = stream.next().await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unavailable, "etcdserver: server stopped")
    );
}

#[tokio::test]
async fn a_client_that_sends_no_more_still_hears_of_its_watchers() {
    let mut member = Member::bounded().await;
    let mut stream = member.stream().await;
    stream.create(one("a")).await;
    stream.requests = None;
    member.put("a", b"");
    assert_eq!(brief(&stream.response().await), "a@2");
    let mut idle = member.stream().await;
    idle.requests = None;
    assert!(
        idle.next().await.unwrap().is_none(),
        "without watchers there is nothing to wait for"
    );
}

#[tokio::test]
async fn history_that_cannot_be_read_is_asked_again() {
    let mut member = Member::start(TINY_LIMITS).await;
    for n in 0..100 {
        member.put("a", &[n; 40]);
    }
    member.history.fail(2);
    let mut stream = member.stream().await;
    stream.create(from(2, one("a"))).await;
    assert!(brief(&stream.response().await).starts_with("a@2"));
}

#[tokio::test]
async fn skipped_revisions_are_fetched_from_history() {
    let mut member = Member::bounded().await;
    let mut stream = member.stream().await;
    stream.create(one("a")).await;
    stream.create(span("a", "c")).await;
    member.put("a", b"");
    for _ in 0..2 {
        assert_eq!(brief(&stream.response().await), "a@2");
    }
    member.remember(&[("a", Some(b""))]);
    member.remember(&[("b", Some(b""))]);
    member.put("b", b"");
    member.put("a", b"");
    let mut seen = [String::new(), String::new()];
    while seen != ["a@3 a@6", "a@3 b@4 b@5 a@6"] {
        let response = stream.response().await;
        let seen = &mut seen[usize::try_from(response.watch_id).unwrap()];
        *seen = format!("{seen} {}", brief(&response)).trim().to_owned();
    }
}

#[tokio::test]
async fn a_stream_that_is_gone_leaves_nothing_behind() {
    let mut member = Member::bounded().await;
    let mut stream = member.stream().await;
    stream.create(one("a")).await;
    stream.create(span("a", "c")).await;
    assert_eq!((member.hub.watchers(), member.hub.streams()), (2, 1));
    member.put("a", b"");
    stream.response().await;
    stream.response().await;
    assert_eq!((member.hub.events(), member.hub.pending_events()), (2, 0));
    drop(stream);
    // The server learns of it from a separate frame, and another stream's answer may arrive before it.
    while member.hub.streams() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(member.hub.watchers(), 0);
    assert_eq!(member.hub.lagging_watchers(), 0);
    assert!(member.tasks.len() == 2, "the member still serves");
}
