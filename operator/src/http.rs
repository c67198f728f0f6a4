//! /healthz, /readyz and /metrics. Plain HTTP: nothing here is secret, and the kubelet has no certificate.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::get};
use crds::KubeBrainCluster;
use kube::runtime::reflector::Store;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::leadership::Leadership;
use crate::metrics::{self, Metrics, Readiness};

/// What the endpoints look at.
#[derive(Clone)]
pub(crate) struct Health {
    pub(crate) metrics: Metrics,
    pub(crate) leadership: Leadership,
    /// All clusters, by namespace or all in one, as soon as this replica works.
    pub(crate) clusters: Arc<Mutex<Vec<Store<KubeBrainCluster>>>>,
    /// Cancelled when the process is asked to end.
    pub(crate) stop: CancellationToken,
}

/// Binds the address at once, so that one that is taken ends the start.
///
/// # Errors
/// The address cannot be had.
pub(crate) async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("listen on {address} (--listen)"))
}

/// Serves until `stop`.
///
/// # Errors
/// The listener broke.
pub(crate) async fn serve(listener: TcpListener, health: Health, stop: CancellationToken) -> anyhow::Result<()> {
    let router = Router::new()
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .route("/metrics", get(scrape))
        .with_state(health);
    axum::serve(listener, router)
        .with_graceful_shutdown(stop.cancelled_owned())
        .await
        .context("serve HTTP")
}

/// Alive: the elector, if there is one, does what it says.
async fn alive(State(health): State<Health>) -> Response {
    match health.leadership.check() {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

/// Ready: working, or standing by for whoever does.
async fn ready(State(health): State<Health>) -> Response {
    if health.stop.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n").into_response();
    }
    alive(State(health)).await
}

async fn scrape(State(health): State<Health>) -> Response {
    survey(&health);
    match health.metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Counts the clusters when somebody asks, from what the watch keeps anyway.
fn survey(health: &Health) {
    health.metrics.lead(health.leadership.is_leading());
    let stores = health.clusters.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let clusters: Vec<_> = stores.iter().flat_map(Store::state).collect();
    let readiness = clusters.iter().map(|cluster| {
        let conditions = cluster
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten());
        match conditions
            .into_iter()
            .find(|condition| condition.type_ == "Ready")
            .map(|ready| ready.status.as_str())
        {
            Some("True") => Readiness::True,
            Some("False") => Readiness::False,
            _ => Readiness::Unknown,
        }
    });
    let certificates = clusters.iter().flat_map(|cluster| {
        cluster
            .status
            .iter()
            .flat_map(|status| status.certificates.iter().flatten())
    });
    let expiry = certificates
        .filter_map(|certificate| Some(certificate.not_after.as_ref()?.0.as_second()))
        .min();
    health.metrics.survey(readiness, expiry);
}
