//! What survives.

use std::time::Duration;

use tikv_client::{TimestampExt, TransactionClient};
use tikv_stand_in::{Action, CommandError, Fault, JournalError, Options, Rpc, StandIn, StartError, Tail};

use crate::client::{begin, connect, get, insert, one_phase, put, scan, start_with};

/// Inserts `a` synced and `b` not, then restarts.
async fn restart_with_a_tail(options: Options, tail: Tail) -> (StandIn, TransactionClient) {
    let (stand_in, client) = start_with(options).await;
    insert(&client, "a", "1").await.unwrap();
    stand_in.hold_sync(true).await.unwrap();
    insert(&client, "b", "2").await.unwrap();
    assert_eq!(get(&client, "b").await.as_deref(), Some("2"), "answered is visible");
    let before = client.current_timestamp().await.unwrap();
    stand_in.restart(tail).await.unwrap();
    let client = connect(&stand_in).await;
    assert!(client.current_timestamp().await.unwrap().version() > before.version());
    (stand_in, client)
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
        let (stand_in, client) = restart_with_a_tail(dropping, Tail::Drop).await;
        assert_eq!(scan(&client, "a".to_owned().., 10).await, ["a=1"]);
        // Synced again, nothing is lost any more.
        stand_in.hold_sync(false).await.unwrap();
        insert(&client, "c", "3").await.unwrap();
        stand_in.restart(Tail::Drop).await.unwrap();
        assert_eq!(
            scan(&connect(&stand_in).await, "a".to_owned().., 10).await,
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
    let (stand_in, client) = start_with(options.clone()).await;
    put(&client, &[("a", "1"), ("b", "2")]).await.unwrap();
    stand_in.split(b"b").await.unwrap();
    stand_in.move_region(b"b", 2).await.unwrap();
    // The second key is committed in the background: a reader waits for that, and learns of the split.
    assert_eq!(scan(&client, "a".to_owned().., 10).await, ["a=1", "b=2"]);
    // Left locked.
    stand_in
        .faults()
        .add(Fault::new(Rpc::Commit, Action::LoseRequest { silent: false }))
        .unwrap();
    let mut txn = begin(&client, crate::client::once(crate::client::two_phase())).await;
    txn.put("c".to_owned(), "3").await.unwrap();
    txn.commit().await.unwrap_err();
    let last = client.current_timestamp().await.unwrap().version();
    let (regions, sizes) = (stand_in.regions(), stand_in.sizes());
    assert_eq!(sizes.locks, 1);
    drop(client);
    let in_use = StandIn::start(options.clone()).await.unwrap_err();
    assert!(
        matches!(in_use, StartError::Journal(JournalError::InUse(_))),
        "{in_use}"
    );
    stand_in.stop().await.unwrap();
    let other = Options {
        cluster_id: 8,
        ..options.clone()
    };
    let refused = StandIn::start(other).await.unwrap_err();
    assert!(
        matches!(refused, StartError::Cluster { found: 7, wanted: 8 }),
        "{refused}"
    );
    let refused = StandIn::start(options.clone().with_stores(1)).await.unwrap_err();
    assert!(
        matches!(refused, StartError::Stores { found: 2, wanted: 1 }),
        "{refused}"
    );
    let (stand_in, client) = start_with(options).await;
    assert_eq!((stand_in.regions(), stand_in.sizes()), (regions, sizes));
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
    let stand_in = StandIn::start(Options::default()).await.unwrap();
    assert!(matches!(stand_in.pause(2).unwrap_err(), CommandError::NoProcess(2)));
    assert!(matches!(
        stand_in.revive(2).await.unwrap_err(),
        CommandError::NoProcess(2)
    ));
    let none = StandIn::start(Options::default().with_stores(0)).await.unwrap_err();
    assert!(matches!(none, StartError::NoStores));
}
