// Copyright 2020 TiKV Project Authors. Licensed under Apache-2.0.

use std::any::Any;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use super::*;
use crate::mock::MockKvClient;
use crate::mock::MockPdClient;
use crate::proto::errorpb;

#[tokio::test]
async fn test_resolve_lock_with_retry() {
    const MAX_REGION_ERROR_RETRIES: u32 = 10;
    let backoff = Backoff::no_jitter_backoff(0, 0, MAX_REGION_ERROR_RETRIES);

    // Test resolve lock within retry limit
    let errors_left = Arc::new(AtomicUsize::new(MAX_REGION_ERROR_RETRIES as usize));
    let errors_left_captured = errors_left.clone();
    let client = Arc::new(MockPdClient::new(MockKvClient::with_dispatch_hook(
        move |_: &dyn Any| {
            let left = errors_left_captured.load(Ordering::SeqCst);
            if left > 0 {
                errors_left_captured.store(left - 1, Ordering::SeqCst);
                let resp = kvrpcpb::ResolveLockResponse {
                    region_error: Some(errorpb::Error::default()),
                    ..Default::default()
                };
                return Ok(Box::new(resp) as Box<dyn Any>);
            }
            Ok(Box::<kvrpcpb::ResolveLockResponse>::default() as Box<dyn Any>)
        },
    )));

    let key = vec![1];
    let region1 = MockPdClient::region1();
    let resolved_region = resolve_lock_with_retry(&key, 1, 2, false, client.clone(), backoff.clone())
        .await
        .unwrap();
    assert_eq!(region1.ver_id(), resolved_region);

    // Test resolve lock over retry limit
    errors_left.store(MAX_REGION_ERROR_RETRIES as usize + 1, Ordering::SeqCst);
    let key = vec![100];
    resolve_lock_with_retry(&key, 3, 4, false, client, backoff)
        .await
        .expect_err("should return error");
}

#[tokio::test]
async fn test_resolve_locks_resolves_committed_even_if_ttl_not_expired() {
    let check_txn_status_count = Arc::new(AtomicUsize::new(0));
    let resolve_lock_count = Arc::new(AtomicUsize::new(0));

    let check_txn_status_count_captured = check_txn_status_count.clone();
    let resolve_lock_count_captured = resolve_lock_count.clone();
    let client = Arc::new(MockPdClient::new(MockKvClient::with_dispatch_hook(
        move |req: &dyn Any| {
            if req.is::<kvrpcpb::CheckTxnStatusRequest>() {
                check_txn_status_count_captured.fetch_add(1, Ordering::SeqCst);
                let resp = kvrpcpb::CheckTxnStatusResponse {
                    commit_version: 2,
                    action: kvrpcpb::Action::NoAction as i32,
                    ..Default::default()
                };
                return Ok(Box::new(resp) as Box<dyn Any>);
            }
            if req.is::<kvrpcpb::ResolveLockRequest>() {
                resolve_lock_count_captured.fetch_add(1, Ordering::SeqCst);
                return Ok(Box::<kvrpcpb::ResolveLockResponse>::default() as Box<dyn Any>);
            }
            panic!("unexpected request type: {:?}", req.type_id());
        },
    )));

    let lock = kvrpcpb::LockInfo {
        key: vec![1],
        primary_lock: vec![1],
        lock_version: 1,
        lock_ttl: 100, // not expired under MockPdClient's Timestamp::default()
        ..Default::default()
    };

    let live_locks = resolve_locks(vec![lock], Timestamp::default(), client).await.unwrap();

    assert!(live_locks.is_empty());
    assert_eq!(check_txn_status_count.load(Ordering::SeqCst), 1);
    assert_eq!(resolve_lock_count.load(Ordering::SeqCst), 1);
}

