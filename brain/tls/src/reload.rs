//! Reloads the certificates of listeners when their files change.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::certificate::Validity;
use super::files::TlsFiles;
use super::{LoadedTls, ServerTls, TlsError, check_dates};
use telemetry::metrics::TlsMetrics;

/// The interval at which files are checked.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

impl ServerTls {
    /// Checks the files, and loads them if they changed. Returns true if they did. Fails as [`ServerTls::load`], or if their
    /// certificate is not valid now while the one in use is; the configuration served before stays.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let files = TlsFiles::read(&self.options)?;
        if files == self.current.load().files {
            return Ok(false);
        }
        let loaded = LoadedTls::from(files, &self.options, &self.policy)?;
        let dates = check_dates(&self.options, loaded.in_use.validity());
        if check_dates(&self.options, self.in_use().validity()).is_ok() {
            dates?;
        }
        self.current.store(Arc::new(loaded));
        Ok(true)
    }

    fn set_dates(&self, metrics: &TlsMetrics) {
        let Validity { not_before, not_after } = self.in_use().validity();
        metrics.expiry.set(not_after);
        metrics.not_before.set(not_before);
    }

    /// Reloads until `stop`. Each new failure is logged once. Fails if the check of the files panicked.
    pub async fn follow(
        self: Arc<Self>,
        every: Duration,
        metrics: TlsMetrics,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        self.set_dates(&metrics);
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failing: Option<TlsError> = None;
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                _ = ticks.tick() => {}
            }
            let this = Arc::clone(&self);
            // A file system may block; the runtime must not.
            let outcome = tokio::task::spawn_blocking(move || this.reload())
                .await
                .context("look at certificates")?;
            let failed = match outcome {
                Ok(false) => None,
                Ok(true) => {
                    metrics.reloads.with_label_values(&["success"]).inc();
                    self.set_dates(&metrics);
                    info!(expires = self.not_after(), "certificates were replaced and are in use");
                    None
                }
                Err(error) => {
                    if failing.as_ref() != Some(&error) {
                        metrics.reloads.with_label_values(&["failure"]).inc();
                        warn!(%error, "cannot load changed certificates: the old ones stay in use");
                    }
                    Some(error)
                }
            };
            let change = i64::from(failed.is_some()) - i64::from(failing.is_some());
            metrics.reloads_failing.add(change);
            failing = failed;
        }
    }
}
