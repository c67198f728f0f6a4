//! The file `control`: the watermark, and which segments there are.
//!
//! Two pages with the same content, written and synced one after the other, so that a write torn anywhere leaves one
//! of them whole. They are written in place: moving the watermark and destroying needs no space, also on a full disk.
//!
//! Invariant: a segment is named here before anything is acknowledged in it, and no longer named before it is removed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt as _};
use std::path::Path;

use super::FileLogOpenError;
use super::disk::Disk;
use super::page::{self, PAGE_BYTES, PageError};
use engine::log::LogId;
use runtime::kill_points;

const CONTROL_MAGIC: [u8; 8] = *b"KBLOGCTL";
/// Name of the file.
pub(super) const CONTROL_FILE: &str = "control";
/// Bytes of the file.
pub(super) const CONTROL_BYTES: u64 = 2 * PAGE_BYTES as u64;

/// The contents of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ControlState {
    pub(super) watermark: u64,
    /// The oldest segment.
    pub(super) first: u64,
    /// The newest segment; 0 before there is one.
    pub(super) last: u64,
    /// The segment written to when this was stored, and the offset up to which it was synced.
    pub(super) synced: (u64, u32),
}

/// The open file.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) id: LogId,
    pub(super) state: ControlState,
    generation: u64,
    file: File,
    disk: Disk,
}

impl Control {
    /// Begins a fresh log in `dir`.
    pub(super) fn create(dir: &Path, disk: &Disk) -> Result<Control, FileLogOpenError> {
        let path = dir.join(CONTROL_FILE);
        let new = dir.join(format!("{CONTROL_FILE}.new"));
        let state = ControlState {
            watermark: 1,
            first: 1,
            last: 0,
            synced: (0, 0),
        };
        let make = || {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&new)?;
            disk.allocate(&file, CONTROL_BYTES)?;
            let mut control = Control {
                id: LogId(rand::random()),
                state,
                generation: 0,
                file,
                disk: disk.clone(),
            };
            control.store(state)?;
            fs::rename(&new, &path)?;
            disk.sync_dir(dir)?;
            Ok(control)
        };
        make().map_err(FileLogOpenError::io("create", &path))
    }

    /// Reads the file. Writes nothing: [`Control::store`] must follow before anything of it is relied on.
    pub(super) fn open(dir: &Path, disk: &Disk) -> Result<Control, FileLogOpenError> {
        Self::open_for(dir, disk, true)
    }

    /// The same, for a reader that writes nothing.
    pub(super) fn open_to_read(dir: &Path) -> Result<Control, FileLogOpenError> {
        Self::open_for(dir, &Disk::default(), false)
    }

    fn open_for(dir: &Path, disk: &Disk, is_written: bool) -> Result<Control, FileLogOpenError> {
        let path = dir.join(CONTROL_FILE);
        let file = OpenOptions::new()
            .read(true)
            .write(is_written)
            .open(&path)
            .map_err(FileLogOpenError::io("open", &path))?;
        let len = file.metadata().map_err(FileLogOpenError::io("look at", &path))?.len();
        if len != CONTROL_BYTES {
            return Err(FileLogOpenError::damaged(
                &path,
                len.min(CONTROL_BYTES),
                format!("it has {len} bytes instead of {CONTROL_BYTES}"),
            ));
        }
        let mut bytes = vec![0; 2 * PAGE_BYTES];
        file.read_exact_at(&mut bytes, 0)
            .map_err(FileLogOpenError::io("read", &path))?;
        let (one, two) = (decode(&bytes[..PAGE_BYTES]), decode(&bytes[PAGE_BYTES..]));
        let (id, generation, state) = match (one, two) {
            (Err(PageError::Newer(version)), _) | (_, Err(PageError::Newer(version))) => {
                return Err(FileLogOpenError::Newer { file: path, version });
            }
            (Err(PageError::Damaged), Err(PageError::Damaged)) => {
                return Err(FileLogOpenError::damaged(
                    &path,
                    0u64,
                    "both of its pages fail their checksum",
                ));
            }
            (Ok(one), Ok(two)) if one.0 != two.0 => return Err(FileLogOpenError::Foreign { file: path }),
            (Ok(one), Ok(two)) => {
                if one.1 >= two.1 {
                    one
                } else {
                    two
                }
            }
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => {
                tracing::warn!(file = %path.display(), "one of two pages is torn, using the other");
                one
            }
        };
        Ok(Control {
            id,
            state,
            generation,
            file,
            disk: disk.clone(),
        })
    }

    /// Writes both pages. After an error that was not for want of space nothing may be relied on.
    pub(super) fn store(&mut self, state: ControlState) -> io::Result<()> {
        self.generation += 1;
        let fields = [
            self.generation,
            state.watermark,
            state.first,
            state.last,
            state.synced.0,
            u64::from(state.synced.1),
        ];
        let page = page::encode(CONTROL_MAGIC, self.id, &fields);
        for at in [0, PAGE_BYTES as u64] {
            self.disk.write(&self.file, &page, at)?;
            self.disk.sync(&self.file)?;
            kill_points::reach("control-page");
        }
        self.state = state;
        Ok(())
    }
}

fn decode(page: &[u8]) -> Result<(LogId, u64, ControlState), PageError> {
    let (id, [generation, watermark, first, last, seq, end]) = page::decode(page, CONTROL_MAGIC)?;
    let end = u32::try_from(end).map_err(|_| PageError::Damaged)?;
    let state = ControlState {
        watermark,
        first,
        last,
        synced: (seq, end),
    };
    Ok((id, generation, state))
}
