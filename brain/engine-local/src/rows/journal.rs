//! Reads fjall's journals before fjall does.
//!
//! fjall ends a journal at the first entry that it cannot parse, without a message, and continues with the next journal: batches are
//! then missing in the middle. And it refuses a journal whose last batch is incomplete, as it is after a power failure. So each older
//! journal must be whole, because fjall synced it before it began the next one. The newest is cut after its last whole batch, and the
//! bytes that are cut off are kept in a file beside it. The numbers of the batches, which the fence rows carry, must be consecutive.
//!
//! A kernel that fails to write a page may forget that it is dirty: the page still reads well, but is lost with the power, and a later
//! sync does not report it. On ext4 not even another write to the page helps while it is in memory: it goes to blocks that the file no
//! longer has after a loss of power. So the newest journal is read as it is on the device, and anything missing there is cut off as an
//! incomplete end. The rest is written once more, in place, and synced before anything relies on it: a file system may keep pages that
//! it was asked to drop.
//!
//! A batch is a start (1, items: u32, sequence number: u64), items (2, kind: u8, compression: u8, keyspace: u64, key length: u16,
//! value length: u32, stored length: u32, key, value) and an end (3, xxh3-64 of the items: u64, `FJL` 3), all little endian. Zeros fill
//! the file up.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rustix::fs::{Advice, fadvise};
use xxhash_rust::xxh3::Xxh3;

use super::inspect::{self, damaged, named};
use super::layout::{FENCE_ROW, parse_fence};
use engine::rows::RowsError;

const START_TAG: u8 = 1;
const ITEM_TAG: u8 = 2;
const END_TAG: u8 = 3;
/// The suffix of files that hold the bytes that were cut off.
const CUT_TAIL_SUFFIX: &str = ".jnl.cut";

const BATCH_TRAILER: [u8; 4] = *b"FJL\x03";

/// Longest value that a batch can hold. A longer length is damage, and must not cause an allocation of that size.
const MAX_VALUE_BYTES: u32 = 1 << 30;

/// fjall counts batches and tables, and keeps the highest bit for itself.
const MAX_SEQUENCE: u64 = 1 << 48;

/// The contents of the journals.
#[derive(Debug, Default)]
pub(super) struct Journals {
    /// Number of the first batch.
    pub(super) first: u64,
    /// fjall's sequence number of each batch, ascending.
    pub(super) sequences: Vec<u64>,
    /// The fence of the last batch.
    pub(super) fence: Option<Bytes>,
    newest: PathBuf,
    /// Offset in the newest journal at which its last whole batch ends.
    end: u64,
    /// The damage after that offset.
    flaw: Option<&'static str>,
}

/// Reads all journals, the newest one from the device. Changes nothing.
pub(super) fn check(dir: &Path) -> Result<Journals, RowsError> {
    let mut journals = Journals::default();
    let paths = inspect::journals(dir)?;
    if let Some(newest) = paths.last() {
        drop_pages(newest).map_err(|error| named(newest, error))?;
    }
    for (index, path) in paths.iter().enumerate() {
        let (end, flaw) = journals.read(path)?;
        if index + 1 == paths.len() {
            (journals.newest, journals.end, journals.flaw) = (path.clone(), end, flaw);
        } else if let Some(flaw) = flaw {
            return Err(damaged(path, &format!("is damaged at byte {end}: {flaw}")));
        }
    }
    Ok(journals)
}

/// The bytes that were cut off a journal, as long as they may be needed.
pub(super) struct JournalCut {
    journal: PathBuf,
    end: u64,
    tail: Vec<u8>,
    length: u64,
    /// The file that holds the tail, if there was space for it.
    pub(super) kept: Option<PathBuf>,
}

impl Journals {
    /// Returns the place and the reason of the cut that the newest journal needs, as one line; `None` if it needs none.
    pub(super) fn flaw(&self) -> Option<String> {
        let flaw = self.flaw?;
        Some(format!("{} ends at byte {}: {flaw}", self.newest.display(), self.end))
    }

