//! Deletes the keys of waiters whose clients went away. It sends the requests that such a client would, so it does not matter which
//! member leads.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request};

use crate::kv::KvService;
use etcd_types::pb::etcdserverpb::TxnRequest;
use etcd_types::pb::etcdserverpb::kv_server::Kv as _;
use etcd_types::types::Caller;
use runtime::backoff::Backoff;

/// The capacity of the queue of keys to delete. If it is full, keys stay until their leases expire.
const CLEANUP_QUEUE_CAPACITY: usize = 16_384;

/// Keys that are deleted at a time.
const CONCURRENT_DELETES: usize = 16;

/// The delays before a deletion is tried again that found no leader, or one with too much to do. The key of a waiter who has gone would
/// hold the lock for as long as its lease lives.
const DELETE_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// The queue of transactions that delete the keys of waiters whose clients went away.
#[derive(Debug, Clone)]
pub struct Cleanup(mpsc::Sender<TxnRequest>);

impl Cleanup {
    /// Creates an empty queue, and the task that works it off until `stop`.
    pub fn new(
        kv: Arc<KvService>,
        stop: CancellationToken,
    ) -> (Self, impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        let (tell, cleanup) = mpsc::channel(CLEANUP_QUEUE_CAPACITY);
        let run = async move {
            tokio::select! {
            () = stop.cancelled() => {}
            () = clean_up(&kv, cleanup) => stop.cancelled().await,
            }
            Ok(())
        };
        (Self(tell), run)
    }

    /// Queues the transaction that deletes the key of a waiter whose client went away.
    pub(super) fn leave(&self, clean_up: TxnRequest) {
        if self.0.try_send(clean_up).is_err() {
            tracing::warn!("too many keys of cancelled waits to delete; some remain until their leases expire");
        }
    }
}

async fn clean_up(kv: &KvService, mut cleanup: mpsc::Receiver<TxnRequest>) {
    let keys = futures::stream::poll_fn(move |cx| cleanup.poll_recv(cx));
    keys.for_each_concurrent(CONCURRENT_DELETES, |txn| delete(kv, txn))
        .await;
}

async fn delete(kv: &KvService, txn: TxnRequest) {
    let mut delays = DELETE_BACKOFF;
    loop {
        let mut request = Request::new(txn.clone());
        request.extensions_mut().insert(Caller::Server);
        let Err(status) = kv.txn(request).await else { return };
        let is_transient = matches!(
            status.code(),
            // The last one is that of the CORRUPT alarm, which is disarmed one day.
            Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded | Code::DataLoss
        );
        if !is_transient {
            tracing::warn!(
                reason = status.message(),
                "could not delete the key of a cancelled wait"
            );
            return;
        }
        tokio::time::sleep(delays.next_delay()).await;
    }
}
