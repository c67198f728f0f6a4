//! Directories of the former layout, which fjall wrote: converted once.
//!
//! Such a directory has a tree in `keyspaces/N`, whose tables are as those of today, and journals `N.jnl` with the batches that may be in
//! no table. These are checked, and written to tables of the tree. Then the tree is moved to its place of today: that is the moment from
//! which on the directory is converted. Until then a conversion that was cut short is begun again: the fence row in tables has the number
//! of its batch, and with it the batches that the journals repeat are left out.
//!
//! Each older journal must be whole, because it was synced before the next one was begun. The newest may end within a batch, as after a
//! crash. The numbers of the batches must be consecutive. A batch is a start (1, items: u32, sequence number: u64), items (2, kind: u8,
//! compression: u8, keyspace: u64, key length: u16, value length: u32, stored length: u32, key, value) and an end (3, xxh3-64 of the items:
//! u64, `FJL` 3), all little endian. Zeros fill the file up.

use std::fs::{self, File};
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use lsm_tree::{AbstractTree as _, SeqNo, Slice};
use xxhash_rust::xxh3::Xxh3;

use super::guard::caught;
use super::inspect::{self, TREE_DIR, damaged, is_gone, list, name, named};
use super::layout::{FENCE_ROW, FenceRow, parse_fence};
use super::tree::RowsTree;
use super::{LsmOptions, RowsOpenError};
use engine::rows::RowsError;
use runtime::kill_points;

const VERSION_FILE: &str = "version";
/// The contents of the version file of all former directories.
const VERSION: &[u8] = b"FJL\x03";
const KEYSPACES_DIR: &str = "keyspaces";
const META_KEYSPACE: &str = "0";
const JOURNAL_EXTENSION: &str = "jnl";
/// The extension of files with the ends of journals that former versions cut off.
const CUT_EXTENSION: &str = "cut";

const START_TAG: u8 = 1;
const ITEM_TAG: u8 = 2;
const END_TAG: u8 = 3;
const BATCH_TRAILER: [u8; 4] = *b"FJL\x03";

/// Longest value that a batch can hold. A longer length is damage.
const MAX_VALUE_BYTES: u32 = 1 << 30;

/// fjall counts batches and tables, and keeps the highest bit for itself.
const MAX_SEQUENCE: u64 = 1 << 48;

/// Converts a directory if it has the former layout; returns what was left out of its newest journal, as one line. `covers` refuses a
/// fence after which the log is not complete. An error leaves journals, and all that is in tables, as they were.
pub(super) fn convert(
    dir: &Path,
    options: &LsmOptions,
    covers: impl Fn(Option<Bytes>) -> anyhow::Result<()>,
) -> Result<Option<String>, RowsOpenError> {
    if !is_gone(&dir.join(TREE_DIR)) {
        remove_rest(dir)?;
        return Ok(None);
    }
    if is_gone(&dir.join(KEYSPACES_DIR)) && is_gone(&dir.join(VERSION_FILE)) {
        return Ok(None); // opening the tree reports that it is missing
    }
    let keyspace = check_keyspaces(dir)?;
    let journals = Journals::check(dir)?;
    let flaw = journals.flaw();
    let uncovered = |reason| RowsOpenError::Uncovered {
        flaw: flaw.clone().unwrap_or_default(),
        reason,
    };
    if let (Some(_), Some(fence)) = (&flaw, &journals.fence) {
        covers(Some(fence.clone())).map_err(uncovered)?;
    }
    let tree = RowsTree::open(&keyspace, options)?;
    let in_tables = journals.fit(dir, &tree)?;
    if flaw.is_some() {
        let fence = journals.fence.clone().or(in_tables.map(|row| row.fence));
        covers(fence).map_err(uncovered)?;
    }
    tracing::info!(
        batches = journals.sequences.len(),
        "writing the journals of the rows to tables: they are not needed any more"
    );
    journals.replay(&tree, options.table_bytes())?;
    drop(tree);
    kill_points::reach("rows-converted");
    fs::rename(&keyspace, dir.join(TREE_DIR)).map_err(|error| named(&keyspace, error))?;
    inspect::sync_dir(dir)?;
    remove_rest(dir)?;
    Ok(flaw)
}

/// Removes what a converted directory does not need.
fn remove_rest(dir: &Path) -> Result<(), RowsError> {
    let of_former = |path: &Path| {
        let extension = path.extension().unwrap_or_default();
        extension == JOURNAL_EXTENSION || extension == CUT_EXTENSION
    };
    let mut rest: Vec<PathBuf> = list(dir)?.into_iter().filter(|path| of_former(path)).collect();
    rest.push(dir.join(VERSION_FILE));
    for path in rest {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(named(&path, error)),
            _ => {}
        }
    }
    let keyspaces = dir.join(KEYSPACES_DIR);
    match fs::remove_dir_all(&keyspaces) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(named(&keyspaces, error)),
        _ => Ok(()),
    }
}

