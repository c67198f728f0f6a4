//! The head of an RPC, which grpc-go judges before it looks for the method: the HTTP method, `grpc-timeout`, metadata in base64. tonic
//! passes over what is wrong with them.

use std::time::Duration;

use axum::body::Body;
use http::{Method, Request, Response, StatusCode};
use tonic::{Code, Status};

use crate::binary;
use telemetry::metrics::is_service;

/// The header with the client's deadline.
pub(super) const TIMEOUT_HEADER: &str = "grpc-timeout";

/// The headers with bytes in base64 end so.
const BINARY_HEADER_SUFFIX: &str = "-bin";

/// The longest `grpc-timeout`: eight digits and a unit.
const MAX_TIMEOUT_LEN: usize = 9;

/// Returns the answer to a request that is no RPC, as grpc-go gives it.
pub(super) fn refuse<B>(request: &Request<B>) -> Option<Response<Body>> {
    if request.method() != Method::POST {
        let method = request.method();
        let text = format!(
            "Received a HEADERS frame with :method {method:?} which should be POST",
            method = method.as_str()
        );
        return Some(refusal(StatusCode::METHOD_NOT_ALLOWED, &text));
    }
    if let Some(fault) = fault(request) {
        return Some(refusal(StatusCode::BAD_REQUEST, &fault));
    }
    // grpc-go splits off no query: it looks for a method with this name.
    let uri = request.uri();
    let query = uri.query()?;
    Some(unknown(&format!("{}?{query}", uri.path())).into_http())
}

/// Returns the error of the first header that does not parse.
fn fault<B>(request: &Request<B>) -> Option<String> {
    request.headers().iter().find_map(|(name, value)| match name.as_str() {
        TIMEOUT_HEADER => timeout(value.as_bytes())
            .err()
            .map(|fault| format!("malformed grpc-timeout: {fault}")),
        name if name.ends_with(BINARY_HEADER_SUFFIX) => binary::decode(value.as_bytes()).err().map(|at| {
            let value = quoted(value.as_bytes());
            format!("malformed binary metadata {value} in header {name:?}: illegal base64 data at input byte {at}")
        }),
        _ => None,
    })
}

/// Reads a `grpc-timeout`. The error is grpc-go's text.
pub(super) fn timeout(text: &[u8]) -> Result<Duration, String> {
    let short = || format!("transport: timeout string is too short: {}", quoted(text));
    let (unit, digits) = text.split_last().ok_or_else(short)?;
    if digits.is_empty() {
        return Err(short());
    }
    if text.len() > MAX_TIMEOUT_LEN {
        return Err(format!("transport: timeout string is too long: {}", quoted(text)));
    }
    let nanos: u64 = match unit {
        b'H' => 3_600_000_000_000,
        b'M' => 60_000_000_000,
        b'S' => 1_000_000_000,
        b'm' => 1_000_000,
        b'u' => 1_000,
        b'n' => 1,
        _ => return Err(format!("transport: timeout unit is not recognized: {}", quoted(text))),
    };
    if !digits.iter().all(u8::is_ascii_digit) {
        return Err(format!("strconv.ParseUint: parsing {}: invalid syntax", quoted(digits)));
    }
    let count = digits
        .iter()
        .fold(0, |count, digit| count * 10 + u64::from(digit - b'0'));
    Ok(Duration::from_nanos(count.saturating_mul(nanos)))
}

/// A value as Go's `%q` writes it, of a length that an answer can have.
fn quoted(value: &[u8]) -> String {
    const LONGEST: usize = 256;
    let shown = &value[..value.len().min(LONGEST)];
    format!("{:?}", String::from_utf8_lossy(shown))
}

/// Returns the status for calls of methods that are not served here.
pub(super) fn unknown(path: &str) -> Status {
    Status::unimplemented(match path.strip_prefix('/').and_then(|path| path.rsplit_once('/')) {
        Some((service, method)) if is_service(service) => format!("unknown method {method} for service {service}"),
        Some((service, _)) => format!("unknown service {service}"),
        None => format!("malformed method name: {path:?}"),
    })
}

fn refusal(code: StatusCode, text: &str) -> Response<Body> {
    let mut response = Status::new(Code::Internal, text).into_http();
    *response.status_mut() = code;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_those_of_grpc() {
        for (text, time) in [
            ("2H", Duration::from_secs(7200)),
            ("3M", Duration::from_secs(180)),
            ("4S", Duration::from_secs(4)),
            ("50m", Duration::from_millis(50)),
            ("7u", Duration::from_micros(7)),
            ("0n", Duration::ZERO),
            ("99999999H", Duration::from_nanos(u64::MAX)),
        ] {
            assert_eq!(timeout(text.as_bytes()), Ok(time), "{text}");
        }
    }

    #[test]
    fn unknown_names_are_told_apart() {
        for (path, text) in [
            ("/etcdserverpb.KV/No", "unknown method No for service etcdserverpb.KV"),
            ("/no.Such/Get", "unknown service no.Such"),
            ("/x", "malformed method name: \"/x\""),
        ] {
            assert_eq!(unknown(path).message(), text);
        }
    }

    /// The answers are those of etcd 3.6.16.
    #[test]
    fn heads_are_judged_as_by_grpc_go() {
        let range = "/etcdserverpb.KV/Range";
        for (method, path, header, answer) in [
            ("POST", range, ("x-trace-bin", "AAE"), None),
            ("POST", range, ("x-trace-bin", "AAE="), None),
            ("POST", range, ("x-trace-bin", ""), None),
            (
                "POST",
                range,
                ("x-trace-bin", "!!"),
                Some((
                    400,
                    "malformed binary metadata \"!!\" in header \"x-trace-bin\": illegal base64 data at input byte 0",
                )),
            ),
            (
                "POST",
                range,
                ("grpc-timeout", "123456789S"),
                Some((
                    400,
                    "malformed grpc-timeout: transport: timeout string is too long: \"123456789S\"",
                )),
            ),
            (
                "POST",
                range,
                ("grpc-timeout", "S"),
                Some((
                    400,
                    "malformed grpc-timeout: transport: timeout string is too short: \"S\"",
                )),
            ),
            (
                "POST",
                range,
                ("grpc-timeout", "5x"),
                Some((
                    400,
                    "malformed grpc-timeout: transport: timeout unit is not recognized: \"5x\"",
                )),
            ),
            (
                "POST",
                range,
                ("grpc-timeout", "soon"),
                Some((
                    400,
                    "malformed grpc-timeout: strconv.ParseUint: parsing \"soo\": invalid syntax",
                )),
            ),
            (
                "GET",
                range,
                ("te", "trailers"),
                Some((
                    405,
                    "Received a HEADERS frame with :method \"GET\" which should be POST",
                )),
            ),
            (
                "POST",
                "/etcdserverpb.KV/Range?x=1",
                ("te", "trailers"),
                Some((200, "unknown method Range?x=1 for service etcdserverpb.KV")),
            ),
        ] {
            let request = Request::builder().method(method).uri(path).header(header.0, header.1);
            let refused = refuse(&request.body(()).unwrap()).map(|response| {
                let status = Status::from_header_map(response.headers()).unwrap();
                (response.status().as_u16(), status.message().to_owned())
            });
            assert_eq!(
                refused,
                answer.map(|(code, text)| (code, text.to_owned())),
                "{header:?}"
            );
        }
    }
}
