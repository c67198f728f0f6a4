//! A leader that sleeps, at any step, while another one takes over, writes, flushes, compacts and destroys its slots. When it wakes it
//! commits nothing, acknowledges only what its successor has, and restores nothing that was deleted; the same holds for the copies of its
//! messages that arrive in slots which are destroyed by then.

use std::sync::Arc;

use bytes::Bytes;
use engine::log::frame::is_barrier;
use engine::log::{Fault, Faulty, Log, MemLog, Slot};
use engine::rows::mem::MemRows;
use engine::rows::{Order, Rows, Scan};
use etcd_types::errors::Error;
use etcd_types::types::{Caller, Committed, LeaseId, Revision};
use mvcc::op::{Op, PutOp};
use runtime::budget::Meter;
use store::sequencer::command::{ChangeAnswer, Command};
use tokio::task::JoinSet;

use crate::engine::Engine;
use crate::pausable_rows::{Gates, PausableRows};
use crate::wire::{Request, Response, Target, pb};

mod points;

/// Attempts that fail: more than a writer makes until its successor has started.
const FAILED_ATTEMPTS: usize = 12;

/// Number of puts of the old leader before the test interferes.
const PUTS: usize = 20;

type Old = Engine;
type New = Engine;

/// The storage that old and new leader share.
struct World {
    log: Faulty<MemLog>,
    rows: MemRows,
}

/// A put under way.
struct Asked(JoinSet<Result<ChangeAnswer, Error>>);

impl Asked {
    async fn outcome(mut self) -> Result<Revision, Error> {
        let outcome = self.0.join_next().await.expect("it was asked").unwrap();
        outcome.map(|answer| answer.revision)
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
    async fn leader(&self) -> (Old, PausableRows<MemRows>) {
        (0..=PUTS).for_each(|_| self.log.fail_next(Fault::Twice));
        let gates = PausableRows::new(self.rows.clone(), Gates::default());
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
        (1..FAILED_ATTEMPTS).for_each(|n| self.log.fail_nth(faults.len() + n, last));
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
    async fn old_is_powerless(
        &self,
        (mut old, gates): (Old, PausableRows<MemRows>),
        stored: Stored,
        shown_before: Shown,
    ) {
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
        gates.hooks.change.release();
        let error = format!("{:#}", old.stop().await.unwrap_err());
        assert!(error.contains("the term ended: Deposed"), "{error}");
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
        // The store continues: records that arrived in destroyed slots do no harm.
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
    let (sequencer, state, mut asked) = (old.store.sequencer.clone(), old.store.state.clone(), JoinSet::new());
    asked.spawn(async move {
        sequencer
            .propose(
                &state,
                Caller::Anonymous,
                Command::Write(Op::Put(put), Meter::unlimited()),
                len,
            )
            .await
            .result
    });
    Asked(asked)
}

async fn shown(engine: &mut Engine) -> Shown {
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
