// Copyright 2020 TiKV Project Authors. Licensed under Apache-2.0.

//! Requests that ask for the status of a transaction, by its primary key or by its other keys.

use std::sync::Arc;

use futures::stream::BoxStream;

use crate::collect_single;
use crate::internal_err;
use crate::pd::PdClient;
use crate::proto::kvrpcpb::Action;
use crate::proto::kvrpcpb::{self};
use crate::proto::pdpb::Timestamp;
use crate::region::RegionWithLeader;
use crate::request::CollectSingle;
use crate::request::CollectWithShard;
use crate::request::DefaultProcessor;
use crate::request::KvRequest;
use crate::request::Merge;
use crate::request::Process;
use crate::request::ResponseWithShard;
use crate::request::Shardable;
use crate::shardable_keys;
use crate::store::region_stream_for_keys;
use crate::store::RegionStore;
use crate::store::Request;
use crate::timestamp::TimestampExt;
use crate::transaction::lock::lock_until_expired_ms;
use crate::Result;

#[allow(clippy::too_many_arguments)]
pub(crate) fn new_check_txn_status_request(
    primary_key: Vec<u8>,
    lock_ts: u64,
    caller_start_ts: u64,
    current_ts: u64,
    rollback_if_not_exist: bool,
    force_sync_commit: bool,
    resolving_pessimistic_lock: bool,
    is_txn_file: bool,
) -> kvrpcpb::CheckTxnStatusRequest {
    kvrpcpb::CheckTxnStatusRequest {
        primary_key,
        lock_ts,
        caller_start_ts,
        current_ts,
        rollback_if_not_exist,
        force_sync_commit,
        resolving_pessimistic_lock,
        verify_is_primary: true,
        is_txn_file,
        ..Default::default()
    }
}

impl KvRequest for kvrpcpb::CheckTxnStatusRequest {
    type Response = kvrpcpb::CheckTxnStatusResponse;
}

impl Shardable for kvrpcpb::CheckTxnStatusRequest {
    type Shard = Vec<Vec<u8>>;

    fn shards(&self, pd_client: &Arc<impl PdClient>) -> BoxStream<'static, Result<(Self::Shard, RegionWithLeader)>> {
        region_stream_for_keys(std::iter::once(self.primary_key.clone()), pd_client.clone())
    }

    fn apply_shard(&mut self, mut shard: Self::Shard) {
        // There is one key, and this is its shard.
        self.primary_key = shard.pop().unwrap_or_default();
    }

    fn apply_store(&mut self, store: &RegionStore) -> Result<()> {
        self.set_leader(&store.region_with_leader)
    }
}

collect_single!(kvrpcpb::CheckTxnStatusResponse);

impl Process<kvrpcpb::CheckTxnStatusResponse> for DefaultProcessor {
    type Out = TransactionStatus;

