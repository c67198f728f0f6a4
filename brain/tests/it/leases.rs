//! Leases across the orderly end of a leader.

use std::time::Duration;

use engine::log::frame::is_barrier;
use engine::log::{Fault, Faulty, Log, MemLog};
use engine::rows::mem::MemRows;
use etcd_types::types::{Caller, LeaseId};
use futures::StreamExt as _;
use mvcc::lease::ENDING_CHECKPOINT;
use pb::lease_server::Lease as _;
use prost::Message as _;
use runtime::clock::since_boot;
use store::sequencer::command::Command;
use tokio::time::Instant;
use tonic::Streaming;
use tonic::codec::Codec as _;
use tonic_prost::ProstCodec;

use crate::engine::Engine;
use crate::locks::{self, LockView};
use crate::stalled::way_to;
use crate::wire::{Request, Response, Target, pb};

const LEASE_ID: i64 = 7;

/// Interval between flushes.
const FLUSH_INTERVAL: Duration = Duration::from_millis(50);

/// The time to live of the lease, in seconds.
const LEASE_TTL: i64 = 3_600;

/// Time since the lease was last renewed, in seconds.
const SECONDS_SINCE_RENEWAL: u64 = 200;

type Member = Engine;

async fn start(log: &(impl Log + Clone), rows: &MemRows) -> Member {
    Engine::start(log.clone(), rows.clone()).await.unwrap()
}

/// Grants the lease, as if `SECONDS_SINCE_RENEWAL` had passed since.
async fn grant(member: &mut Member) {
    let request = Request::Grant(pb::LeaseGrantRequest {
        id: LEASE_ID,
        ttl: LEASE_TTL,
    });
    member.call(request).await.unwrap();
    let then = since_boot() - Duration::from_secs(SECONDS_SINCE_RENEWAL);
    member.store.state.leases().grant(LeaseId(LEASE_ID), LEASE_TTL, 0, then);
}

/// The same at a member of a cluster.
async fn grant_at(member: &locks::Member) {
    let store = &member.kv.store;
    store
        .propose(Caller::Server, Command::Grant(LeaseId(LEASE_ID), LEASE_TTL), 64)
        .await
        .unwrap();
    let then = since_boot() - Duration::from_secs(SECONDS_SINCE_RENEWAL);
    store.state.leases().grant(LeaseId(LEASE_ID), LEASE_TTL, 0, then);
}

async fn keep_alive(member: &mut Member) {
    let request = Request::KeepAlive(pb::LeaseKeepAliveRequest { id: LEASE_ID });
    member.call(request).await.unwrap();
}

/// Returns the remaining time of the lease, in seconds.
async fn left(member: &mut Member) -> i64 {
    let request = Request::TimeToLive(pb::LeaseTimeToLiveRequest {
        id: LEASE_ID,
        keys: false,
    });
    match member.call(request).await.unwrap() {
        Response::TimeToLive(answer) => answer.ttl,
        other => panic!("answered by {other:?}"),
    }
}

#[tokio::test]
async fn a_leader_that_ends_in_order_leaves_leases_the_time_they_have() {
    let (log, rows) = (MemLog::keeping(is_barrier), MemRows::new());
    let mut old = start(&log, &rows).await;
    grant(&mut old).await;
    old.stop().await.unwrap();
    let mut next = start(&log, &rows).await;
    let remaining = left(&mut next).await;
    assert!(
        remaining <= LEASE_TTL - SECONDS_SINCE_RENEWAL.cast_signed(),
        "{remaining} s are left"
    );
    assert!(
        remaining > LEASE_TTL - SECONDS_SINCE_RENEWAL.cast_signed() - 60,
        "{remaining} s are left"
    );
    keep_alive(&mut next).await;
    next.kill().await;
    let mut last = start(&log, &rows).await;
    let remaining = left(&mut last).await;
    assert!(remaining > LEASE_TTL - 60, "{remaining} s are left of a renewed lease");
    last.stop().await.unwrap();
}

/// The keep-alives of a client.
fn keep_alives(ids: &[i64]) -> tonic::Request<Streaming<pb::LeaseKeepAliveRequest>> {
    let mut body = Vec::new();
    for id in ids {
        let message = pb::LeaseKeepAliveRequest { id: *id }.encode_to_vec();
        body.push(0);
        body.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        body.extend(message);
    }
    let mut codec = ProstCodec::<pb::LeaseKeepAliveResponse, pb::LeaseKeepAliveRequest>::default();
    let body = http_body_util::Full::new(bytes::Bytes::from(body));
    tonic::Request::new(Streaming::new_request(codec.decoder(), body, None, None))
}

