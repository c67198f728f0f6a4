//! What a member answers while it has no store to answer from: that it lives, and why it is not ready.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::Router;
use axum::body::Body;
use http::Response;
use tonic::service::Routes;

use crate::api::status::Error;
use crate::http::{Alarm, Health};
use crate::metrics::Metrics;
use crate::serve::Services;

/// Why a member is not ready. Clones share it.
#[derive(Debug, Clone)]
pub struct Waiting(Arc<ArcSwap<String>>);

impl Waiting {
    /// For this reason.
    #[must_use]
    pub fn new(reason: &str) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(reason.to_owned())))
    }

    /// For this reason from now on.
    pub fn because(&self, reason: String) {
        self.0.store(Arc::new(reason));
    }

    /// What is served meanwhile. Every RPC gets the word that etcd has for those who want a leader where there is none.
    #[must_use]
    pub fn services(&self, metrics: Arc<Metrics>) -> Services {
        Services {
            routes: Routes::from(Router::new().fallback(no_leader)),
            health: Arc::new(self.clone()),
            member: Err({
                let waiting = self.clone();
                Arc::new(move || waiting.reason())
            }),
            metrics,
            has_leader: None,
        }
    }

    fn reason(&self) -> String {
        self.0.load().to_string()
    }
}

async fn no_leader() -> Response<Body> {
    Error::NoLeader.status().into_http()
}

#[tonic::async_trait]
impl Health for Waiting {
    async fn linearizable_read(&self) -> Result<(), String> {
        Err(self.reason())
    }

    async fn serializable_read(&self) -> Result<(), String> {
        Err(self.reason())
    }

    /// A restart brings no storage back.
    async fn alive(&self) -> Result<(), String> {
        Ok(())
    }

    fn alarms(&self) -> Vec<Alarm> {
        Vec::new()
    }

    fn has_leader(&self) -> bool {
        false
    }
}
