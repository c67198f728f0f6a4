//! The metadata of an RPC from the headers of an HTTP request, by the rules of grpc-gateway.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::header::{AUTHORIZATION, CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::Status;

use super::protojson::cut;

/// Headers that go to the RPC begin so, without it.
const METADATA_HEADER_PREFIX: &str = "grpc-metadata-";

/// Headers with bytes in base64 end so.
const BINARY_HEADER_SUFFIX: &str = "-bin";

/// The header `Accept` of a request, as grpc-gateway passes it on.
const GATEWAY_ACCEPT_KEY: &str = "grpcgateway-accept";

/// The headers of gRPC itself: no metadata.
const RESERVED_HEADERS: [&str; 8] = [
    "content-type",
    "grpc-encoding",
    "grpc-message",
    "grpc-message-type",
    "grpc-status",
    TIMEOUT_HEADER,
    "te",
    "user-agent",
];

/// The deadline of an RPC.
const TIMEOUT_HEADER: &str = "grpc-timeout";

/// Returns the headers of the RPC.
///
/// # Errors
/// A deadline, or bytes, that cannot be read.
pub(super) fn of(headers: &HeaderMap) -> Result<HeaderMap, Status> {
    let mut metadata = HeaderMap::new();
    metadata.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    metadata.insert(TE, HeaderValue::from_static("trailers"));
    if let Some(timeout) = headers.get(TIMEOUT_HEADER).filter(|timeout| !timeout.is_empty()) {
        let nanos = timeout.to_str().ok().and_then(nanos).ok_or_else(|| {
            let text = String::from_utf8_lossy(timeout.as_bytes());
            Status::invalid_argument(format!("invalid grpc-timeout: {}", cut(&text)))
        })?;
        if let Some(timeout) = encode(nanos) {
            metadata.insert(TIMEOUT_HEADER, timeout);
        }
    }
    for (name, value) in headers {
        if name == AUTHORIZATION {
            metadata.insert(name.clone(), value.clone());
        }
        let Some(own) = name.as_str().strip_prefix(METADATA_HEADER_PREFIX) else {
            continue;
        };
        let value = match own.ends_with(BINARY_HEADER_SUFFIX) {
            true => binary(name, value)?,
            false => value.clone(),
        };
        // Not those of gRPC itself, as in grpc-go, and no text that gRPC does not carry.
        let fits = !RESERVED_HEADERS.contains(&own) && value.to_str().is_ok_and(|text| !text.contains('\t'));
        if let (true, Ok(own)) = (fits, HeaderName::try_from(own)) {
            metadata.append(own, value);
        }
    }
    // etcd recognises requests of its gateway by this: their client certificate does not identify a user.
    metadata.insert(GATEWAY_ACCEPT_KEY, HeaderValue::from_static("*/*"));
    Ok(metadata)
}

/// Reads bytes in base64, padded or not.
fn binary(name: &HeaderName, value: &HeaderValue) -> Result<HeaderValue, Status> {
    let decoded = crate::binary::decode(value.as_bytes());
    let encoded = decoded.map(|bytes| HeaderValue::try_from(STANDARD_NO_PAD.encode(bytes)));
    match encoded {
        Ok(Ok(value)) => Ok(value),
        _ => Err(Status::invalid_argument(format!(
            "invalid binary header {}: illegal base64 data",
            canonical(name.as_str())
        ))),
    }
}

/// Returns a header's name as Go writes it.
fn canonical(name: &str) -> String {
    let words = name.split('-').map(|word| {
        let (first, rest) = word.split_at(word.len().min(1));
        format!("{}{rest}", first.to_ascii_uppercase())
    });
    words.collect::<Vec<_>>().join("-")
}

/// Reads a time: a number with a unit. Like Go it takes a sign, any number of digits, and lets a number that is too large wrap.
fn nanos(text: &str) -> Option<i64> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit = match unit {
        "H" => 3_600_000_000_000,
        "M" => 60_000_000_000,
        "S" => 1_000_000_000,
        "m" => 1_000_000,
        "u" => 1_000,
        "n" => 1,
        _ => return None,
    };
    number.parse::<i64>().ok().map(|number| number.wrapping_mul(unit))
}

/// Writes a time as gRPC does, in eight digits; none for zero, which is no deadline. One that is over is over at once.
fn encode(nanos: i64) -> Option<HeaderValue> {
    if nanos == 0 {
        return None;
    }
    let nanos = u64::try_from(nanos).unwrap_or(0);
    let units = [
        (1, 'n'),
        (1_000, 'u'),
        (1_000_000, 'm'),
        (1_000_000_000, 'S'),
        (60_000_000_000, 'M'),
    ];
    let short = units
        .into_iter()
        .map(|(scale, unit)| (nanos.div_ceil(scale), unit))
        .find(|(number, _)| *number < 100_000_000);
    let (number, unit) = short.unwrap_or((nanos.div_ceil(3_600_000_000_000), 'H'));
    HeaderValue::try_from(format!("{number}{unit}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(name: &'static str, value: &str) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        of(&headers).map_err(|status| {
            assert_eq!(status.code(), tonic::Code::InvalidArgument);
            status.message().to_owned()
        })
    }

    #[test]
    fn deadlines_are_those_of_grpc_gateway() {
        for (given, passed) in [
            ("5S", Some("5000000u")),
            ("+5S", Some("5000000u")),
            ("100m", Some("100000u")),
            ("1n", Some("1n")),
            ("200000H", Some("12000000M")),
            ("100000000S", Some("1666667M")),
            ("0S", None),
            ("-5S", Some("0n")),
            ("", None),
        ] {
            let found = metadata(TIMEOUT_HEADER, given).unwrap();
            let found = found.get(TIMEOUT_HEADER).map(|value| value.to_str().unwrap());
            assert_eq!(found, passed, "{given}");
        }
        for given in ["5", "S", "5s", "5 S", "1.5S", "xS", "5S "] {
            let expected = format!("invalid grpc-timeout: {given}");
            assert_eq!(metadata(TIMEOUT_HEADER, given).unwrap_err(), expected);
        }
    }

    #[test]
    fn metadata_is_that_of_grpc_gateway() {
        for (name, value, passed) in [
            ("grpc-metadata-x", "y", Some(("x", "y"))),
            ("grpc-metadata-x-bin", "Zg==", Some(("x-bin", "Zg"))),
            ("grpc-metadata-x-bin", "Zg", Some(("x-bin", "Zg"))),
            ("grpc-metadata-te", "x", None),
            ("grpc-metadata-x", "\u{e9}", None),
            ("x-bin", "%", None),
            ("authorization", "t", Some(("authorization", "t"))),
        ] {
            let found = metadata(name, value).unwrap();
            assert_eq!(found.len(), 3 + usize::from(passed.is_some()), "{name}");
            if let Some((name, value)) = passed {
                assert_eq!(found.get(name).unwrap(), value);
            }
        }
        for given in ["%", "Zg=", "Zg=a", "Z"] {
            let error = metadata("grpc-metadata-x-bin", given).unwrap_err();
            assert_eq!(
                error, "invalid binary header Grpc-Metadata-X-Bin: illegal base64 data",
                "{given}"
            );
        }
    }
}
