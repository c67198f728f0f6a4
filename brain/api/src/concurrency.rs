//! The common part of locks and elections: keys below a name, where the key that was created first wins.
//!
//! etcd serves both as a client of itself, and so does this module: every step is a request that a client could send, with the same checks,
//! and clients receive refusals as a client's errors: etcd's texts with the code `Unknown`.

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status};

use super::auth::Credentials;
use super::kv::{KvService, meter};
use super::lease::LeaseService;
use ::watch::{Entry, EventFilter, Hub, Inbox, KeyRange, PrevKv, Replay, Subscription, SubscriptionStep, WatchStart};
use etcd_types::errors::Error;
use etcd_types::pb::etcdserverpb as pb;
use etcd_types::pb::mvccpb::KeyValue;
use etcd_types::types::Revision;
use mvcc::op::Span;
use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::kv_server::Kv as _;
use pb::lease_server::Lease as _;
use pb::range_request::{SortOrder, SortTarget};
use runtime::budget::Meter;

pub use cleanup::Cleanup;

mod cleanup;

/// The time to live of leases that are granted to clients that bring none, in seconds.
const DEFAULT_SESSION_TTL: i64 = 60;

/// Locks and elections over the store.
pub struct Concurrency {
    /// Writes the keys of waiters as a client would.
    pub kv: Arc<KvService>,
    /// Grants leases to clients that bring none.
    pub leases: Arc<LeaseService>,
    /// The source of new changes.
    pub hub: Hub,
    /// The reader of changes that were missed.
    pub replay: Arc<Replay>,
    /// The queue of the waiters whose clients went away.
    pub cleanup: Cleanup,
    /// Ends all waits, so that clients leave.
    pub stop: CancellationToken,
}

/// A key below a prefix that holds the lock or the leadership, or waits for it.
#[derive(Debug, Clone)]
pub(super) struct Waiter {
    pub(super) key: Bytes,
    /// Its create revision.
    pub(super) revision: Revision,
    /// The header of the transaction that made or found it.
    pub(super) header: Option<pb::ResponseHeader>,
}

/// A key whose deletion is awaited, as of a revision.
#[derive(Debug)]
pub(super) struct Predecessor {
    key: Bytes,
    revision: Revision,
}

/// Returns the prefix of all keys of a lock or election: its name and a slash.
pub(super) fn prefix(name: &[u8]) -> Bytes {
    let mut prefix = BytesMut::from(name);
    prefix.put_u8(b'/');
    prefix.freeze()
}

/// Returns the key of the waiter with this lease: the prefix and the lease's id in hexadecimal, as Go formats it.
pub(super) fn key_of(prefix: &Bytes, lease: i64) -> Bytes {
    let sign = if lease < 0 { "-" } else { "" };
    let mut key = BytesMut::from(prefix.as_ref());
    key.put_slice(format!("{sign}{:x}", lease.unsigned_abs()).as_bytes());
    key.freeze()
}

/// Returns the end of the range of keys that begin with `prefix`, which must not consist of bytes 0xff alone.
fn end_of(prefix: &Bytes) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            break;
        }
    }
    end.into()
}

/// Returns the request for the key of a prefix that was created first.
pub(super) fn first_of(prefix: &Bytes) -> pb::RangeRequest {
    pb::RangeRequest {
        key: prefix.clone(),
        range_end: end_of(prefix),
        limit: 1,
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        ..pb::RangeRequest::default()
    }
}

/// Returns the same request without the value.
fn key_of_first(prefix: &Bytes) -> pb::RangeRequest {
    pb::RangeRequest {
        keys_only: true,
        ..first_of(prefix)
    }
}

/// Returns the request for a single key.
pub(super) fn point(key: Bytes) -> pb::RangeRequest {
    pb::RangeRequest {
        key,
        ..pb::RangeRequest::default()
    }
}

pub(super) fn put(key: Bytes, value: Bytes, lease: i64) -> pb::PutRequest {
    pb::PutRequest {
        key,
        value,
        lease,
        ..pb::PutRequest::default()
    }
}

pub(super) fn delete(key: Bytes) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest {
        key,
        ..pb::DeleteRangeRequest::default()
    }
}

/// Returns a transaction that depends on a key's create revision, which is 0 if there is no such key.
pub(super) fn if_created(
    key: Bytes,
    at: Revision,
    success: Vec<pb::request_op::Request>,
    failure: Vec<pb::request_op::Request>,
) -> pb::TxnRequest {
    let ops = |requests: Vec<pb::request_op::Request>| {
        let op = |request| pb::RequestOp { request: Some(request) };
        requests.into_iter().map(op).collect()
    };
    pb::TxnRequest {
        compare: vec![pb::Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Create.into(),
            key,
            target_union: Some(TargetUnion::CreateRevision(at)),
            ..pb::Compare::default()
        }],
        success: ops(success),
        failure: ops(failure),
    }
}

