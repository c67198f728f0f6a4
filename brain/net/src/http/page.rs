//! Metrics and readiness of a process that is no member.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::get;
use http::{Response, StatusCode};
use telemetry::metrics::CONTENT_TYPE;
use tracing::error;

use super::{answer, not_found, plain, plain_error};

/// Renders the page.
pub type Render = Arc<dyn Fn() -> anyhow::Result<Vec<u8>> + Send + Sync>;

/// Returns the reason why the process is not ready, if it is not.
pub type Readiness = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// Returns the route `/metrics`.
pub fn routes(render: Render) -> Router {
    Router::new()
        .route("/metrics", get(page))
        .fallback(not_found)
        .with_state(render)
}

/// Returns the route `/readyz`: 200, or 503 with the reason.
pub fn readiness(check: Readiness) -> Router {
    Router::new().route("/readyz", get(ready)).with_state(check)
}

async fn ready(State(check): State<Readiness>) -> Response<Body> {
    match check() {
        None => plain(StatusCode::OK, "ok\n"),
        Some(reason) => plain_error(StatusCode::SERVICE_UNAVAILABLE, &reason),
    }
}

async fn page(State(render): State<Render>) -> Response<Body> {
    match render() {
        Ok(text) => answer(StatusCode::OK, CONTENT_TYPE, text),
        Err(error) => {
            error!(%error, "cannot render metrics");
            plain_error(StatusCode::INTERNAL_SERVER_ERROR, "cannot render metrics")
        }
    }
}
