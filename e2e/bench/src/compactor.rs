//! The compactions of a kube-apiserver: each interval, of the revision that was current one interval ago.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::request_op::Request as Op;
use tokio::time::{Instant, sleep_until};
use wire::etcdserverpb as pb;

use crate::grpc::{COMPACT, Connection, TXN};
use crate::requests;
use crate::stored_bytes::StoredBytes;

/// The key whose version the API servers of a cluster count compactions by.
const COMPACT_REV_KEY: &[u8] = b"compact_rev_key";

/// Compactions of one load.
#[derive(Default)]
pub(crate) struct Compactions {
    /// Begins and ends so far.
    turns: Cell<u64>,
    /// The begin of the one that runs.
    began: Cell<Option<Instant>>,
    times: RefCell<Vec<Duration>>,
}

/// A moment between begins and ends of compactions.
#[derive(Clone, Copy)]
pub(crate) struct CompactionMark {
    turns: u64,
    is_running: bool,
}

impl Compactions {
    pub(crate) fn mark(&self) -> CompactionMark {
        CompactionMark {
            turns: self.turns.get(),
            is_running: self.is_running(),
        }
    }

    /// True if a compaction ran at some time since then.
    pub(crate) fn ran_since(&self, mark: CompactionMark) -> bool {
        mark.is_running || self.turns.get() != mark.turns
    }

    pub(crate) fn is_running(&self) -> bool {
        self.began.get().is_some()
    }

    /// The time of all until now, that of the running one included.
    pub(crate) fn running_time(&self) -> Duration {
        let running = self.began.get().map_or(Duration::ZERO, |began| began.elapsed());
        self.times.borrow().iter().sum::<Duration>() + running
    }

    /// How long each took that has ended.
    pub(crate) fn times(&self) -> Vec<Duration> {
        self.times.borrow().clone()
    }

    fn begin(&self) {
        self.turns.set(self.turns.get() + 1);
        self.began.set(Some(Instant::now()));
    }

    fn end(&self) {
        self.turns.set(self.turns.get() + 1);
        let began = self.began.take();
        self.times.borrow_mut().extend(began.map(|began| began.elapsed()));
    }

    /// Compacts at each interval before `end`; the first one only notes the revision. As kube-apiserver, but it waits until
    /// the server has deleted what is compacted, so that its end is known.
    pub(crate) async fn run(
        &self,
        connection: &Connection,
        stored: &StoredBytes,
        interval: Duration,
        end: Instant,
    ) -> anyhow::Result<()> {
        let mut due = Instant::now() + interval;
        let mut before = None;
        for version in 0.. {
            if due > end {
                return Ok(());
            }
            sleep_until(due).await;
            due = Instant::now().max(due + interval);
            let snapshot = stored.snapshot();
            let compacted = before.map_or(0, |(revision, _)| revision);
            let revision = claim(connection, version, compacted).await?;
            if let Some((revision, snapshot)) = before.replace((revision, snapshot)) {
                self.begin();
                let compact = pb::CompactionRequest {
                    revision,
                    physical: true,
                };
                let compacted = connection
                    .call::<pb::CompactionResponse>(COMPACT, requests::body(&compact)?)
                    .await;
                compacted?;
                self.end();
                stored.compacted(snapshot);
            }
        }
        Ok(())
    }
}

/// Raises the version of the key, and returns the revision of that.
async fn claim(connection: &Connection, version: i64, compacted: i64) -> anyhow::Result<i64> {
    let key = Bytes::from_static(COMPACT_REV_KEY);
    let compare = pb::Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Version.into(),
        key: key.clone(),
        target_union: Some(TargetUnion::Version(version)),
        range_end: Bytes::new(),
    };
    let put = pb::PutRequest {
        key,
        value: compacted.to_string().into(),
        ..pb::PutRequest::default()
    };
    let txn = pb::TxnRequest {
        compare: vec![compare],
        success: vec![pb::RequestOp {
            request: Some(Op::RequestPut(put)),
        }],
        failure: Vec::new(),
    };
    let answer: pb::TxnResponse = connection.call(TXN, requests::body(&txn)?).await?;
    ensure!(answer.succeeded, "compact_rev_key has another version than {version}");
    Ok(answer.header.unwrap_or_default().revision)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_that_meet_a_compaction_are_known() {
        let compactions = Compactions::default();
        let before = compactions.mark();
        assert!(!compactions.ran_since(before));
        compactions.begin();
        let within = compactions.mark();
        assert!(compactions.ran_since(before) && compactions.ran_since(within) && compactions.is_running());
        compactions.end();
        assert!(compactions.ran_since(before) && compactions.ran_since(within));
        assert!(!compactions.ran_since(compactions.mark()) && !compactions.is_running());
    }

    #[test]
    fn the_time_of_compactions_includes_the_running_one() {
        let compactions = Compactions::default();
        assert_eq!(compactions.running_time(), Duration::ZERO);
        compactions.times.borrow_mut().push(Duration::from_secs(3));
        assert_eq!(compactions.running_time(), Duration::from_secs(3));
        compactions
            .began
            .set(Instant::now().checked_sub(Duration::from_secs(2)));
        assert!(compactions.running_time() >= Duration::from_secs(5));
        compactions.end();
        let times = compactions.times();
        assert!(times[1] >= Duration::from_secs(2) && compactions.running_time() == times[0] + times[1]);
    }
}
