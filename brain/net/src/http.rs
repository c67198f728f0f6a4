//! The HTTP routes beside gRPC: `/health`, `/livez`, `/readyz`, `/version`, `/metrics`, `/debug/vars`, whose paths, codes and bodies are etcd's,
//! and `/member`.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::any;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, ALLOW, CONTENT_ENCODING, CONTENT_TYPE, VARY, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};
use tracing::error;

use etcd_types::{REQUEST_TIMEOUT, version};
use runtime::log_once::LogOnce;
use telemetry::metrics::{CONTENT_TYPE as METRICS_TYPE, Metrics};

pub use cors::{BrowserPolicy, Cors, OverTls};

mod cors;
mod health;
pub mod leader;
pub mod member;
pub mod page;
mod vars;

/// The checks that health requests run on the store. Errors are etcd's texts.
#[tonic::async_trait]
pub trait HealthChecks: Send + Sync + 'static {
    /// Reads one key linearizably, or returns the reason why that failed.
    async fn linearizable_read(&self) -> Result<(), String>;

    /// Reads one key from this member alone, or returns the reason why that failed.
    async fn serializable_read(&self) -> Result<(), String>;

    /// Returns true if the member has just started and nothing has gone wrong yet.
    fn is_starting(&self) -> bool {
        false
    }

    /// Succeeds if this process can do its work; if only a restart can help, returns the reason for it.
    async fn alive(&self) -> Result<(), String> {
        self.serializable_read().await
    }

    /// Returns the timeout of a read: that of requests.
    fn timeout(&self) -> Duration {
        REQUEST_TIMEOUT
    }

    /// Returns the raised alarms.
    fn alarms(&self) -> Vec<AlarmKind>;

    /// Returns true if this member knows a leader.
    fn has_leader(&self) -> bool;
}

/// Kinds of alarms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlarmKind {
    /// The quota is used up.
    NoSpace,
    /// Data is damaged.
    Corrupt,
}

impl AlarmKind {
    /// Returns etcd's name of the alarm.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            AlarmKind::NoSpace => "NOSPACE",
            AlarmKind::Corrupt => "CORRUPT",
        }
    }
}

/// The state that the routes share.
#[derive(Clone)]
struct HttpState {
    health: Arc<dyn HealthChecks>,
    metrics: Arc<Metrics>,
    log: CheckLog,
    page: MetricsPage,
}

/// Limits log lines about checks that fail repeatedly.
#[derive(Clone, Default)]
struct CheckLog {
    checks: LogOnce,
    health: LogOnce,
}

/// The metrics page that was rendered last.
type MetricsPage = Arc<Mutex<Option<RenderedPage>>>;

/// A metrics page.
struct RenderedPage {
    began: Instant,
    text: Bytes,
    /// The same text compressed, once a client has requested that.
    gzip: Option<Bytes>,
}

impl RenderedPage {
    fn encoded(&mut self, gzip: bool) -> anyhow::Result<Bytes> {
        match (gzip, &self.gzip) {
            (false, _) => Ok(self.text.clone()),
            (true, Some(gzip)) => Ok(gzip.clone()),
            (true, None) => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
                encoder.write_all(&self.text)?;
                let gzip = Bytes::from(encoder.finish()?);
                self.gzip = Some(gzip.clone());
                Ok(gzip)
            }
        }
    }
}

/// The shortest time from one rendering of the metrics page to the next. Requests in between wait for the next one.
const MIN_RENDER_INTERVAL: Duration = Duration::from_millis(20);

/// Returns the routes, without the CORS policy.
pub fn routes(
    health: Arc<dyn HealthChecks>,
    described: member::MemberDescription,
    certificates: member::PortCertificates,
    metrics: Arc<Metrics>,
) -> Router {
    let member = Router::new()
        .route("/member", any(member::member))
        .with_state(member::MemberState::new(described, certificates));
    Router::new()
        .route("/health", any(health::health))
        .route("/livez", any(health::livez))
        .route("/livez/{check}", any(health::livez_check))
        .route("/readyz", any(health::readyz))
        .route("/readyz/{check}", any(health::readyz_check))
        .route("/version", any(version))
        .route("/metrics", any(metrics_page))
        .route("/debug/vars", any(vars::vars))
        .fallback(not_found)
        .with_state(HttpState {
            health,
            metrics,
            log: CheckLog::default(),
            page: MetricsPage::default(),
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

async fn metrics_page(State(site): State<HttpState>, request: Request<Body>) -> Response<Body> {
    let gzip = accepts_gzip(request.headers());
    let scrape = site.metrics.scrapes.begin();
    match site.page(gzip).await {
        Ok(page) => {
            scrape.answered(StatusCode::OK);
            let mut response = answer(StatusCode::OK, METRICS_TYPE, page);
            response
                .headers_mut()
                .insert(VARY, HeaderValue::from_static("Accept-Encoding"));
            if gzip {
                response
                    .headers_mut()
                    .insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
            response
        }
        Err(error) => {
            scrape.answered(StatusCode::INTERNAL_SERVER_ERROR);
            error!(%error, "cannot render metrics");
            plain_error(StatusCode::INTERNAL_SERVER_ERROR, "cannot render metrics")
        }
    }
}

impl HttpState {
    /// Returns a metrics page that counts everything before this call. It is rendered once for concurrent requests, and not more often
    /// than this server has time for.
    async fn page(&self, gzip: bool) -> anyhow::Result<Bytes> {
        let called = Instant::now();
        let mut page = self.page.lock().await;
        if let Some(rendered) = &mut *page {
            if rendered.began > called {
                return rendered.encoded(gzip);
            }
            sleep_until(rendered.began + MIN_RENDER_INTERVAL).await;
        }
        let began = Instant::now();
        let text = Bytes::from(self.metrics.render()?);
        page.insert(RenderedPage {
            began,
            text,
            gzip: None,
        })
        .encoded(gzip)
    }
}

/// Returns true if a client takes gzip, as Prometheus does.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT_ENCODING).iter();
    let texts = accepted.filter_map(|value| value.to_str().ok());
    let mut codings = texts.flat_map(|text| text.split(','));
    codings.any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = weight
            .trim()
            .strip_prefix("q=")
            .and_then(|weight| weight.parse::<f32>().ok());
        name.trim().eq_ignore_ascii_case("gzip") && weight != Some(0.0)
    })
}

async fn not_found() -> Response<Body> {
    plain_error(StatusCode::NOT_FOUND, "404 page not found")
}

fn not_allowed() -> Response<Body> {
    let mut response = plain_error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
    response
}

const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Returns a text response whose type browsers must not sniff.
fn plain(status: StatusCode, body: impl Into<Body>) -> Response<Body> {
    let mut response = answer(status, PLAIN_TEXT, body);
    response
        .headers_mut()
        .insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Returns an error in the format of Go's servers: a line of text.
fn plain_error(status: StatusCode, text: &str) -> Response<Body> {
    plain(status, format!("{text}\n"))
}

#[cfg(test)]
mod tests;
