//! The services of a member that has no store yet: it is alive, and reports why it is not ready.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::body::Body;
use http::Response;
use tonic::service::Routes;

use crate::http::{AlarmKind, HealthChecks};
use crate::refusal::{Refusal, RefusalCode};
use crate::serve::{PortServices, UnaryRpcs};
use etcd_types::errors::Error;
use telemetry::metrics::Metrics;
use telemetry::otel::Tracing;

/// The reason why a member is not ready. Clones share it.
#[derive(Debug, Clone)]
pub struct NotReady(Arc<ArcSwap<Refusal>>);

impl NotReady {
    /// Creates it with this reason.
    #[must_use]
    pub fn new(reason: Refusal) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(reason)))
    }

    /// Replaces the reason.
    pub fn because(&self, reason: Refusal) {
        self.0.store(Arc::new(reason));
    }

    /// Returns the services to run in the meantime. Every RPC fails with etcd's `no leader`.
    #[must_use]
    pub fn services(&self, metrics: Arc<Metrics>) -> PortServices {
        PortServices {
            routes: Routes::from(Router::new().fallback(no_leader)),
            unary: UnaryRpcs::default(),
            health: Arc::new(self.clone()),
            member: Err({
                let waiting = self.clone();
                Arc::new(move || waiting.0.load().as_ref().clone())
            }),
            metrics,
            has_leader: None,
            slow: None,
            tracing: Tracing::default(),
            is_open: false,
        }
    }

    fn reason(&self) -> String {
        self.0.load().message.clone()
    }
}

async fn no_leader() -> Response<Body> {
    Error::NoLeader.status().into_http()
}

#[tonic::async_trait]
impl HealthChecks for NotReady {
    async fn linearizable_read(&self) -> Result<(), String> {
        Err(self.reason())
    }

    async fn serializable_read(&self) -> Result<(), String> {
        Err(self.reason())
    }

    fn is_starting(&self) -> bool {
        self.0.load().code == RefusalCode::Starting
    }

    /// A restart does not help if storage is unreachable.
    async fn alive(&self) -> Result<(), String> {
        Ok(())
    }

    fn alarms(&self) -> Vec<AlarmKind> {
        Vec::new()
    }

    fn has_leader(&self) -> bool {
        false
    }
}
