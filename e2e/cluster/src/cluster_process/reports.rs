//! The host's standard output: reports until it is closed, then nothing, because its reader is gone.

use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use programs::progress::Progress;
use tracing::{info, warn};

use super::ProcessReport;

/// Cheap to clone; every clone writes to the same place.
#[derive(Clone)]
pub(super) struct ReportWriter(Arc<Mutex<Option<std::io::Stdout>>>);

impl ReportWriter {
    pub(super) fn stdout() -> Self {
        Self(Arc::new(Mutex::new(Some(std::io::stdout()))))
    }

    pub(super) fn send(&self, report: &ProcessReport) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(out) = open.as_mut() else { return };
        let sent = serde_json::to_string(report)
            .map_err(anyhow::Error::from)
            .and_then(|line| {
                writeln!(out, "{line}")?;
                Ok(out.flush()?)
            });
        if let Err(error) = sent {
            warn!(%error, "no reader for the reports");
            *open = None;
        }
    }

    /// Sends nothing from now on.
    pub(super) fn close(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Lines for people, which also go to the log.
    pub(super) fn progress(&self) -> Progress {
        let reports = self.clone();
        Progress::to(move |line| {
            info!("{}", line.trim());
            reports.send(&ProcessReport::Line(line.to_owned()));
        })
    }
}
