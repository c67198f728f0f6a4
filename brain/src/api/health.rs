//! What health checks learn from a store.

use tokio_util::sync::CancellationToken;
use tonic::Request;

use super::kv::KvService;
use super::status::Error;
use super::store::Store;
use crate::http::{Alarm, Health};
use crate::pb::etcdserverpb::RangeRequest;
use crate::pb::etcdserverpb::kv_server::Kv;
use crate::rows::Rows;
use crate::state::{CORRUPT, NOSPACE};

/// Reads as clients do, so that what they would meet is met here.
pub struct StoreHealth<R: Rows>(pub Store<R>);

impl<R: Rows> StoreHealth<R> {
    async fn read(&self, serializable: bool) -> Result<(), String> {
        let request = RangeRequest {
            key: vec![0].into(),
            range_end: vec![0].into(),
            limit: 1,
            keys_only: true,
            serializable,
            ..RangeRequest::default()
        };
        let kv = KvService {
            store: self.0.clone(),
            stop: CancellationToken::new(),
        };
        let outcome = kv.range(Request::new(request)).await;
        outcome.map(|_| ()).map_err(|status| status.message().to_owned())
    }
}

#[tonic::async_trait]
impl<R: Rows> Health for StoreHealth<R> {
    async fn linearizable_read(&self) -> Result<(), String> {
        self.read(false).await
    }

    async fn serializable_read(&self) -> Result<(), String> {
        self.read(true).await
    }

    /// A restart brings no storage back that is out of reach.
    async fn alive(&self) -> Result<(), String> {
        match self.read(true).await {
            Err(text) if text == Error::Timeout.text() => Ok(()),
            outcome => outcome,
        }
    }

    fn alarms(&self) -> Vec<Alarm> {
        let raised = self.0.state.alarms();
        let known = raised.iter().filter_map(|(kind, _)| match *kind {
            NOSPACE => Some(Alarm::NoSpace),
            CORRUPT => Some(Alarm::Corrupt),
            _ => None,
        });
        known.collect()
    }

    fn has_leader(&self) -> bool {
        self.0.leader() != 0
    }
}
