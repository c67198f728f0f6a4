//! Each step at which a leader can be when another one takes over, and two steps at which an opener can be.

use std::sync::Arc;
use std::time::Duration;

use engine::log::frame::Candidate;
use engine::log::{DynLog, Fault, Log, Slot};
use engine::rows::mem::MemRows;
use engine::rows::{DynRows, Rows};
use etcd_types::errors::Error;
use etcd_types::types::Revision;
use store::replica::{Replica, TakeOver};
use tokio::task::JoinSet;

use super::{Old, PUTS, World, revision_of, shown};
use crate::engine::Engine;
use crate::pausable_rows::{Gates, PausableRows};
use crate::wire::{Request, Target, pb};

#[tokio::test(start_paused = true)]
async fn before_the_append() {
    let world = World::new();
    let (old, gates) = world.leader().await;
    gates.hooks.change.hold(); // the log alone must stop it
    let shown = world.successor().await;
    let stored = world.stored().await;
    world.old_is_powerless((old, gates), stored, shown).await;
}

#[tokio::test(start_paused = true)]
async fn with_an_append_that_does_not_arrive_until_its_slot_is_a_barriers() {
    let world = World::new();
    let (old, gates) = world.leader().await;
    gates.hooks.change.hold(); // the log alone must stop it
    world.fail(&[Some(Fault::Lost)]);
    let asked = world.put(&old, b"late").await;
    let shown = world.successor().await;
    let stored = world.stored().await;
    assert_eq!(asked.outcome().await, Err(Error::Timeout));
    assert_eq!(revision_of(&shown, b"late"), None);
    world.old_is_powerless((old, gates), stored, shown).await;
}

#[tokio::test(start_paused = true)]
async fn with_an_append_in_flight() {
    let world = World::new();
    let (old, gates) = world.leader().await;
    gates.hooks.change.hold(); // the log alone must stop it
    let before = old.store.state.view().revision;
    world.fail(&[Some(Fault::Late)]);
    let asked = world.put(&old, b"late").await;
    let shown = world.successor().await;
    let stored = world.stored().await;
    let landed = world.log.land_late(true).await;
    assert!(landed.last().unwrap().1.is_err(), "a late append took a barrier's slot");
    assert_eq!(asked.outcome().await, Err(Error::Timeout));
    assert_eq!(
        old.store.state.view().revision,
        before,
        "a deposed leader showed something"
    );
    assert_eq!(revision_of(&shown, b"late"), None);
    world.old_is_powerless((old, gates), stored, shown).await;
}

#[tokio::test(start_paused = true)]
async fn with_a_durable_append_behind_one_that_is_lost() {
    let world = World::new();
    let (old, gates) = world.leader().await;
    gates.hooks.change.hold(); // the log alone must stop it
    let before = old.store.state.view().revision;
    world.fail(&[Some(Fault::Lost), None]);
    let first = world.put(&old, b"first").await;
    let second = world.put(&old, b"second").await;
    let tail = world.log.inner().read(Slot(1), usize::MAX).await.unwrap();
    assert_eq!(tail.len(), 1 + PUTS + 1, "the second append is not there");
    let shown = world.successor().await;
    let stored = world.stored().await;
    assert_eq!(first.outcome().await, Err(Error::Timeout));
    assert_eq!(second.outcome().await, Err(Error::Timeout));
    assert_eq!(
        old.store.state.view().revision,
        before,
        "a deposed leader showed something"
    );
    assert_eq!(
        (revision_of(&shown, b"first"), revision_of(&shown, b"second")),
        (None, None)
    );
    world.old_is_powerless((old, gates), stored, shown).await;
}

#[tokio::test(start_paused = true)]
async fn committed_but_not_published() {
    let world = World::new();
    let (old, gates) = world.leader().await;
    gates.hooks.change.hold(); // the log alone must stop it
    let revision = old.store.state.view().revision + 1;
    world.fail(&[Some(Fault::Unanswered)]);
    let asked = world.put(&old, b"late").await;
    let shown = world.successor().await;
    let stored = world.stored().await;
    assert_eq!(revision_of(&shown, b"late"), Some(revision), "it was committed");
    // It repeats the append, into a destroyed slot by now: it may learn that it is committed, for it is.
    assert!([Ok(revision), Err(Error::Timeout)].contains(&asked.outcome().await));
    world.old_is_powerless((old, gates), stored, shown).await;
}

#[tokio::test(start_paused = true)]
async fn before_a_flush() {
    let world = World::new();
    let (mut old, gates) = world.leader().await;
    let before = gates.hooks.change.hold();
    old.puts(10).await;
    gates.hooks.change.reached(before).await;
    let shown = world.successor().await;
    let stored = world.stored().await;
    gates.hooks.change.release();
    world.old_is_powerless((old, gates), stored, shown).await;
}

#[tokio::test(start_paused = true)]
async fn in_the_middle_of_a_flush() {
    let world = World::new();
    let (mut old, gates) = world.leader().await;
    let before = gates.hooks.change.hold();
    // More than one step: the first one writes rows, and only the last one moves the applied slot.
    old.put(b"large", &vec![7; (1 << 20) + 1]).await.unwrap();
    gates.hooks.change.reached(before).await;
    gates.hooks.change.step().await;
    let shown = world.successor().await;
    let stored = world.stored().await;
    gates.hooks.change.release();
    assert!(revision_of(&shown, b"large").is_some());
    world.old_is_powerless((old, gates), stored, shown).await;
}

