//! Writes as a kube-apiserver makes them: transactions that compare the mod revision.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use pb::request_op::Request as Op;
use pb::response_op::Response;
use tokio::time::{Instant, sleep};
use wire::etcdserverpb as pb;

use crate::compactor::Compactions;
use crate::grpc::{Connections, GrpcStatus, TXN};
use crate::histogram::LatencyHistogram;
use crate::requests;

/// The time until the next attempt of a write that was refused.
const RETRY_DELAY: Duration = Duration::from_millis(10);

/// A write of one key.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Put(Bytes),
    Delete,
}

/// Writes of one kind, and what they took.
pub(crate) struct GuardedWrites<'a> {
    connections: &'a Connections,
    compactions: &'a Compactions,
    times: RefCell<WriteTimes>,
    sent: Cell<u64>,
    done: Cell<u64>,
    done_in_compactions: Cell<u64>,
    refused: Cell<u64>,
    pauses: WritePauses,
    last_revision: Cell<i64>,
}

/// Times of writes, by whether a compaction ran.
#[derive(Clone, Default)]
pub(crate) struct WriteTimes {
    pub(crate) between_compactions: LatencyHistogram,
    pub(crate) in_compactions: LatencyHistogram,
}

impl WriteTimes {
    pub(crate) fn all(&self) -> LatencyHistogram {
        let mut all = self.between_compactions.clone();
        all.merge(&self.in_compactions);
        all
    }
}

impl<'a> GuardedWrites<'a> {
    pub(crate) fn new(connections: &'a Connections, compactions: &'a Compactions) -> Self {
        Self {
            connections,
            compactions,
            times: RefCell::default(),
            sent: Cell::new(0),
            done: Cell::new(0),
            done_in_compactions: Cell::new(0),
            refused: Cell::new(0),
            pauses: WritePauses::default(),
            last_revision: Cell::new(0),
        }
    }

    pub(crate) fn times(&self) -> WriteTimes {
        self.times.borrow().clone()
    }

    /// Writes that were done.
    pub(crate) fn count(&self) -> u64 {
        self.done.get()
    }

    /// Writes that were done while a compaction ran.
    pub(crate) fn count_in_compactions(&self) -> u64 {
        self.done_in_compactions.get()
    }

    /// The longest time in which no write was done.
    pub(crate) fn longest_pause(&self) -> Duration {
        self.pauses.longest.get()
    }

    /// Notes a write that was due and not made in time: it would have taken longer than this.
    pub(crate) fn missed(&self, waited: Duration) {
        self.times.borrow_mut().between_compactions.record(waited);
    }

