//! The service `etcdserverpb.KV`.

use std::pin::Pin;

use futures::Stream;
use prost::Message;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use super::context::{ApiContext, caller_of};
use super::leader_request::LeaderRequest;
use super::{request, request_log, response};
use etcd_types::errors::Error;
use etcd_types::pb::etcdserverpb as pb;
use etcd_types::types::Caller;
use mvcc::auth::{Access, Auth};
use mvcc::evaluate;
use mvcc::fetch::FetchKind;
use mvcc::op::{Op, OpResult, TxnOp};
use runtime::budget::Meter;
use store::alarm::{CORRUPT, NOSPACE};
use store::sequencer::command::{ChangeAnswer, Command};

mod physical;
mod stream;

/// The service over a store.
pub struct KvService {
    /// The store.
    pub store: ApiContext,
}

// Futures of the trait are boxed, those of [`KvService`]'s own methods are not.
#[tonic::async_trait]
impl pb::kv_server::Kv for KvService {
    type RangeStreamStream = Pin<Box<dyn Stream<Item = Result<pb::RangeStreamResponse, Status>> + Send>>;

    async fn range(&self, request: Request<pb::RangeRequest>) -> Result<Response<pb::RangeResponse>, Status> {
        self.answer_range(request).await
    }

    async fn range_stream(
        &self,
        request: Request<pb::RangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        let op = request::range(request.get_ref())?;
        stream::check(&op)?;
        let view = match request.get_ref().serializable {
            true => self.store.view()?,
            false => self.store.linearizable().await?,
        };
        let read = |auth: &Auth, caller: &Caller| auth.check(caller, Access::Read, &op.span);
        let permit = self.store.permit(&request, read).await?;
        self.store.metrics.mvcc.ranges.inc();
        stream::open(self.store.clone(), view, op, (meter(&request), permit))
            .map(|stream| Response::new(Box::pin(stream) as Self::RangeStreamStream))
    }

    async fn put(&self, request: Request<pb::PutRequest>) -> Result<Response<pb::PutResponse>, Status> {
        self.answer_put(request).await
    }

    async fn delete_range(
        &self,
        request: Request<pb::DeleteRangeRequest>,
    ) -> Result<Response<pb::DeleteRangeResponse>, Status> {
        self.answer_delete_range(request).await
    }

    async fn txn(&self, request: Request<pb::TxnRequest>) -> Result<Response<pb::TxnResponse>, Status> {
        self.answer_txn(request).await
    }

    async fn compact(
        &self,
        request: Request<pb::CompactionRequest>,
    ) -> Result<Response<pb::CompactionResponse>, Status> {
        self.store.forward(request).await
    }
}

impl KvService {
    /// Answers `Range`.
    pub async fn answer_range(
        &self,
        request: Request<pb::RangeRequest>,
    ) -> Result<Response<pb::RangeResponse>, Status> {
        let began = Instant::now();
        let describe = || request_log::range(request.get_ref());
        let applying = self.store.slow.begin("read-only range ", describe);
        let answer = self.range_here(&request, &meter(&request)).await;
        applying.end(answer.as_ref().map_err(Status::message), |answer| {
            let count = answer.kvs.len();
            format!("range_response_count:{count} size:{}", answer.encoded_len())
        });
        self.store.metrics.mvcc.ranges.inc();
        let success = if answer.is_ok() { "true" } else { "false" };
        let durations = self.store.metrics.server.range.with_label_values(&[success]);
        durations.observe(began.elapsed().as_secs_f64());
        answer.map(Response::new)
    }

    /// Answers `Put`.
    pub async fn answer_put(&self, request: Request<pb::PutRequest>) -> Result<Response<pb::PutResponse>, Status> {
        if self.store.guard.is_enabled() {
            // As in etcd, before the client is identified.
            request::put(request.get_ref(), &self.store.limits)?;
        }
        self.store.forward(request).await
    }

    /// Answers `DeleteRange`.
    pub async fn answer_delete_range(
        &self,
        request: Request<pb::DeleteRangeRequest>,
    ) -> Result<Response<pb::DeleteRangeResponse>, Status> {
        if self.store.guard.is_enabled() {
            // As in etcd, before the client is identified.
            request::delete(request.get_ref())?;
        }
        self.store.forward(request).await
    }

