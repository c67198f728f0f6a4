// Copyright 2020 TiKV Project Authors. Licensed under Apache-2.0.

//! Requests that commit keys or roll them back.

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
use crate::shardable_keys;
use crate::store::region_stream_for_keys;
use crate::store::RegionStore;
use crate::store::Request;
use crate::transaction::TXN_COMMIT_BATCH_SIZE;
use crate::Result;

pub(crate) fn new_commit_request(
    keys: Vec<Vec<u8>>,
    start_version: u64,
    commit_version: u64,
) -> kvrpcpb::CommitRequest {
    kvrpcpb::CommitRequest {
        keys,
        start_version,
        commit_version,
        ..Default::default()
    }
}

impl KvRequest for kvrpcpb::CommitRequest {
    type Response = kvrpcpb::CommitResponse;
}

impl Shardable for kvrpcpb::CommitRequest {
    type Shard = Vec<Vec<u8>>;

    fn shards(&self, pd_client: &Arc<impl PdClient>) -> BoxStream<'static, Result<(Self::Shard, RegionWithLeader)>> {
        let mut keys = self.keys.clone();
        keys.sort();

        region_stream_for_keys(keys.into_iter(), pd_client.clone())
            .flat_map(|result| match result {
                Ok((keys, region)) => stream::iter(kvrpcpb::CommitRequest::batches(keys, TXN_COMMIT_BATCH_SIZE))
                    .map(move |batch| Ok((batch, region.clone())))
                    .boxed(),
                Err(e) => stream::iter(Err(e)).boxed(),
            })
            .boxed()
    }

    fn apply_shard(&mut self, shard: Self::Shard) {
        self.keys = shard.into_iter().collect();
    }

    // Without the keys that the shard does not send.
    fn clone_then_apply_shard(&self, shard: Self::Shard) -> Self {
        kvrpcpb::CommitRequest {
            keys: shard,
            context: self.context.clone(),
            start_version: self.start_version,
            commit_version: self.commit_version,
            is_txn_file: self.is_txn_file,
        }
    }

    fn apply_store(&mut self, store: &RegionStore) -> Result<()> {
        self.set_leader(&store.region_with_leader)
    }
}

impl Batchable for kvrpcpb::CommitRequest {
    type Item = Vec<u8>;

    fn item_size(item: &Self::Item) -> u64 {
        item.len() as u64
    }
}

pub(crate) fn new_batch_rollback_request(keys: Vec<Vec<u8>>, start_version: u64) -> kvrpcpb::BatchRollbackRequest {
    kvrpcpb::BatchRollbackRequest {
        keys,
        start_version,
        ..Default::default()
    }
}

impl KvRequest for kvrpcpb::BatchRollbackRequest {
    type Response = kvrpcpb::BatchRollbackResponse;
}

shardable_keys!(kvrpcpb::BatchRollbackRequest, context, start_version, is_txn_file);