    /// Requests that were refused and sent again.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.get()
    }

    pub(crate) fn last_revision(&self) -> i64 {
        self.last_revision.get()
    }

    /// Changes a key that has this mod revision, 0 if it is absent. Returns the new one. The time counts from `due`.
    ///
    /// # Errors
    ///
    /// The key has another revision, or the server does not answer.
    pub(crate) async fn write(&self, key: &Bytes, revision: i64, change: Change, due: Instant) -> anyhow::Result<i64> {
        let operation = match &change {
            Change::Put(value) => Op::RequestPut(pb::PutRequest {
                key: key.clone(),
                value: value.clone(),
                ..pb::PutRequest::default()
            }),
            Change::Delete => Op::RequestDeleteRange(pb::DeleteRangeRequest {
                key: key.clone(),
                ..pb::DeleteRangeRequest::default()
            }),
        };
        let body = requests::body(&requests::at_revision(key.clone(), revision, operation))?;
        let mark = self.compactions.mark();
        let (answer, is_repeated) = self.send(&body).await?;
        let header = answer.header.unwrap_or_default().revision;
        let written = match answer.succeeded {
            true => Some(header),
            // an attempt that was refused may have been made
            false if is_repeated => done_before(answer.responses, &change, header),
            false => None,
        };
        let written =
            written.with_context(|| format!("{} has another revision than {revision}", key.escape_ascii()))?;
        let mut times = self.times.borrow_mut();
        let times = match self.compactions.ran_since(mark) {
            true => &mut times.in_compactions,
            false => &mut times.between_compactions,
        };
        times.record(due.elapsed());
        self.done.set(self.done.get() + 1);
        if self.compactions.is_running() {
            self.done_in_compactions.set(self.done_in_compactions.get() + 1);
        }
        self.pauses.done(Instant::now());
        self.last_revision.set(self.last_revision.get().max(written));
        Ok(written)
    }

    /// Sends until it is not refused. Returns true with an answer that was not that of the first attempt.
    async fn send(&self, body: &Bytes) -> anyhow::Result<(pb::TxnResponse, bool)> {
        let mut is_repeated = false;
        loop {
            let connection = self.connections.get(self.sent.replace(self.sent.get() + 1));
            match connection.call::<pb::TxnResponse>(TXN, body.clone()).await {
                Ok(answer) => return Ok((answer, is_repeated)),
                Err(error) => {
                    let status = error.downcast_ref::<GrpcStatus>();
                    ensure!(status.is_some_and(GrpcStatus::is_refusal), error);
                    self.refused.set(self.refused.get() + 1);
                    is_repeated = true;
                    sleep(RETRY_DELAY).await;
                }
            }
        }
    }
}

/// Times between a write that was done and the next one.
#[derive(Default)]
struct WritePauses {
    last: Cell<Option<Instant>>,
    longest: Cell<Duration>,
}

impl WritePauses {
    fn done(&self, at: Instant) {
        if let Some(last) = self.last.replace(Some(at)) {
            self.longest.set(self.longest.get().max(at - last));
        }
    }
}

/// The revision of a key that is as an earlier attempt would have left it.
fn done_before(responses: Vec<pb::ResponseOp>, change: &Change, header: i64) -> Option<i64> {
    let Some(Response::ResponseRange(found)) = responses.into_iter().next()?.response else {
        return None;
    };
    match (change, found.kvs.first()) {
        (Change::Put(value), Some(kv)) if kv.value == *value => Some(kv.mod_revision),
        (Change::Delete, None) => Some(header),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(kv: Option<(&'static str, i64)>) -> Vec<pb::ResponseOp> {
        let kvs = kv.map(|(value, mod_revision)| wire::mvccpb::KeyValue {
            value: Bytes::from_static(value.as_bytes()),
            mod_revision,
            ..wire::mvccpb::KeyValue::default()
        });
        let range = pb::RangeResponse {
            kvs: kvs.into_iter().collect(),
            ..pb::RangeResponse::default()
        };
        vec![pb::ResponseOp {
            response: Some(Response::ResponseRange(range)),
        }]
    }

    #[test]
    fn pauses_are_between_one_write_and_the_next() {
        let (pauses, began) = (WritePauses::default(), Instant::now());
        pauses.done(began);
        assert_eq!(pauses.longest.get(), Duration::ZERO);
        for millis in [5, 25, 26] {
            pauses.done(began + Duration::from_millis(millis));
        }
        assert_eq!(pauses.longest.get(), Duration::from_millis(20));
    }

    #[test]
    fn repeated_writes_are_done_if_the_key_is_as_they_leave_it() {
        let put = Change::Put(Bytes::from_static(b"new"));
        assert_eq!(done_before(found(Some(("new", 7))), &put, 9), Some(7));
        assert_eq!(done_before(found(Some(("old", 7))), &put, 9), None);
        assert_eq!(done_before(found(None), &put, 9), None);
        assert_eq!(done_before(found(None), &Change::Delete, 9), Some(9));
        assert_eq!(done_before(found(Some(("old", 7))), &Change::Delete, 9), None);
        assert_eq!(done_before(Vec::new(), &put, 9), None);
    }
}
