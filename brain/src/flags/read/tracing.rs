//! The flags of distributed tracing.

use http::Uri;

use super::Values;
use telemetry::otel::TracingOptions;

const ADDRESS: &str = "distributed-tracing-address";

/// The largest sampling rate.
const MILLION: i64 = 1_000_000;

/// Reads the options. As in etcd, they are checked only if tracing is enabled, and texts of errors are etcd's.
pub(super) fn read(values: &Values<'_>) -> Result<Option<TracingOptions>, String> {
    let rate: i64 = values.number("distributed-tracing-sampling-rate")?;
    if !values.bool("enable-distributed-tracing") {
        return Ok(None);
    }
    let invalid = |what: &str| format!("distributed tracing configurition is not valid: ({what})");
    if rate < 0 {
        return Err(invalid("tracing sampling rate must be positive"));
    }
    let in_range = u32::try_from(rate).ok().filter(|_| rate <= MILLION);
    let sampling_rate =
        in_range.ok_or_else(|| invalid(&format!("tracing sampling rate must be less than {MILLION}")))?;
    let instance_id = values.text("distributed-tracing-instance-id");
    Ok(Some(TracingOptions {
        collector: collector(values)?,
        service_name: values.text("distributed-tracing-service-name").to_owned(),
        instance_id: (!instance_id.is_empty()).then(|| instance_id.to_owned()),
        sampling_rate,
    }))
}

/// Returns the URL of the collector.
fn collector(values: &Values<'_>) -> Result<Uri, String> {
    let text = values.text(ADDRESS);
    let wrong = || values.error(ADDRESS, format!("{text:?} is not host:port"));
    let address = text.strip_prefix("http://").unwrap_or(text);
    let url: Uri = format!("http://{address}").parse().map_err(|_| wrong())?;
    let is_address = url.port_u16().is_some() && url.path() == "/" && url.query().is_none();
    let has_user = url
        .authority()
        .is_some_and(|authority| authority.as_str().contains('@'));
    if is_address && !has_user { Ok(url) } else { Err(wrong()) }
}
