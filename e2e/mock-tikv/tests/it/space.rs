//! Giving space back.

use mock_tikv::{Action, Fault, Options, Rpc};
use tikv_client::TimestampExt;

use crate::client::{get, insert, put, scan, snapshot_at, start, start_with};

#[tokio::test]
async fn a_destroyed_range_is_gone_on_all_stores_and_can_be_written_again() {
    let (mock_tikv, client) = start_with(Options::default().with_stores(2)).await;
    put(&client, &[("a", "1"), ("b", "2"), ("k", "3"), ("z", "4")])
        .await
        .unwrap();
    mock_tikv.split(b"k").await.unwrap();
    mock_tikv.move_region(b"k", 2).await.unwrap();
    client
        .unsafe_destroy_range("b".to_owned().."z".to_owned())
        .await
        .unwrap();
    assert_eq!(scan(&client, "a".to_owned().., 10).await, ["a=1", "z=4"]);
    assert_eq!(mock_tikv.requests()[&Rpc::UnsafeDestroyRange], 2);
    insert(&client, "b", "again").await.unwrap();
    assert_eq!(get(&client, "b").await.as_deref(), Some("again"));
}

#[tokio::test]
async fn a_range_is_half_gone_when_a_store_is_not_reached() {
    let (mock_tikv, client) = start_with(Options::default().with_stores(2)).await;
    put(&client, &[("a", "1"), ("k", "3")]).await.unwrap();
    mock_tikv.split(b"k").await.unwrap();
    mock_tikv.move_region(b"k", 2).await.unwrap();
    let fault = Fault::new(Rpc::UnsafeDestroyRange, Action::LoseRequest { silent: false }).at_store(2);
    let fault = mock_tikv.faults().add(fault).unwrap();
    client
        .unsafe_destroy_range("a".to_owned().."z".to_owned())
        .await
        .unwrap_err();
    assert_eq!(scan(&client, "a".to_owned().., 10).await, ["k=3"]);
    mock_tikv.faults().remove(fault).unwrap();
    client
        .unsafe_destroy_range("a".to_owned().."z".to_owned())
        .await
        .unwrap();
    assert_eq!(mock_tikv.sizes().keys, 0);
}

#[tokio::test]
async fn collection_frees_old_versions_and_leaves_holes_below_the_safe_point() {
    let (mock_tikv, client) = start().await;
    put(&client, &[("a", "1")]).await.unwrap();
    let old = client.current_timestamp().await.unwrap().version();
    put(&client, &[("a", "2")]).await.unwrap();
    assert_eq!(
        snapshot_at(&client, old).get("a".to_owned()).await.unwrap(),
        Some(b"1".to_vec())
    );
    let safe_point = client.current_timestamp().await.unwrap();
    assert!(client.gc(safe_point).await.unwrap());
    assert_eq!(mock_tikv.safe_point(), safe_point.version());
    assert_eq!(mock_tikv.sizes().versions, 1);
    assert_eq!(
        snapshot_at(&client, old).get("a".to_owned()).await.unwrap(),
        None,
        "a silent hole"
    );
    assert_eq!(get(&client, "a").await.as_deref(), Some("2"));
    // The safe point never goes back.
    assert!(!client.gc(tikv_client::Timestamp::from_version(old)).await.unwrap());
    assert_eq!(mock_tikv.safe_point(), safe_point.version());
}
