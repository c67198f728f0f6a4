//! The client, where something does not answer at all.

use std::time::Duration;

use mock_tikv::{Action, Fault, MockTikv, Options, Rpc};
use tikv_client::{Config, TransactionClient};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::client::{connect_with_timeout, get, insert, snapshot, start_with};

/// Of the client's requests.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Many times that; the kernel tries for two minutes to reach a machine that is gone.
const LONG_TIMEOUT: Duration = Duration::from_secs(30);

/// An address where connections are made, and that is all.
async fn mute() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// An address where not even connections are made, as if the machine were gone.
async fn gone() -> (TcpListener, Vec<TcpStream>, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(connected) = tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(address)).await {
        waiting.push(connected.unwrap());
    }
    (listener, waiting, address.to_string())
}

#[tokio::test]
async fn silent_members_of_pd_do_not_keep_a_client_from_connecting() {
    let ((_mute, mute), (_gone, _waiting, gone)) = (mute().await, gone().await);
    let mock_tikv = MockTikv::start(Options::default()).await.unwrap();
    let endpoints = vec![gone, mute, mock_tikv.pd()];
    let connect = TransactionClient::new_with_config(endpoints, Config::default().with_timeout(REQUEST_TIMEOUT));
    let client = tokio::time::timeout(LONG_TIMEOUT, connect)
        .await
        .expect("in time")
        .unwrap();
    insert(&client, "a", "1").await.unwrap();
}

#[tokio::test]
async fn a_store_that_was_never_reached_is_given_up_when_pd_names_another() {
    let (mock_tikv, client) = start_with(Options::default().with_stores(2)).await;
    insert(&client, "a", "1").await.unwrap();
    mock_tikv.move_region(b"a", 2).await.unwrap();
    mock_tikv.kill(2).await.unwrap();
    let client = connect_with_timeout(&mock_tikv, REQUEST_TIMEOUT).await;
    let mut failing = snapshot(&client).await;
    failing.get("a".to_owned()).await.unwrap_err();
    mock_tikv.move_region(b"a", 1).await.unwrap();
    assert_eq!(get(&client, "a").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn timestamps_do_not_wait_for_a_region_that_pd_does_not_name() {
    let (mock_tikv, _) = start_with(Options::default()).await;
    let client = connect_with_timeout(&mock_tikv, Duration::from_secs(3600)).await;
    let silent = Fault::new(Rpc::GetRegion, Action::LoseReply { silent: true });
    let silent = mock_tikv.faults().add(silent).unwrap();
    let lookup = async { snapshot(&client).await.get("a".to_owned()).await };
    let asked = async {
        while mock_tikv.faults().happened(silent) == Some(0) {
            tokio::task::yield_now().await;
        }
        tokio::time::timeout(LONG_TIMEOUT, client.current_timestamp()).await
    };
    tokio::select! {
        found = lookup => panic!("found {found:?} without a region"),
        asked = asked => drop(asked.expect("in time").unwrap()),
    }
}

#[tokio::test]
async fn a_timestamp_that_pd_does_not_give_is_asked_for_again() {
    let (mock_tikv, _) = start_with(Options::default()).await;
    let client = connect_with_timeout(&mock_tikv, REQUEST_TIMEOUT).await;
    let lost = Fault::new(Rpc::Tso, Action::LoseReply { silent: true }).times(1);
    mock_tikv.faults().add(lost).unwrap();
    let asked = tokio::time::timeout(LONG_TIMEOUT, client.current_timestamp()).await;
    asked.expect("in time").unwrap();
    assert_eq!(mock_tikv.faults().list()[0].happened, 1);
}
