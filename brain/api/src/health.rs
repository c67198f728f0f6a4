//! Health checks on a store.

use std::sync::Arc;
use std::time::Duration;

use super::context::ApiContext;
use mvcc::keys;
use mvcc::view::View;
use net::http::{AlarmKind, HealthChecks};
use store::alarm::{CORRUPT, NOSPACE};

/// Reads one row of the storage below: a clients' read would have the same result, and it costs one get.
pub struct StoreHealth(pub ApiContext);

impl StoreHealth {
    /// Reads from storage, even if the answer is in memory.
    async fn read(&self, view: Arc<View>) -> Result<(), String> {
        let read = view.rows.get(&keys::index_key(b"")).await;
        let failed = read.map_err(|error| self.0.rows_failed(&error));
        failed.map(|_| ()).map_err(|status| status.message().to_owned())
    }
}

#[tonic::async_trait]
impl HealthChecks for StoreHealth {
    async fn linearizable_read(&self) -> Result<(), String> {
        if let Some(reason) = self.0.state.cannot_lead() {
            return Err(reason.to_string());
        }
        let view = self.0.linearizable().await;
        self.read(view.map_err(|status| status.message().to_owned())?).await
    }

    async fn serializable_read(&self) -> Result<(), String> {
        let view = self.0.view();
        self.read(view.map_err(|status| status.message().to_owned())?).await
    }

    /// Sends no request to storage: a restart does not help if storage is unreachable.
    async fn alive(&self) -> Result<(), String> {
        let view = self.0.view();
        view.map(|_| ()).map_err(|status| status.message().to_owned())
    }

    fn timeout(&self) -> Duration {
        self.0.router.request_timeout()
    }

    fn alarms(&self) -> Vec<AlarmKind> {
        let raised = self.0.state.alarms();
        let known = raised.iter().filter_map(|(kind, _)| match *kind {
            NOSPACE => Some(AlarmKind::NoSpace),
            CORRUPT => Some(AlarmKind::Corrupt),
            _ => None,
        });
        known.collect()
    }

    fn has_leader(&self) -> bool {
        self.0.leader() != 0
    }
}
