//! One page of metrics, for a process that is no member.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::get;
use http::{Response, StatusCode};
use telemetry::metrics::CONTENT_TYPE;
use tracing::error;

use super::{answer, not_found, plain_error};

/// Renders the page.
pub type Render = Arc<dyn Fn() -> anyhow::Result<Vec<u8>> + Send + Sync>;

/// Returns the route `/metrics`.
pub fn routes(render: Render) -> Router {
    Router::new()
        .route("/metrics", get(page))
        .fallback(not_found)
        .with_state(render)
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
