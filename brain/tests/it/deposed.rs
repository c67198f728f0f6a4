//! A leader that sleeps, wherever it stands, while another one takes over, writes, flushes, compacts and destroys its slots.
//! When it wakes it commits nothing, acknowledges only what its successor has, and brings nothing back; nor do the copies of
//! its messages that land in slots which are destroyed by then.

use std::sync::Arc;

use brain::log::frame::is_barrier;
use brain::log::{Fault, Faulty, Log, MemLog, Slot};
use brain::mvcc::op::{Op, PutOp};
use brain::mvcc::{Committed, Error, LeaseId, Revision};
use brain::rows::mem::MemRows;
use brain::rows::{Order, Rows, Scan, Snapshot};
use brain::sequencer::command::{Answer, Request as Command};
use bytes::Bytes;
use tokio::task::JoinSet;

use crate::engine::Engine;
use crate::gate::Gated;
use crate::wire::{Request, Response, Target, pb};

/// Attempts that fail: more than a writer makes until its successor is there.
const ATTEMPTS: usize = 12;

/// What the old leader wrote before anything happened.
const PUTS: usize = 20;

type Old = Engine<Faulty<MemLog>, Gated<MemRows>>;
type New = Engine<MemLog, MemRows>;

/// What old and new leader share.
struct World {
    log: Faulty<MemLog>,
    rows: MemRows,
}

/// A put under way.
struct Asked(JoinSet<Result<Answer, Error>>);

impl Asked {
    async fn outcome(mut self) -> Result<Revision, Error> {
        let outcome = self.0.join_next().await.expect("it was asked").unwrap();
        outcome.map(|answer| answer.revision)
    }

    fn is_answered(&mut self) -> bool {
        self.0.try_join_next().is_some()
    }
}

/// All that is stored: fence, rows, and the slots that are not given up.
type Stored = (Option<Bytes>, Vec<(Bytes, Bytes)>, Vec<(Slot, Bytes)>);

/// All that can be read: the newest versions, and history.
type Shown = (Vec<pb::RangeResponse>, Vec<Arc<Committed>>);

impl World {
    fn new() -> Self {
        Self {
            log: Faulty::new(MemLog::keeping(is_barrier)),
            rows: MemRows::new(),
        }
    }

    /// A leader that wrote something. Copies of all its messages are still under way.
    async fn leader(&self) -> (Old, Gated<MemRows>) {
        (0..=PUTS).for_each(|_| self.log.fail_next(Fault::Twice));
        let gates = Gated::new(self.rows.clone());
        let mut old = Engine::start(self.log.clone(), gates.clone()).await.unwrap();
        old.puts(PUTS).await;
        assert_eq!(
            self.log.appends(),
            1 + PUTS as u64,
            "a barrier and a record for each put"
        );
        assert_eq!(self.log.held(), 1 + PUTS);
        (old, gates)
    }

    /// The appends of the old leader meet these faults, and then get lost until there is a successor.
    fn fail(&self, faults: &[Option<Fault>]) {
        for (at, fault) in faults.iter().enumerate() {
            if let Some(fault) = fault {
                self.log.fail_nth(at + 1, *fault);
            }
        }
        let last = match faults.last() {
            Some(Some(Fault::Late)) => Fault::Late,
            _ => Fault::Lost,
        };
        (1..ATTEMPTS).for_each(|n| self.log.fail_nth(faults.len() + n, last));
    }

    /// Waits until the old leader appended once more than `before`.
    async fn appended(&self, before: u64) {
        while self.log.appends() == before {
            tokio::task::yield_now().await;
        }
    }

    async fn put(&self, old: &Old, key: &'static [u8]) -> Asked {
        let before = self.log.appends();
        let asked = ask(old, key, 10);
        self.appended(before).await;
        asked
    }

    /// Takes over: writes, flushes, compacts, destroys, and leaves. Answers with what it showed.
    async fn successor(&self) -> Shown {
        let log = self.log.inner();
        let first = log.read(Slot::FIRST, usize::MAX).await.unwrap().pop().unwrap().0;
        let mut new: New = Engine::start(log.clone(), self.rows.clone()).await.unwrap();
        new.puts(200).await;
        new.compact().await;
        new.puts(30).await;
        assert!(
            log.watermark().await.unwrap() > first,
            "the old slots were not destroyed"
        );
        let shown = shown(&mut new).await;
        new.stop().await.unwrap();
        shown
    }