    /// Syncs the whole batches of the newest journal, and cuts off the bytes after them.
    pub(super) fn settle(&self) -> Result<Option<JournalCut>, RowsError> {
        let (path, end) = (&self.newest, self.end);
        renew(path, end).map_err(|error| named(path, error))?;
        if self.flaw.is_none() {
            return Ok(None);
        }
        let cut = JournalCut::read(path, end).map_err(|error| named(path, error))?;
        let kept = match keep(path, &cut.tail) {
            Ok(kept) => Some(kept),
            // Without whole batches in journals only fjall knows the rows in tables: it must be possible to undo the cut.
            Err(error) if self.fence.is_none() => return Err(named(path, error)),
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "cannot save the truncated part of a journal");
                None
            }
        };
        shorten(path, end).map_err(|error| named(path, error))?;
        Ok(Some(JournalCut { kept, ..cut }))
    }

    /// Reads one journal; returns the end of its last whole batch, and the damage after it.
    fn read(&mut self, path: &Path) -> Result<(u64, Option<&'static str>), RowsError> {
        let file = File::open(path).map_err(|error| named(path, error))?;
        let mut reader = JournalReader {
            inner: BufReader::with_capacity(1 << 16, file),
            position: 0,
        };
        let mut end = 0;
        loop {
            match reader.batch() {
                Ok(Some(batch)) => {
                    self.follow(batch)
                        .map_err(|flaw| damaged(path, &format!("at byte {end} {flaw}")))?;
                    end = reader.position;
                }
                Ok(None) => return Ok((end, None)),
                Err(JournalFlaw::Content(flaw)) => return Ok((end, Some(flaw))),
                Err(JournalFlaw::Io(error)) if error.kind() == ErrorKind::UnexpectedEof => {
                    return Ok((end, Some("the file ends within a batch")));
                }
                Err(JournalFlaw::Io(error)) => return Err(named(path, error)),
            }
        }
    }

    fn follow(&mut self, batch: JournalBatch) -> Result<(), String> {
        let (number, fence) = batch.fence.ok_or("is a batch without a fence")?;
        let next = self.first + self.sequences.len() as u64;
        match self.sequences.last() {
            None => self.first = number,
            Some(_) if number != next => return Err(format!("is batch {number}, expected {next}")),
            Some(&before) if batch.sequence <= before => {
                return Err(format!("sequence number {} does not increase", batch.sequence));
            }
            Some(_) => {}
        }
        if batch.sequence > MAX_SEQUENCE {
            return Err(format!("sequence number {} is too large", batch.sequence));
        }
        self.sequences.push(batch.sequence);
        self.fence = Some(fence);
        Ok(())
    }
}

/// Drops the pages of a file from memory.
fn drop_pages(path: &Path) -> std::io::Result<()> {
    let file = File::open(path)?;
    // Only clean pages can be dropped.
    file.sync_all()?;
    Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
}

/// Writes the first `end` bytes once more. It needs no space.
fn renew(path: &Path, end: u64) -> std::io::Result<()> {
    if end == 0 {
        return Ok(());
    }
    let file = File::options().read(true).write(true).open(path)?;
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < end {
        let part = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
        file.read_exact_at(&mut buffer[..part], at)?;
        file.write_all_at(&buffer[..part], at)?;
        at += part as u64;
    }
    file.sync_all()
}

fn shorten(path: &Path, end: u64) -> std::io::Result<()> {
    let file = File::options().write(true).open(path)?;
    file.set_len(end)?;
    file.sync_all()
}

/// Writes the bytes that are cut off the journal `path` to a file beside it, which replaces that of an earlier cut.
fn keep(path: &Path, tail: &[u8]) -> std::io::Result<PathBuf> {
    let dir = path.parent().unwrap_or(path);
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?.path();
        if entry.to_string_lossy().ends_with(CUT_TAIL_SUFFIX) {
            std::fs::remove_file(entry)?;
        }
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".cut");
    let kept = path.with_file_name(name);
    let write = || {
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&kept)?;
        file.write_all_at(tail, 0)?;
        file.sync_all()?;
        File::open(dir)?.sync_all()
    };
    if let Err(error) = write() {
        // A file that remains does no harm: it is never read. The first error is the one to report.
        std::fs::remove_file(&kept).ok();
        return Err(error);
    }
    Ok(kept)
}

