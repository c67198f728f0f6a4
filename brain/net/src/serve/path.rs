//! Paths of HTTP requests, as Go's server and its `ServeMux` read them.

use std::borrow::Cow;

use axum::body::Body;
use http::header::{CONNECTION, CONTENT_TYPE, HOST, LOCATION};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};

/// The root of the gateway without its slash, for which there is nothing else.
const GATEWAY_ROOT: &str = "/v3";

/// A path.
#[derive(Debug, PartialEq, Eq)]
enum RequestPath<'a> {
    /// It is taken, without its escapes.
    Clean(Cow<'a, str>),
    /// Clients are sent to this one.
    Elsewhere(String),
    /// It has an escape that is none.
    Malformed,
}

/// Returns the answer to an HTTP/1.1 request that does not name one host.
pub(super) fn refuse_host<B>(request: &Request<B>) -> Option<Response<Body>> {
    if request.version() != Version::HTTP_11 {
        return None;
    }
    host_fault(request.headers()).map(bad_request)
}

/// Returns the answer to a request whose path is not as it should be. Otherwise the request has a path without escapes.
pub(super) fn settle<B>(request: &mut Request<B>, has_gateway: bool) -> Option<Response<Body>> {
    let path = match read(request.uri().path(), has_gateway) {
        RequestPath::Malformed => return Some(bad_request("")),
        RequestPath::Elsewhere(path) => return Some(redirect(request, &path)),
        RequestPath::Clean(Cow::Borrowed(_)) => return None,
        RequestPath::Clean(Cow::Owned(path)) => path,
    };
    // A path that no URI has is none of ours.
    if let Some(uri) = with_path(request.uri(), &path).filter(|_| !path.contains(['%', '?', '#'])) {
        *request.uri_mut() = uri;
    }
    None
}

/// Reads a path.
fn read(path: &str, has_gateway: bool) -> RequestPath<'_> {
    let Some(plain) = unescape(path) else {
        return RequestPath::Malformed;
    };
    let clean = clean(path);
    if has_gateway && clean == GATEWAY_ROOT {
        return RequestPath::Elsewhere(format!("{GATEWAY_ROOT}/"));
    }
    match clean == path {
        true => RequestPath::Clean(plain),
        false => RequestPath::Elsewhere(escape(&clean)),
    }
}

/// Go's `cleanPath`: no empty segments, no `.` and no `..`. A slash at the end stays.
fn clean(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            _ => segments.push(segment),
        }
    }
    let mut clean = format!("/{}", segments.join("/"));
    if path.ends_with('/') && clean != "/" {
        clean.push('/');
    }
    clean
}

