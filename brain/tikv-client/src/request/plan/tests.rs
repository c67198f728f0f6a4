// Copyright 2021 TiKV Project Authors. Licensed under Apache-2.0.

use futures::stream::BoxStream;
use futures::stream::{self};
use futures::StreamExt;

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
