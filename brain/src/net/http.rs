//! HTTP beside gRPC: `/health`, `/livez`, `/readyz`, `/version`, `/metrics`, whose paths, codes and bodies are etcd's, and `/member`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::any;
use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use tokio::time::Instant;
use tracing::error;

use crate::log_once::LogOnce;
use crate::metrics::{CONTENT_TYPE as METRICS_TYPE, Metrics};
use crate::version;

pub use cors::{Cors, Secure};

mod cors;
mod health;
pub mod leader;
pub mod member;

/// The questions of health checks to the store. Errors are etcd's texts.
#[tonic::async_trait]
pub trait Health: Send + Sync + 'static {
    /// A linearizable read of one key.
    ///
    /// # Errors
    /// Why it failed.
    async fn linearizable_read(&self) -> Result<(), String>;

    /// A read of one key from this member alone.
    ///
    /// # Errors
    /// Why it failed.
    async fn serializable_read(&self) -> Result<(), String>;

    /// Whether this process can do its work, or only a restart can help.
    ///
    /// # Errors
    /// Why it is to be restarted.
    async fn alive(&self) -> Result<(), String> {
        self.serializable_read().await
    }

    /// The alarms that stand.
    fn alarms(&self) -> Vec<Alarm>;

    /// Returns true if this member knows a leader.
    fn has_leader(&self) -> bool;
}

/// Kinds of alarms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alarm {
    /// The quota is used up.
    NoSpace,
    /// Data is damaged.
    Corrupt,
}

impl Alarm {
    /// Etcd's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Alarm::NoSpace => "NOSPACE",
            Alarm::Corrupt => "CORRUPT",
        }
    }
}

/// The state behind the routes.
#[derive(Clone)]
struct Site {
    health: Arc<dyn Health>,
    metrics: Arc<Metrics>,
    log: Log,
    page: Page,
}

/// Lines about checks that fail again and again.
#[derive(Clone, Default)]
struct Log {
    checks: LogOnce,
    health: LogOnce,
}

/// The page of metrics that was rendered last, and when.
type Page = Arc<Mutex<Option<(Instant, Bytes)>>>;

/// How long a page of metrics is answered: whoever asks at the same time gets the same one.
const PAGE_AGE: Duration = Duration::from_millis(100);

/// The routes, without any gate before them.
pub fn routes(
    health: Arc<dyn Health>,
    member: (member::Described, member::Certificates),
    metrics: Arc<Metrics>,
) -> Router {
    let (described, certificates) = member;
    let member = Router::new()
        .route("/member", any(member::member))
        .with_state(member::Site::new(described, certificates));
    Router::new()
        .route("/health", any(health::health))
        .route("/livez", any(health::livez))
        .route("/livez/{check}", any(health::livez_check))
        .route("/readyz", any(health::readyz))
        .route("/readyz/{check}", any(health::readyz_check))
        .route("/version", any(version))
        .route("/metrics", any(metrics_page))
        .fallback(not_found)
        .with_state(Site {
            health,
            metrics,
            log: Log::default(),
            page: Page::default(),
        })
        .merge(member)
}

async fn version(request: Request<Body>) -> Response<Body> {
    if request.method() != Method::GET {
        return not_allowed();
    }
    let (server, cluster) = (version::ETCD, version::CLUSTER);
    let body = format!(r#"{{"etcdserver":"{server}","etcdcluster":"{cluster}","storage":"{cluster}"}}"#);
    answer(StatusCode::OK, "application/json", body)
}

async fn metrics_page(State(site): State<Site>) -> Response<Body> {
    match site.page() {
        Ok(text) => answer(StatusCode::OK, METRICS_TYPE, text),
        Err(error) => {
            error!(%error, "metrics cannot be rendered");
            plain_error(StatusCode::INTERNAL_SERVER_ERROR, "metrics cannot be rendered")
        }
    }
}

impl Site {
    /// The page of metrics; rendered once for all who ask at the same time.
    fn page(&self) -> anyhow::Result<Bytes> {
        let mut page = self.page.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((rendered, text)) = &*page
            && rendered.elapsed() < PAGE_AGE
        {
            return Ok(text.clone());
        }
        let text = Bytes::from(self.metrics.render()?);
        *page = Some((Instant::now(), text.clone()));
        Ok(text)
    }
}

async fn not_found() -> Response<Body> {
    plain_error(StatusCode::NOT_FOUND, "404 page not found")
}

fn not_allowed() -> Response<Body> {
    let mut response = plain_error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
    response
}

const PLAIN: &str = "text/plain; charset=utf-8";

fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Text that browsers must not guess about.
fn plain(status: StatusCode, body: impl Into<Body>) -> Response<Body> {
    let mut response = answer(status, PLAIN, body);
    response
        .headers_mut()
        .insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// An error as Go's servers write them: a line of text.
fn plain_error(status: StatusCode, text: &str) -> Response<Body> {
    plain(status, format!("{text}\n"))
}

#[cfg(test)]
mod tests;
