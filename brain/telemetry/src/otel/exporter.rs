//! The exporter of spans, whose failures are logged ever more rarely.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use opentelemetry_otlp::SpanExporter as OtlpExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};

use runtime::log_once::LogBackoff;

/// The pause between the first two lines about a collector that is not reached, and the longest.
const FIRST_LOG_INTERVAL: Duration = Duration::from_secs(60);
const MAX_LOG_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// An exporter that logs when batches are lost, and when they are not any more.
#[derive(Debug)]
pub(super) struct LoggedExporter {
    otlp: OtlpExporter,
    /// Since the last batch that arrived.
    losses: Mutex<Option<ExportLosses>>,
}

#[derive(Debug)]
struct ExportLosses {
    spans: usize,
    log: LogBackoff,
}

impl LoggedExporter {
    pub(super) fn new(otlp: OtlpExporter) -> Self {
        Self {
            otlp,
            losses: Mutex::new(None),
        }
    }

    fn note(&self, spans: usize, outcome: &OTelSdkResult) {
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        let Err(error) = outcome else {
            if let Some(ExportLosses { spans, .. }) = losses.take() {
                tracing::info!(lost = spans, "sending spans to the collector again");
            }
            return;
        };
        let losses = losses.get_or_insert_with(|| ExportLosses {
            spans: 0,
            log: LogBackoff::new(FIRST_LOG_INTERVAL, MAX_LOG_INTERVAL),
        });
        losses.spans += spans;
        if losses.log.is_due() {
            tracing::warn!(%error, lost = losses.spans, "dropped spans that could not be sent to the collector");
        }
    }
}

impl SpanExporter for LoggedExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let outcome = self.otlp.export(batch).await;
        self.note(spans, &outcome);
        outcome
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.otlp.shutdown_with_timeout(timeout)
    }

    fn shutdown(&self) -> OTelSdkResult {
        self.otlp.shutdown()
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.otlp.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.otlp.set_resource(resource);
    }
}
