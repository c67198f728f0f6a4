// Copyright 2020 TiKV Project Authors. Licensed under Apache-2.0.

//! Requests of pessimistic locks.

use std::iter;
use std::sync::Arc;

use futures::stream::BoxStream;

use crate::internal_err;
use crate::pd::PdClient;
use crate::proto::kvrpcpb::{self};
use crate::region::RegionWithLeader;
use crate::request::CollectWithShard;
use crate::request::KvRequest;
use crate::request::Merge;
use crate::request::ResponseWithShard;
use crate::request::Shardable;
use crate::shardable_keys;
use crate::store::region_stream_for_keys;
use crate::store::RegionStore;
use crate::store::Request;
use crate::Error;
use crate::KvPair;
use crate::Result;

pub(crate) fn new_pessimistic_rollback_request(
    keys: Vec<Vec<u8>>,
    start_version: u64,
    for_update_ts: u64,
) -> kvrpcpb::PessimisticRollbackRequest {
    kvrpcpb::PessimisticRollbackRequest {
        keys,
        start_version,
        for_update_ts,
        ..Default::default()
    }
}

impl KvRequest for kvrpcpb::PessimisticRollbackRequest {
    type Response = kvrpcpb::PessimisticRollbackResponse;
}

shardable_keys!(
    kvrpcpb::PessimisticRollbackRequest,
    context,
    start_version,
    for_update_ts
);

pub(crate) fn new_pessimistic_lock_request(
    mutations: Vec<kvrpcpb::Mutation>,
    primary_lock: Vec<u8>,
    start_version: u64,
    lock_ttl: u64,
    for_update_ts: u64,
    need_value: bool,
) -> kvrpcpb::PessimisticLockRequest {
    kvrpcpb::PessimisticLockRequest {
        mutations,
        primary_lock,
        start_version,
        lock_ttl,
        for_update_ts,
        // A request waits for another lock as long as TiKV is configured to.
        is_first_lock: false,
        wait_timeout: 0,
        return_values: need_value,
        // No reader can push it: transactions are short.
        min_commit_ts: 0,
        ..Default::default()
    }
}

impl KvRequest for kvrpcpb::PessimisticLockRequest {
    type Response = kvrpcpb::PessimisticLockResponse;
}

impl Shardable for kvrpcpb::PessimisticLockRequest {
    type Shard = Vec<kvrpcpb::Mutation>;

    fn shards(&self, pd_client: &Arc<impl PdClient>) -> BoxStream<'static, Result<(Self::Shard, RegionWithLeader)>> {
        let mut mutations = self.mutations.clone();
        mutations.sort_by(|a, b| a.key.cmp(&b.key));
        region_stream_for_keys(mutations.into_iter(), pd_client.clone())
    }

    fn apply_shard(&mut self, shard: Self::Shard) {
        self.mutations = shard;
    }

    fn apply_store(&mut self, store: &RegionStore) -> Result<()> {
        self.set_leader(&store.region_with_leader)
    }
}

// PessimisticLockResponse returns values that preserves the order with keys in request, thus the
// kvpair result should be produced by zipping the keys in request and the values in respponse.
impl Merge<ResponseWithShard<kvrpcpb::PessimisticLockResponse, Vec<kvrpcpb::Mutation>>> for CollectWithShard {
    type Out = Vec<KvPair>;

    fn merge(
        &self,
        input: Vec<Result<ResponseWithShard<kvrpcpb::PessimisticLockResponse, Vec<kvrpcpb::Mutation>>>>,
    ) -> Result<Self::Out> {
        let (mut success, mut errors) = (Vec::new(), Vec::new());
        for result in input {
            match result {
                Ok(response) => success.push(response),
                Err(e) => errors.push(e),
            }
        }
        if let Some(e) = errors.pop() {
            let success_keys = success
                .into_iter()
                .flat_map(|ResponseWithShard(_resp, mutations)| mutations)
                .map(|m| m.key)
                .collect();
            return Err(Error::PessimisticLockError {
                inner: Box::new(e),
                success_keys,
            });
        }
        let mut pairs = Vec::new();
        for ResponseWithShard(resp, mutations) in success {
            let (keys, values) = (mutations.len(), resp.values.len());
            let not_founds = resp.not_founds.len();
            if ![0, keys].contains(&values) || ![0, values].contains(&not_founds) {
                return Err(internal_err!(
                    "{} keys are locked, with {} values of which {} may not be found",
                    keys,
                    values,
                    not_founds
                ));
            }
            // Legacy TiKV does not distinguish not existing key and existing key
            // that with empty value. We assume that key does not exist if value
            // is empty.
            let legacy = not_founds == 0;
            let not_founds = resp.not_founds.into_iter().chain(iter::repeat(false));
            let found = mutations
                .into_iter()
                .zip(resp.values)
                .zip(not_founds)
                .filter(|((_, value), not_found)| !(*not_found || legacy && value.is_empty()))
                .map(|((mutation, value), _)| KvPair::from((mutation.key, value)));
            pairs.extend(found);
        }
        Ok(pairs)
    }
}
