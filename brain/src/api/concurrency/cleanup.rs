//! Cleans up after those who went away while they waited. It asks as they would have, so that it does not matter who leads.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Request;

use crate::api::kv::KvService;
use crate::pb::etcdserverpb::TxnRequest;
use crate::pb::etcdserverpb::kv_server::Kv as _;
use crate::rows::Rows;

/// So many may have gone and not be cleaned up after yet. Beyond that, and where nobody leads for long, their keys stay
/// until their leases end.
const QUEUE: usize = 1024;

/// Where those are named who went away.
#[derive(Debug, Clone)]
pub struct Cleanup(mpsc::Sender<TxnRequest>);

impl Cleanup {
    /// Nobody is gone yet; and what cleans up, until `stop`.
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

    /// Somebody went away, and this takes back what it left.
    pub(super) fn leave(&self, clean_up: TxnRequest) {
        if self.0.try_send(clean_up).is_err() {
            tracing::debug!("nobody cleans up");
        }
    }
}

async fn clean_up<R: Rows>(kv: &KvService<R>, mut cleanup: mpsc::Receiver<TxnRequest>) {
    while let Some(txn) = cleanup.recv().await {
        if let Err(status) = kv.txn(Request::new(txn)).await {
            tracing::debug!(reason = status.message(), "could not clean up");
        }
    }
}