impl JournalCut {
    /// Reads the bytes after `end`, without the zeros that fill the file up.
    fn read(path: &Path, end: u64) -> std::io::Result<Self> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut tail = vec![0; usize::try_from(length.saturating_sub(end)).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut tail, end)?;
        let used = tail.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        tail.truncate(used);
        Ok(Self {
            journal: path.to_owned(),
            end,
            tail,
            length,
            kept: None,
        })
    }

    /// Puts the journal back as it was, as long as nothing was written to it.
    pub(super) fn undo(self) -> Result<(), RowsError> {
        let restore = || {
            let file = File::options().write(true).open(&self.journal)?;
            file.write_all_at(&self.tail, self.end)?;
            file.set_len(self.length)?;
            file.sync_all()?;
            self.kept.as_ref().map_or(Ok(()), std::fs::remove_file)
        };
        restore().map_err(|error| named(&self.journal, error))
    }
}

struct JournalBatch {
    sequence: u64,
    fence: Option<(u64, Bytes)>,
}

enum JournalFlaw {
    Content(&'static str),
    Io(std::io::Error),
}

impl From<std::io::Error> for JournalFlaw {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

struct JournalReader<R> {
    inner: R,
    position: u64,
}

impl<R: Read> JournalReader<R> {
    /// The next batch; `None` where nothing but zeros, or nothing at all, is left.
    fn batch(&mut self) -> Result<Option<JournalBatch>, JournalFlaw> {
        let mut tag = [0];
        if self.inner.read(&mut tag)? == 0 {
            return Ok(None);
        }
        self.position += 1;
        match tag {
            [START_TAG] => {}
            [0] if self.only_zeros()? => return Ok(None),
            _ => return Err(JournalFlaw::Content("a batch does not begin here")),
        }
        let items = u32::from_le_bytes(self.array()?);
        let sequence = u64::from_le_bytes(self.array()?);
        let mut sum = Xxh3::new();
        let mut fence = None;
        for _ in 0..items {
            fence = self.item(&mut sum)?.or(fence);
        }
        if self.array()? != [END_TAG] {
            return Err(JournalFlaw::Content("the batch does not end after its items"));
        }
        if u64::from_le_bytes(self.array()?) != sum.digest() {
            return Err(JournalFlaw::Content("the checksum of the batch is wrong"));
        }
        if self.array()? != BATCH_TRAILER {
            return Err(JournalFlaw::Content("the batch has no trailer"));
        }
        Ok(Some(JournalBatch { sequence, fence }))
    }

    /// Reads an item into the checksum: the number and the fence in it if it is the fence.
    fn item(&mut self, sum: &mut Xxh3) -> Result<Option<(u64, Bytes)>, JournalFlaw> {
        let head: [u8; 21] = self.array()?;
        let [ITEM_TAG, kind, compression, .., l0, l1, l2, l3, s0, s1, s2, s3] = head else {
            return Err(JournalFlaw::Content("an item does not begin here"));
        };
        let key_len = u16::from_le_bytes([head[11], head[12]]);
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        if kind > 1 || compression != 0 || length != u32::from_le_bytes([s0, s1, s2, s3]) || length > MAX_VALUE_BYTES {
            return Err(JournalFlaw::Content("the head of an item is wrong"));
        }
        sum.update(&head);
        if usize::from(key_len) == FENCE_ROW.len() {
            let key: [u8; 1] = self.array()?;
            sum.update(&key);
            if key == FENCE_ROW {
                let mut value = Vec::new();
                self.bytes(length.into(), |part| {
                    sum.update(part);
                    value.extend_from_slice(part);
                })?;
                return Ok(parse_fence(&value));
            }
            self.bytes(length.into(), |part| sum.update(part))?;
        } else {
            self.bytes(u64::from(key_len) + u64::from(length), |part| sum.update(part))?;
        }
        Ok(None)
    }

    fn bytes(&mut self, mut left: u64, mut take: impl FnMut(&[u8])) -> std::io::Result<()> {
        let mut buffer = [0; 8192];
        while left > 0 {
            let part = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            self.inner.read_exact(&mut buffer[..part])?;
            take(&buffer[..part]);
            self.position += part as u64;
            left -= part as u64;
        }
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> std::io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes)?;
        self.position += N as u64;
        Ok(bytes)
    }

    fn only_zeros(&mut self) -> std::io::Result<bool> {
        let mut buffer = [0; 8192];
        loop {
            match self.inner.read(&mut buffer)? {
                0 => return Ok(true),
                length if buffer[..length].iter().any(|&byte| byte != 0) => return Ok(false),
                _ => {}
            }
        }
    }
}
