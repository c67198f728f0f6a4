//! Log lines as etcd's zap writes them: JSON with `level`, `ts`, `caller`, `msg` and the fields of the event.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{self, FormatEvent, Writer};
use tracing_subscriber::fmt::{FmtContext, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

/// The format of lines.
pub(super) struct ZapFormat;

impl<S> FormatEvent<S, format::JsonFields> for ZapFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, format::JsonFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let mut fields = EventFields::default();
        event.record(&mut fields);
        let spans = context.event_scope().into_iter().flat_map(|scope| scope.from_root());
        let spans = spans.map(|span| {
            let mut shown = Map::new();
            shown.insert("name".to_owned(), span.name().into());
            let extensions = span.extensions();
            let recorded = extensions.get::<FormattedFields<format::JsonFields>>();
            if let Some(Ok(Value::Object(recorded))) = recorded.map(|fields| serde_json::from_str(fields)) {
                shown.extend(recorded);
            }
            Value::Object(shown)
        });
        let place = metadata.file().zip(metadata.line());
        let line = ZapLine {
            level: level(*metadata.level()),
            ts: format!("{:.6}", Timestamp::now()),
            caller: place.map(|(file, number)| format!("{}:{number}", caller(file))),
            msg: fields.message,
            fields: fields.others,
            spans: spans.collect(),
        };
        let line = serde_json::to_string(&line).map_err(|_| fmt::Error)?;
        writeln!(writer, "{line}")
    }
}

/// One line, with its keys in their order.
#[derive(Serialize)]
struct ZapLine {
    level: &'static str,
    ts: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<String>,
    msg: String,
    #[serde(flatten)]
    fields: Map<String, Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    spans: Vec<Value>,
}

/// The keys that a line has besides the fields of its event.
const LINE_KEYS: [&str; 5] = ["level", "ts", "caller", "msg", "spans"];

fn level(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG | Level::TRACE => "debug",
    }
}

/// The end of a path that tells files apart, as zap's: of this program's files the crate and the path below its sources, of others the last
/// two names.
fn caller(file: &str) -> Cow<'_, str> {
    if let Some((package, below)) = file.strip_prefix("brain/").and_then(|file| file.split_once("src/")) {
        return format!("{package}{below}").into();
    }
    let mut slashes = file.rmatch_indices('/');
    match (slashes.next(), slashes.next()) {
        (Some(_), Some((at, _))) => file[at + 1..].into(),
        _ => file.into(),
    }
}

/// The fields of an event.
#[derive(Default)]
struct EventFields {
    message: String,
    others: Map<String, Value>,
}

impl EventFields {
    fn take(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            ("message", value) => self.message = value.to_string(),
            (name, _) if LINE_KEYS.contains(&name) => {}
            (name, value) => {
                self.others.insert(name.trim_start_matches("r#").to_owned(), value);
            }
        }
    }
}

impl Visit for EventFields {
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.take(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.take(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.take(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.take(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.take(field, format!("{value:?}").into());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Lines {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    #[test]
    fn lines_have_the_keys_of_zap() {
        let lines = Lines::default();
        let subscriber = super::super::zap(tracing_subscriber::fmt().with_writer(lines.clone())).finish();
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("term", epoch = 7);
            let _entered = span.enter();
            tracing::warn!(revision = 5, key = %"a \"b\"", ts = "mine", "it\nbroke");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let line: Value = serde_json::from_str(text.strip_suffix('\n').unwrap()).unwrap();
        assert!(
            line["caller"].as_str().unwrap().starts_with("telemetry/logs/zap.rs:"),
            "{line}"
        );
        assert!(line["ts"].as_str().unwrap().parse::<Timestamp>().is_ok(), "{line}");
        let rest = serde_json::json!([line["level"], line["msg"], line["revision"], line["key"], line["spans"]]);
        let expected = serde_json::json!(["warn", "it\nbroke", 5, "a \"b\"", [{"name": "term", "epoch": 7}]]);
        assert_eq!(rest, expected);
        let order: Vec<_> = ["\"level\"", "\"ts\"", "\"caller\"", "\"msg\""]
            .iter()
            .map(|key| text.find(key))
            .collect();
        assert!(order.is_sorted(), "{text}");
    }

    #[test]
    fn callers_are_short() {
        assert_eq!(caller("brain/src/server/run.rs"), "server/run.rs");
        assert_eq!(caller("brain/net/src/serve.rs"), "net/serve.rs");
        assert_eq!(
            caller("/cargo/registry/h2-0.4/src/proto/streams.rs"),
            "proto/streams.rs"
        );
        assert_eq!(caller("x.rs"), "x.rs");
    }
}