    fn process(&self, input: Result<kvrpcpb::CheckTxnStatusResponse>) -> Result<Self::Out> {
        input?.try_into()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct TransactionStatus {
    pub kind: TransactionStatusKind,
    pub action: kvrpcpb::Action,
    pub is_expired: bool, // Available only when kind is Locked.
}

impl TryFrom<kvrpcpb::CheckTxnStatusResponse> for TransactionStatus {
    type Error = crate::Error;

    fn try_from(resp: kvrpcpb::CheckTxnStatusResponse) -> Result<TransactionStatus> {
        let action = Action::try_from(resp.action)
            .map_err(|e| internal_err!("TiKV does with a transaction what is not known: {}", e))?;
        let kind = match (resp.commit_version, resp.lock_ttl, resp.lock_info) {
            (0, 0, None) => TransactionStatusKind::RolledBack,
            (ts, 0, None) => TransactionStatusKind::Committed(Timestamp::from_version(ts)),
            (0, ttl, Some(info)) => TransactionStatusKind::Locked(ttl, info),
            (ts, ttl, info) => {
                return Err(internal_err!(
                    "a transaction committed at {} with the time to live {} and the lock {:?}",
                    ts,
                    ttl,
                    info
                ))
            }
        };
        Ok(TransactionStatus {
            action,
            kind,
            is_expired: false,
        })
    }
}

#[derive(Debug, Clone)]
pub(crate) enum TransactionStatusKind {
    Committed(Timestamp),
    RolledBack,
    Locked(u64, kvrpcpb::LockInfo), // None of ttl means expired.
}

impl TransactionStatus {
    pub(crate) fn check_ttl(&mut self, current: Timestamp) {
        if let TransactionStatusKind::Locked(ref ttl, ref lock_info) = self.kind {
            if lock_until_expired_ms(lock_info.lock_version, *ttl, current) <= 0 {
                self.is_expired = true
            }
        }
    }

    // is_cacheable checks whether the transaction status is certain.
    // If transaction is already committed, the result could be cached.
    // Otherwise:
    //   If l.LockType is pessimistic lock type:
    //       - if its primary lock is pessimistic too, the check txn status result should not be cached.
    //       - if its primary lock is prewrite lock type, the check txn status could be cached.
    //   If l.lockType is prewrite lock type:
    //       - always cache the check txn status result.
    // For prewrite locks, their primary keys should ALWAYS be the correct one and will NOT change.
    pub(crate) fn is_cacheable(&self) -> bool {
        match &self.kind {
            TransactionStatusKind::RolledBack | TransactionStatusKind::Committed(..) => true,
            TransactionStatusKind::Locked(..) if self.is_expired => matches!(
                self.action,
                kvrpcpb::Action::NoAction | kvrpcpb::Action::LockNotExistRollback | kvrpcpb::Action::TtlExpireRollback
            ),
            _ => false,
        }
    }
}

pub(crate) fn new_check_secondary_locks_request(
    keys: Vec<Vec<u8>>,
    start_version: u64,
) -> kvrpcpb::CheckSecondaryLocksRequest {
    kvrpcpb::CheckSecondaryLocksRequest {
        keys,
        start_version,
        ..Default::default()
    }
}

impl KvRequest for kvrpcpb::CheckSecondaryLocksRequest {
    type Response = kvrpcpb::CheckSecondaryLocksResponse;
}

shardable_keys!(kvrpcpb::CheckSecondaryLocksRequest, context, start_version);

type SecondaryLocks = ResponseWithShard<kvrpcpb::CheckSecondaryLocksResponse, Vec<Vec<u8>>>;

impl Merge<SecondaryLocks> for CollectWithShard {
    type Out = SecondaryLocksStatus;

    fn merge(&self, input: Vec<Result<SecondaryLocks>>) -> Result<Self::Out> {
        let mut out = SecondaryLocksStatus {
            ended_at: None,
            min_commit_ts: 0,
            fallback_2pc: false,
        };
        for resp in input {
            let ResponseWithShard(resp, keys) = resp?;
            if resp.locks.len() < keys.len() {
                let other = out.ended_at.replace(resp.commit_ts);
                if other.is_some_and(|other| other != resp.commit_ts) {
                    return Err(internal_err!(
                        "locks of one transaction ended at {:?} and at {}",
                        other,
                        resp.commit_ts
                    ));
                }
            }
            out.fallback_2pc |= resp.locks.iter().any(|lock| !lock.use_async_commit);
            let min_commit_ts = resp.locks.iter().map(|lock| lock.min_commit_ts).max();
            out.min_commit_ts = out.min_commit_ts.max(min_commit_ts.unwrap_or(0));
        }
        Ok(out)
    }
}

/// The state of an asynchronous commit according to its secondary locks.
pub(crate) struct SecondaryLocksStatus {
    /// The commit timestamp, if a lock is gone; 0 if it was rolled back.
    pub(crate) ended_at: Option<u64>,
    pub(crate) min_commit_ts: u64,
    /// True if it is no asynchronous commit after all.
    pub(crate) fallback_2pc: bool,
}

impl SecondaryLocksStatus {
    /// Returns the timestamp at which a transaction commits whose primary lock has `primary_min_commit_ts`; 0 if it is rolled back.
    pub(crate) fn commit_version(&self, primary_min_commit_ts: u64) -> Result<u64> {
        let earliest = self.min_commit_ts.max(primary_min_commit_ts);
        match self.ended_at {
            None => Ok(earliest),
            Some(ts) if ts == 0 || ts >= earliest => Ok(ts),
            Some(ts) => Err(internal_err!(
                "a transaction committed at {} that cannot commit before {}",
                ts,
                earliest
            )),
        }
    }
}
