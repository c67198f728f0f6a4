//! Regions that split, merge and move while they are used, and stores that die.

use std::cell::Cell;

use mock_tikv::{CommandError, MockTikv, Options, RegionsError, Rpc};
use tikv_client::Error;

use crate::client::{begin, connect, get, insert, once, one_phase, put, scan, start, start_with};

/// Writes `k00` to `k49`. Returns the complete list as a scan must show it while regions change.
async fn fill(client: &tikv_client::TransactionClient) -> Vec<String> {
    let pairs: Vec<(String, String)> = (0..50).map(|n| (format!("k{n:02}"), format!("v{n}"))).collect();
    let pairs: Vec<(&str, &str)> = pairs.iter().map(|(key, value)| (&key[..], &value[..])).collect();
    put(client, &pairs).await.unwrap();
    pairs.iter().map(|(key, value)| format!("{key}={value}")).collect()
}

#[tokio::test]
async fn scans_are_whole_while_regions_split_merge_and_move() {
    let (mock_tikv, client) = start_with(Options::default().with_stores(3)).await;
    let all = fill(&client).await;
    let scanned = Cell::new(0);
    let changes = async {
        for round in 0..20u64 {
            let bound = format!("k{:02}", round * 2 + 1);
            mock_tikv.split(bound.as_bytes()).await.unwrap();
            mock_tikv.move_region(bound.as_bytes(), round % 3 + 1).await.unwrap();
            if round % 4 == 3 {
                mock_tikv.merge(bound.as_bytes()).await.unwrap();
            }
            // A whole scan between two changes: the client gives up after ten region errors.
            let seen = scanned.get();
            while scanned.get() < seen + 2 {
                tokio::task::yield_now().await;
            }
        }
    };
    let scans = async {
        loop {
            assert_eq!(scan(&client, "k".to_owned().."l".to_owned(), 100).await, all);
            scanned.set(scanned.get() + 1);
        }
    };
    tokio::select! {
        () = changes => {}
        () = scans => {}
    }
    assert_eq!(scan(&client, "k".to_owned().."l".to_owned(), 100).await, all);
    assert_eq!(mock_tikv.regions().len(), 16);
    assert!(mock_tikv.regions().iter().any(|region| region.leader == 2));
}

#[tokio::test]
async fn writes_find_their_way_after_a_split_and_a_move() {
    let (mock_tikv, client) = start_with(Options::default().with_stores(4)).await;
    insert(&client, "a", "1").await.unwrap();
    mock_tikv.split(b"m").await.unwrap();
    insert(&client, "b", "1").await.unwrap();
    insert(&client, "n", "1").await.unwrap();
    // By election, and then to a store that did not hold it.
    for store in [2, 4] {
        mock_tikv.move_region(b"n", store).await.unwrap();
        assert_eq!(mock_tikv.regions()[1].leader, store);
        insert(&client, &format!("n{store}"), "1").await.unwrap();
    }
    put(&client, &[("b2", "1"), ("n5", "1")]).await.unwrap();
    assert_eq!(
        scan(&client, "a".to_owned().., 10).await,
        ["a=1", "b=1", "b2=1", "n=1", "n2=1", "n4=1", "n5=1"]
    );
    let refused = mock_tikv.split(b"m").await.unwrap_err();
    assert!(
        matches!(refused, CommandError::Regions(RegionsError::BoundAlready)),
        "{refused}"
    );
}

