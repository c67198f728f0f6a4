//! The registry of a process that is no member, such as an archive: it has none of a server's metrics.

use std::sync::{Mutex, PoisonError};

use prometheus::{Encoder as _, Registry, TextEncoder};

use super::{ProcessMetrics, Registrar};

/// The registry, and the metrics of the process in it.
pub(super) struct ProcessRegistry {
    registry: Registry,
    /// `None` in the reference of metrics.
    process: Option<Mutex<ProcessMetrics>>,
}

impl ProcessRegistry {
    /// Registers the metrics of the process.
    pub(super) fn with_process(r: &Registrar) -> Self {
        Self {
            registry: r.registry.clone(),
            process: Some(Mutex::new(ProcessMetrics::register(r))),
        }
    }

    /// Leaves them out.
    pub(super) fn without_process(r: &Registrar) -> Self {
        Self {
            registry: r.registry.clone(),
            process: None,
        }
    }

    /// Renders all metrics in the text format of Prometheus. Fails if the encoder does.
    pub(super) fn render(&self) -> anyhow::Result<Vec<u8>> {
        if let Some(process) = &self.process {
            process.lock().unwrap_or_else(PoisonError::into_inner).refresh();
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}
