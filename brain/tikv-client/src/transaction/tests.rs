use std::any::Any;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::sync::Mutex;

use prost::Message;

use crate::mock::MockKvClient;
use crate::mock::MockPdClient;
use crate::proto::kvrpcpb;
use crate::proto::pdpb::Timestamp;
use crate::Backoff;
use crate::Error;
use crate::RetryOptions;
use crate::Transaction;
use crate::TransactionOptions;

#[tokio::test]
async fn test_pieces_of_a_transaction_send_their_own_keys_only() {
    let (pieces, bytes) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (pieces_cloned, bytes_cloned) = (pieces.clone(), bytes.clone());
    let pd_client = Arc::new(MockPdClient::new(MockKvClient::with_dispatch_hook(
        move |req: &dyn Any| {
            if let Some(req) = req.downcast_ref::<kvrpcpb::PrewriteRequest>() {
                assert!(!req.try_one_pc);
                pieces_cloned.fetch_add(1, Ordering::SeqCst);
                bytes_cloned.fetch_add(req.encoded_len(), Ordering::SeqCst);
                Ok(Box::<kvrpcpb::PrewriteResponse>::default() as Box<dyn Any>)
            } else {
                Ok(Box::<kvrpcpb::CommitResponse>::default() as Box<dyn Any>)
            }
        },
    )));
    let mut txn = Transaction::new(
        Timestamp::default(),
        pd_client,
        TransactionOptions::new_optimistic().try_one_pc(),
    );
    let mut own = 0;
    for i in 0..2000 {
        let (key, value) = (format!("key/{i:028}"), vec![0; 64]);
        own += key.len() + value.len();
        txn.put(key, value).await.unwrap();
    }
    txn.commit().await.unwrap();
    let (pieces, bytes) = (pieces.load(Ordering::SeqCst), bytes.load(Ordering::SeqCst));
    assert_eq!(pieces, 12);
    assert!(bytes < own + own / 4, "{bytes} bytes for {own}");
}

/// A transaction on these keys, whose requests are answered so.
async fn transaction_on(
    keys: &[&[u8]],
    options: TransactionOptions,
    answer: impl Fn(&dyn Any) -> crate::Result<Box<dyn Any>> + Send + Sync + 'static,
) -> Transaction<MockPdClient> {
    let pd_client = Arc::new(MockPdClient::new(MockKvClient::with_dispatch_hook(answer)));
    let mut txn = Transaction::new(Timestamp::default(), pd_client, options);
    for key in keys {
        txn.put(key.to_vec(), vec![0]).await.unwrap();
    }
    txn
}

#[tokio::test]
async fn test_one_phase_commit_of_two_pieces_is_an_error() {
    let options = TransactionOptions::new_optimistic().try_one_pc();
    let mut txn = transaction_on(&[&[1], &[20]], options, |_| {
        Ok(Box::new(kvrpcpb::PrewriteResponse {
            one_pc_commit_ts: 5,
            ..Default::default()
        }))
    })
    .await;
    let error = txn.commit().await.unwrap_err();
    assert!(matches!(error, Error::UndeterminedError(_)), "{error:?}");
}

#[tokio::test]
async fn test_async_commit_that_tikv_declines_is_done_in_two_phases() {
    let commits = Arc::new(Mutex::new(Vec::new()));
    let commits_cloned = commits.clone();
    let options = TransactionOptions::new_optimistic().use_async_commit();
    let mut txn = transaction_on(&[&[1], &[2]], options, move |req| {
        if let Some(req) = req.downcast_ref::<kvrpcpb::CommitRequest>() {
            commits_cloned.lock().unwrap().push(req.keys.clone());
            return Ok(Box::<kvrpcpb::CommitResponse>::default());
        }
        Ok(Box::<kvrpcpb::PrewriteResponse>::default())
    })
    .await;
    txn.commit().await.unwrap();
    assert_eq!(commits.lock().unwrap().first(), Some(&vec![vec![1]]));
}

#[tokio::test]
async fn test_lost_replies_leave_a_commit_undetermined() {
    let once = || {
        TransactionOptions::new_optimistic().retry_options(RetryOptions {
            region_backoff: Backoff::no_backoff(),
            lock_backoff: Backoff::no_backoff(),
        })
    };
    // Those of which the last reply decides, and those of which another request would.
    for (options, lost_prewrite, undetermined) in [
        (once(), true, false),
        (once(), false, true),
        (once().try_one_pc(), true, true),
        (once().use_async_commit(), true, true),
    ] {
        let mut txn = transaction_on(&[&[1]], options, move |req| {
            let prewrite = req.is::<kvrpcpb::PrewriteRequest>();
            if prewrite == lost_prewrite {
                return Err(Error::GrpcAPI(tonic::Status::unavailable("lost")));
            }
            Ok(Box::<kvrpcpb::PrewriteResponse>::default())
        })
        .await;
        let error = txn.commit().await.unwrap_err();
        assert_eq!(matches!(error, Error::UndeterminedError(_)), undetermined, "{error:?}");
    }
}

#[tokio::test]
async fn test_key_without_a_lock_is_never_the_primary_one() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let seen_cloned = seen.clone();
    let mut txn = transaction_on(&[], TransactionOptions::new_optimistic(), move |req| {
        let mut seen = seen_cloned.lock().unwrap();
        if let Some(req) = req.downcast_ref::<kvrpcpb::PrewriteRequest>() {
            seen.push(req.primary_lock.clone());
            return Ok(Box::<kvrpcpb::PrewriteResponse>::default());
        }
        if let Some(req) = req.downcast_ref::<kvrpcpb::CommitRequest>() {
            seen.extend(req.keys.clone());
        }
        Ok(Box::<kvrpcpb::CommitResponse>::default())
    })
    .await;
    // A key that must not be there.
    txn.insert(vec![1], vec![0]).await.unwrap();
    txn.delete(vec![1]).await.unwrap();
    for key in [2, 3] {
        txn.put(vec![key], vec![0]).await.unwrap();
    }
    txn.commit().await.unwrap();
    while seen.lock().unwrap().len() < 3 {
        tokio::task::yield_now().await;
    }
    assert_eq!(*seen.lock().unwrap(), [[2], [2], [3]]);
}

#[tokio::test]
async fn test_snapshot_keeps_nothing_of_what_it_reads() {
    let options = TransactionOptions::new_optimistic().read_only();
    let reads = Arc::new(AtomicUsize::new(0));
    let reads_cloned = reads.clone();
    let mut snapshot = transaction_on(&[], options, move |_| {
        reads_cloned.fetch_add(1, Ordering::SeqCst);
        Ok(Box::<kvrpcpb::GetResponse>::default())
    })
    .await;
    for _ in 0..2 {
        snapshot.get(vec![1]).await.unwrap();
    }
    assert_eq!(reads.load(Ordering::SeqCst), 2);
}
