//! Temporary files for snapshots: without a name, so that nothing of them is left when they are closed, whatever ends the process.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::SaveError;

/// The bytes of the medium that snapshots leave free for other uses, at least and at most. It is more than a store in the same
/// directory needs to continue.
const MIN_RESERVE_BYTES: u64 = 96 << 20;
const MAX_RESERVE_BYTES: u64 = 320 << 20;

/// The part of the medium that is left free within these limits, as a divisor.
const RESERVE_DIVISOR: u64 = 16;

/// Bytes after which the free space is looked at again.
const BYTES_PER_SPACE_CHECK: u64 = 8 << 20;

/// The directory of temporary files.
#[derive(Debug, Clone)]
pub struct Spool {
    dir: PathBuf,
    /// The reserve instead of that of the medium, for tests.
    #[cfg(test)]
    pub(super) kept: Option<u64>,
}

impl Spool {
    /// Files in `dir`.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            #[cfg(test)]
            kept: None,
        }
    }

    /// Returns the free bytes of the medium that are left to others.
    pub fn reserve(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.dir).map_err(io::Error::from)?;
        Ok(reserve_of(stat.f_blocks.saturating_mul(stat.f_frsize)))
    }

    /// Fails with [`SaveError::NoSpace`] if `bytes` more would take space that others need.
    pub(super) fn check(&self, bytes: u64) -> Result<(), SaveError> {
        let stat = rustix::fs::statvfs(&self.dir).map_err(io::Error::from)?;
        let (size, free) = (
            stat.f_blocks.saturating_mul(stat.f_frsize),
            stat.f_bavail.saturating_mul(stat.f_frsize),
        );
        let reserve = reserve_of(size);
        #[cfg(test)]
        let reserve = self.kept.unwrap_or(reserve);
        if free >= bytes.saturating_add(reserve) {
            return Ok(());
        }
        Err(SaveError::NoSpace(format!(
            "no space for a snapshot: {} has {free} bytes free, {reserve} are reserved, and {bytes} are needed",
            self.dir.display()
        )))
    }

    /// Creates a file. Fails if the directory takes none.
    pub fn file(&self) -> io::Result<SpoolFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        let unnamed = options
            .clone()
            .custom_flags(rustix::fs::OFlags::TMPFILE.bits().cast_signed())
            .open(&self.dir);
        let file = match unnamed {
            Ok(file) => file,
            // Not every file system has files without names.
            Err(_) => {
                let path = self.dir.join(format!(".snapshot-{:032x}", rand::random::<u128>()));
                let file = options.create_new(true).open(&path)?;
                fs::remove_file(path)?;
                file
            }
        };
        Ok(SpoolFile {
            file,
            spool: self.clone(),
            unchecked: 0,
        })
    }
}

/// The reserve of a medium of `size` bytes.
fn reserve_of(size: u64) -> u64 {
    (size / RESERVE_DIVISOR).clamp(MIN_RESERVE_BYTES, MAX_RESERVE_BYTES)
}

/// A temporary file that stops before the medium is full.
#[derive(Debug)]
pub struct SpoolFile {
    pub(super) file: File,
    spool: Spool,
    unchecked: u64,
}

impl SpoolFile {
    /// Returns the file.
    #[must_use]
    pub fn into_file(self) -> File {
        self.file
    }
}

impl Write for SpoolFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.unchecked >= BYTES_PER_SPACE_CHECK {
            self.unchecked = 0;
            let checked = self.spool.check(BYTES_PER_SPACE_CHECK);
            checked.map_err(|error| io::Error::new(io::ErrorKind::StorageFull, error.to_string()))?;
        }
        let written = self.file.write(bytes)?;
        self.unchecked += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for SpoolFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// Tells a lack of space from other errors.
pub(super) fn to_save_error(error: io::Error) -> SaveError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            SaveError::NoSpace(format!("no space for a snapshot: {error}"))
        }
        _ => SaveError::Io(error),
    }
}