/// Compacts, and stops at the change that follows `steps` others.
async fn compacts(old: &mut Old, gates: &PausableRows<MemRows>, steps: usize) {
    let before = gates.hooks.change.hold();
    let revision = old.store.state.view().revision;
    let request = pb::CompactionRequest {
        revision,
        physical: false,
    };
    old.call(Request::Compact(request)).await.unwrap();
    gates.hooks.change.reached(before).await;
    for _ in 0..steps {
        gates.hooks.change.step().await;
    }
}

#[tokio::test(start_paused = true)]
async fn before_a_compaction_deletes() {
    let world = World::new();
    let (mut old, gates) = world.leader().await;
    compacts(&mut old, &gates, 1).await; // the flush goes first
    let shown = world.successor().await;
    let stored = world.stored().await;
    gates.hooks.change.release();
    world.old_is_powerless((old, gates), stored, shown).await;
}

#[tokio::test(start_paused = true)]
async fn in_the_middle_of_a_compaction() {
    let world = World::new();
    let (mut old, gates) = world.leader().await;
    old.puts(1_200).await;
    let rows = world.stored().await.1.len();
    compacts(&mut old, &gates, 2).await; // the flush, and some of the deletions
    assert_ne!(world.stored().await.1.len(), rows);
    let shown = world.successor().await;
    let stored = world.stored().await;
    gates.hooks.change.release();
    world.old_is_powerless((old, gates), stored, shown).await;
}

#[tokio::test(start_paused = true)]
async fn before_it_moves_the_watermark_and_destroys() {
    let world = World::new();
    let (mut old, gates) = world.leader().await;
    let before = gates.hooks.sync.hold();
    let revision = old.store.state.view().revision;
    let request = pb::CompactionRequest {
        revision,
        physical: false,
    };
    old.call(Request::Compact(request)).await.unwrap();
    gates.hooks.sync.reached(before).await;
    let shown = world.successor().await;
    let watermark = world.log.inner().watermark().await.unwrap();
    let stored = world.stored().await;
    gates.hooks.sync.release();
    world.old_is_powerless((old, gates), stored, shown).await;
    assert!(
        world.log.inner().watermark().await.unwrap() >= watermark,
        "the watermark moved back"
    );
}

#[tokio::test(start_paused = true)]
async fn an_opener_that_was_overtaken_after_it_read_the_fence_begins_again() {
    let world = World::new();
    let (old, gates) = world.leader().await;
    drop(gates);
    old.stop().await.unwrap();
    let slow = PausableRows::new(world.rows.clone(), Gates::default());
    let before = slow.hooks.fence.hold();
    let mut opening = JoinSet::new();
    opening.spawn(Engine::start(world.log.inner().clone(), slow.clone()));
    slow.hooks.fence.reached(before).await;
    let before = world.successor().await;
    slow.hooks.fence.release();
    let mut opened = opening.join_next().await.unwrap().unwrap().unwrap();
    assert!(
        shown(&mut opened).await == before,
        "an opener that was overtaken shows something else"
    );
}

#[tokio::test(start_paused = true)]
async fn an_opener_whose_predecessor_flushes_meanwhile_begins_again() {
    let world = World::new();
    let (old, gates) = world.leader().await;
    let flush = gates.hooks.change.hold();
    gates.hooks.change.reached(flush).await;
    let slow = PausableRows::new(world.rows.clone(), Gates::default());
    let before = slow.hooks.change.hold();
    let mut opening = JoinSet::new();
    opening.spawn(Engine::start(world.log.inner().clone(), slow.clone()));
    slow.hooks.change.reached(before).await;
    // Its barrier is placed; it has not read what the older leader flushes now.
    let stored = world.rows.fence().await.unwrap();
    gates.hooks.change.release();
    while world.rows.fence().await.unwrap() == stored {
        tokio::task::yield_now().await;
    }
    slow.hooks.change.release();
    let mut opened = opening.join_next().await.unwrap().unwrap().unwrap();
    let revision = opened.puts(1).await;
    assert_eq!(revision, 1 + PUTS as Revision + 1);
    opened.stop().await.unwrap();
    old.kill().await;
}

#[tokio::test(start_paused = true)]
async fn an_opener_that_stops_behind_its_barrier_begins_again_in_a_later_epoch() {
    let world = World::new();
    let log: DynLog = Arc::new(world.log.inner().clone());
    let candidate = Candidate {
        member: 1,
        lease: Duration::ZERO,
        lock: 0,
    };
    let gates = PausableRows::new(world.rows.clone(), Gates::default());
    let (gated, rows): (DynRows, DynRows) = (Arc::new(gates.clone()), Arc::new(world.rows.clone()));
    let mut replica = Replica::load(&log, &gated).await.unwrap();
    let before = gates.hooks.change.hold();
    tokio::select! {
    led = replica.lead(&log, &gated, TakeOver::after_expiry(candidate)) => panic!("{led:?}"),
    () = gates.hooks.change.reached(before) => {} // its barrier is placed, the manifest is unchanged
    }
    gates.hooks.change.release();
    let again = replica
        .lead(&log, &gated, TakeOver::after_expiry(candidate))
        .await
        .unwrap();
    assert_eq!(again.writer.epoch(), 2);
    let mut other = Replica::load(&log, &rows).await.unwrap();
    let other = other
        .lead(&log, &rows, TakeOver::after_expiry(candidate))
        .await
        .unwrap();
    assert_eq!(other.writer.epoch(), 3, "whoever reads both barriers");
}
