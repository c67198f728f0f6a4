//! The log of a directory as it was left, to be looked at: nothing is repaired, cut or begun, and nothing can be appended.

use std::path::Path;
use std::sync::Arc;

use anyhow::anyhow;
use async_trait::async_trait;
use bytes::Bytes;

use super::control::{self, Control};
use super::index::SegmentSlots;
use super::segment::Segment;
use super::{FileLog, FileLogOpenError, open, read};
use engine::log::{AppendError, Log, LogError, LogId, Slot};

/// A log that is only read. Clones share it.
#[derive(Debug, Clone)]
pub struct StoredLog {
    id: LogId,
    watermark: Slot,
    index: Arc<SegmentSlots>,
}

impl StoredLog {
    /// Reads which slots are taken, and checks headers, frames and checksums as [`FileLog::open`] does. Segments after the last
    /// one are not read. Blocks.
    pub fn open(dir: &Path) -> Result<StoredLog, FileLogOpenError> {
        if !dir.join(control::CONTROL_FILE).exists() {
            return Err(FileLogOpenError::Lost { dir: dir.to_owned() });
        }
        let control = Control::open_to_read(dir)?;
        let state = control.state;
        let segments = (state.first.max(1)..=state.last).map(|seq| Segment::open_to_read(dir, control.id, seq));
        let (index, _) = open::check((dir, control.id), segments.collect::<Result<_, _>>()?, state, None)?;
        Ok(StoredLog {
            id: control.id,
            watermark: Slot(state.watermark),
            index: Arc::new(index),
        })
    }
}

fn read_only() -> anyhow::Error {
    anyhow!("the log is open for reading only")
}

#[async_trait]
impl Log for StoredLog {
    async fn append(&self, _: Slot, _: Bytes) -> Result<(), AppendError> {
        Err(AppendError::Failed(read_only()))
    }

    async fn read(&self, from: Slot, max_bytes: usize) -> Result<Vec<(Slot, Bytes)>, LogError> {
        let index = self.index.clone();
        tokio::task::spawn_blocking(move || read::records(&index.collect(from.0, max_bytes), max_bytes))
            .await
            .unwrap_or_else(|error| Err(LogError::Failed(error.into())))
    }

    async fn watermark(&self) -> Result<Slot, LogError> {
        Ok(self.watermark)
    }

    async fn raise_watermark(&self, _: Slot) -> Result<(), LogError> {
        Err(LogError::Failed(read_only()))
    }

    async fn destroy_below_watermark(&self) -> Result<bool, LogError> {
        Err(LogError::Failed(read_only()))
    }

    fn id(&self) -> Option<LogId> {
        Some(self.id)
    }

    fn max_record_len(&self) -> usize {
        FileLog::MAX_RECORD_LEN
    }

    fn size(&self) -> u64 {
        self.index.bytes()
    }

    async fn shrink(&self) -> Result<(), LogError> {
        Ok(())
    }
}