/// Replaces the escapes of a path; `None` if one is none.
fn unescape(path: &str) -> Option<Cow<'_, str>> {
    if !path.contains('%') {
        return Some(Cow::Borrowed(path));
    }
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || {
            char::from(rest.next()?)
                .to_digit(16)
                .and_then(|digit| u8::try_from(digit).ok())
        };
        bytes.push((digit()? << 4) | digit()?);
    }
    // No path of ours has other bytes.
    Some(Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Escapes a path as Go's URLs do.
fn escape(path: &str) -> String {
    let mut escaped = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => escaped.push(char::from(byte)),
            b'-' | b'_' | b'.' | b'~' | b'$' | b'&' | b'+' | b',' | b'/' | b':' | b';' | b'=' | b'@' => {
                escaped.push(char::from(byte));
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

fn with_path(uri: &Uri, path: &str) -> Option<Uri> {
    let mut parts = uri.clone().into_parts();
    let path_and_query = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    parts.path_and_query = Some(path_and_query.parse().ok()?);
    Uri::from_parts(parts).ok()
}

/// Returns the error in the host of an HTTP/1.1 request, if there is one.
fn host_fault(headers: &HeaderMap) -> Option<&'static str> {
    let mut hosts = headers.get_all(HOST).iter();
    let Some(host) = hosts.next() else {
        return Some("missing required Host header");
    };
    if hosts.next().is_some() {
        return Some("");
    }
    let is_valid = host
        .as_bytes()
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || b"!$%&'()*+,-.:;=[]_~".contains(byte));
    (!is_valid).then_some("malformed Host header")
}

fn bad_request(fault: &str) -> Response<Body> {
    let text = match fault {
        "" => "400 Bad Request".to_owned(),
        fault => format!("400 Bad Request: {fault}"),
    };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Sends a client to another path, with the query that it has.
fn redirect<B>(request: &Request<B>, path: &str) -> Response<Body> {
    let location = match request.uri().query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let body = match *request.method() {
        Method::GET => format!("<a href=\"{}\">Temporary Redirect</a>.\n\n", html_escape(&location)),
        _ => String::new(),
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    let headers = response.headers_mut();
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    }
    if let Ok(location) = HeaderValue::try_from(location) {
        headers.insert(LOCATION, location);
    }
    response
}

fn html_escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&#34;")
        .replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_as_by_serve_mux() {
        let elsewhere = |path: &str| RequestPath::Elsewhere(path.to_owned());
        let plain = |path: &str| RequestPath::Clean(Cow::Owned(path.to_owned()));
        for (path, expected) in [
            ("/", plain("/")),
            ("/health", plain("/health")),
            ("/health/", plain("/health/")),
            ("//health", elsewhere("/health")),
            ("/v3//kv/range", elsewhere("/v3/kv/range")),
            ("/v3/./kv/../kv/range", elsewhere("/v3/kv/range")),
            ("/../health", elsewhere("/health")),
            ("/health//", elsewhere("/health/")),
            ("/..", elsewhere("/")),
            ("/v3", elsewhere("/v3/")),
            ("//v3", elsewhere("/v3/")),
            ("/v3/", plain("/v3/")),
            ("/he%61lth", plain("/health")),
            ("/v3/kv%2Frange", plain("/v3/kv/range")),
            // As in Go, which escapes it a second time.
            ("//he%61lth", elsewhere("/he%2561lth")),
            ("/%zz", RequestPath::Malformed),
            ("/%6", RequestPath::Malformed),
        ] {
            assert_eq!(read(path, true), expected, "{path}");
        }
        assert_eq!(read("/v3", false), plain("/v3"));
    }

    fn settled(request: http::request::Builder) -> (Request<()>, Option<Response<Body>>) {
        let mut request = request.body(()).unwrap();
        let answer = settle(&mut request, true);
        (request, answer)
    }

    #[test]
    fn redirects_keep_the_query() {
        let request = Request::builder;
        let (_, answer) = settled(request().uri("//health?serializable=true"));
        let answer = answer.unwrap();
        assert_eq!(answer.status(), StatusCode::TEMPORARY_REDIRECT);
        assert_eq!(answer.headers()[LOCATION], "/health?serializable=true");
        let (_, answer) = settled(request().method(Method::POST).uri("/v3//kv/range"));
        assert!(!answer.unwrap().headers().contains_key(CONTENT_TYPE));
        let (request, answer) = settled(request().uri("/he%61lth?a=%20"));
        assert!(answer.is_none());
        assert_eq!(request.uri().to_string(), "/health?a=%20");
        // They are part of the path, and no path of ours has them.
        for path in ["/health%3Fa", "/health%23a", "/health%25"] {
            let (left, _) = settled(Request::builder().uri(path));
            assert_eq!(left.uri().to_string(), path);
        }
    }

    #[test]
    fn requests_need_a_host() {
        for (hosts, version, is_taken) in [
            (&["a:1"][..], Version::HTTP_11, true),
            (&[""], Version::HTTP_11, true),
            (&[], Version::HTTP_11, false),
            (&["a", "a"], Version::HTTP_11, false),
            (&["a b"], Version::HTTP_11, false),
            (&["a/b"], Version::HTTP_11, false),
            (&[], Version::HTTP_10, true),
            (&[], Version::HTTP_2, true),
        ] {
            let mut request = Request::builder().version(version).uri("/health");
            for host in hosts {
                request = request.header(HOST, *host);
            }
            let answer = refuse_host(&request.body(()).unwrap());
            assert_eq!(answer.is_none(), is_taken, "{hosts:?} {version:?}");
            assert!(answer.is_none_or(|answer| answer.status() == StatusCode::BAD_REQUEST));
        }
    }
}
