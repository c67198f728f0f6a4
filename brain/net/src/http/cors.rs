//! The CORS and host policy in front of the routes on client ports.

use axum::body::Body;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, HOST, ORIGIN,
};
use http::{HeaderValue, Method, Request, Response, StatusCode};

use super::plain_error;

/// The browsers that are answered. An empty list means all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BrowserPolicy {
    /// Origins that are allowed to read responses.
    pub cors: Vec<String>,
    /// Host names accepted in HTTP requests without TLS.
    pub host_whitelist: Vec<String>,
}

/// Marks requests that came over TLS.
#[derive(Debug, Clone, Copy)]
pub struct OverTls;

/// The policy. An empty list allows everything.
#[derive(Debug, Clone)]
pub struct Cors {
    policy: BrowserPolicy,
}

impl Cors {
    /// Applies this policy.
    #[must_use]
    pub fn new(policy: BrowserPolicy) -> Cors {
        Cors { policy }
    }

    /// Returns the response to a request that the policy refuses.
    #[must_use]
    pub fn refuse<B>(&self, request: &Request<B>) -> Option<Response<Body>> {
        let known = &self.policy.host_whitelist;
        // A page whose site rebinds its DNS name to this server sends the site's name. Over TLS the certificate protects from that.
        if request.extensions().get::<OverTls>().is_none() && !known.is_empty() {
            let host = request
                .uri()
                .host()
                .or_else(|| request.headers().get(HOST)?.to_str().ok())
                .map(bare);
            if !host.is_some_and(|host| known.iter().any(|name| name == host)) {
                let text = "the host of the request is not in --host-whitelist";
                return Some(plain_error(StatusCode::MISDIRECTED_REQUEST, text));
            }
        }
        (request.method() == Method::OPTIONS).then(|| {
            let mut response = Response::new(Body::empty());
            self.mark(self.origin(request), &mut response);
            response
        })
    }

    /// Returns the origin that may read the response.
    #[must_use]
    pub fn origin<B>(&self, request: &Request<B>) -> Option<HeaderValue> {
        if self.policy.cors.is_empty() {
            return Some(HeaderValue::from_static("*"));
        }
        let origin = request.headers().get(ORIGIN)?;
        self.policy
            .cors
            .iter()
            .any(|allowed| allowed.as_bytes() == origin.as_bytes())
            .then(|| origin.clone())
    }

    /// Adds the origin to the response headers.
    pub fn mark(&self, origin: Option<HeaderValue>, response: &mut Response<Body>) {
        let Some(origin) = origin else { return };
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(
            ACCESS_CONTROL_ALLOW_METHODS,
            HeaderValue::from_static("POST, GET, OPTIONS, PUT, DELETE"),
        );
        headers.insert(
            ACCESS_CONTROL_ALLOW_HEADERS,
            HeaderValue::from_static("accept, content-type, authorization"),
        );
    }
}

/// Returns a host without its port.
fn bare(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((ip, _)) => ip,
        None => host.split(':').next().unwrap_or(host),
    }
}