    /// Answers `Txn`.
    pub async fn answer_txn(&self, request: Request<pb::TxnRequest>) -> Result<Response<pb::TxnResponse>, Status> {
        // Etcd takes every txn with another one in it for a write. That shows only while the alarm stops writes.
        let is_write = has_nested(request.get_ref()) && self.store.state.has_alarm(CORRUPT);
        if is_readonly(request.get_ref()) && !is_write {
            let op = request::txn(request.get_ref(), &self.store.limits)?;
            let describe = || request_log::txn(request.get_ref());
            let applying = self.store.slow.begin("read-only txn ", describe);
            // Boxed, for most txns change something and need no room for it.
            let answer = Box::pin(self.read_only(op, &request)).await;
            applying.end(answer.as_ref().map_err(Status::message), request_log::read_only);
            return answer.map(Response::new);
        }
        if self.store.guard.is_enabled() {
            request::write_txn(request.get_ref(), &self.store.limits)?;
        }
        self.store.forward(request).await
    }

    async fn range_here(
        &self,
        request: &Request<pb::RangeRequest>,
        meter: &Meter,
    ) -> Result<pb::RangeResponse, Status> {
        let op = request::range(request.get_ref())?;
        let view = match request.get_ref().serializable {
            true => self.store.view()?,
            false => self.store.linearizable().await?,
        };
        let read = |auth: &Auth, caller: &Caller| auth.check(caller, Access::Read, &op.span);
        let permit = self.store.permit(request, read).await?;
        let mut span = self.store.part("range");
        let result = view.range_metered(&op, meter).await;
        let result = result.map_err(|error| self.store.failed(error));
        match &result {
            Ok(result) => {
                span.set("revision", view.revision);
                span.set("count", result.count);
            }
            Err(status) => span.fail(status),
        }
        drop(span);
        let result = result?;
        self.store.still_permitted(&permit)?;
        Ok(response::range(self.store.header(view.revision), result))
    }

    /// Evaluates a txn that changes nothing; it needs no sequencer.
    async fn read_only(&self, op: TxnOp, request: &Request<pb::TxnRequest>) -> Result<pb::TxnResponse, Status> {
        let view = match is_serializable(request.get_ref()) {
            true => self.store.view()?,
            false => self.store.linearizable().await?,
        };
        // It puts nothing, so it attaches no key to a lease.
        let read = |auth: &Auth, caller: &Caller| auth.check_txn(caller, &op, &mut |_| Vec::new());
        let permit = self.store.permit(request, read).await?;
        let state = &self.store.state;
        let budget = state.fetches().budget(FetchKind::Reads);
        let mut span = self.store.part("txn");
        let result = evaluate::read_only(&view, state.leases_mutex(), &op, budget, &meter(request)).await;
        let result = result.map_err(|error| self.store.failed(error));
        span.outcome(&result);
        drop(span);
        let result = result?;
        self.store.still_permitted(&permit)?;
        let counts = result.counts();
        let mvcc = &self.store.metrics.mvcc;
        mvcc.count_request(counts.ranges, counts.puts, counts.deletes);
        Ok(response::txn(self.store.header(view.revision), result))
    }
}

impl LeaderRequest for pb::PutRequest {
    type Answer = pb::PutResponse;
    const PATH: &'static str = "/etcdserverpb.KV/Put";

    async fn answer(store: &ApiContext, request: &Request<Self>) -> Result<pb::PutResponse, Status> {
        let put = request.get_ref();
        let op = Op::Put(request::put(put, &store.limits)?);
        let size = store.limits.check_size(put.encoded_len())?;
        let describe = || format!("put:<{}>", request_log::put(put));
        match write(store, request, SizedOp { op, size }, describe).await? {
            (revision, OpResult::Put(prev)) => Ok(response::put(store.header(revision), prev)),
            _ => Err(unexpected()),
        }
    }
}

impl LeaderRequest for pb::DeleteRangeRequest {
    type Answer = pb::DeleteRangeResponse;
    const PATH: &'static str = "/etcdserverpb.KV/DeleteRange";

    async fn answer(store: &ApiContext, request: &Request<Self>) -> Result<pb::DeleteRangeResponse, Status> {
        let delete = request.get_ref();
        let op = Op::Delete(request::delete(delete)?);
        let size = store.limits.check_size(delete.encoded_len())?;
        let describe = || format!("delete_range:<{}> ", request_log::delete(delete));
        match write(store, request, SizedOp { op, size }, describe).await? {
            (revision, OpResult::Delete(deleted, kvs)) => Ok(response::delete(store.header(revision), deleted, kvs)),
            _ => Err(unexpected()),
        }
    }
}

