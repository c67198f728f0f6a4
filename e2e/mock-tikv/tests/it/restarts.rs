//! Data across restarts.

use std::time::Duration;

use mock_tikv::{Action, CommandError, Fault, JournalError, MockTikv, Options, Rpc, StartError, Tail};
use tikv_client::{TimestampExt, TransactionClient};

use crate::client::{begin, connect, get, insert, one_phase, put, scan, start_with};

/// Inserts `a` synced and `b` not, then restarts.
async fn restart_with_a_tail(options: Options, tail: Tail) -> (MockTikv, TransactionClient) {
    let (mock_tikv, client) = start_with(options).await;
    insert(&client, "a", "1").await.unwrap();
    mock_tikv.hold_sync(true).await.unwrap();
    insert(&client, "b", "2").await.unwrap();
    assert_eq!(get(&client, "b").await.as_deref(), Some("2"), "answered is visible");
    let before = client.current_timestamp().await.unwrap();
    mock_tikv.restart(tail).await.unwrap();
    let client = connect(&mock_tikv).await;
    assert!(client.current_timestamp().await.unwrap().version() > before.version());
    (mock_tikv, client)
}

#[tokio::test]
async fn a_restart_keeps_or_drops_what_was_not_synced() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| Options {
        data_file: Some(directory.path().join(name)),
        ..Options::default()
    };
    for (keeping, dropping) in [(Options::default(), Options::default()), (file("keep"), file("drop"))] {
        let (_stand_in, client) = restart_with_a_tail(keeping, Tail::Keep).await;
        assert_eq!(scan(&client, "a".to_owned().., 10).await, ["a=1", "b=2"]);
        let (mock_tikv, client) = restart_with_a_tail(dropping, Tail::Drop).await;
        assert_eq!(scan(&client, "a".to_owned().., 10).await, ["a=1"]);
        // Synced again, nothing is lost any more.
        mock_tikv.hold_sync(false).await.unwrap();
        insert(&client, "c", "3").await.unwrap();
        mock_tikv.restart(Tail::Drop).await.unwrap();
        assert_eq!(
            scan(&connect(&mock_tikv).await, "a".to_owned().., 10).await,
            ["a=1", "c=3"]
        );
    }
}

#[tokio::test]
async fn a_data_file_carries_everything_to_the_next_run() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        data_file: Some(directory.path().join("data")),
        ..Options::default().with_stores(2)
    };
    let (mock_tikv, client) = start_with(options.clone()).await;
    put(&client, &[("a", "1"), ("b", "2")]).await.unwrap();
    mock_tikv.split(b"b").await.unwrap();
    mock_tikv.move_region(b"b", 2).await.unwrap();
    // The client learns of the split.
    assert_eq!(scan(&client, "a".to_owned().., 10).await, ["a=1", "b=2"]);
    // Left locked.
    mock_tikv
        .faults()
        .add(Fault::new(Rpc::Commit, Action::LoseRequest { silent: false }))
        .unwrap();
    let mut txn = begin(&client, crate::client::once(crate::client::two_phase())).await;
    txn.put("c".to_owned(), "3").await.unwrap();
    txn.commit().await.unwrap_err();
    let last = client.current_timestamp().await.unwrap().version();
    let (regions, sizes) = (mock_tikv.regions(), mock_tikv.sizes());
    assert_eq!(sizes.locks, 1);
    drop(client);
    let in_use = MockTikv::start(options.clone()).await.unwrap_err();
    assert!(
        matches!(in_use, StartError::Journal(JournalError::InUse(_))),
        "{in_use}"
    );
    mock_tikv.stop().await.unwrap();
    let other = Options {
        cluster_id: 8,
        ..options.clone()
    };
    let refused = MockTikv::start(other).await.unwrap_err();
    assert!(
        matches!(refused, StartError::Cluster { found: 7, wanted: 8 }),
        "{refused}"
    );
    let refused = MockTikv::start(options.clone().with_stores(1)).await.unwrap_err();
    assert!(
        matches!(refused, StartError::Stores { found: 2, wanted: 1 }),
        "{refused}"
    );
    let (mock_tikv, client) = start_with(options).await;
    assert_eq!((mock_tikv.regions(), mock_tikv.sizes()), (regions, sizes));
    assert_eq!(scan(&client, "a".to_owned().."c".to_owned(), 10).await, ["a=1", "b=2"]);
    assert!(client.current_timestamp().await.unwrap().version() > last);
}

#[tokio::test]
async fn every_write_takes_the_commit_latency_and_many_take_it_together() {
    let latency = Duration::from_millis(100);
    let (_stand_in, client) = start_with(Options {
        commit_latency: latency,
        ..Options::default()
    })
    .await;
    let began = tokio::time::Instant::now();
    insert(&client, "a", "1").await.unwrap();
    assert!(began.elapsed() >= latency);
    let mut txns = Vec::new();
    for number in 0..64 {
        let mut txn = begin(&client, one_phase()).await;
        txn.insert(format!("k{number}"), "v").await.unwrap();
        txns.push(async move { txn.commit().await });
    }
    let began = tokio::time::Instant::now();
    futures::future::try_join_all(txns).await.unwrap();
    let took = began.elapsed();
    assert!(took >= latency && took < 32 * latency, "{took:?}");
}

#[tokio::test]
async fn a_store_that_does_not_exist_cannot_be_commanded() {
    let mock_tikv = MockTikv::start(Options::default()).await.unwrap();
    assert!(matches!(mock_tikv.pause(2).unwrap_err(), CommandError::NoProcess(2)));
    assert!(matches!(
        mock_tikv.revive(2).await.unwrap_err(),
        CommandError::NoProcess(2)
    ));
    let none = MockTikv::start(Options::default().with_stores(0)).await.unwrap_err();
    assert!(matches!(none, StartError::NoStores));
}
