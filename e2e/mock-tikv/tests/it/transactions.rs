//! Transactions as they go well and as they lose.

use mock_tikv::Rpc;
use tikv_client::Error;

use crate::client::{begin, get, insert, key_error, one_phase, put, scan, start, text, two_phase};

#[tokio::test]
async fn a_one_phase_insert_wins_once() {
    let (mock_tikv, client) = start().await;
    insert(&client, "slot/1", "first").await.unwrap();
    assert_eq!(get(&client, "slot/1").await.as_deref(), Some("first"));
    let requests = mock_tikv.requests();
    assert_eq!(requests.get(&Rpc::Prewrite), Some(&1), "{requests:?}");
    assert_eq!(requests.get(&Rpc::Commit), None, "{requests:?}");
    // Committed before this one began: it exists.
    let lost = insert(&client, "slot/1", "second").await.unwrap_err();
    assert!(matches!(lost, Error::MultipleKeyErrors(_)), "{lost:?}");
    assert!(key_error(lost).already_exist.is_some());
    // Committed after it began: a conflict.
    let mut slow = begin(&client, one_phase()).await;
    slow.insert("slot/2".to_owned(), "slow").await.unwrap();
    insert(&client, "slot/2", "fast").await.unwrap();
    let lost = slow.commit().await.unwrap_err();
    assert!(matches!(lost, Error::MultipleKeyErrors(_)), "{lost:?}");
    assert!(key_error(lost).conflict.is_some());
    assert_eq!(get(&client, "slot/2").await.as_deref(), Some("fast"));
}

#[tokio::test]
async fn two_phases_commit_all_keys_or_none() {
    let (mock_tikv, client) = start().await;
    put(&client, &[("a", "1"), ("b", "2")]).await.unwrap();
    assert_eq!(scan(&client, "a".to_owned()..="z".to_owned(), 10).await, ["a=1", "b=2"]);
    assert!(mock_tikv.requests()[&Rpc::Commit] >= 1);
    let mut late = begin(&client, two_phase()).await;
    late.put("a".to_owned(), "late").await.unwrap();
    late.insert("c".to_owned(), "late").await.unwrap();
    put(&client, &[("c", "3")]).await.unwrap();
    assert!(key_error(late.commit().await.unwrap_err()).conflict.is_some());
    late.rollback().await.unwrap();
    assert_eq!(scan(&client, "a".to_owned().., 10).await, ["a=1", "b=2", "c=3"]);
}

#[tokio::test]
async fn scans_go_both_ways_with_limits_and_without_values() {
    let (_stand_in, client) = start().await;
    put(&client, &[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")])
        .await
        .unwrap();
    assert_eq!(scan(&client, "b".to_owned().., 2).await, ["b=2", "c=3"]);
    let mut snapshot = crate::client::snapshot(&client).await;
    let keys = snapshot.scan_keys("b".to_owned().."d".to_owned(), 10).await.unwrap();
    assert_eq!(keys.map(|key| text(&key)).collect::<Vec<_>>(), ["b", "c"]);
    let down = snapshot.scan_reverse("a".to_owned().."d".to_owned(), 2).await.unwrap();
    assert_eq!(down.map(|pair| text(pair.key())).collect::<Vec<_>>(), ["c", "b"]);
    let some = snapshot.batch_get(["d", "x", "a"].map(str::to_owned)).await.unwrap();
    assert_eq!(
        some.map(|pair| text(pair.key()))
            .collect::<std::collections::BTreeSet<_>>()
            .len(),
        2
    );
}
