//! The gRPC service of one store. Methods that it does not define answer `UNIMPLEMENTED`.

use tonic::{Request, Response, Status};

use super::answer::answer;
use super::shared::Process;
use crate::proto::kvrpcpb as kv;
use crate::proto::tikvpb::tikv_server::Tikv;

type StoreAnswer<R> = Result<Response<R>, Status>;

#[derive(Clone, Debug)]
pub(crate) struct StoreServer(pub(crate) Process);

macro_rules! services {
    ($($method:ident($request:ident) -> $reply:ident,)*) => {
        #[tonic::async_trait]
        impl Tikv for StoreServer {
            $(async fn $method(&self, request: Request<kv::$request>) -> StoreAnswer<kv::$reply> {
                answer(&self.0, request).await
            })*
        }
    };
}

services! {
    kv_get(GetRequest) -> GetResponse,
    kv_batch_get(BatchGetRequest) -> BatchGetResponse,
    kv_scan(ScanRequest) -> ScanResponse,
    kv_prewrite(PrewriteRequest) -> PrewriteResponse,
    kv_commit(CommitRequest) -> CommitResponse,
    kv_batch_rollback(BatchRollbackRequest) -> BatchRollbackResponse,
    kv_check_txn_status(CheckTxnStatusRequest) -> CheckTxnStatusResponse,
    kv_check_secondary_locks(CheckSecondaryLocksRequest) -> CheckSecondaryLocksResponse,
    kv_resolve_lock(ResolveLockRequest) -> ResolveLockResponse,
    kv_scan_lock(ScanLockRequest) -> ScanLockResponse,
    kv_txn_heart_beat(TxnHeartBeatRequest) -> TxnHeartBeatResponse,
    kv_pessimistic_lock(PessimisticLockRequest) -> PessimisticLockResponse,
    kv_pessimistic_rollback(PessimisticRollbackRequest) -> PessimisticRollbackResponse,
    unsafe_destroy_range(UnsafeDestroyRangeRequest) -> UnsafeDestroyRangeResponse,
}
