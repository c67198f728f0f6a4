//! The client under test, set up as the brain sets it up.

use std::time::Duration;

use mock_tikv::{MockTikv, Options};
use tikv_client::{
    Backoff, BoundRange, Config, Error, ProtoKeyError, RetryOptions, Snapshot, Timestamp, TimestampExt, Transaction,
    TransactionClient, TransactionOptions,
};

pub(crate) async fn start() -> (MockTikv, TransactionClient) {
    start_with(Options::default()).await
}

pub(crate) async fn start_with(options: Options) -> (MockTikv, TransactionClient) {
    let mock_tikv = MockTikv::start(options).await.unwrap();
    let client = connect(&mock_tikv).await;
    (mock_tikv, client)
}

/// With more patience than the client's own two seconds: the machine may be busy.
pub(crate) async fn connect(mock_tikv: &MockTikv) -> TransactionClient {
    connect_with_timeout(mock_tikv, Duration::from_secs(20)).await
}

pub(crate) async fn connect_with_timeout(mock_tikv: &MockTikv, timeout: Duration) -> TransactionClient {
    let config = Config::default().with_timeout(timeout);
    TransactionClient::new_with_config(vec![mock_tikv.pd()], config)
        .await
        .unwrap()
}

/// As [`two_phase`], without any retry of the client's own.
pub(crate) fn once(options: TransactionOptions) -> TransactionOptions {
    options.retry_options(RetryOptions {
        region_backoff: Backoff::no_backoff(),
        lock_backoff: Backoff::no_backoff(),
    })
}

pub(crate) fn one_phase() -> TransactionOptions {
    TransactionOptions::new_optimistic().try_one_pc()
}

pub(crate) fn two_phase() -> TransactionOptions {
    TransactionOptions::new_optimistic()
}

pub(crate) async fn begin(client: &TransactionClient, options: TransactionOptions) -> Transaction {
    client.begin_with_options(options).await.unwrap()
}

/// One pair, inserted in one phase.
pub(crate) async fn insert(client: &TransactionClient, key: &str, value: &str) -> Result<Option<Timestamp>, Error> {
    let mut txn = begin(client, one_phase()).await;
    txn.insert(key.to_owned(), value.to_owned()).await.unwrap();
    txn.commit().await
}

/// Pairs, put in two phases. All are committed when this returns.
pub(crate) async fn put(client: &TransactionClient, pairs: &[(&str, &str)]) -> Result<Option<Timestamp>, Error> {
    let mut txn = begin(client, two_phase()).await;
    for &(key, value) in pairs {
        txn.put(key.to_owned(), value.to_owned()).await.unwrap();
    }
    let committed = txn.commit().await?;
    if pairs.len() > 1 {
        // The client commits all but the first key in the background. A read waits for that.
        let keys: Vec<_> = pairs.iter().map(|&(key, _)| key.to_owned()).collect();
        assert_eq!(snapshot(client).await.batch_get(keys).await?.count(), pairs.len());
    }
    Ok(committed)
}

pub(crate) async fn snapshot(client: &TransactionClient) -> Snapshot {
    let now = client.current_timestamp().await.unwrap();
    client.snapshot(now, TransactionOptions::new_optimistic())
}

pub(crate) fn snapshot_at(client: &TransactionClient, ts: u64) -> Snapshot {
    client.snapshot(Timestamp::from_version(ts), TransactionOptions::new_optimistic())
}

pub(crate) async fn get(client: &TransactionClient, key: &str) -> Option<String> {
    snapshot(client)
        .await
        .get(key.to_owned())
        .await
        .unwrap()
        .map(|value| String::from_utf8(value).unwrap())
}

/// `key=value` of a range, in order.
pub(crate) async fn scan(client: &TransactionClient, range: impl Into<BoundRange>, limit: u32) -> Vec<String> {
    let mut snapshot = snapshot(client).await;
    let pairs = snapshot.scan(range, limit).await.unwrap();
    pairs
        .map(|pair| format!("{}={}", text(pair.key()), String::from_utf8_lossy(pair.value())))
        .collect()
}

pub(crate) fn text(key: &tikv_client::Key) -> String {
    String::from_utf8(key.clone().into()).unwrap()
}

/// The one key error inside whatever the client wraps it in.
pub(crate) fn key_error(error: Error) -> ProtoKeyError {
    match error {
        Error::KeyError(error) => *error,
        Error::MultipleKeyErrors(mut errors) | Error::ExtractedErrors(mut errors) if errors.len() == 1 => {
            key_error(errors.remove(0))
        }
        other => panic!("not one key error: {other:?}"),
    }
}