/// Checks that every file exists that fjall wrote, and returns the directory of the tree.
fn check_keyspaces(dir: &Path) -> Result<PathBuf, RowsOpenError> {
    let (version, keyspaces) = (dir.join(VERSION_FILE), dir.join(KEYSPACES_DIR));
    inspect::require(&version)?;
    inspect::require(&keyspaces)?;
    match inspect::read(&version)? {
        found if found == VERSION => {}
        found if found.starts_with(&VERSION[..3]) => return Err(RowsOpenError::Newer(version)),
        _ => return Err(damaged(&version, "does not hold a version of rows").into()),
    }
    let found = list(&keyspaces)?;
    let names: Vec<String> = found.iter().map(|path| name(path)).collect();
    let tree = found.iter().find(|path| name(path) != META_KEYSPACE);
    let Some(tree) = tree.filter(|tree| {
        found.len() == 2 && names.iter().any(|name| name == META_KEYSPACE) && name(tree).parse::<u64>().is_ok()
    }) else {
        let what = format!("holds {names:?}, expected {META_KEYSPACE:?} and one other number");
        return Err(damaged(&keyspaces, &what).into());
    };
    inspect::tree(tree)?;
    inspect::sweep(tree)?;
    Ok(tree.clone())
}

/// The journals of a directory, oldest first.
fn journals(dir: &Path) -> Result<Vec<PathBuf>, RowsError> {
    let mut journals = Vec::new();
    for path in list(dir)? {
        let extension = path.extension().unwrap_or_default();
        if !extension.eq_ignore_ascii_case(JOURNAL_EXTENSION) {
            continue;
        }
        let number = name(&path)
            .strip_suffix(".jnl")
            .and_then(|number| number.parse::<u64>().ok())
            .filter(|_| path.is_file());
        match number {
            Some(number) => journals.push((number, path)),
            None => return Err(damaged(&path, "is not the name of a journal")),
        }
    }
    if journals.is_empty() {
        return Err(RowsError::Corrupt(format!("no journal is left in {}", dir.display())));
    }
    journals.sort();
    Ok(journals.into_iter().map(|(_, path)| path).collect())
}

/// The contents of the journals.
#[derive(Debug, Default)]
pub(super) struct Journals {
    paths: Vec<PathBuf>,
    /// Number of the first batch.
    first: u64,
    /// The sequence number of each batch, ascending.
    sequences: Vec<SeqNo>,
    /// The fence of the last batch.
    fence: Option<Bytes>,
    /// Offset in the newest journal at which its last whole batch ends.
    end: u64,
    /// The damage after that offset.
    flaw: Option<&'static str>,
}

impl Journals {
    /// Reads all journals. Changes nothing.
    pub(super) fn check(dir: &Path) -> Result<Self, RowsError> {
        let mut journals = Self {
            paths: journals(dir)?,
            ..Self::default()
        };
        for (at, path) in journals.paths.clone().iter().enumerate() {
            let (end, flaw) = journals.read(path)?;
            if at + 1 == journals.paths.len() {
                (journals.end, journals.flaw) = (end, flaw);
            } else if let Some(flaw) = flaw {
                return Err(damaged(path, &format!("is damaged at byte {end}: {flaw}")));
            }
        }
        Ok(journals)
    }

    /// The place and the reason of the damage of the newest journal, as one line.
    fn flaw(&self) -> Option<String> {
        let (newest, flaw) = (self.paths.last()?, self.flaw?);
        Some(format!("{} ends at byte {}: {flaw}", newest.display(), self.end))
    }