/// The commit timestamp with which a transaction of an asynchronous commit is resolved, or 0: it is rolled back.
/// The lock of its primary key says that it can commit at 7.
async fn cleaned_up_with(secondaries: &[u8], answer: kvrpcpb::CheckSecondaryLocksResponse) -> Result<u64> {
    let lock = kvrpcpb::LockInfo {
        key: vec![1],
        primary_lock: vec![1],
        lock_version: 1,
        use_async_commit: true,
        min_commit_ts: 7,
        secondaries: secondaries.iter().map(|&key| vec![key]).collect(),
        ..Default::default()
    };
    let resolved = Arc::new(AtomicUsize::new(usize::MAX));
    let (resolved_captured, lock_captured) = (resolved.clone(), lock.clone());
    let client = Arc::new(MockPdClient::new(MockKvClient::with_dispatch_hook(
        move |req: &dyn Any| {
            if req.is::<kvrpcpb::CheckTxnStatusRequest>() {
                return Ok(Box::new(kvrpcpb::CheckTxnStatusResponse {
                    lock_ttl: 1,
                    lock_info: Some(lock_captured.clone()),
                    ..Default::default()
                }) as Box<dyn Any>);
            }
            if let Some(req) = req.downcast_ref::<kvrpcpb::ResolveLockRequest>() {
                resolved_captured.store(req.txn_infos[0].status as usize, Ordering::SeqCst);
                return Ok(Box::<kvrpcpb::ResolveLockResponse>::default());
            }
            Ok(Box::new(answer.clone()))
        },
    )));
    let store = client.clone().map_region_to_store(MockPdClient::region1()).await?;
    LockResolver::new(ResolveLocksContext::default())
        .cleanup_locks(store, vec![lock], client)
        .await?;
    Ok(resolved.load(Ordering::SeqCst) as u64)
}

fn async_lock(key: u8, min_commit_ts: u64) -> kvrpcpb::LockInfo {
    kvrpcpb::LockInfo {
        key: vec![key],
        use_async_commit: true,
        min_commit_ts,
        ..Default::default()
    }
}

fn secondary_locks(locks: Vec<kvrpcpb::LockInfo>, commit_ts: u64) -> kvrpcpb::CheckSecondaryLocksResponse {
    kvrpcpb::CheckSecondaryLocksResponse {
        locks,
        commit_ts,
        ..Default::default()
    }
}

#[tokio::test]
async fn test_cleanup_commits_an_async_commit_whose_locks_are_all_there() {
    let none = cleaned_up_with(&[], secondary_locks(vec![], 0)).await;
    assert_eq!(none.unwrap(), 7);
    let later = cleaned_up_with(&[2], secondary_locks(vec![async_lock(2, 9)], 0)).await;
    assert_eq!(later.unwrap(), 9);
    let earlier = cleaned_up_with(&[2], secondary_locks(vec![async_lock(2, 3)], 0)).await;
    assert_eq!(earlier.unwrap(), 7);
}

#[tokio::test]
async fn test_cleanup_ends_an_async_commit_as_its_missing_lock_was_ended() {
    let rolled_back = secondary_locks(vec![async_lock(2, 9)], 0);
    assert_eq!(cleaned_up_with(&[2, 3], rolled_back).await.unwrap(), 0);
    let committed = secondary_locks(vec![async_lock(2, 9)], 11);
    assert_eq!(cleaned_up_with(&[2, 3], committed).await.unwrap(), 11);
    let impossible = secondary_locks(vec![async_lock(2, 9)], 5);
    cleaned_up_with(&[2, 3], impossible).await.unwrap_err();
}

#[tokio::test]
async fn test_status_of_a_transaction_that_makes_no_sense_is_an_error() {
    for answer in [
        kvrpcpb::CheckTxnStatusResponse {
            action: 77,
            ..Default::default()
        },
        kvrpcpb::CheckTxnStatusResponse {
            commit_version: 5,
            lock_ttl: 5,
            ..Default::default()
        },
    ] {
        let client = Arc::new(MockPdClient::new(MockKvClient::with_dispatch_hook(
            move |_: &dyn Any| Ok(Box::new(answer.clone()) as Box<dyn Any>),
        )));
        let lock = kvrpcpb::LockInfo::default();
        resolve_locks(vec![lock], Timestamp::default(), client)
            .await
            .unwrap_err();
    }
}