#[tokio::test(start_paused = true)]
async fn client_that_reads_no_answers_delays_no_keep_alive_of_others() {
    let mut member = start(&MemLog::new(), &MemRows::new()).await;
    grant(&mut member).await;
    // Its renewal must be recorded, which takes a while.
    member
        .store
        .state
        .leases()
        .checkpoint(LeaseId(LEASE_ID), 100, since_boot());
    let stream = member.lease.lease_keep_alive(keep_alives(&[99, LEASE_ID])).await;
    let mut stream = stream.unwrap().into_inner();
    let unknown = stream.next().await.unwrap().unwrap();
    assert_eq!((unknown.id, unknown.ttl), (99, 0));
    // The next answer is asked for, and then nothing more.
    assert!(futures::poll!(stream.next()).is_pending());
    let other = member.lease.keep_alive(pb::LeaseKeepAliveRequest { id: LEASE_ID });
    let other = tokio::time::timeout(Duration::from_secs(60), other).await;
    assert_eq!(other.expect("it waits for the other client").unwrap().ttl, LEASE_TTL);
    assert_eq!(stream.next().await.unwrap().unwrap().ttl, LEASE_TTL);
    drop(stream);
    member.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn renewal_that_has_to_be_noted_delays_no_other() {
    const OTHER: i64 = 8;
    let log = way_to(&MemLog::new());
    let mut member = start(&log, &MemRows::new()).await;
    grant(&mut member).await;
    let other = Request::Grant(pb::LeaseGrantRequest {
        id: OTHER,
        ttl: LEASE_TTL,
    });
    member.call(other).await.unwrap();
    member
        .store
        .state
        .leases()
        .checkpoint(LeaseId(LEASE_ID), 100, since_boot());
    log.hooks.cut_appends();
    let stream = member.lease.lease_keep_alive(keep_alives(&[LEASE_ID])).await;
    let mut stream = stream.unwrap().into_inner();
    assert!(futures::poll!(stream.next()).is_pending());
    // Until nothing but the log is waited for.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let began = Instant::now();
    let renewed = member.lease.keep_alive(pb::LeaseKeepAliveRequest { id: OTHER }).await;
    assert_eq!(renewed.unwrap().ttl, LEASE_TTL);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    // The second and the third share a request which is slow, too.
    let mend = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        log.hooks.mend();
    };
    let share = || member.lease.keep_alive(pb::LeaseKeepAliveRequest { id: LEASE_ID });
    let (first, second, third, ()) = tokio::join!(share(), share(), share(), mend);
    for renewed in [first, second, third] {
        assert_eq!(renewed.unwrap().ttl, LEASE_TTL);
    }
    assert_eq!(stream.next().await.unwrap().unwrap().ttl, LEASE_TTL);
    drop(stream);
    member.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lease_that_runs_out_while_its_renewal_is_noted_is_not_renewed() {
    let log = way_to(&MemLog::new());
    let mut member = start(&log, &MemRows::new()).await;
    grant(&mut member).await;
    let leases = || member.store.state.leases();
    leases().checkpoint(LeaseId(LEASE_ID), 100, since_boot());
    log.hooks.cut_appends();
    let run_out = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let later = since_boot() + Duration::from_secs(2 * LEASE_TTL.unsigned_abs());
        assert_eq!(leases().expired(later, 9), [LeaseId(LEASE_ID)]);
        log.hooks.mend();
    };
    let renewed = member.lease.keep_alive(pb::LeaseKeepAliveRequest { id: LEASE_ID });
    let (renewed, ()) = tokio::join!(renewed, run_out);
    assert_eq!(renewed.unwrap().ttl, 0);
    member.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn renewal_is_not_noted_for_a_lease_that_has_run_out() {
    let mut member = start(&MemLog::new(), &MemRows::new()).await;
    grant(&mut member).await;
    let leases = || member.store.state.leases();
    let later = since_boot() + Duration::from_secs(2 * LEASE_TTL.unsigned_abs());
    let note = || {
        let renewed = Command::Checkpoint(vec![(LeaseId(LEASE_ID), 0)]);
        member.kv.store.propose(Caller::Server, renewed, 64)
    };
    leases().checkpoint(LeaseId(LEASE_ID), 100, since_boot());
    note().await.unwrap();
    assert_eq!(leases().stored(LeaseId(LEASE_ID)), Some((LEASE_TTL, 0)));
    assert_eq!(leases().expired(later, 9), [LeaseId(LEASE_ID)]);
    leases().checkpoint(LeaseId(LEASE_ID), 100, since_boot());
    note().await.unwrap();
    assert_eq!(
        leases().stored(LeaseId(LEASE_ID)),
        Some((LEASE_TTL, 100)),
        "it was renewed before"
    );
    leases().retry_expired(LeaseId(LEASE_ID));
    leases().checkpoint(LeaseId(LEASE_ID), ENDING_CHECKPOINT, since_boot());
    note().await.unwrap();
    assert_eq!(leases().stored(LeaseId(LEASE_ID)), Some((LEASE_TTL, ENDING_CHECKPOINT)));
    member.stop().await.unwrap();
}

#[tokio::test]
async fn a_member_that_is_stopped_while_it_leads_leaves_leases_the_time_they_have() {
    let store = (MemLog::keeping(is_barrier), MemRows::new());
    let start = async |id| {
        let member = locks::Member::start(id, store.clone(), &LockView::Log, FLUSH_INTERVAL).await;
        member.leads().await;
        member
    };
    let old = start(1).await;
    grant_at(&old).await;
    old.stop().await;
    let next = start(2).await;
    let info = next
        .kv
        .store
        .state
        .leases()
        .info(LeaseId(LEASE_ID), since_boot(), false);
    let remaining = info.expect("there is a lease").remaining;
    let before = Duration::from_secs(LEASE_TTL.unsigned_abs() - SECONDS_SINCE_RENEWAL);
    assert!(remaining <= before, "{remaining:?} are left of {before:?}");
    next.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_ends_in_order_does_not_wait_for_a_log_that_takes_nothing() {
    let log = Faulty::new(MemLog::keeping(is_barrier));
    let mut member = start(&log, &MemRows::new()).await;
    grant(&mut member).await;
    (0..100).for_each(|_| log.fail_next(Fault::Full));
    let (before, began) = (log.appends(), Instant::now());
    member.stop().await.unwrap();
    assert!(log.appends() > before, "nothing was to be noted");
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn key_put_while_its_lease_ends_and_is_granted_again_stays() {
    let mut member = start(&MemLog::new(), &MemRows::new()).await;
    grant(&mut member).await;
    let put = |lease| pb::PutRequest {
        key: "k".into(),
        lease,
        ..pb::PutRequest::default()
    };
    member.call(Request::Put(put(LEASE_ID))).await.unwrap();
    let store = &member.kv.store;
    let revoke = || {
        store.propose(
            Caller::Server,
            Command::Revoke {
                id: LeaseId(LEASE_ID),
                expired: false,
            },
            64,
        )
    };
    // Queued in this order before any of them is evaluated.
    let (first, again, granted, second) = tokio::join!(
        revoke(),
        pb::kv_server::Kv::put(&member.kv, tonic::Request::new(put(0))),
        store.propose(Caller::Server, Command::Grant(LeaseId(LEASE_ID), LEASE_TTL), 64),
        revoke(),
    );
    first.unwrap();
    granted.unwrap();
    second.unwrap();
    let revision = again.unwrap().into_inner().header.map(|header| header.revision);
    assert_eq!(member.mod_revision(b"k").await, revision);
    member.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn time_left_of_a_lease_is_not_noted_for_one_that_is_granted_its_id_again() {
    const LEFT: i64 = 5;
    let mut member = start(&MemLog::new(), &MemRows::new()).await;
    grant(&mut member).await;
    let stored = || member.store.state.leases().stored(LeaseId(LEASE_ID));
    let hand_out = || {
        let later = since_boot() + Duration::from_secs(LEASE_TTL.unsigned_abs() - SECONDS_SINCE_RENEWAL - 1);
        member.store.state.leases().due_checkpoints(later, 9)
    };
    let propose = |command| member.kv.store.propose(Caller::Server, command, 64);
    let revoke = Command::Revoke {
        id: LeaseId(LEASE_ID),
        expired: false,
    };
    let note = || Command::Checkpoint(vec![(LeaseId(LEASE_ID), LEFT)]);
    assert_eq!(hand_out().len(), 1);
    // Queued in this order before any of them is evaluated.
    let (revoked, granted, noted) = tokio::join!(
        propose(revoke),
        propose(Command::Grant(LeaseId(LEASE_ID), LEASE_TTL)),
        propose(note())
    );
    for outcome in [revoked, granted, noted] {
        outcome.unwrap();
    }
    assert_eq!(stored(), Some((LEASE_TTL, 0)));
    assert_eq!(hand_out().len(), 1);
    propose(note()).await.unwrap();
    assert_eq!(stored(), Some((LEASE_TTL, LEFT)));
    member.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn leases_that_take_too_much_memory_get_no_more() {
    let mut member = start(&MemLog::new(), &MemRows::new()).await;
    grant(&mut member).await;
    let put = |key: String, lease| {
        Request::Put(pb::PutRequest {
            key: key.into(),
            lease,
            ..pb::PutRequest::default()
        })
    };
    for n in 0..450 {
        member.call(put(format!("{n:020000}"), LEASE_ID)).await.unwrap();
    }
    // The clock is paused: it advances when all tasks wait, here for a tick of the writer.
    let tick = || tokio::time::sleep(Duration::from_secs(1));
    tick().await;
    let lease = |n, ttl| Request::Grant(pb::LeaseGrantRequest { id: LEASE_ID + n, ttl });
    let another = || lease(1, LEASE_TTL);
    for request in [put("x".to_owned(), LEASE_ID), another()] {
        let refused = member.call(request).await.unwrap_err();
        assert_eq!(refused.text, "etcdserver: too many requests");
    }
    member.call(put("x".to_owned(), 0)).await.unwrap();
    // For locks there is more room.
    member.call(lease(2, 15)).await.unwrap();
    member.call(put("lock".to_owned(), LEASE_ID + 2)).await.unwrap();
    keep_alive(&mut member).await;
    let all = pb::DeleteRangeRequest {
        key: vec![0].into(),
        range_end: vec![0].into(),
        ..pb::DeleteRangeRequest::default()
    };
    member.call(Request::Delete(all)).await.unwrap();
    tick().await;
    member.call(another()).await.unwrap();
    member.call(put("x".to_owned(), LEASE_ID)).await.unwrap();
    member.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn expired_lease_with_very_many_keys_ends_in_parts() {
    ends_in_two_parts(25_100, 6).await;
}

#[tokio::test(start_paused = true)]
async fn expired_lease_with_very_long_keys_ends_in_parts() {
    ends_in_two_parts(300, 20_000).await;
}

async fn ends_in_two_parts(keys: usize, width: usize) {
    let in_txn = 100.min((1 << 20) / width);
    let mut member = start(&MemLog::new(), &MemRows::new()).await;
    grant(&mut member).await;
    for first in (0..keys).step_by(in_txn) {
        let puts = (first..keys.min(first + in_txn)).map(|key| pb::RequestOp {
            request: Some(pb::request_op::Request::RequestPut(pb::PutRequest {
                key: format!("{key:0width$}").into(),
                lease: LEASE_ID,
                ..pb::PutRequest::default()
            })),
        });
        let txn = pb::TxnRequest {
            success: puts.collect(),
            ..pb::TxnRequest::default()
        };
        pb::kv_server::Kv::txn(&member.kv, tonic::Request::new(txn))
            .await
            .unwrap();
    }
    let count = pb::RangeRequest {
        key: vec![0].into(),
        range_end: vec![0].into(),
        count_only: true,
        ..pb::RangeRequest::default()
    };
    let counted = async || {
        let counted = pb::kv_server::Kv::range(&member.kv, tonic::Request::new(count.clone())).await;
        let counted = counted.unwrap().into_inner();
        (counted.count, counted.header.map_or(0, |header| header.revision))
    };
    let (_, before) = counted().await;
    let later = since_boot() + Duration::from_secs(2 * LEASE_TTL.unsigned_abs());
    assert_eq!(member.store.state.leases().expired(later, 9), [LeaseId(LEASE_ID)]);
    let end = Command::Revoke {
        id: LeaseId(LEASE_ID),
        expired: true,
    };
    member.kv.store.propose(Caller::Server, end, 64).await.unwrap();
    let stored = || member.store.state.leases().stored(LeaseId(LEASE_ID));
    while let Some((_, remaining)) = stored() {
        assert_eq!(remaining, ENDING_CHECKPOINT);
        // The clock is paused: it advances when all tasks wait.
        tokio::time::sleep(FLUSH_INTERVAL).await;
    }
    assert_eq!(counted().await, (0, before + 2));
    member.stop().await.unwrap();
}
