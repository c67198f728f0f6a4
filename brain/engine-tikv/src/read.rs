//! Reads, each at a timestamp.

use std::time::Duration;

use bytes::Bytes;
use tikv_client::{
    Backoff, Key, KvPair, RetryOptions, Snapshot, Timestamp, TimestampExt, TransactionClient, TransactionOptions,
};

use tokio::time::Instant;

use super::error::CallKind;
use super::{CallLimits, Error, Tikv};

/// A timestamp of PD: milliseconds since 1970, and 18 bits that count within one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ts(pub(crate) u64);

impl Ts {
    /// Milliseconds since 1970, by PD's clock.
    pub(crate) fn millis(self) -> u64 {
        self.0 >> 18
    }

    pub(super) fn of(timestamp: &Timestamp) -> Ts {
        Ts(timestamp.version())
    }

    pub(super) fn timestamp(self) -> Timestamp {
        Timestamp::from_version(self.0)
    }
}

/// The value that a key had at a timestamp, which no other transaction begins at.
#[derive(Debug, Clone)]
pub(crate) struct ReadAt {
    pub(super) at: Ts,
    pub(super) value: Option<Bytes>,
    /// Before the timestamp was taken.
    pub(super) begun: Instant,
}

/// A range of keys to scan.
#[derive(Debug, Clone)]
pub(crate) struct ScanRange {
    pub(crate) from: Bytes,
    pub(crate) to: Bytes,
    pub(crate) limit: u32,
    pub(crate) keys_only: bool,
    pub(crate) backward: bool,
}

/// The options of every transaction: a lock in its way is outwaited for about a second.
pub(super) fn options() -> TransactionOptions {
    TransactionOptions::new_optimistic().retry_options(RetryOptions {
        region_backoff: Backoff::no_jitter_backoff(2, 500, 10),
        lock_backoff: Backoff::no_jitter_backoff(2, 200, 12),
    })
}

fn snapshot(client: &TransactionClient, at: Ts) -> Snapshot {
    client.snapshot(at.timestamp(), options())
}

impl Tikv {
    /// A timestamp of this very moment: later than everything that was acknowledged to anyone.
    pub(crate) async fn timestamp(&self) -> Result<Ts, Error> {
        let ask = |client: TransactionClient| async move { Ok(Ts::of(&client.current_timestamp().await?)) };
        self.shared
            .pool
            .call(CallKind::short("timestamp"), self.limits(), ask)
            .await
    }

    /// The value of one key.
    pub(crate) async fn get(&self, at: Ts, key: &Bytes) -> Result<Option<Bytes>, Error> {
        let get = |client: TransactionClient| {
            let key = key.to_vec();
            async move { snapshot(&client, at).get(key).await }
        };
        let value = self
            .shared
            .pool
            .call(CallKind::short("get"), self.limits(), get)
            .await?;
        Ok(value.map(Bytes::from))
    }

    /// The newest value of one key.
    pub(crate) async fn get_now(&self, key: &Bytes, limits: CallLimits) -> Result<Option<Bytes>, Error> {
        Ok(self.read_now(key, limits).await?.value)
    }

    /// The newest value of one key, and when it was read.
    pub(crate) async fn read_now(&self, key: &Bytes, limits: CallLimits) -> Result<ReadAt, Error> {
        let begun = Instant::now();
        let get = |client| get_now(client, key.to_vec(), begun);
        self.shared.pool.call(CallKind::short("get_now"), limits, get).await
    }

    /// Reads a key by each client of the pool, so that each knows the key's region: the first request of a client to a region waits for PD,
    /// too.
    pub(crate) async fn warm_up(&self, key: &Bytes, limit: Duration) {
        let get = |client| get_now(client, key.to_vec(), Instant::now());
        self.shared.pool.call_each("get_now", limit, get).await;
    }

    /// Returns the values of those keys that exist, in no particular order.
    pub(crate) async fn get_many(&self, at: Ts, keys: &[Bytes]) -> Result<Vec<(Bytes, Bytes)>, Error> {
        let get = |client: TransactionClient| {
            let keys: Vec<Key> = keys.iter().map(|key| key.to_vec().into()).collect();
            async move { Ok(snapshot(&client, at).batch_get(keys).await?.map(pair).collect()) }
        };
        self.shared
            .pool
            .call(CallKind::long("get_many"), self.limits(), get)
            .await
    }

    /// The first keys of a range, or the last ones, and their values. It costs a request to every region of the range, each
    /// with the whole limit: the range should be as short as the caller can tell.
    pub(crate) async fn scan(&self, at: Ts, range: &ScanRange) -> Result<Vec<(Bytes, Bytes)>, Error> {
        if range.from >= range.to || range.limit == 0 {
            return Ok(Vec::new());
        }
        let scan = |client: TransactionClient| {
            let (bounds, limit) = (range.from.to_vec()..range.to.to_vec(), range.limit);
            async move {
                let mut snapshot = snapshot(&client, at);
                let key = |key: Key| (Bytes::from(Vec::from(key)), Bytes::new());
                Ok(match (range.keys_only, range.backward) {
                    (false, false) => snapshot.scan(bounds, limit).await?.map(pair).collect(),
                    (false, true) => snapshot.scan_reverse(bounds, limit).await?.map(pair).collect(),
                    (true, false) => snapshot.scan_keys(bounds, limit).await?.map(key).collect(),
                    (true, true) => snapshot.scan_keys_reverse(bounds, limit).await?.map(key).collect(),
                })
            }
        };
        self.shared.pool.call(CallKind::long("scan"), self.limits(), scan).await
    }
}

fn pair(pair: KvPair) -> (Bytes, Bytes) {
    let (key, value) = pair.into();
    (Bytes::from(Vec::from(key)), Bytes::from(value))
}

/// Reads a key at a fresh timestamp.
async fn get_now(client: TransactionClient, key: Vec<u8>, begun: Instant) -> tikv_client::Result<ReadAt> {
    let at = Ts::of(&client.current_timestamp().await?);
    let value = snapshot(&client, at).get(key).await?.map(Bytes::from);
    Ok(ReadAt { at, value, begun })
}
