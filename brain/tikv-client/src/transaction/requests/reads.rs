// Copyright 2020 TiKV Project Authors. Licensed under Apache-2.0.

//! Requests that read keys and ranges.

use std::sync::Arc;

use futures::stream::BoxStream;

use crate::collect_single;
use crate::proto::kvrpcpb::{self};
use crate::request::Collect;
use crate::request::CollectSingle;
use crate::request::DefaultProcessor;
use crate::request::KvRequest;
use crate::request::Merge;
use crate::request::Process;
use crate::request::RangeRequest;
use crate::request::Shardable;
use crate::reversible_range_request;
use crate::shardable_key;
use crate::shardable_keys;
use crate::shardable_range;
use crate::store::Request;
use crate::KvPair;
use crate::Result;
use crate::Value;

pub(crate) fn new_get_request(key: Vec<u8>, timestamp: u64) -> kvrpcpb::GetRequest {
    kvrpcpb::GetRequest {
        key,
        version: timestamp,
        ..Default::default()
    }
}

impl KvRequest for kvrpcpb::GetRequest {
    type Response = kvrpcpb::GetResponse;
}

shardable_key!(kvrpcpb::GetRequest);
collect_single!(kvrpcpb::GetResponse);

impl Process<kvrpcpb::GetResponse> for DefaultProcessor {
    type Out = Option<Value>;

    fn process(&self, input: Result<kvrpcpb::GetResponse>) -> Result<Self::Out> {
        let input = input?;
        Ok(if input.not_found { None } else { Some(input.value) })
    }
}

pub(crate) fn new_batch_get_request(keys: Vec<Vec<u8>>, timestamp: u64) -> kvrpcpb::BatchGetRequest {
    kvrpcpb::BatchGetRequest {
        keys,
        version: timestamp,
        ..Default::default()
    }
}

impl KvRequest for kvrpcpb::BatchGetRequest {
    type Response = kvrpcpb::BatchGetResponse;
}

shardable_keys!(kvrpcpb::BatchGetRequest, context, version);

impl Merge<kvrpcpb::BatchGetResponse> for Collect {
    type Out = Vec<KvPair>;

    fn merge(&self, input: Vec<Result<kvrpcpb::BatchGetResponse>>) -> Result<Self::Out> {
        let mut pairs = Vec::new();
        for resp in input {
            pairs.extend(resp?.pairs.into_iter().map(KvPair::from));
        }
        Ok(pairs)
    }
}

pub(crate) fn new_scan_request(
    start_key: Vec<u8>,
    end_key: Vec<u8>,
    timestamp: u64,
    limit: u32,
    key_only: bool,
    reverse: bool,
) -> kvrpcpb::ScanRequest {
    let mut req = kvrpcpb::ScanRequest::default();
    if !reverse {
        req.start_key = start_key;
        req.end_key = end_key;
    } else {
        req.start_key = end_key;
        req.end_key = start_key;
    }
    req.limit = limit;
    req.key_only = key_only;
    req.version = timestamp;
    req.reverse = reverse;
    req
}

impl KvRequest for kvrpcpb::ScanRequest {
    type Response = kvrpcpb::ScanResponse;
}

reversible_range_request!(kvrpcpb::ScanRequest);
shardable_range!(kvrpcpb::ScanRequest);

impl Merge<kvrpcpb::ScanResponse> for Collect {
    type Out = Vec<KvPair>;

    fn merge(&self, input: Vec<Result<kvrpcpb::ScanResponse>>) -> Result<Self::Out> {
        let mut pairs = Vec::new();
        for resp in input {
            pairs.extend(resp?.pairs.into_iter().map(KvPair::from));
        }
        Ok(pairs)
    }
}