impl LeaderRequest for pb::TxnRequest {
    type Answer = pb::TxnResponse;
    const PATH: &'static str = "/etcdserverpb.KV/Txn";

    async fn answer(store: &ApiContext, request: &Request<Self>) -> Result<pb::TxnResponse, Status> {
        let txn = request.get_ref();
        let (op, size) = request::write_txn(txn, &store.limits)?;
        let op = Op::Txn(op);
        let describe = || format!("txn:<{}>", request_log::txn(txn));
        match write(store, request, SizedOp { op, size }, describe).await? {
            (revision, OpResult::Txn(result)) => Ok(response::txn(store.header(revision), result)),
            _ => Err(unexpected()),
        }
    }
}

impl LeaderRequest for pb::CompactionRequest {
    type Answer = pb::CompactionResponse;
    const PATH: &'static str = "/etcdserverpb.KV/Compact";

    fn is_patient(&self) -> bool {
        self.physical
    }

    async fn answer(store: &ApiContext, request: &Request<Self>) -> Result<pb::CompactionResponse, Status> {
        let pb::CompactionRequest { revision, physical } = *request.get_ref();
        let progress = store.state.compaction_progress();
        let size = request.get_ref().encoded_len();
        let answer = store
            .propose(caller_of(request), Command::Compact(revision), size)
            .await?;
        if physical {
            physical::wait(progress, revision, &store.stop).await?;
        }
        Ok(pb::CompactionResponse {
            header: Some(store.header(answer.revision)),
        })
    }
}

/// A change, and the bytes of its request.
struct SizedOp {
    op: Op,
    size: usize,
}

/// Writes, as the leader. `describe` returns the text of the request for the log.
async fn write<Q>(
    store: &ApiContext,
    request: &Request<Q>,
    SizedOp { op, size }: SizedOp,
    describe: impl Fn() -> String,
) -> Result<(i64, OpResult), Status> {
    let (caller, meter) = (caller_of(request), meter(request));
    // The sequencer refuses these, too, but not while it waits for space itself, and not before permissions are checked here.
    if store.state.has_alarm(CORRUPT) {
        return Err(store.refuse(Error::Corrupt).await);
    }
    if op.puts() && store.state.has_alarm(NOSPACE) {
        return Err(store.refuse(Error::NoSpace).await);
    }
    // The sequencer checks it, too, but rows are read before that. It knows the keys of the lease.
    if store.guard.is_enabled()
        && let Err(error) = store.guard.load().check_op(&caller, &op, &mut |_| Vec::new())
    {
        return Err(store.refuse(error).await);
    }
    let applying = store.slow.begin("", describe);
    let answer = store.propose(caller, Command::Write(op, meter), size).await;
    applying.end(answer.as_ref().map_err(Status::message), |_| String::new());
    let ChangeAnswer { revision, result } = answer?;
    result.map(|result| (revision, result)).ok_or_else(unexpected)
}

/// Returns the meter that charges a request for its answer. Without a budget it charges nothing.
pub(super) fn meter<T>(request: &Request<T>) -> Meter {
    request.extensions().get().cloned().unwrap_or_default()
}

/// Returns true if all operations of a txn are serializable ranges, as etcd decides it: then no leader is needed.
fn is_serializable(txn: &pb::TxnRequest) -> bool {
    use pb::request_op::Request;
    let mut ops = txn.success.iter().chain(&txn.failure);
    ops.all(|op| matches!(&op.request, Some(Request::RequestRange(range)) if range.serializable))
}

/// Returns true if a txn changes nothing, whatever its compares evaluate to.
fn is_readonly(txn: &pb::TxnRequest) -> bool {
    use pb::request_op::Request;
    let mut ops = txn.success.iter().chain(&txn.failure);
    ops.all(|op| match &op.request {
        Some(Request::RequestRange(_)) | None => true,
        Some(Request::RequestTxn(txn)) => is_readonly(txn),
        Some(Request::RequestPut(_) | Request::RequestDeleteRange(_)) => false,
    })
}

/// Returns true if an operation of a txn is another txn.
fn has_nested(txn: &pb::TxnRequest) -> bool {
    use pb::request_op::Request;
    let mut ops = txn.success.iter().chain(&txn.failure);
    ops.any(|op| matches!(op.request, Some(Request::RequestTxn(_))))
}

/// The status for a result whose kind does not match its operation, which never happens.
fn unexpected() -> Status {
    Status::internal("etcdserver: a result of another kind than the operation")
}
