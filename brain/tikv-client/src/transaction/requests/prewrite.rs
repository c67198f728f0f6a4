// Copyright 2020 TiKV Project Authors. Licensed under Apache-2.0.

//! Requests that prewrite mutations.

use std::sync::Arc;

use futures::stream::BoxStream;
use futures::stream::{self};
use futures::StreamExt;

use crate::pd::PdClient;
use crate::proto::kvrpcpb::{self};
use crate::region::RegionWithLeader;
use crate::request::Batchable;
use crate::request::KvRequest;
use crate::request::Shardable;
use crate::store::region_stream_for_keys;
use crate::store::RegionStore;
use crate::store::Request;
use crate::transaction::requests::kvrpcpb::prewrite_request::PessimisticAction;
use crate::transaction::TXN_COMMIT_BATCH_SIZE;
use crate::Result;

pub(crate) fn new_prewrite_request(
    mutations: Vec<kvrpcpb::Mutation>,
    primary_lock: Vec<u8>,
    start_version: u64,
    lock_ttl: u64,
) -> kvrpcpb::PrewriteRequest {
    kvrpcpb::PrewriteRequest {
        mutations,
        primary_lock,
        start_version,
        lock_ttl,
        // As large as possible: a client that meets one of its locks resolves all of them in that region, and not one after the other.
        txn_size: u64::MAX,
        ..Default::default()
    }
}

pub(crate) fn new_pessimistic_prewrite_request(
    mutations: Vec<kvrpcpb::Mutation>,
    primary_lock: Vec<u8>,
    start_version: u64,
    lock_ttl: u64,
    for_update_ts: u64,
) -> kvrpcpb::PrewriteRequest {
    let len = mutations.len();
    let mut req = new_prewrite_request(mutations, primary_lock, start_version, lock_ttl);
    req.for_update_ts = for_update_ts;
    req.pessimistic_actions = std::iter::repeat_n(PessimisticAction::DoPessimisticCheck.into(), len).collect();
    req
}

impl KvRequest for kvrpcpb::PrewriteRequest {
    type Response = kvrpcpb::PrewriteResponse;
}

impl Shardable for kvrpcpb::PrewriteRequest {
    type Shard = Vec<kvrpcpb::Mutation>;

    fn shards(&self, pd_client: &Arc<impl PdClient>) -> BoxStream<'static, Result<(Self::Shard, RegionWithLeader)>> {
        let mut mutations = self.mutations.clone();
        mutations.sort_by(|a, b| a.key.cmp(&b.key));

        region_stream_for_keys(mutations.into_iter(), pd_client.clone())
            .flat_map(|result| match result {
                Ok((mutations, region)) => {
                    stream::iter(kvrpcpb::PrewriteRequest::batches(mutations, TXN_COMMIT_BATCH_SIZE))
                        .map(move |batch| Ok((batch, region.clone())))
                        .boxed()
                }
                Err(e) => stream::iter(Err(e)).boxed(),
            })
            .boxed()
    }

    fn apply_shard(&mut self, shard: Self::Shard) {
        // Only need to set secondary keys if we're sending the primary key.
        if self.use_async_commit && !self.mutations.iter().any(|m| m.key == self.primary_lock) {
            self.secondaries = vec![];
        }

        // Only if there is only one request to send
        if self.try_one_pc && shard.len() != self.secondaries.len() + 1 {
            self.try_one_pc = false;
        }

        self.mutations = shard;
    }

    // Without the mutations and keys that the shard does not send: a transaction has many shards.
    fn clone_then_apply_shard(&self, shard: Self::Shard) -> Self {
        // Only if there is only one request to send
        let try_one_pc = self.try_one_pc && shard.len() == self.secondaries.len() + 1;
        // The keys of an asynchronous commit go with its primary key. A one-phase commit keeps them until it is known that it
        // is not sharded again.
        let keeps_secondaries =
            try_one_pc || (self.use_async_commit && shard.iter().any(|m| m.key == self.primary_lock));
        let secondaries = if keeps_secondaries {
            self.secondaries.clone()
        } else {
            vec![]
        };
        kvrpcpb::PrewriteRequest {
            mutations: shard,
            secondaries,
            try_one_pc,
            context: self.context.clone(),
            primary_lock: self.primary_lock.clone(),
            start_version: self.start_version,
            lock_ttl: self.lock_ttl,
            skip_constraint_check: self.skip_constraint_check,
            pessimistic_actions: self.pessimistic_actions.clone(),
            txn_size: self.txn_size,
            for_update_ts: self.for_update_ts,
            min_commit_ts: self.min_commit_ts,
            use_async_commit: self.use_async_commit,
            max_commit_ts: self.max_commit_ts,
            assertion_level: self.assertion_level,
            for_update_ts_constraints: self.for_update_ts_constraints.clone(),
            txn_file_chunks: self.txn_file_chunks.clone(),
        }
    }

    fn apply_store(&mut self, store: &RegionStore) -> Result<()> {
        self.set_leader(&store.region_with_leader)
    }
}

impl Batchable for kvrpcpb::PrewriteRequest {
    type Item = kvrpcpb::Mutation;

    fn item_size(item: &Self::Item) -> u64 {
        let mut size = item.key.len() as u64;
        size += item.value.len() as u64;
        size
    }
}
