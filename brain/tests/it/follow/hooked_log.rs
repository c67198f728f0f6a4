//! A log whose reads wait for something else first.

use std::pin::Pin;
use std::sync::Arc;

use engine::hooked::{self, LogHooks};
use engine::log::{LogError, MemLog, Slot};

type Done = Pin<Box<dyn Future<Output = Result<(), LogError>> + Send>>;

/// A hook before each read: it receives the slot at which the read begins.
#[derive(Clone)]
pub(super) struct BeforeRead(Arc<dyn Fn(Slot) -> Done + Send + Sync>);

impl LogHooks for BeforeRead {
    async fn before_read(&self, from: Slot) -> Result<(), LogError> {
        (self.0)(from).await
    }
}

pub(super) type HookedLog = hooked::HookedLog<MemLog, BeforeRead>;

/// Returns a log in memory with such a hook.
pub(super) fn hooked_log<F>(log: &MemLog, before: impl Fn(Slot) -> F + Send + Sync + 'static) -> HookedLog
where
    F: Future<Output = Result<(), LogError>> + Send + 'static,
{
    HookedLog::new(log.clone(), BeforeRead(Arc::new(move |from| Box::pin(before(from)))))
}
