//! A log whose reads wait for something else first.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use engine::log::{AppendError, Log, LogError, MemLog, Slot};

type Done = Pin<Box<dyn Future<Output = Result<(), LogError>> + Send>>;

/// A log in memory; before each read something happens to it.
#[derive(Clone)]
pub(super) struct HookedLog {
    log: MemLog,
    before: Arc<dyn Fn(Slot) -> Done + Send + Sync>,
}

impl HookedLog {
    /// `before` receives the slot at which a read begins.
    pub(super) fn new<F>(log: &MemLog, before: impl Fn(Slot) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), LogError>> + Send + 'static,
    {
        Self {
            log: log.clone(),
            before: Arc::new(move |from| Box::pin(before(from))),
        }
    }
}

impl Log for HookedLog {
    async fn append(&self, slot: Slot, record: Bytes) -> Result<(), AppendError> {
        self.log.append(slot, record).await
    }

    async fn read(&self, from: Slot, max_bytes: usize) -> Result<Vec<(Slot, Bytes)>, LogError> {
        (self.before)(from).await?;
        self.log.read(from, max_bytes).await
    }

    async fn watermark(&self) -> Result<Slot, LogError> {
        self.log.watermark().await
    }

    async fn raise_watermark(&self, to: Slot) -> Result<(), LogError> {
        self.log.raise_watermark(to).await
    }

    async fn destroy_below_watermark(&self) -> Result<bool, LogError> {
        self.log.destroy_below_watermark().await
    }

    fn max_record_len(&self) -> usize {
        self.log.max_record_len()
    }

    fn size(&self) -> u64 {
        self.log.size()
    }
}