#[tokio::test]
async fn a_dead_store_is_not_reached_until_it_is_back_or_its_regions_are_elsewhere() {
    let (mock_tikv, client) = start_with(Options::default().with_stores(2)).await;
    insert(&client, "a", "1").await.unwrap();
    mock_tikv.kill(1).await.unwrap();
    let mut txn = begin(&client, once(one_phase())).await;
    txn.insert("b".to_owned(), "1").await.unwrap();
    let error = txn.commit().await.unwrap_err();
    assert!(matches!(error, Error::UndeterminedError(_)), "{error:?}");
    mock_tikv.move_region(b"", 2).await.unwrap();
    insert(&client, "c", "2").await.unwrap();
    mock_tikv.move_region(b"", 1).await.unwrap();
    mock_tikv.revive(1).await.unwrap();
    assert_eq!(get(&client, "c").await.as_deref(), Some("2"));
    assert!(matches!(
        mock_tikv.kill(3).await.unwrap_err(),
        CommandError::NoProcess(3)
    ));
}

#[tokio::test]
async fn a_write_of_more_than_a_raft_entry_is_refused() {
    let (_stand_in, client) = start().await;
    let insert = async |key: &str, size: usize| {
        let mut txn = begin(&client, one_phase()).await;
        txn.insert(key.to_owned(), vec![7; size]).await.unwrap();
        txn.commit().await
    };
    insert("fits", (8 << 20) - 4).await.unwrap();
    let error = insert("fits not", 8 << 20).await.unwrap_err();
    let Error::RegionError(error) = error else {
        panic!("{error:?}")
    };
    assert_eq!(error.raft_entry_too_large.unwrap().entry_size, (8 << 20) + 8);
    assert_eq!(get(&client, "fits not").await, None);
}

#[tokio::test]
async fn timestamps_ascend_over_many_askers() {
    let mock_tikv = MockTikv::start(Options::default()).await.unwrap();
    let client = connect(&mock_tikv).await;
    let mut last = 0;
    for _ in 0..20 {
        let asked = (0..100).map(|_| client.current_timestamp());
        let mut given: Vec<u64> = futures::future::try_join_all(asked)
            .await
            .unwrap()
            .iter()
            .map(tikv_client::TimestampExt::version)
            .collect();
        given.sort_unstable();
        assert!(given[0] > last && given.windows(2).all(|pair| pair[0] < pair[1]));
        last = given[99];
    }
    assert!(
        mock_tikv.requests()[&Rpc::Tso] < 2000,
        "several timestamps go with one message"
    );
}

#[tokio::test]
async fn election_after_a_kill_serves_the_regions_of_the_dead() {
    let (mock_tikv, client) = start_with(Options::default().with_stores(3)).await;
    mock_tikv.split(b"m").await.unwrap();
    mock_tikv.move_region(b"m", 2).await.unwrap();
    insert(&client, "a", "1").await.unwrap();
    insert(&client, "n", "1").await.unwrap();
    mock_tikv.kill(2).await.unwrap();
    mock_tikv.elect().await.unwrap();
    let leaders: Vec<u64> = mock_tikv.regions().iter().map(|region| region.leader).collect();
    assert_eq!(leaders, [1, 3]);
    assert_eq!(get(&connect(&mock_tikv).await, "n").await.as_deref(), Some("1"));
    mock_tikv.revive(2).await.unwrap();
    mock_tikv.elect().await.unwrap();
    insert(&connect(&mock_tikv).await, "o", "1").await.unwrap();
}

#[tokio::test]
async fn silent_region_answers_when_it_is_heard_again_and_others_always() {
    let (mock_tikv, client) = start_with(Options::default().with_stores(3)).await;
    mock_tikv.split(b"m").await.unwrap();
    insert(&client, "a", "1").await.unwrap();
    insert(&client, "n", "1").await.unwrap();
    mock_tikv.silence(b"z", true);
    assert_eq!(get(&client, "a").await.as_deref(), Some("1"));
    let mut read = Box::pin(get(&client, "n"));
    // as long as another region answers twenty times
    for _ in 0..20 {
        tokio::select! {
            biased;
            answer = &mut read => panic!("the silent region answered {answer:?}"),
            other = get(&client, "a") => assert_eq!(other.as_deref(), Some("1")),
        }
    }
    mock_tikv.silence(b"z", false);
    assert_eq!(read.await.as_deref(), Some("1"));
}
