// Copyright 2021 TiKV Project Authors. Licensed under Apache-2.0.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Mutex;

use super::RegionCache;
use crate::common::Error;
use crate::pd::RetryClientTrait;
use crate::proto::metapb::RegionEpoch;
use crate::proto::metapb::{self};
use crate::region::RegionId;
use crate::region::RegionWithLeader;
use crate::region_cache::is_valid_tikv_store;
use crate::Key;
use crate::Result;

#[derive(Default)]
struct MockRetryClient {
    pub regions: Mutex<HashMap<RegionId, RegionWithLeader>>,
    pub get_region_count: AtomicU64,
}

#[async_trait]
impl RetryClientTrait for MockRetryClient {
    async fn get_region(self: Arc<Self>, key: Vec<u8>) -> Result<crate::region::RegionWithLeader> {
        self.get_region_count.fetch_add(1, SeqCst);
        self.regions
            .lock()
            .await
            .iter()
            .filter(|(_, r)| r.contains(&key))
            .map(|(_, r)| r.clone())
            .next()
            .ok_or_else(|| Error::StringError("MockRetryClient: region not found".to_owned()))
    }

    async fn get_store(self: Arc<Self>, _id: crate::region::StoreId) -> Result<crate::proto::metapb::Store> {
        unreachable!("only regions are asked for")
    }

    async fn get_all_stores(self: Arc<Self>) -> Result<Vec<crate::proto::metapb::Store>> {
        unreachable!("only regions are asked for")
    }

    async fn get_timestamp(self: Arc<Self>) -> Result<crate::proto::pdpb::Timestamp> {
        unreachable!("only regions are asked for")
    }

    async fn update_safepoint(self: Arc<Self>, _safepoint: u64) -> Result<bool> {
        unreachable!("only regions are asked for")
    }
}

#[tokio::test]
async fn cache_is_used() -> Result<()> {
    let retry_client = Arc::new(MockRetryClient::default());
    let cache = RegionCache::new(retry_client.clone());
    retry_client.regions.lock().await.insert(
        1,
        RegionWithLeader {
            region: metapb::Region {
                id: 1,
                start_key: vec![],
                end_key: vec![100],
                region_epoch: Some(RegionEpoch {
                    conf_ver: 0,
                    version: 0,
                }),
                ..Default::default()
            },
            leader: Some(metapb::Peer {
                store_id: 1,
                ..Default::default()
            }),
        },
    );
    retry_client.regions.lock().await.insert(
        2,
        RegionWithLeader {
            region: metapb::Region {
                id: 2,
                start_key: vec![101],
                end_key: vec![],
                region_epoch: Some(RegionEpoch {
                    conf_ver: 0,
                    version: 0,
                }),
                ..Default::default()
            },
            leader: Some(metapb::Peer {
                store_id: 2,
                ..Default::default()
            }),
        },
    );

    assert_eq!(retry_client.get_region_count.load(SeqCst), 0);

    let (first, second): (Key, Key) = (vec![1].into(), vec![200].into());

    // first query, read through
    assert_eq!(cache.get_region_by_key(&first).await?.id(), 1);
    assert_eq!(retry_client.get_region_count.load(SeqCst), 1);

    // should read from cache
    assert_eq!(cache.get_region_by_key(&first).await?.id(), 1);
    assert_eq!(retry_client.get_region_count.load(SeqCst), 1);

    // invalidate, should read through
    cache
        .invalidate_region_cache(cache.get_region_by_key(&first).await?.ver_id())
        .await;
    assert_eq!(cache.get_region_by_key(&first).await?.id(), 1);
    assert_eq!(retry_client.get_region_count.load(SeqCst), 2);

    // update leader should work
    let ver_id = cache.get_region_by_key(&second).await?.ver_id();
    let leader = metapb::Peer {
        store_id: 102,
        ..Default::default()
    };
    cache.update_leader(ver_id, leader).await;
    let updated = cache.get_region_by_key(&second).await?;
    assert_eq!(updated.leader.unwrap().store_id, 102);

    Ok(())
}

#[tokio::test]
async fn test_add_disjoint_regions() {
    let retry_client = Arc::new(MockRetryClient::default());
    let cache = RegionCache::new(retry_client.clone());
    let region1 = region(1, vec![], vec![10]);
    let region2 = region(2, vec![10], vec![20]);
    let region3 = region(3, vec![30], vec![]);
    cache.add_region(region1.clone()).await;
    cache.add_region(region2.clone()).await;
    cache.add_region(region3.clone()).await;

    let mut expected_cache = BTreeMap::new();
    expected_cache.insert(vec![].into(), region1);
    expected_cache.insert(vec![10].into(), region2);
    expected_cache.insert(vec![30].into(), region3);

    assert(&cache, &expected_cache).await
}