/// Returns the pairs that one range of a transaction found.
pub(super) fn found(txn: &pb::TxnResponse, at: usize) -> &[KeyValue] {
    match txn.responses.get(at).and_then(|op| op.response.as_ref()) {
        Some(pb::response_op::Response::ResponseRange(range)) => &range.kvs,
        _ => &[],
    }
}

/// Returns an internal request that is charged to the client of the original one.
fn charged<T>(message: T, client: &SessionClient) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(client.meter.another());
    request.extensions_mut().insert(client.credentials.clone());
    request
}

/// The client of a lock or an election: its memory, and what it shows to be identified by.
#[derive(Debug, Clone)]
pub(super) struct SessionClient {
    meter: Meter,
    credentials: Credentials,
}

impl SessionClient {
    pub(super) fn of<T>(request: &Request<T>) -> Self {
        Self {
            meter: meter(request),
            credentials: Credentials::of(request),
        }
    }

    /// Returns the same client for a stream, which outlives the request.
    pub(super) fn another(&self) -> Self {
        Self {
            meter: self.meter.another(),
            credentials: self.credentials.clone(),
        }
    }
}

/// Converts a refusal to the status that a client gets.
fn seen_by_client(status: Status) -> Status {
    Status::unknown(status.message())
}

impl Concurrency {
    /// Returns the lease of a waiter's key: a new one if the request names none. Only the client keeps it alive.
    pub(super) async fn lease(&self, brought: i64, client: &SessionClient) -> Result<i64, Status> {
        if brought != 0 {
            return Ok(brought);
        }
        let grant = pb::LeaseGrantRequest {
            ttl: DEFAULT_SESSION_TTL,
            id: 0,
        };
        let granted = self.leases.lease_grant(charged(grant, client)).await;
        granted.map(|answer| answer.into_inner().id).map_err(seen_by_client)
    }

    pub(super) async fn txn(&self, txn: pb::TxnRequest, client: &SessionClient) -> Result<pb::TxnResponse, Status> {
        let answer = self.kv.txn(charged(txn, client)).await;
        answer.map(tonic::Response::into_inner).map_err(seen_by_client)
    }

    pub(super) async fn range(
        &self,
        range: pb::RangeRequest,
        client: &SessionClient,
    ) -> Result<pb::RangeResponse, Status> {
        let answer = self.kv.range(charged(range, client)).await;
        answer.map(tonic::Response::into_inner).map_err(seen_by_client)
    }

    pub(super) async fn delete(&self, key: Bytes, client: &SessionClient) -> Result<pb::DeleteRangeResponse, Status> {
        let answer = self.kv.delete_range(charged(delete(key), client)).await;
        answer.map(tonic::Response::into_inner).map_err(seen_by_client)
    }

    /// Returns the youngest key of the prefix that was created before `waiter`.
    pub(super) async fn before(
        &self,
        prefix: &Bytes,
        waiter: &Waiter,
        client: &SessionClient,
    ) -> Result<Option<Predecessor>, Status> {
        let before = pb::RangeRequest {
            sort_order: SortOrder::Descend.into(),
            max_create_revision: waiter.revision - 1,
            ..key_of_first(prefix)
        };
        let range = self.range(before, client).await?;
        Ok(range.kvs.into_iter().next().map(|older| Predecessor {
            key: older.key,
            revision: range.header.map_or(0, |header| header.revision),
        }))
    }

    /// Waits until all keys of the prefix that were created before `waiter` are gone; `before` is the youngest of them. A caller
    /// that stops waiting early must delete the waiter's key: [`Concurrency::cleanup_guard`].
    pub(super) async fn wait_turn(
        &self,
        prefix: &Bytes,
        waiter: &Waiter,
        before: Option<Predecessor>,
        client: &SessionClient,
    ) -> Result<(), Status> {
        let mut next = before;
        while let Some(before) = next {
            let deletes = EventFilter {
                puts: false,
                deletes: true,
            };
            // A compaction of events not received yet does no harm: the key is read again.
            let mut events = self.watch(before.key, Bytes::new(), deletes, before.revision, client)?;
            drop(events.next().await?);
            next = self.before(prefix, waiter, client).await?;
        }
        Ok(())
    }

