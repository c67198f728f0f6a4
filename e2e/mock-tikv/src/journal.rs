//! The data file: batches of changes one after another, each with its length and checksum.
//!
//! The file is only ever appended to. A record that is cut off at the end of the file was never answered and is dropped; a damaged record
//! with anything after it is an error.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use prost::Message;

use crate::change::Batch;

/// Start of the file: a name and the version of the format.
const JOURNAL_MAGIC: &[u8; 8] = b"kbtikv\x00\x01";
/// Length and checksum, four bytes each, little endian.
const RECORD_HEADER_BYTES: usize = 8;

/// Reason that a data file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("{path} is not a data file of this program and version", path = .0.display())]
    Foreign(PathBuf),
    #[error("{path} is damaged at offset {offset}", path = path.display())]
    Damaged { path: PathBuf, offset: u64 },
    #[error("{path} is in use by another mock", path = .0.display())]
    InUse(PathBuf),
    #[error("cannot use {path}", path = path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// An open data file.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    written: u64,
    synced: u64,
}

/// A record as it was found.
enum Record {
    Whole(Batch, u64),
    /// The bytes end in the middle of it.
    Torn,
    Bad,
}

impl Journal {
    /// Opens or creates the file, locks it for this process, and passes every batch in it to `replay`, in order. Syncs the records that
    /// it has read before it returns.
    pub(crate) fn open(path: &Path, replay: impl FnMut(Batch)) -> Result<Self, JournalError> {
        let io = |source| JournalError::Io {
            path: path.to_owned(),
            source,
        };
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(JournalError::InUse(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(io(error)),
        }
        let mut journal = Self {
            path: path.to_owned(),
            file,
            written: 0,
            synced: 0,
        };
        if journal.file.metadata().map_err(io)?.len() == 0 {
            journal.file.write_all(JOURNAL_MAGIC).map_err(io)?;
            sync_directory(path).map_err(io)?;
        }
        journal.replay(replay)?;
        Ok(journal)
    }

    /// Forgets what was written after the last sync, as a power loss would, and reads the rest again.
    pub(crate) fn drop_tail(&mut self, replay: impl FnMut(Batch)) -> Result<(), JournalError> {
        self.file.set_len(self.synced).map_err(|source| self.error(source))?;
        self.replay(replay)
    }

    /// Reads everything that is written again.
    pub(crate) fn replay(&mut self, mut replay: impl FnMut(Batch)) -> Result<(), JournalError> {
        let length = self.file.metadata().map_err(|source| self.error(source))?.len();
        self.file
            .seek(SeekFrom::Start(0))
            .map_err(|source| self.error(source))?;
        let mut reader = BufReader::with_capacity(1 << 20, &self.file);
        let mut magic = [0; JOURNAL_MAGIC.len()];
        if reader.read_exact(&mut magic).is_err() || magic != *JOURNAL_MAGIC {
            return Err(JournalError::Foreign(self.path.clone()));
        }
        let mut offset = JOURNAL_MAGIC.len() as u64;
        while offset < length {
            match read_record(&mut reader, length - offset).map_err(|source| self.error(source))? {
                Record::Whole(batch, size) => {
                    replay(batch);
                    offset += size;
                }
                Record::Torn => break,
                Record::Bad => {
                    return Err(JournalError::Damaged {
                        path: self.path.clone(),
                        offset,
                    });
                }
            }
        }
        drop(reader);
        self.file.set_len(offset).map_err(|source| self.error(source))?;
        self.file
            .seek(SeekFrom::Start(offset))
            .map_err(|source| self.error(source))?;
        self.written = offset;
        self.sync()
    }

    /// Appends the batches with one write. They are safe from a crash of this process, not from one of the machine.
    pub(crate) fn write<'a>(&mut self, batches: impl IntoIterator<Item = &'a Batch>) -> Result<(), JournalError> {
        let mut bytes = Vec::new();
        for batch in batches {
            let payload = batch.encode_to_vec();
            let length = u32::try_from(payload.len()).map_err(|_| {
                self.error(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "a batch of more than 4 GiB",
                ))
            })?;
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(&crc32c::crc32c(&payload).to_le_bytes());
            bytes.extend_from_slice(&payload);
        }
        self.file.write_all(&bytes).map_err(|source| self.error(source))?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Makes all that is written safe.
    pub(crate) fn sync(&mut self) -> Result<(), JournalError> {
        self.file.sync_data().map_err(|source| self.error(source))?;
        self.synced = self.written;
        Ok(())
    }

    fn error(&self, source: io::Error) -> JournalError {
        JournalError::Io {
            path: self.path.clone(),
            source,
        }
    }
}

/// Reads one record of at most `left` bytes. One that is whole but wrong is torn if it is the last, else damaged.
fn read_record(reader: &mut impl Read, left: u64) -> io::Result<Record> {
    if left < RECORD_HEADER_BYTES as u64 {
        return Ok(Record::Torn);
    }
    let mut word = [0; 4];
    reader.read_exact(&mut word)?;
    let length = u64::from(u32::from_le_bytes(word));
    reader.read_exact(&mut word)?;
    let checksum = u32::from_le_bytes(word);
    let size = RECORD_HEADER_BYTES as u64 + length;
    if size > left {
        return Ok(Record::Torn);
    }
    let mut payload = vec![0; length as usize];
    reader.read_exact(&mut payload)?;
    if crc32c::crc32c(&payload) != checksum {
        return Ok(if size == left { Record::Torn } else { Record::Bad });
    }
    Ok(Batch::decode(&payload[..]).map_or(Record::Bad, |batch| Record::Whole(batch, size)))
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

#[cfg(test)]
mod tests;
