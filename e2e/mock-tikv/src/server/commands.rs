//! Requests to a store: the region of each is checked, then it is decided and, if it changes anything, replicated.

use std::future::Future;

use bytes::Bytes;
use prost::Message;
use tonic::Status;

use super::answer::{Command, raft_entry_too_large};
use super::shared::Process;
use crate::change::{ChangeContent, Span};
use crate::engine::{Engine, Failure};
use crate::mvcc;
use crate::proto::errorpb;
use crate::proto::kvrpcpb::{self as kv, Context};
use crate::regions::Region;
use crate::rpc::Rpc;

/// The largest write that raft takes in one entry, in bytes: TiKV's `raft-entry-max-size`.
const RAFT_ENTRY_MAX: u64 = 8 << 20;
/// Locks that a resolve works on at a time.
const RESOLVE_BATCH: usize = 256;

/// A request to a region.
pub(super) trait Regional: Message + Clone + 'static {
    type Reply: Default + Send + 'static;
    const RPC: Rpc;

    fn context(&self) -> Option<&Context>;

    /// The keys that must be in the region.
    fn keys(&self) -> Vec<Bytes>;

    /// Bytes that it puts into the raft log, as far as they can be many.
    fn entry_size(&self) -> u64 {
        0
    }

    fn refused(error: Box<errorpb::Error>) -> Self::Reply;

    fn execute(self, engine: &Engine, region: Region) -> impl Future<Output = Result<Self::Reply, Failure>> + Send;
}

impl<R: Regional> Command for R {
    type Reply = R::Reply;
    const RPC: Rpc = R::RPC;

    fn touches(&self, prefix: &[u8]) -> bool {
        self.keys().iter().any(|key| key.starts_with(prefix))
    }

    fn context(&self) -> Option<&Context> {
        Regional::context(self)
    }

    fn refused(error: Box<errorpb::Error>) -> Option<Self::Reply> {
        Some(<R as Regional>::refused(error))
    }

    async fn run(self, at: Process) -> Result<Self::Reply, Status> {
        let engine = &at.shared.engine;
        let outcome = match admit(&self, engine, at.id) {
            Ok(region) => self.execute(engine, region).await,
            Err(error) => Err(Failure::Region(error)),
        };
        outcome.or_else(|failure| match failure {
            Failure::Region(error) => Ok(<R as Regional>::refused(error)),
            Failure::Call(status) => Err(status),
        })
    }
}

fn admit<R: Regional>(request: &R, engine: &Engine, store: u64) -> Result<Region, Box<errorpb::Error>> {
    let region = engine.read().regions.check(request.context(), store)?.clone();
    for key in request.keys() {
        region.check_key(&key)?;
    }
    let entry_size = request.entry_size();
    if entry_size > RAFT_ENTRY_MAX {
        return Err(raft_entry_too_large(region.id, entry_size));
    }
    Ok(region)
}

/// Returns the part of a span that is in the region.
fn cut(region: &Region, start: &Bytes, end: &Bytes) -> (Bytes, Bytes) {
    let start = start.clone().max(region.start.clone());
    let end = match (end.is_empty(), region.end.is_empty()) {
        (true, _) => region.end.clone(),
        (_, true) => end.clone(),
        _ => end.clone().min(region.end.clone()),
    };
    (start, end)
}

fn mutation_keys(mutations: &[kv::Mutation]) -> Vec<Bytes> {
    mutations.iter().map(|mutation| mutation.key.clone()).collect()
}

/// A request that is answered from the tables.
macro_rules! read {
    ($rpc:ident, $request:ty => $reply:ty, keys: $keys:expr, $run:expr) => {
        regional!($rpc, $request => $reply, keys: $keys, size: |_| 0, async |request, engine, region| {
            let run: fn($request, &Engine, Region) -> $reply = $run;
            Ok(run(request, engine, region))
        });
    };
}

/// A request that is decided over some keys.
macro_rules! write {
    ($rpc:ident, $request:ty => $reply:ty, keys: $keys:expr, $decide:expr) => {
        regional!($rpc, $request => $reply, keys: $keys, size: |_| 0, async |request, engine, _region| {
            engine.write(Regional::keys(&request), |tables, max_ts| $decide(tables, &request, max_ts)).await
        });
    };
}

macro_rules! regional {
    ($rpc:ident, $request:ty => $reply:ty, keys: $keys:expr, size: $size:expr,
     async |$this:ident, $engine:ident, $region:ident| $body:block) => {
        impl Regional for $request {
            type Reply = $reply;
            const RPC: Rpc = Rpc::$rpc;

            fn context(&self) -> Option<&Context> {
                self.context.as_ref()
            }

            fn keys(&self) -> Vec<Bytes> {
                let keys: fn(&$request) -> Vec<Bytes> = $keys;
                keys(self)
            }

            fn entry_size(&self) -> u64 {
                let size: fn(&$request) -> u64 = $size;
                size(self)
            }

            fn refused(error: Box<errorpb::Error>) -> $reply {
                let mut reply = <$reply>::default();
                reply.region_error = Some(error);
                reply
            }

            async fn execute(self, $engine: &Engine, $region: Region) -> Result<$reply, Failure> {
                let $this = self;
                $body
            }
        }
    };
}

read!(Get, kv::GetRequest => kv::GetResponse, keys: |get| vec![get.key.clone()], |get, engine, _| {
    mvcc::get(&engine.read_at(get.version), &get)
});

read!(BatchGet, kv::BatchGetRequest => kv::BatchGetResponse, keys: |get| get.keys.clone(), |get, engine, _| {
    mvcc::batch_get(&engine.read_at(get.version), &get)
});

