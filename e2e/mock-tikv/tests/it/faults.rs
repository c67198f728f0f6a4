//! Each fault, as the client meets it.

use std::cell::Cell;
use std::time::Duration;

use mock_tikv::{Action, Fault, MockTikv, Options, RefusalCode, RegionFault, Rpc};
use tikv_client::{Error, TransactionClient};
use tokio::time::Instant;

use crate::client::{
    begin, connect_with_timeout, get, insert, key_error, once, one_phase, put, scan, snapshot, start, start_with,
};

/// Long against what a call takes here.
const LONG_DELAY: Duration = Duration::from_millis(800);

/// One insert without the client's own retries.
async fn insert_once(client: &TransactionClient, key: &str) -> Result<(), Error> {
    let mut txn = begin(client, once(one_phase())).await;
    txn.insert(key.to_owned(), "v").await.unwrap();
    txn.commit().await.map(drop)
}

/// Sets a fault for the next request of a kind.
fn next(mock_tikv: &MockTikv, rpc: Rpc, action: Action) {
    mock_tikv.faults().add(Fault::new(rpc, action).times(1)).unwrap();
}

fn code(error: &Error) -> String {
    match error {
        Error::UndeterminedError(error) => code(error),
        Error::GrpcAPI(status) => format!("{:?}", status.code()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_lost_request_is_not_done_and_a_lost_reply_is() {
    let (mock_tikv, client) = start().await;
    let impatient = connect_with_timeout(&mock_tikv, Duration::from_secs(1)).await;
    for (silent, wanted) in [(false, "Unavailable"), (true, "DeadlineExceeded")] {
        let writer = if silent { &impatient } else { &client };
        for (action, done) in [
            (Action::LoseRequest { silent }, false),
            (Action::LoseReply { silent }, true),
        ] {
            let key = format!("{silent}{done}");
            next(&mock_tikv, Rpc::Prewrite, action);
            let error = insert_once(writer, &key).await.unwrap_err();
            // The server knows the caller's time as well as the caller, and may be the first to call it over.
            assert!(
                code(&error) == wanted || silent && code(&error) == "Cancelled",
                "{error:?}"
            );
            assert_eq!(get(&client, &key).await.is_some(), done, "{key}");
        }
    }
}

#[tokio::test]
async fn the_client_heals_one_lost_reply_of_a_one_phase_insert() {
    let (mock_tikv, client) = start().await;
    next(&mock_tikv, Rpc::Prewrite, Action::LoseReply { silent: false });
    assert!(insert(&client, "a", "1").await.unwrap().is_some());
    assert_eq!(mock_tikv.requests()[&Rpc::Prewrite], 2);
    assert_eq!(
        mock_tikv.sizes().versions,
        1,
        "the second try found the first one's commit"
    );
}

#[tokio::test]
async fn delays_hold_the_request_or_the_reply() {
    let (mock_tikv, client) = start().await;
    next(&mock_tikv, Rpc::Prewrite, Action::DelayRequest { by: LONG_DELAY });
    let began = Instant::now();
    let write = insert_once(&client, "a");
    let look = async {
        while !mock_tikv.requests().contains_key(&Rpc::Prewrite) {
            tokio::task::yield_now().await;
        }
        get(&client, "a").await
    };
    let (written, seen) = tokio::join!(write, look);
    written.unwrap();
    assert_eq!(seen, None);
    assert!(began.elapsed() >= LONG_DELAY);
    next(&mock_tikv, Rpc::Prewrite, Action::DelayReply { by: LONG_DELAY });
    let began = Instant::now();
    let answered = Cell::new(false);
    let write = async {
        insert_once(&client, "b").await.unwrap();
        answered.set(true);
    };
    let look = async {
        while get(&client, "b").await.is_none() {}
        answered.get()
    };
    let ((), answered_first) = tokio::join!(write, look);
    assert!(!answered_first && began.elapsed() >= LONG_DELAY);
}

#[tokio::test]
async fn a_late_request_arrives_when_it_is_told_to() {
    let (mock_tikv, client) = start().await;
    next(&mock_tikv, Rpc::Prewrite, Action::Late { after: None });
    insert_once(&client, "slot").await.unwrap_err();
    assert_eq!((get(&client, "slot").await, mock_tikv.faults().held()), (None, 1));
    assert_eq!(mock_tikv.faults().deliver().await, 1);
    assert_eq!(get(&client, "slot").await.as_deref(), Some("v"));
    next(
        &mock_tikv,
        Rpc::Prewrite,
        Action::Late {
            after: Some(Duration::from_millis(1)),
        },
    );
    insert_once(&client, "soon").await.unwrap_err();
    while get(&client, "soon").await.is_none() {}
}

#[tokio::test]
async fn a_late_duplicate_lands_in_a_slot_that_was_destroyed() {
    let (mock_tikv, client) = start().await;
    next(&mock_tikv, Rpc::Prewrite, Action::Duplicate { after: None });
    insert(&client, "w/1", "old").await.unwrap();
    client
        .unsafe_destroy_range("w/".to_owned().."w0".to_owned())
        .await
        .unwrap();
    assert_eq!(get(&client, "w/1").await, None);
    mock_tikv.faults().deliver().await;
    assert_eq!(get(&client, "w/1").await.as_deref(), Some("old"), "garbage, but there");
    // The second copy does nothing while the write of the first one still exists.
    next(&mock_tikv, Rpc::Prewrite, Action::Duplicate { after: None });
    insert(&client, "w/2", "once").await.unwrap();
    let versions = mock_tikv.sizes().versions;
    mock_tikv.faults().deliver().await;
    assert_eq!(mock_tikv.sizes().versions, versions);
}

#[tokio::test]
async fn region_errors_are_retried_or_returned_as_the_client_does() {
    let (mock_tikv, client) = start().await;
    let retried = [
        RegionFault::NotLeader,
        RegionFault::RegionNotFound,
        RegionFault::EpochNotMatch,
        RegionFault::StaleCommand,
        RegionFault::StoreNotMatch,
        RegionFault::ReadIndexNotReady,
        RegionFault::DiskFull,
    ];
    for error in retried {
        next(&mock_tikv, Rpc::Prewrite, Action::Region { error });
        insert(&client, &format!("{error:?}"), "v").await.unwrap();
    }
    assert_eq!(mock_tikv.requests()[&Rpc::Prewrite], 2 * retried.len() as u64);
    for error in [
        RegionFault::ServerIsBusy,
        RegionFault::RaftEntryTooLarge,
        RegionFault::MaxTimestampNotSynced,
    ] {
        next(&mock_tikv, Rpc::Prewrite, Action::Region { error });
        let returned = insert(&client, &format!("{error:?}"), "v").await.unwrap_err();
        let Error::RegionError(returned) = returned else {
            panic!("{returned:?}")
        };
        let busy = returned.server_is_busy.is_some();
        let large = returned.raft_entry_too_large.is_some();
        let unsynced = returned.max_timestamp_not_synced.is_some();
        assert_eq!([busy, large, unsynced].iter().filter(|&&is| is).count(), 1, "{error:?}");
        assert_eq!(get(&client, &format!("{error:?}")).await, None);
    }
}

#[tokio::test]
async fn reads_too_meet_faults_and_only_on_the_keys_that_are_meant() {
    let (mock_tikv, client) = start().await;
    put(&client, &[("a", "1"), ("b", "2")]).await.unwrap();
    let fault = Fault::new(Rpc::Get, Action::LoseReply { silent: false })
        .on_keys("b")
        .times(1);
    let fault = mock_tikv.faults().add(fault).unwrap();
    assert_eq!(get(&client, "a").await.as_deref(), Some("1"));
    assert_eq!(mock_tikv.faults().happened(fault), Some(0));
    assert_eq!(get(&client, "b").await.as_deref(), Some("2"), "the client tries again");
    assert_eq!(mock_tikv.faults().happened(fault), Some(1));
    assert_eq!(mock_tikv.requests()[&Rpc::Get], 3);
    next(
        &mock_tikv,
        Rpc::Scan,
        Action::Region {
            error: RegionFault::EpochNotMatch,
        },
    );
    assert_eq!(scan(&client, "a".to_owned().., 10).await, ["a=1", "b=2"]);
}

#[tokio::test]
async fn a_paused_store_answers_when_it_goes_on() {
    let (mock_tikv, client) = start_with(Options::default()).await;
    insert(&client, "a", "1").await.unwrap();
    let mut snapshot = snapshot(&client).await;
    mock_tikv.pause(1).unwrap();
    let mut read = Box::pin(snapshot.get("a".to_owned()));
    tokio::time::timeout(LONG_DELAY, &mut read).await.unwrap_err();
    mock_tikv.resume(1).unwrap();
    assert_eq!(read.await.unwrap(), Some(b"1".to_vec()));
}

#[tokio::test]
async fn a_hung_pd_hangs_timestamps_and_a_lost_one_never_comes() {
    let (mock_tikv, client) = start().await;
    client.current_timestamp().await.unwrap();
    mock_tikv.pause(MockTikv::PD).unwrap();
    let mut asked = Box::pin(client.current_timestamp());
    tokio::time::timeout(LONG_DELAY, &mut asked).await.unwrap_err();
    mock_tikv.resume(MockTikv::PD).unwrap();
    asked.await.unwrap();
    next(&mock_tikv, Rpc::Tso, Action::LoseReply { silent: true });
    tokio::time::timeout(LONG_DELAY, client.current_timestamp())
        .await
        .unwrap_err();
    assert_eq!(mock_tikv.faults().list()[0].happened, 1);
}

#[tokio::test]
async fn faults_of_pd_are_seen_by_a_client_that_begins() {
    let (mock_tikv, client) = start().await;
    next(&mock_tikv, Rpc::GetRegion, Action::LoseRequest { silent: false });
    insert(&client, "a", "1").await.unwrap();
    assert_eq!(mock_tikv.faults().list()[0].happened, 1, "the client asks again");
    mock_tikv
        .faults()
        .add(Fault::new(Rpc::GetMembers, Action::LoseReply { silent: false }))
        .unwrap();
    assert!(TransactionClient::new(vec![mock_tikv.pd()]).await.is_err());
}

#[tokio::test]
async fn a_request_delayed_beyond_its_callers_patience_is_still_done() {
    let (mock_tikv, client) = start().await;
    next(&mock_tikv, Rpc::Prewrite, Action::DelayRequest { by: LONG_DELAY });
    let mut txn = begin(&client, once(one_phase())).await;
    txn.insert("a".to_owned(), "late").await.unwrap();
    tokio::time::timeout(LONG_DELAY / 3, txn.commit()).await.unwrap_err();
    assert_eq!(get(&client, "a").await, None);
    while get(&client, "a").await.is_none() {}
    assert!(
        key_error(insert(&client, "a", "other").await.unwrap_err())
            .already_exist
            .is_some()
    );
}

#[tokio::test]
async fn large_requests_alone_are_refused() {
    let (mock_tikv, client) = start().await;
    let refused = Action::Refuse {
        code: RefusalCode::ResourceExhausted,
        message: "trying to send message larger than max".to_owned(),
    };
    let large = "v".repeat(10_000);
    mock_tikv
        .faults()
        .add(Fault::new(Rpc::Prewrite, refused).with_min_bytes(large.len()))
        .unwrap();
    insert(&client, "small", "v").await.unwrap();
    let error = insert(&client, "large", &large).await.unwrap_err();
    assert_eq!(code(&error), "ResourceExhausted");
    assert_eq!(get(&client, "large").await, None);
}