    async fn stored(&self) -> Stored {
        let everything = Scan {
            from: Bytes::new(),
            to: None,
            order: Order::Ascending,
            keys_only: false,
            max_rows: usize::MAX,
            max_bytes: usize::MAX,
        };
        let rows = self.rows.snapshot().await.unwrap().scan(everything).await.unwrap().rows;
        let log = self.log.inner();
        let slots = log.read(log.watermark().await.unwrap(), usize::MAX).await.unwrap();
        (self.rows.fence().await.unwrap(), rows, slots)
    }

    /// The old leader, awake again, can do nothing; nothing that is stored changed, and the next leader finds everything.
    async fn old_is_powerless(&self, (mut old, gates): (Old, Gated<MemRows>), stored: Stored, shown_before: Shown) {
        let refused = old.put(b"later", b"").await.unwrap_err();
        assert!(
            ["etcdserver: request timed out", "etcdserver: server stopped"].contains(&&*refused.text),
            "{refused:?}"
        );
        let landed = self.log.land_late(true).await;
        assert!(
            landed.iter().filter(|(_, answer)| answer.is_ok()).count() > PUTS / 2,
            "few copies landed in destroyed slots: {landed:?}"
        );
        gates.change.release();
        let error = format!("{:#}", old.stop().await.unwrap_err());
        assert!(
            error.contains("a later leader took slot") || error.contains("the rows belong to another writer"),
            "{error}"
        );
        assert!(self.stored().await == stored, "a deposed leader changed what is stored");
        for _ in 0..2 {
            let mut next: New = Engine::start(self.log.inner().clone(), self.rows.clone())
                .await
                .unwrap();
            assert!(
                shown(&mut next).await == shown_before,
                "the next leader shows something else"
            );
            next.kill().await;
        }
        // It goes on: what landed in destroyed slots is in nobody's way.
        let mut next: New = Engine::start(self.log.inner().clone(), self.rows.clone())
            .await
            .unwrap();
        next.puts(50).await;
        next.compact().await;
        next.puts(50).await;
        let shown_at_last = shown(&mut next).await;
        next.stop().await.unwrap();
        self.log.land_late(false).await;
        let mut again: New = Engine::start(self.log.inner().clone(), self.rows.clone())
            .await
            .unwrap();
        assert!(shown(&mut again).await == shown_at_last, "late copies came back");
        assert_eq!(again.mod_revision(b"later").await, None);
    }
}

/// Asks for a put without waiting for it.
fn ask(old: &Old, key: &'static [u8], len: usize) -> Asked {
    let put = PutOp {
        key: Bytes::from_static(key),
        value: vec![b'v'; len].into(),
        lease: LeaseId::NONE,
        prev_kv: false,
        ignore_value: false,
        ignore_lease: false,
    };
    let (sequencer, mut asked) = (old.store.sequencer.clone(), JoinSet::new());
    asked.spawn(async move { sequencer.ask(Command::Write(Op::Put(put)), len).await });
    Asked(asked)
}

async fn shown<L: Log, R: Rows>(engine: &mut Engine<L, R>) -> Shown {
    let mut ranges = Vec::new();
    for keys_only in [false, true] {
        let everything = pb::RangeRequest {
            key: Bytes::from_static(b"\0"),
            range_end: Bytes::from_static(b"\0"),
            keys_only,
            ..Default::default()
        };
        match engine.call(Request::Range(everything)).await.unwrap() {
            Response::Range(mut response) => {
                response.header.as_mut().unwrap().raft_term = 0;
                ranges.push(response);
            }
            other => panic!("a range was answered by {other:?}"),
        }
    }
    let compacted = engine.store.state.view().compacted;
    (ranges, engine.history(compacted.max(2)).await)
}

/// The revision that the newest version of `key` has among what was shown.
fn revision_of(shown: &Shown, key: &[u8]) -> Option<Revision> {
    shown.0[0].kvs.iter().find(|kv| kv.key == key).map(|kv| kv.mod_revision)
}

#[tokio::test(start_paused = true)]
async fn before_the_append() {
    let world = World::new();
    let (old, gates) = world.leader().await;
    gates.change.hold(); // the log alone must stop it
    let shown = world.successor().await;
    let stored = world.stored().await;
    world.old_is_powerless((old, gates), stored, shown).await;
}