    /// Reads one journal; returns the end of its last whole batch, and the damage after it.
    fn read(&mut self, path: &Path) -> Result<(u64, Option<&'static str>), RowsError> {
        let mut reader = JournalReader::open(path)?;
        let mut end = 0;
        loop {
            match reader.batch() {
                Ok(Some(batch)) => {
                    self.follow(&batch)
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

    fn follow(&mut self, batch: &JournalBatch) -> Result<(), String> {
        let fence = batch.fence().ok_or("is a batch without a fence")?;
        let (number, next) = (fence.batch, self.first + self.sequences.len() as u64);
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
        self.fence = Some(fence.fence);
        Ok(())
    }

    /// Forgets the batches after this one.
    #[cfg(test)]
    pub(super) fn forget_after(&mut self, batch: u64) {
        self.sequences
            .truncate(usize::try_from(batch + 1 - self.first).unwrap_or(usize::MAX));
    }

    /// Checks that no batch is missing between tables and journals; returns the fence in tables. fjall left batches out up to the
    /// highest sequence number in tables: these must be those that are in tables.
    fn fit(&self, dir: &Path, tree: &RowsTree) -> Result<Option<FenceRow>, RowsError> {
        let (highest, stored) = (tree.get_highest_persisted_seqno(), tree.fence(tree.visible())?);
        let in_tables = stored.as_ref().map_or(0, |row| row.batch);
        let skipped = self.sequences.partition_point(|&sequence| Some(sequence) <= highest) as u64;
        match self.sequences.len() as u64 {
            0 => Ok(stored),
            _ if self.first + skipped == in_tables + 1 => Ok(stored),
            length => Err(damaged(
                dir,
                &format!(
                    "has batches up to {in_tables} in tables, but {length} batches from {} on in journals, {skipped} of them skipped",
                    self.first
                ),
            )),
        }
    }

    /// Writes the batches that are in no table to tables of about this many bytes.
    pub(super) fn replay(&self, tree: &RowsTree, table_bytes: u64) -> Result<(), RowsError> {
        let highest = tree.get_highest_persisted_seqno();
        let mut left = self.sequences.len();
        for path in &self.paths {
            let mut reader = JournalReader::open(path)?;
            while left > 0
                && let Some(batch) = reader.batch().map_err(|flaw| flaw.changed(path))?
            {
                left -= 1;
                if Some(batch.sequence) <= highest {
                    continue;
                }
                batch.insert(tree);
                if tree.active_memtable().size() >= table_bytes {
                    caught(|| tree.flush_active_memtable(0))?;
                }
            }
        }
        caught(|| tree.flush_active_memtable(0))
    }
}

#[derive(Debug)]
struct JournalItem {
    key: Vec<u8>,
    value: Vec<u8>,
    is_deletion: bool,
}

#[derive(Debug)]
struct JournalBatch {
    sequence: SeqNo,
    items: Vec<JournalItem>,
}

impl JournalBatch {
    fn fence(&self) -> Option<FenceRow> {
        let item = self.items.iter().rfind(|item| item.key == FENCE_ROW)?;
        parse_fence(&item.value)
    }

    fn insert(self, tree: &RowsTree) {
        for JournalItem {
            key,
            value,
            is_deletion,
        } in self.items
        {
            match is_deletion {
                true => tree.remove(Slice::from(key), self.sequence),
                false => tree.insert(Slice::from(key), Slice::from(value), self.sequence),
            };
        }
    }
}

enum JournalFlaw {
    Content(&'static str),
    Io(std::io::Error),
}

impl JournalFlaw {
    /// The error of a journal that was whole when it was read before.
    fn changed(self, path: &Path) -> RowsError {
        match self {
            JournalFlaw::Content(flaw) => damaged(path, &format!("has changed while it was read: {flaw}")),
            JournalFlaw::Io(error) => named(path, error),
        }
    }
}

impl From<std::io::Error> for JournalFlaw {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

struct JournalReader {
    inner: BufReader<File>,
    position: u64,
}

impl JournalReader {
    fn open(path: &Path) -> Result<Self, RowsError> {
        let file = File::open(path).map_err(|error| named(path, error))?;
        Ok(Self {
            inner: BufReader::with_capacity(1 << 16, file),
            position: 0,
        })
    }

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
        let count = u32::from_le_bytes(self.array()?);
        let sequence = u64::from_le_bytes(self.array()?);
        let mut sum = Xxh3::new();
        // The count is in no checksum: no memory is reserved for it.
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(self.item(&mut sum)?);
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
        Ok(Some(JournalBatch { sequence, items }))
    }

    fn item(&mut self, sum: &mut Xxh3) -> Result<JournalItem, JournalFlaw> {
        let head: [u8; 21] = self.array()?;
        let [ITEM_TAG, kind, compression, .., l0, l1, l2, l3, s0, s1, s2, s3] = head else {
            return Err(JournalFlaw::Content("an item does not begin here"));
        };
        let key_len = u16::from_le_bytes([head[11], head[12]]);
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        if kind > 1
            || compression != 0
            || key_len == 0
            || length != u32::from_le_bytes([s0, s1, s2, s3])
            || length > MAX_VALUE_BYTES
        {
            return Err(JournalFlaw::Content("the head of an item is wrong"));
        }
        sum.update(&head);
        let (key, value) = (self.bytes(key_len.into())?, self.bytes(length.into())?);
        sum.update(&key);
        sum.update(&value);
        Ok(JournalItem {
            key,
            value,
            is_deletion: kind == 1,
        })
    }

    fn bytes(&mut self, length: u64) -> Result<Vec<u8>, JournalFlaw> {
        let mut bytes = Vec::new();
        let read = (&mut self.inner).take(length).read_to_end(&mut bytes)?;
        if read as u64 != length {
            return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into());
        }
        self.position += length;
        Ok(bytes)
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
