// Copyright 2021 TiKV Project Authors. Licensed under Apache-2.0.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::stream::{self};
use futures::StreamExt;
use tokio::sync::Notify;

use super::regions::on_region_epoch_not_match;
use super::*;
use crate::backoff::Backoff;
use crate::mock::MockPdClient;
use crate::pd::PdClient;
use crate::proto::errorpb::EpochNotMatch;
use crate::proto::kvrpcpb::BatchGetResponse;
use crate::proto::metapb;
use crate::region::RegionWithLeader;
use crate::request::Shardable;
use crate::Timestamp;

#[derive(Clone)]
struct ErrPlan;

#[async_trait]
impl Plan for ErrPlan {
    type Result = BatchGetResponse;

    async fn execute(&self) -> Result<Self::Result> {
        Err(Error::StringError(String::new()))
    }
}

impl Shardable for ErrPlan {
    type Shard = ();

    fn shards(
        &self,
        _: &Arc<impl crate::pd::PdClient>,
    ) -> BoxStream<'static, crate::Result<(Self::Shard, RegionWithLeader)>> {
        Box::pin(stream::iter(1..=3).map(|_| Err(Error::StringError(String::new())))).boxed()
    }

    fn apply_shard(&mut self, _: Self::Shard) {}

    fn apply_store(&mut self, _: &crate::store::RegionStore) -> Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn test_err() {
    let plan = RetryableMultiRegion {
        inner: ResolveLock {
            inner: ErrPlan,
            timestamp: Timestamp::default(),
            backoff: Backoff::no_backoff(),
            pd_client: Arc::new(MockPdClient::default()),
        },
        pd_client: Arc::new(MockPdClient::default()),
        backoff: Backoff::no_backoff(),
        preserve_region_results: false,
    };
    assert!(plan.execute().await.is_err())
}

#[tokio::test]
async fn test_region_without_an_epoch_is_looked_up_again() {
    let client = Arc::new(MockPdClient::default());
    let region = MockPdClient::region1();
    let store = client.clone().map_region_to_store(region).await.unwrap();
    let unnamed = metapb::Region {
        id: 1,
        ..Default::default()
    };
    let error = EpochNotMatch {
        current_regions: vec![unnamed],
    };
    let resolved = on_region_epoch_not_match(client, store, error).await;
    assert!(!resolved.unwrap());
}

/// A plan for one region that fails once it is told to.
#[derive(Clone, Default)]
struct FailingPlan {
    attempts: Arc<AtomicUsize>,
    begun: Arc<Notify>,
    fail: Arc<Notify>,
}

#[async_trait]
impl Plan for FailingPlan {
    type Result = BatchGetResponse;

    async fn execute(&self) -> Result<Self::Result> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        self.begun.notify_one();
        self.fail.notified().await;
        Err(tonic::Status::unavailable("").into())
    }
}

impl Shardable for FailingPlan {
    type Shard = ();

    fn shards(
        &self,
        _: &Arc<impl crate::pd::PdClient>,
    ) -> BoxStream<'static, crate::Result<(Self::Shard, RegionWithLeader)>> {
        stream::iter([Ok(((), MockPdClient::region1()))]).boxed()
    }

    fn apply_shard(&mut self, _: Self::Shard) {}

    fn apply_store(&mut self, _: &crate::store::RegionStore) -> Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn test_request_that_nobody_waits_for_is_not_tried_again() {
    let inner = FailingPlan::default();
    let plan = RetryableMultiRegion {
        inner: inner.clone(),
        pd_client: Arc::new(MockPdClient::default()),
        backoff: Backoff::no_jitter_backoff(1, 1, 10),
        preserve_region_results: false,
    };
    let request = tokio::spawn(async move { plan.execute().await.map(drop) });
    for _ in 0..2 {
        inner.begun.notified().await;
        inner.fail.notify_one();
    }
    inner.begun.notified().await;
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
    inner.fail.notify_one();
    let ended = async {
        while Arc::strong_count(&inner.attempts) > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ended).await.unwrap();
    assert_eq!(inner.attempts.load(Ordering::Relaxed), 3);
}
