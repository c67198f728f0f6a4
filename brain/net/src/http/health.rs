//! `/health` in etcd's old format, `/livez` and `/readyz` in Kubernetes'.

use std::fmt::Write as _;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use http::{Method, Response, StatusCode, Uri};
use tracing::{debug, warn};

use super::{AlarmKind, HttpState, PLAIN_TEXT, answer, not_allowed, not_found, plain, plain_error};

/// One check of `/livez` or `/readyz`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HealthCheck {
    Alive,
    DataCorruption,
    SerializableRead,
    LinearizableRead,
    NonLearner,
}

const LIVEZ_CHECKS: &[HealthCheck] = &[HealthCheck::Alive];
const READYZ_CHECKS: &[HealthCheck] = &[
    HealthCheck::DataCorruption,
    HealthCheck::SerializableRead,
    HealthCheck::LinearizableRead,
    HealthCheck::NonLearner,
];

impl HealthCheck {
    fn name(self) -> &'static str {
        match self {
            HealthCheck::DataCorruption => "data_corruption",
            HealthCheck::Alive | HealthCheck::SerializableRead => "serializable_read",
            HealthCheck::LinearizableRead => "linearizable_read",
            HealthCheck::NonLearner => "non_learner",
        }
    }

    async fn run(self, site: &HttpState) -> Result<(), String> {
        match self {
            HealthCheck::DataCorruption if site.health.alarms().contains(&AlarmKind::Corrupt) => {
                Err("alarm activated: CORRUPT".to_owned())
            }
            HealthCheck::DataCorruption | HealthCheck::NonLearner => Ok(()),
            HealthCheck::Alive => within(site, site.health.alive()).await,
            HealthCheck::SerializableRead => within(site, site.health.serializable_read()).await,
            HealthCheck::LinearizableRead => within(site, site.health.linearizable_read()).await,
        }
    }
}

async fn within(site: &HttpState, asked: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let outcome = tokio::time::timeout(site.health.timeout(), asked).await;
    outcome.unwrap_or_else(|_| Err("context deadline exceeded".to_owned()))
}

pub(super) async fn livez(State(site): State<HttpState>, method: Method, uri: Uri) -> Response<Body> {
    root(&site, "livez", LIVEZ_CHECKS, &method, &uri).await
}

pub(super) async fn readyz(State(site): State<HttpState>, method: Method, uri: Uri) -> Response<Body> {
    root(&site, "readyz", READYZ_CHECKS, &method, &uri).await
}

pub(super) async fn livez_check(
    site: State<HttpState>,
    Path(name): Path<String>,
    method: Method,
    uri: Uri,
) -> Response<Body> {
    single(&site, "livez", LIVEZ_CHECKS, &name, &method, &uri).await
}

pub(super) async fn readyz_check(
    site: State<HttpState>,
    Path(name): Path<String>,
    method: Method,
    uri: Uri,
) -> Response<Body> {
    single(&site, "readyz", READYZ_CHECKS, &name, &method, &uri).await
}

async fn root(site: &HttpState, kind: &str, checks: &[HealthCheck], method: &Method, uri: &Uri) -> Response<Body> {
    let excluded = query(uri, "exclude");
    let chosen: Vec<HealthCheck> = checks
        .iter()
        .copied()
        .filter(|check| !excluded.iter().any(|name| name == check.name()))
        .collect();
    if let Some(unknown) = excluded
        .iter()
        .find(|name| !name.is_empty() && !checks.iter().any(|check| check.name() == *name))
    {
        debug!(
            kind,
            check = unknown,
            "a health check that does not exist cannot be excluded"
        );
    }
    run(site, kind, &chosen, method, uri).await
}

async fn single(
    site: &HttpState,
    kind: &str,
    checks: &[HealthCheck],
    name: &str,
    method: &Method,
    uri: &Uri,
) -> Response<Body> {
    match checks.iter().find(|check| check.name() == name) {
        Some(check) => run(site, kind, &[*check], method, uri).await,
        None => not_found().await,
    }
}

async fn run(site: &HttpState, kind: &str, checks: &[HealthCheck], method: &Method, uri: &Uri) -> Response<Body> {
    if *method != Method::GET {
        return not_allowed();
    }
    let (mut text, mut ok) = (String::new(), true);
    for check in checks {
        let (name, outcome) = (check.name(), check.run(site).await);
        site.metrics.health.record(kind, name, outcome.is_ok());
        ok &= outcome.is_ok();
        let written = match outcome {
            Ok(()) => writeln!(text, "[+]{name} ok"),
            Err(error) => writeln!(text, "[-]{name} failed: {error}"),
        };
        written.expect("a string takes what is written to it");
    }
    if !ok {
        // A probe that comes early is no trouble.
        if site.health.is_starting() {
            debug!(kind, reason = %text.trim_end().replace('\n', "; "), "health checks fail");
        } else if let Some(count) = site.log.checks.due() {
            warn!(kind, count, reason = %text.trim_end().replace('\n', "; "), "health checks fail");
        }
        return plain_error(StatusCode::SERVICE_UNAVAILABLE, &text);
    }
    if !has(uri, "verbose") {
        text.clear();
    }
    text.push_str("ok\n");
    plain(StatusCode::OK, text)
}

pub(super) async fn health(State(site): State<HttpState>, method: Method, uri: Uri) -> Response<Body> {
    if method != Method::GET {
        return not_allowed();
    }
    let excluded = query(&uri, "exclude");
    let serializable = query(&uri, "serializable").first().is_some_and(|value| value == "true");
    let outcome = judge(&site, &excluded, serializable).await;
    let counters = &site.metrics.health;
    match outcome {
        Ok(()) => {
            counters.success.inc();
            answer(StatusCode::OK, PLAIN_TEXT, r#"{"health":"true","reason":""}"#)
        }
        Err(reason) => {
            counters.failures.inc();
            if site.health.is_starting() {
                debug!(reason, "/health is false");
            } else if let Some(count) = site.log.health.due() {
                warn!(reason, count, "/health is false");
            }
            let body = serde_json::json!({ "health": "false", "reason": reason });
            plain_error(StatusCode::SERVICE_UNAVAILABLE, &body.to_string())
        }
    }
}

/// Checks alarms first, then the leader, then a read.
async fn judge(site: &HttpState, excluded: &[String], serializable: bool) -> Result<(), String> {
    let standing = site
        .health
        .alarms()
        .into_iter()
        .find(|alarm| !excluded.iter().any(|name| name == alarm.name()));
    if let Some(alarm) = standing {
        return Err(format!("ALARM {}", alarm.name()));
    }
    if !serializable && !site.health.has_leader() {
        return Err("RAFT NO LEADER".to_owned());
    }
    let read = match serializable {
        true => within(site, site.health.serializable_read()).await,
        false => within(site, site.health.linearizable_read()).await,
    };
    read.map_err(|error| format!("RANGE ERROR:{error}"))
}

/// Returns the values of a parameter; none if the query cannot be parsed.
fn query(uri: &Uri, name: &str) -> Vec<String> {
    let Ok(Query(pairs)) = Query::<Vec<(String, String)>>::try_from_uri(uri) else {
        return Vec::new();
    };
    pairs
        .into_iter()
        .filter(|(key, _)| key == name)
        .map(|(_, value)| value)
        .collect()
}

fn has(uri: &Uri, name: &str) -> bool {
    !query(uri, name).is_empty()
}