    /// Returns a guard that deletes a waiter's key if its client goes away, unless the key has been recreated by then.
    pub(super) fn cleanup_guard(&self, waiter: &Waiter) -> CleanupGuard<'_> {
        let delete = vec![pb::request_op::Request::RequestDeleteRange(delete(waiter.key.clone()))];
        CleanupGuard {
            cleanup: &self.cleanup,
            clean_up: Some(if_created(waiter.key.clone(), waiter.revision, delete, Vec::new())),
        }
    }

    /// Subscribes to events from a revision on.
    pub(super) fn watch(
        &self,
        key: Bytes,
        range_end: Bytes,
        kinds: EventFilter,
        from: Revision,
        client: &SessionClient,
    ) -> Result<EventStream, Status> {
        let span = Span {
            key: key.clone(),
            end: range_end.clone(),
        };
        let permitted = self.kv.store.guard.check_read(&client.credentials, &span);
        permitted.map_err(|error| seen_by_client(error.into()))?;
        let range = KeyRange::from_request(key, range_end).map_err(|empty| Status::unknown(empty.to_string()))?;
        let range = self.hub.fit(range);
        let held = client
            .meter
            .hold(range.watcher_bytes())
            .map_err(|_| Error::TooManyRequests)?;
        let inbox = Arc::new(Inbox::default());
        let start = WatchStart {
            start: Some(from),
            shown: 0,
        };
        let (mut subscription, _) = self.hub.subscribe(&inbox, 0, range, kinds, start);
        subscription.hold(held);
        Ok(EventStream {
            subscription,
            inbox,
            replay: Arc::clone(&self.replay),
            stop: self.stop.clone(),
        })
    }

    /// Subscribes to all events of a prefix.
    pub(super) fn watch_all(
        &self,
        prefix: &Bytes,
        from: Revision,
        client: &SessionClient,
    ) -> Result<EventStream, Status> {
        self.watch(prefix.clone(), end_of(prefix), EventFilter::ALL, from, client)
    }
}

/// Queues the deletion of the waiter's key if it is dropped before [`CleanupGuard::done`].
pub(super) struct CleanupGuard<'a> {
    cleanup: &'a Cleanup,
    clean_up: Option<pb::TxnRequest>,
}

impl CleanupGuard<'_> {
    /// Disarms the guard: the wait is over.
    pub(super) fn done(mut self) {
        self.clean_up = None;
    }
}

impl Drop for CleanupGuard<'_> {
    fn drop(&mut self) {
        if let Some(txn) = self.clean_up.take() {
            self.cleanup.leave(txn);
        }
    }
}

/// A stream of events.
pub(super) struct EventStream {
    subscription: Subscription,
    inbox: Arc<Inbox>,
    replay: Arc<Replay>,
    stop: CancellationToken,
}

impl EventStream {
    /// Returns the next events, and a revision up to which there are no others; `None` if the next events were compacted. Fails
    /// with [`Error::Stopped`] when the server stops.
    pub(super) async fn next(&mut self) -> Result<Option<(Vec<Arc<Entry>>, Revision)>, Status> {
        let stop = self.stop.clone();
        tokio::select! {
        next = self.follow() => Ok(next),
        () = stop.cancelled() => Err(Error::Stopped.into()),
        }
    }

    async fn follow(&mut self) -> Option<(Vec<Arc<Entry>>, Revision)> {
        loop {
            let step = match self.subscription.step(Revision::MAX) {
                SubscriptionStep::Missing(from) => {
                    let chunk = self.replay.load(from, PrevKv::Omitted).await.ok()?;
                    self.subscription.replay(&chunk)
                }
                step => step,
            };
            match step {
                SubscriptionStep::Batch(batch) => return Some((batch.entries, batch.revision)),
                SubscriptionStep::Nothing | SubscriptionStep::Held | SubscriptionStep::Missing(_) => {
                    tokio::task::coop::consume_budget().await
                }
                // Of previous versions, for which it does not ask.
                SubscriptionStep::TooLarge(_) => return None,
                SubscriptionStep::Synced => {
                    self.inbox.filled().await;
                    self.inbox.drain(|_| ());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_spelt_as_go_does() {
        let prefix = prefix(b"a");
        assert_eq!(key_of(&prefix, 0x694d_0123), "a/694d0123");
        assert_eq!(key_of(&prefix, -1), "a/-1");
        assert_eq!(key_of(&prefix, i64::MIN), "a/-8000000000000000");
        assert_eq!(end_of(&prefix), "a0");
        assert_eq!(end_of(&Bytes::from_static(&[1, 0xff])), Bytes::from_static(&[2]));
    }
}
