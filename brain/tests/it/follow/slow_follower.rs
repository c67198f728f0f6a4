//! A leader that writes faster than its follower reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cluster::forward::Role;
use cluster::liveness::Liveness;
use engine::log::LogError;
use store::replica::{RefreshedRows, RowsRefresher};
use tokio::time::{Instant, timeout};

use super::hooked_log::{HookedLog, hooked_log};
use super::{Leading, Other, PUTS_BEFORE_COMPACTION, STEP_TIMEOUT};
use crate::pausable_rows::{Gates, PausableRows};

/// A log whose reads take so long that another record is committed in the meantime.
fn slow(leading: &Leading) -> HookedLog {
    let leader = leading.engine.store.state.clone();
    hooked_log(&leading.log, move |_| {
        let leader = leader.clone();
        async move {
            leader.wait_applied(leader.committed().next()).await;
            Ok(())
        }
    })
}

#[tokio::test]
async fn slow_follower_keeps_following() {
    let mut leading = Leading::start().await;
    let (_serving, channel) = leading.listen().await;
    let opened = async {
        tokio::select! {
        other = Other::open(slow(&leading), leading.rows.clone()) => other,
        _ = leading.engine.puts(usize::MAX) => panic!("without an end"),
        }
    };
    let mut other = timeout(STEP_TIMEOUT, opened).await.expect("it takes too long");
    leading.engine.puts(PUTS_BEFORE_COMPACTION).await;
    let mut role = other.roles.subscribe();
    let follows = async {
        tokio::select! {
        followed = role.wait_for(|role| matches!(role, Role::Following(_))) => drop(followed.unwrap()),
        _ = leading.engine.puts(usize::MAX) => panic!("without an end"),
        }
    };
    other.follow(channel, follows).await;
    leading.engine.stop().await.unwrap();
}

#[tokio::test]
async fn distant_follower_resets_from_rows_in_bounded_memory() {
    let mut leading = Leading::start().await;
    let mut other = Other::open(leading.log.clone(), leading.rows.clone()).await;
    let value = vec![b'v'; 1 << 20];
    for _ in 0..40 {
        leading.engine.put(b"large", &value).await.unwrap();
    }
    // The follower notices that it holds too much before it reads more.
    other.tail().await;
    other.tail().await;
    let (revision, bytes) = (other.store.state.view().revision, other.node.replica.memtable_bytes());
    assert!(
        revision + 5 > leading.revision() && bytes < 5 * value.len(),
        "{bytes} bytes at {revision} of {}",
        leading.revision()
    );
    leading.engine.stop().await.unwrap();
}

#[tokio::test]
async fn log_tail_makes_progress_on_large_records() {
    let mut leading = Leading::start().await;
    let mut other = Other::open(leading.log.clone(), leading.rows.clone()).await;
    let value = vec![b'v'; 1_450_000];
    for _ in 0..20 {
        leading.engine.put(b"large", &value).await.unwrap();
    }
    other.tail().await;
    assert!(other.store.state.view().revision > 1);
    leading.engine.stop().await.unwrap();
}

#[tokio::test]
async fn a_follower_that_cannot_read_rows_keeps_little_in_memory_and_catches_up_later() {
    let mut leading = Leading::start().await;
    let (_serving, channel) = leading.listen().await;
    let rows = PausableRows::new(leading.rows.clone(), Gates::default());
    let mut other = Other::open(leading.log.clone(), rows.clone()).await;
    let (state, mut role) = (other.store.state.clone(), other.roles.subscribe());
    let bound = 2 * other.node.options.memtable_bytes;
    rows.hooks.snapshot.hold();
    let value = vec![b'v'; 16 << 10];
    let goes_on = async {
        let follows = role.wait_for(|role| matches!(role, Role::Following(_)));
        follows.await.map(drop).unwrap();
        let mut most = 0;
        for _ in 0..200 {
            leading.engine.put(b"large", &value).await.unwrap();
            most = most.max(state.view().memtables.bytes());
        }
        let committed = leading.engine.store.state.committed();
        while state.known_committed() < committed {
            tokio::task::yield_now().await;
            most = most.max(state.view().memtables.bytes());
        }
        assert!(
            most < bound + 2 * value.len(),
            "{most} bytes are in memory, the bound is {bound}"
        );
        assert!(state.lag() > 0, "it shows what it has no room for");
        rows.hooks.snapshot.release();
        state.wait_applied(committed).await;
    };
    other.follow(channel, goes_on).await;
    assert_eq!(other.store.state.view().revision, leading.revision());
    assert!(other.node.replica.memtable_bytes() < bound);
    leading.engine.stop().await.unwrap();
}

#[tokio::test]
async fn a_follower_that_cannot_reset_from_rows_now_does_so_later() {
    let mut leading = Leading::start().await;
    let is_cut = Arc::new(AtomicBool::new(false));
    let cut = is_cut.clone();
    let log = hooked_log(&leading.log, move |_| {
        let is_cut = cut.load(Ordering::SeqCst);
        async move {
            match is_cut {
                true => Err(LogError::Unavailable(anyhow::anyhow!("cut"))),
                false => Ok(()),
            }
        }
    });
    let mut other = Other::open(log, leading.rows.clone()).await;
    let value = vec![b'v'; 16 << 10];
    for _ in 0..60 {
        leading.engine.put(b"large", &value).await.unwrap();
    }
    other.refresher = RowsRefresher::new(Arc::new(leading.rows.clone()));
    other.tail().await;
    let bound = 2 * other.node.options.memtable_bytes;
    assert!(other.node.replica.memtable_bytes() >= bound, "there is room");
    for _ in 0..20 {
        leading.engine.put(b"large", &value).await.unwrap();
    }
    let is_ahead = async {
        while !RefreshedRows::read(Arc::new(leading.rows.clone()))
            .await
            .unwrap()
            .is_ahead_of(&other.node.replica)
        {
            tokio::task::yield_now().await;
        }
    };
    timeout(STEP_TIMEOUT, is_ahead).await.expect("nothing is flushed");
    is_cut.store(true, Ordering::SeqCst);
    other.refresher.want();
    let (liveness, end) = (Liveness::default(), Instant::now() + Duration::from_millis(500));
    let read = other.node.tail(&liveness, &mut other.refresher, Some(end));
    timeout(STEP_TIMEOUT, read).await.expect("it takes too long").unwrap();
    is_cut.store(false, Ordering::SeqCst);
    other.tail().await;
    assert!(other.store.state.view().revision + 10 > leading.revision());
    leading.engine.stop().await.unwrap();
}