#[tokio::test(start_paused = true)]
async fn with_an_append_that_does_not_arrive_until_its_slot_is_a_barriers() {
    let world = World::new();
    let (old, gates) = world.leader().await;
    gates.change.hold(); // the log alone must stop it
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
    gates.change.hold(); // the log alone must stop it
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
    gates.change.hold(); // the log alone must stop it
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
    gates.change.hold(); // the log alone must stop it
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
async fn published_but_not_answered() {
    let world = World::new();
    let (old, gates) = world.leader().await;
    gates.change.hold();
    // With the flush stuck, some put is published and then waits for room, before it is answered.
    let (asked, revision) = loop {
        let revision = old.store.state.view().revision + 1;
        let mut asked = ask(&old, b"late", 20 << 10);
        while old.store.state.view().revision < revision {
            tokio::task::yield_now().await;
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        if !asked.is_answered() {
            break (asked, revision);
        }
    };
    let shown = world.successor().await;
    let stored = world.stored().await;
    assert_eq!(
        revision_of(&shown, b"late"),
        Some(revision),
        "what was published is lost"
    );
    gates.change.release();
    assert!([Ok(revision), Err(Error::Timeout)].contains(&asked.outcome().await));
    world.old_is_powerless((old, gates), stored, shown).await;
}

#[tokio::test(start_paused = true)]
async fn before_a_flush() {
    let world = World::new();
    let (mut old, gates) = world.leader().await;
    let before = gates.change.hold();
    old.puts(10).await;
    gates.change.reached(before).await;
    let shown = world.successor().await;
    let stored = world.stored().await;
    gates.change.release();
    world.old_is_powerless((old, gates), stored, shown).await;
}

#[tokio::test(start_paused = true)]
async fn in_the_middle_of_a_flush() {
    let world = World::new();
    let (mut old, gates) = world.leader().await;
    let before = gates.change.hold();
    // More than one step: the first one writes rows, and only the last one moves the marker.
    old.put(b"large", &vec![7; (1 << 20) + 1]).await.unwrap();
    gates.change.reached(before).await;
    gates.change.step().await;
    let shown = world.successor().await;
    let stored = world.stored().await;
    gates.change.release();
    assert!(revision_of(&shown, b"large").is_some());
    world.old_is_powerless((old, gates), stored, shown).await;
}

/// Compacts, and stops at the change that follows `steps` others.
async fn compacts(old: &mut Old, gates: &Gated<MemRows>, steps: usize) {
    let before = gates.change.hold();
    let revision = old.store.state.view().revision;
    let request = pb::CompactionRequest {
        revision,
        physical: false,
    };
    old.call(Request::Compact(request)).await.unwrap();
    gates.change.reached(before).await;
    for _ in 0..steps {
        gates.change.step().await;
    }
}

#[tokio::test(start_paused = true)]
async fn before_a_compaction_deletes() {
    let world = World::new();
    let (mut old, gates) = world.leader().await;
    compacts(&mut old, &gates, 1).await; // the flush goes first
    let shown = world.successor().await;
    let stored = world.stored().await;
    gates.change.release();
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
    gates.change.release();
    world.old_is_powerless((old, gates), stored, shown).await;
}

#[tokio::test(start_paused = true)]
async fn before_it_moves_the_watermark_and_destroys() {
    let world = World::new();
    let (mut old, gates) = world.leader().await;
    let before = gates.sync.hold();
    let revision = old.store.state.view().revision;
    let request = pb::CompactionRequest {
        revision,
        physical: false,
    };
    old.call(Request::Compact(request)).await.unwrap();
    gates.sync.reached(before).await;
    let shown = world.successor().await;
    let watermark = world.log.inner().watermark().await.unwrap();
    let stored = world.stored().await;
    gates.sync.release();
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
    let slow = Gated::new(world.rows.clone());
    let before = slow.fence.hold();
    let mut opening = JoinSet::new();
    opening.spawn(Engine::start(world.log.inner().clone(), slow.clone()));
    slow.fence.reached(before).await;
    let before = world.successor().await;
    slow.fence.release();
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
    let flush = gates.change.hold();
    gates.change.reached(flush).await;
    let slow = Gated::new(world.rows.clone());
    let before = slow.change.hold();
    let mut opening = JoinSet::new();
    opening.spawn(Engine::start(world.log.inner().clone(), slow.clone()));
    slow.change.reached(before).await;
    // Its barrier stands; what the older leader flushes now it has not read.
    let stored = world.rows.fence().await.unwrap();
    gates.change.release();
    while world.rows.fence().await.unwrap() == stored {
        tokio::task::yield_now().await;
    }
    slow.change.release();
    let mut opened = opening.join_next().await.unwrap().unwrap().unwrap();
    let revision = opened.puts(1).await;
    assert_eq!(revision, 1 + PUTS as Revision + 1);
    opened.stop().await.unwrap();
    old.kill().await;
}
