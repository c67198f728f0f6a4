//! Deletes the keys of waiters whose clients went away. It sends the requests that such a client would, so it does not matter which
//! member leads.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Request;

use crate::api::kv::KvService;
use crate::pb::etcdserverpb::TxnRequest;
use crate::pb::etcdserverpb::kv_server::Kv as _;
use crate::rows::Rows;
use crate::types::Caller;

/// The capacity of the queue of keys to delete. If it is full, or if there is no leader for long, keys stay until their leases
/// expire.
const QUEUE: usize = 1024;

/// The queue of transactions that delete the keys of waiters whose clients went away.
#[derive(Debug, Clone)]
pub struct Cleanup(mpsc::Sender<TxnRequest>);

impl Cleanup {
    /// Creates an empty queue, and the task that works it off until `stop`.
    pub fn new<R: Rows>(
        kv: Arc<KvService<R>>,
        stop: CancellationToken,
    ) -> (Self, impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        let (tell, cleanup) = mpsc::channel(QUEUE);
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
            tracing::debug!("nobody cleans up");
        }
    }
}

async fn clean_up<R: Rows>(kv: &KvService<R>, mut cleanup: mpsc::Receiver<TxnRequest>) {
    while let Some(txn) = cleanup.recv().await {
        let mut request = Request::new(txn);
        request.extensions_mut().insert(Caller::Server);
        if let Err(status) = kv.txn(request).await {
            tracing::debug!(reason = status.message(), "could not clean up");
        }
    }
}
