//! The keys of a lease that ends are read at once, and no request waits for them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use etcd_types::types::{Caller, LeaseId};
use runtime::clock::since_boot;
use store::alarm::CORRUPT;
use store::sequencer::command::Command;
use tokio::time::timeout;

use super::{delete, fill, start, text};
use crate::engine::Engine;
use crate::wire::{Request, Target as _, pb};

/// Longer than anybody waits for an answer.
const LONGER_THAN_ANY_ANSWER: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn lease_that_ends_reads_its_keys_at_once() {
    let (mut engine, rows) = start().await;
    let grant = Request::Grant(pb::LeaseGrantRequest { id: 7, ttl: 3_600 });
    engine.call(grant).await.unwrap();
    fill(&mut engine, 1_000, 7).await;
    rows.hooks.take();
    engine
        .call(Request::Revoke(pb::LeaseRevokeRequest { id: 7 }))
        .await
        .unwrap();
    let (gets, multi_gets, _) = rows.hooks.take();
    assert!(
        (gets, multi_gets) <= (0, 2),
        "{gets} single reads, {multi_gets} of many rows"
    );
    assert_eq!(delete(&mut engine, false).await.deleted, 0);
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lease_that_expires_reads_its_keys_at_once_and_nobody_waits() {
    let (mut engine, rows) = start().await;
    let grant = Request::Grant(pb::LeaseGrantRequest { id: 7, ttl: 3_600 });
    engine.call(grant).await.unwrap();
    fill(&mut engine, 1_000, 7).await;
    let silent = pb::PutRequest {
        key: "silent".into(),
        lease: 7,
        ..pb::PutRequest::default()
    };
    engine.call(Request::Put(silent)).await.unwrap();
    fill(&mut engine, 0, 0).await;
    rows.hooks.is_silent.store(true, Ordering::SeqCst);
    rows.hooks.take();
    run_out(&engine);
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let put = timeout(Duration::from_secs(1), engine.put(b"new", b"")).await;
        put.expect("waits for the keys of a lease").unwrap();
    }
    assert!(engine.store.state.leases().contains(LeaseId(7)));
    rows.hooks.is_silent.store(false, Ordering::SeqCst);
    let ended = async {
        while engine.store.state.leases().contains(LeaseId(7)) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(LONGER_THAN_ANY_ANSWER, ended)
        .await
        .expect("the lease ends when its keys can be read");
    assert_eq!(delete(&mut engine, false).await.deleted, 0);
    engine.stop().await.unwrap();
}

/// Has the lease run out now.
fn run_out(engine: &Engine) {
    let mut leases = engine.store.state.leases();
    let attached: Vec<_> = leases.attached(LeaseId(7)).cloned().collect();
    leases.grant(LeaseId(7), 1, 0, since_boot() - Duration::from_secs(2));
    attached.into_iter().for_each(|key| leases.attach(LeaseId(7), key));
}

#[tokio::test(start_paused = true)]
async fn lease_that_runs_out_while_data_is_corrupt_ends_afterwards() {
    let (mut engine, _) = start().await;
    let grant = Request::Grant(pb::LeaseGrantRequest { id: 7, ttl: 3_600 });
    engine.call(grant).await.unwrap();
    let alarm = |raised| {
        engine
            .kv
            .store
            .propose(Caller::Server, Command::Alarm(1, CORRUPT, raised), 64)
    };
    alarm(true).await.unwrap();
    run_out(&engine);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(engine.store.state.leases().contains(LeaseId(7)));
    alarm(false).await.unwrap();
    let ended = async {
        while engine.store.state.leases().contains(LeaseId(7)) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(LONGER_THAN_ANY_ANSWER, ended).await.expect("the lease ends");
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn large_values_that_nobody_needs_are_not_read() {
    let (mut engine, rows) = start().await;
    let grant = Request::Grant(pb::LeaseGrantRequest { id: 7, ttl: 3_600 });
    engine.call(grant).await.unwrap();
    for n in 0..300 {
        let put = pb::PutRequest {
            key: format!("large/{n:05}").into(),
            value: vec![b'v'; 1 << 20].into(),
            lease: 7,
            ..pb::PutRequest::default()
        };
        engine.call(Request::Put(put)).await.unwrap();
    }
    fill(&mut engine, 0, 0).await;
    rows.hooks.take();
    let revoke = Request::Revoke(pb::LeaseRevokeRequest { id: 7 });
    assert_eq!(text(engine.call(revoke).await), "accepted");
    let (_, _, objects) = rows.hooks.take();
    assert_eq!(objects, 0, "values");
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lease_ends_while_the_keys_of_others_cannot_be_read() {
    let (mut engine, rows) = start().await;
    for n in 1..=300 {
        let grant = Request::Grant(pb::LeaseGrantRequest { id: n, ttl: 3_600 });
        engine.call(grant).await.unwrap();
        let name = if n == 300 { "healthy" } else { "silent" };
        let put = pb::PutRequest {
            key: format!("{name}/{n}").into(),
            lease: n,
            ..pb::PutRequest::default()
        };
        engine.call(Request::Put(put)).await.unwrap();
    }
    fill(&mut engine, 0, 0).await;
    rows.hooks.is_silent.store(true, Ordering::SeqCst);
    for n in 1..=300 {
        let mut leases = engine.store.state.leases();
        let attached: Vec<_> = leases.attached(LeaseId(n)).cloned().collect();
        // The healthy one is the last to run out.
        let ran_out = Duration::from_millis(if n == 300 { 1_100 } else { 2_000 });
        leases.grant(LeaseId(n), 1, 0, since_boot() - ran_out);
        attached.into_iter().for_each(|key| leases.attach(LeaseId(n), key));
    }
    let ended = async {
        while engine.store.state.leases().contains(LeaseId(300)) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(10), ended)
        .await
        .expect("a lease waits for others");
    rows.hooks.is_silent.store(false, Ordering::SeqCst);
    let all = async {
        while engine.store.state.leases().ids().count() > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(2 * LONGER_THAN_ANY_ANSWER, all).await.expect("all leases end");
    engine.stop().await.unwrap();
}
