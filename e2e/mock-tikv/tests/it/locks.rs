//! Unfinished locks, and transactions that are ended from outside.

use std::time::Duration;

use mock_tikv::{Action, Fault, MockTikv, Options, Rpc};
use tikv_client::{Error, ProtoLockInfo, TimestampExt, Transaction, TransactionClient};

use crate::client::{begin, get, insert, key_error, once, one_phase, put, scan, start, two_phase};

/// A transaction on `a` and `b` whose commits are lost, but for the first `committed` ones; the primary comes first.
async fn orphan(mock_tikv: &MockTikv, client: &TransactionClient, committed: u64) -> Transaction {
    let lost = Fault::new(Rpc::Commit, Action::LoseRequest { silent: false }).after(committed);
    let lost = mock_tikv.faults().add(lost).unwrap();
    let mut txn = begin(client, once(two_phase())).await;
    for key in ["a", "b"] {
        txn.put(key.to_owned(), "orphan").await.unwrap();
    }
    assert_eq!(txn.commit().await.is_ok(), committed > 0);
    while mock_tikv.faults().happened(lost) == Some(0) {
        tokio::task::yield_now().await;
    }
    mock_tikv.faults().remove(lost).unwrap();
    txn
}

async fn locks(client: &TransactionClient) -> Vec<ProtoLockInfo> {
    let now = client.current_timestamp().await.unwrap();
    client.scan_locks(&now, .., 100).await.unwrap()
}

#[tokio::test]
async fn readers_finish_a_transaction_whose_primary_is_committed() {
    let (mock_tikv, client) = start().await;
    orphan(&mock_tikv, &client, 1).await;
    let left = locks(&client).await;
    assert_eq!(left.iter().map(|lock| &lock.key[..]).collect::<Vec<_>>(), [b"b"]);
    assert_eq!(scan(&client, "a".to_owned().., 10).await, ["a=orphan", "b=orphan"]);
    assert!(locks(&client).await.is_empty());
    assert!(mock_tikv.requests()[&Rpc::ResolveLock] >= 1);
}

#[tokio::test]
async fn readers_roll_back_a_transaction_whose_time_is_over() {
    let (mock_tikv, client) = start().await;
    put(&client, &[("a", "before")]).await.unwrap();
    let txn = orphan(&mock_tikv, &client, 0).await;
    let started = txn.start_timestamp().version();
    // Its time to live is three seconds: until then a reader that does not wait has the lock in its error.
    let now = client.current_timestamp().await.unwrap();
    let mut snapshot = client.snapshot(now, once(two_phase()));
    let waited = snapshot.get("a".to_owned()).await.unwrap_err();
    assert!(matches!(waited, Error::ResolveLockError(_)), "{waited:?}");
    while client.current_timestamp().await.unwrap().version() >> 18 <= (started >> 18) + 3000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(get(&client, "a").await.as_deref(), Some("before"));
    assert_eq!(get(&client, "b").await, None);
    assert!(locks(&client).await.is_empty());
}

#[tokio::test]
async fn cleanup_ends_unfinished_transactions_at_once() {
    let (mock_tikv, client) = start().await;
    let mut txn = orphan(&mock_tikv, &client, 0).await;
    let now = client.current_timestamp().await.unwrap();
    let outside = client.cleanup_locks("c".to_owned().., &now).await.unwrap();
    assert_eq!(
        (outside.resolved_locks, locks(&client).await.len()),
        (0, 2),
        "only in the range"
    );
    let cleaned = client
        .cleanup_locks("a".to_owned().."c".to_owned(), &now)
        .await
        .unwrap();
    assert_eq!((cleaned.resolved_locks, locks(&client).await.len()), (2, 0));
    assert_eq!((get(&client, "a").await, get(&client, "b").await), (None, None));
    assert!(
        key_error(txn.commit().await.unwrap_err()).conflict.is_some(),
        "it can never commit now"
    );
}

#[tokio::test]
async fn a_rollback_after_an_unknown_commit_decides_it() {
    let (mock_tikv, client) = start().await;
    for options in [one_phase(), two_phase()] {
        let rpc = if options == one_phase() {
            Rpc::Prewrite
        } else {
            Rpc::Commit
        };
        for (action, committed) in [
            (Action::LoseReply { silent: false }, true),
            (Action::LoseRequest { silent: false }, false),
        ] {
            let fault = mock_tikv.faults().add(Fault::new(rpc, action.clone())).unwrap();
            let mut txn = begin(&client, once(options.clone())).await;
            txn.put("a".to_owned(), format!("{rpc:?}{committed}")).await.unwrap();
            let error = txn.commit().await.unwrap_err();
            assert!(matches!(error, Error::UndeterminedError(_)), "{error:?}");
            mock_tikv.faults().remove(fault).unwrap();
            match txn.rollback().await {
                Ok(()) => assert!(!committed, "{rpc:?} {action:?}"),
                Err(error) => {
                    let error = key_error(error);
                    assert!(
                        committed && error.abort.contains("Committed"),
                        "{rpc:?} {action:?}: {error:?}"
                    );
                }
            }
            let now = get(&client, "a").await;
            assert_eq!(now == Some(format!("{rpc:?}{committed}")), committed, "{now:?}");
        }
    }
}

#[tokio::test]
async fn a_pessimistic_transaction_keeps_others_out_until_it_ends() {
    let (_stand_in, client) = start().await;
    put(&client, &[("a", "1")]).await.unwrap();
    let options = tikv_client::TransactionOptions::new_pessimistic();
    let mut txn = client.begin_with_options(options).await.unwrap();
    assert_eq!(txn.get_for_update("a".to_owned()).await.unwrap(), Some(b"1".to_vec()));
    let lost = insert(&client, "b", "other").await;
    assert!(lost.is_ok(), "other keys are free");
    let mut other = begin(&client, once(two_phase())).await;
    other.put("a".to_owned(), "other").await.unwrap();
    let blocked = other.commit().await.unwrap_err();
    assert!(matches!(blocked, Error::ResolveLockError(_)), "{blocked:?}");
    txn.put("a".to_owned(), "2").await.unwrap();
    txn.commit().await.unwrap();
    assert_eq!(get(&client, "a").await.as_deref(), Some("2"));
}

#[tokio::test]
async fn locks_live_as_long_as_told() {
    let options = Options {
        lock_ttl: Some(Duration::from_secs(3600)),
        ..Options::default()
    };
    let mock_tikv = MockTikv::start(options).await.unwrap();
    let client = TransactionClient::new(vec![mock_tikv.pd()]).await.unwrap();
    orphan(&mock_tikv, &client, 0).await;
    let lives: Vec<u64> = locks(&client).await.iter().map(|lock| lock.lock_ttl).collect();
    assert_eq!(lives, [3_600_000, 3_600_000]);
}