read!(Scan, kv::ScanRequest => kv::ScanResponse, keys: |_| Vec::new(), |scan, engine, region| {
    let (low, high) = match scan.reverse {
        true => (&scan.end_key, &scan.start_key),
        false => (&scan.start_key, &scan.end_key),
    };
    let (start, end) = cut(&region, low, high);
    mvcc::scan(&engine.read_at(scan.version), &scan, &start, &end)
});

read!(ScanLock, kv::ScanLockRequest => kv::ScanLockResponse, keys: |_| Vec::new(), |scan, engine, region| {
    let (start, end) = cut(&region, &scan.start_key, &scan.end_key);
    mvcc::scan_lock(&engine.read_at(scan.max_version), &scan, &start, &end)
});

regional!(Prewrite, kv::PrewriteRequest => kv::PrewriteResponse,
keys: |prewrite| mutation_keys(&prewrite.mutations),
size: |prewrite| prewrite.mutations.iter().map(|one| (one.key.len() + one.value.len()) as u64).sum(),
async |request, engine, _region| {
    let mut request = request;
    request.lock_ttl = engine.lock_ttl.unwrap_or(request.lock_ttl);
    engine.write(mutation_keys(&request.mutations), |tables, max_ts| mvcc::prewrite(tables, &request, max_ts)).await
});

regional!(PessimisticLock, kv::PessimisticLockRequest => kv::PessimisticLockResponse,
keys: |lock| mutation_keys(&lock.mutations), size: |_| 0, async |request, engine, _region| {
    let mut request = request;
    request.lock_ttl = engine.lock_ttl.unwrap_or(request.lock_ttl);
    engine.write(mutation_keys(&request.mutations), |tables, _| mvcc::pessimistic_lock(tables, &request)).await
});

write!(Commit, kv::CommitRequest => kv::CommitResponse,
    keys: |commit| commit.keys.clone(), |tables, commit, _| mvcc::commit(tables, commit));

write!(BatchRollback, kv::BatchRollbackRequest => kv::BatchRollbackResponse,
    keys: |rollback| rollback.keys.clone(), |tables, rollback, _| mvcc::batch_rollback(tables, rollback));

write!(PessimisticRollback, kv::PessimisticRollbackRequest => kv::PessimisticRollbackResponse,
    keys: |rollback| rollback.keys.clone(), |tables, rollback, _| mvcc::pessimistic_rollback(tables, rollback));

write!(CheckTxnStatus, kv::CheckTxnStatusRequest => kv::CheckTxnStatusResponse,
    keys: |check| vec![check.primary_key.clone()], |tables, check, _| mvcc::check_txn_status(tables, check));

write!(CheckSecondaryLocks, kv::CheckSecondaryLocksRequest => kv::CheckSecondaryLocksResponse,
    keys: |check| check.keys.clone(), |tables, check, _| mvcc::check_secondary_locks(tables, check));

write!(TxnHeartBeat, kv::TxnHeartBeatRequest => kv::TxnHeartBeatResponse,
    keys: |beat| vec![beat.primary_lock.clone()], |tables, beat, _| mvcc::heart_beat(tables, beat));

regional!(ResolveLock, kv::ResolveLockRequest => kv::ResolveLockResponse, keys: |resolve| resolve.keys.clone(),
size: |_| 0, async |request, engine, region| {
    let fates = mvcc::fates(&request);
    let keys = if request.keys.is_empty() { engine.read().locked_by(&region, &fates) } else { request.keys };
    for batch in keys.chunks(RESOLVE_BATCH) {
        engine.write(batch.to_vec(), |tables, _| mvcc::resolve(tables, batch, &fates)).await?;
    }
    Ok(kv::ResolveLockResponse::default())
});

impl Command for kv::UnsafeDestroyRangeRequest {
    type Reply = kv::UnsafeDestroyRangeResponse;
    const RPC: Rpc = Rpc::UnsafeDestroyRange;

    /// A range touches a prefix when it begins under it, or covers it.
    fn touches(&self, prefix: &[u8]) -> bool {
        self.start_key.starts_with(prefix)
            || (self.start_key <= prefix && (self.end_key.is_empty() || prefix < self.end_key))
    }

    fn context(&self) -> Option<&Context> {
        self.context.as_ref()
    }

    fn refused(_: Box<errorpb::Error>) -> Option<Self::Reply> {
        None
    }

    /// Each store erases what it leads, so a range is half gone when one of the stores was not reached. A region that
    /// changes its leader between the calls to two stores may keep its data.
    async fn run(self, at: Process) -> Result<Self::Reply, Status> {
        let engine = &at.shared.engine;
        let spans: Vec<ChangeContent> = {
            let tables = engine.read();
            let led = tables.regions.all.iter().filter(|region| region.leader == at.id);
            let spans = led.map(|region| cut(region, &self.start_key, &self.end_key));
            spans
                .filter(|(start, end)| end.is_empty() || start < end)
                .map(erase)
                .collect()
        };
        match engine.change(spans).await {
            Ok(()) => Ok(Self::Reply::default()),
            Err(Failure::Region(error)) => Ok(Self::Reply {
                error: error.message,
                ..Default::default()
            }),
            Err(Failure::Call(status)) => Err(status),
        }
    }
}

fn erase((start, end): (Bytes, Bytes)) -> ChangeContent {
    ChangeContent::Erase(Span {
        start: Bytes::copy_from_slice(&start),
        end: Bytes::copy_from_slice(&end),
    })
}
