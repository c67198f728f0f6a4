//! Records as frames hold them: a long one is compressed, if it becomes shorter.

use bytes::Bytes;
use runtime::compression;

use super::FileLog;
use super::frame::FrameKind;

/// The payload of the frame of a record.
#[derive(Debug, Clone)]
pub(super) struct StoredRecord {
    /// [`FrameKind::Record`] or [`FrameKind::CompressedRecord`].
    pub(super) kind: FrameKind,
    pub(super) payload: Bytes,
}

impl StoredRecord {
    pub(super) fn of(record: &Bytes) -> Self {
        match compression::compress(record) {
            Some(payload) => Self {
                kind: FrameKind::CompressedRecord,
                payload,
            },
            None => Self {
                kind: FrameKind::Record,
                payload: record.clone(),
            },
        }
    }

    /// Returns the length of the record; `None` if this is no record.
    pub(super) fn len(&self) -> Option<usize> {
        match self.kind {
            FrameKind::Record => Some(self.payload.len()),
            FrameKind::CompressedRecord => {
                let len = compression::content_size(&self.payload)? as usize;
                (len <= FileLog::MAX_RECORD_LEN).then_some(len)
            }
            FrameKind::Begin | FrameKind::Synced => None,
        }
    }

    /// Returns the record; `None` if this is no record.
    pub(super) fn record(&self) -> Option<Bytes> {
        match self.kind {
            FrameKind::Record => Some(self.payload.clone()),
            FrameKind::CompressedRecord => {
                self.len()?;
                compression::decompress(&self.payload)
            }
            FrameKind::Begin | FrameKind::Synced => None,
        }
    }
}