#[tokio::test]
async fn test_add_intersecting_regions() {
    let retry_client = Arc::new(MockRetryClient::default());
    let cache = RegionCache::new(retry_client.clone());

    cache.add_region(region(1, vec![], vec![10])).await;
    cache.add_region(region(2, vec![10], vec![20])).await;
    cache.add_region(region(3, vec![30], vec![40])).await;
    cache.add_region(region(4, vec![50], vec![60])).await;
    cache.add_region(region(5, vec![20], vec![35])).await;

    let mut expected_cache: BTreeMap<Key, _> = BTreeMap::new();
    expected_cache.insert(vec![].into(), region(1, vec![], vec![10]));
    expected_cache.insert(vec![10].into(), region(2, vec![10], vec![20]));
    expected_cache.insert(vec![20].into(), region(5, vec![20], vec![35]));
    expected_cache.insert(vec![50].into(), region(4, vec![50], vec![60]));
    assert(&cache, &expected_cache).await;

    cache.add_region(region(6, vec![15], vec![25])).await;
    let mut expected_cache = BTreeMap::new();
    expected_cache.insert(vec![].into(), region(1, vec![], vec![10]));
    expected_cache.insert(vec![15].into(), region(6, vec![15], vec![25]));
    expected_cache.insert(vec![50].into(), region(4, vec![50], vec![60]));
    assert(&cache, &expected_cache).await;

    cache.add_region(region(7, vec![20], vec![])).await;
    let mut expected_cache = BTreeMap::new();
    expected_cache.insert(vec![].into(), region(1, vec![], vec![10]));
    expected_cache.insert(vec![20].into(), region(7, vec![20], vec![]));
    assert(&cache, &expected_cache).await;

    cache.add_region(region(9, vec![25], vec![30])).await;
    let mut expected_cache = BTreeMap::new();
    expected_cache.insert(vec![].into(), region(1, vec![], vec![10]));
    expected_cache.insert(vec![25].into(), region(9, vec![25], vec![30]));
    assert(&cache, &expected_cache).await;
    cache.add_region(region(7, vec![20], vec![])).await;

    cache.add_region(region(8, vec![], vec![15])).await;
    let mut expected_cache = BTreeMap::new();
    expected_cache.insert(vec![].into(), region(8, vec![], vec![15]));
    expected_cache.insert(vec![20].into(), region(7, vec![20], vec![]));
    assert(&cache, &expected_cache).await;
}

#[tokio::test]
async fn test_get_region_by_key() -> Result<()> {
    let retry_client = Arc::new(MockRetryClient::default());
    let cache = RegionCache::new(retry_client.clone());

    let region1 = region(1, vec![], vec![10]);
    let region2 = region(2, vec![10], vec![20]);
    let region3 = region(3, vec![30], vec![40]);
    let region4 = region(4, vec![50], vec![]);
    cache.add_region(region1.clone()).await;
    cache.add_region(region2.clone()).await;
    cache.add_region(region3.clone()).await;
    cache.add_region(region4.clone()).await;

    assert_eq!(cache.get_region_by_key(&vec![].into()).await?, region1.clone());
    assert_eq!(cache.get_region_by_key(&vec![5].into()).await?, region1.clone());
    assert_eq!(cache.get_region_by_key(&vec![10].into()).await?, region2.clone());
    assert!(cache.get_region_by_key(&vec![20].into()).await.is_err());
    assert!(cache.get_region_by_key(&vec![25].into()).await.is_err());
    assert_eq!(cache.get_region_by_key(&vec![60].into()).await?, region4);
    Ok(())
}

// a helper function to assert the cache is in expected state
async fn assert(cache: &RegionCache<MockRetryClient>, expected_cache: &BTreeMap<Key, RegionWithLeader>) {
    let guard = cache.region_cache.read().await;
    let mut actual_keys = guard.ver_id_to_region.values().collect::<Vec<_>>();
    let mut expected_keys = expected_cache.values().collect::<Vec<_>>();
    actual_keys.sort_by_cached_key(|r| r.id());
    expected_keys.sort_by_cached_key(|r| r.id());

    assert_eq!(actual_keys, expected_keys);
    assert_eq!(
        guard.key_to_ver_id.keys().collect::<HashSet<_>>(),
        expected_cache.keys().collect::<HashSet<_>>()
    )
}

fn region(id: RegionId, start_key: Vec<u8>, end_key: Vec<u8>) -> RegionWithLeader {
    let mut region = RegionWithLeader::default();
    region.region.id = id;
    region.region.start_key = start_key;
    region.region.end_key = end_key;
    region.region.region_epoch = Some(RegionEpoch {
        conf_ver: 0,
        version: 0,
    });
    // We don't care about other fields here

    region
}

#[test]
fn test_is_valid_tikv_store() {
    let mut store = metapb::Store::default();
    assert!(is_valid_tikv_store(&store));

    store.state = metapb::StoreState::Tombstone.into();
    assert!(!is_valid_tikv_store(&store));

    store.state = 77;
    assert!(is_valid_tikv_store(&store), "a state of a newer PD");

    store.state = metapb::StoreState::Up.into();
    assert!(is_valid_tikv_store(&store));

    store.labels.push(metapb::StoreLabel {
        key: "some_key".to_owned(),
        value: "some_value".to_owned(),
    });
    assert!(is_valid_tikv_store(&store));

    store.labels.push(metapb::StoreLabel {
        key: "engine".to_owned(),
        value: "tiflash".to_owned(),
    });
    assert!(!is_valid_tikv_store(&store));

    store.labels[1].value = "tiflash_compute".to_string();
    assert!(!is_valid_tikv_store(&store));

    store.labels[1].value = "other".to_string();
    assert!(is_valid_tikv_store(&store));
}
