//! Tells of what a log has written.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A step by which a log stores a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogWrite {
    /// A write that is not durable yet: its bytes and its duration.
    Written(usize, Duration),
    /// A sync that made writes durable, or its equivalent if there is no disk, and how long it took.
    Synced(Duration),
}

/// The observer of writes and syncs of batches.
#[derive(Clone)]
pub struct LogObserver(Arc<dyn Fn(LogWrite) + Send + Sync>);

impl LogObserver {
    /// Calls `observe` after each, where it is written: it must not block.
    pub fn new(observe: impl Fn(LogWrite) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }

    pub fn tell(&self, done: LogWrite) {
        (self.0)(done);
    }
}

impl fmt::Debug for LogObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogObserver")
    }
}
