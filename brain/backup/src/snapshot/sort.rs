//! Sorts versions by revision with bounded memory: sorted runs on disk, merged in the end.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};

use super::spool::{Spool, SpoolFile};
use etcd_types::types::Revision;
use mvcc::dictionaries::Dictionaries;

/// Bytes of versions that are sorted in memory, and of buffers when runs are merged.
const SORT_MEMORY_BYTES: usize = 16 << 20;

/// Memory that a version takes beside its bytes.
const VERSION_OVERHEAD_BYTES: usize = 128;

/// The smallest and the largest buffer of a run.
const MIN_RUN_BUFFER_BYTES: usize = 16 << 10;
const MAX_RUN_BUFFER_BYTES: usize = 256 << 10;

/// Bytes in front of key and value on disk: revision, kind, two lengths.
const VERSION_HEADER_BYTES: usize = 8 + 1 + 4 + 4;

/// Bits of the kind on disk.
const PUT: u8 = 1;
const COMPRESSED: u8 = 2;

/// A version. The order of its fields is the order of versions in the file: a deletion and the put that recreates its key have the
/// same revision.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SortedVersion {
    pub(super) revision: Revision,
    pub(super) key: Bytes,
    pub(super) is_put: bool,
    /// As etcd stores it.
    pub(super) value: Bytes,
}

/// Collects versions.
#[derive(Debug)]
pub(super) struct VersionSorter {
    spool: Spool,
    dictionaries: Arc<Dictionaries>,
    memory: usize,
    entries: Vec<SortedVersion>,
    bytes: usize,
    runs: Vec<(u64, u64)>,
    file: Option<BufWriter<SpoolFile>>,
    written: u64,
}

impl VersionSorter {
    /// With values compressed as the rows are that have these dictionaries.
    pub(super) fn new(spool: Spool, dictionaries: Arc<Dictionaries>) -> Self {
        Self::within(spool, dictionaries, SORT_MEMORY_BYTES)
    }

    pub(super) fn within(spool: Spool, dictionaries: Arc<Dictionaries>, memory: usize) -> Self {
        Self {
            spool,
            dictionaries,
            memory,
            entries: Vec::new(),
            bytes: 0,
            runs: Vec::new(),
            file: None,
            written: 0,
        }
    }

    pub(super) fn push(&mut self, entry: SortedVersion) -> io::Result<()> {
        self.bytes += entry.key.len() + entry.value.len() + VERSION_OVERHEAD_BYTES;
        self.entries.push(entry);
        if self.bytes >= self.memory {
            self.spill()?;
        }
        Ok(())
    }

    /// Writes what is in memory as a run.
    fn spill(&mut self) -> io::Result<()> {
        self.entries.sort_unstable();
        let out = match &mut self.file {
            Some(file) => file,
            none => none.insert(BufWriter::with_capacity(MAX_RUN_BUFFER_BYTES, self.spool.file()?)),
        };
        let from = self.written;
        for entry in self.entries.drain(..) {
            let len = |bytes: &Bytes| u32::try_from(bytes.len()).map_err(|_| io::Error::other("a version is too long"));
            let put = if entry.is_put { PUT } else { 0 };
            let (value, kind) = match self.dictionaries.compress(&entry.value) {
                Some(frame) => (frame, put | COMPRESSED),
                None => (entry.value, put),
            };
            out.write_all(&entry.revision.to_be_bytes())?;
            out.write_all(&[kind])?;
            out.write_all(&len(&entry.key)?.to_be_bytes())?;
            out.write_all(&len(&value)?.to_be_bytes())?;
            out.write_all(&entry.key)?;
            out.write_all(&value)?;
            self.written += (VERSION_HEADER_BYTES + entry.key.len() + value.len()) as u64;
        }
        self.runs.push((from, self.written));
        self.bytes = 0;
        Ok(())
    }

    /// Returns all versions in order.
    pub(super) fn finish(mut self) -> io::Result<SortedVersions> {
        if self.file.is_none() {
            self.entries.sort_unstable();
            return Ok(SortedVersions::Memory(self.entries.into()));
        }
        if !self.entries.is_empty() {
            self.spill()?;
        }
        let file = self.file.take().ok_or_else(|| io::Error::other("there is no file"))?;
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        let buffer = (self.memory / self.runs.len().max(1)).clamp(MIN_RUN_BUFFER_BYTES, MAX_RUN_BUFFER_BYTES);
        let mut runs = Vec::with_capacity(self.runs.len());
        let mut heads = BinaryHeap::with_capacity(self.runs.len());
        for (index, (from, to)) in self.runs.into_iter().enumerate() {
            let mut run = SortedRun {
                buffer: Bytes::new(),
                most: buffer,
                from,
                to,
            };
            if let Some(head) = run.next(&file)? {
                heads.push(Reverse((head, index)));
            }
            runs.push(run);
        }
        Ok(SortedVersions::Disk {
            file,
            dictionaries: self.dictionaries,
            runs,
            heads,
        })
    }
}

/// Versions in order.
#[derive(Debug)]
pub(super) enum SortedVersions {
    Memory(VecDeque<SortedVersion>),
    Disk {
        file: SpoolFile,
        dictionaries: Arc<Dictionaries>,
        runs: Vec<SortedRun>,
        heads: BinaryHeap<Reverse<(RunHead, usize)>>,
    },
}

/// The next version of a run, in the order of versions.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RunHead {
    revision: Revision,
    key: Bytes,
    kind: u8,
    value: HeadValue,
}

/// The value of a [`RunHead`], as it is on disk: there are as many heads as runs, and values may be long.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum HeadValue {
    Read(Bytes),
    /// The position of the value in the file, and its length.
    At(u64, usize),
}

impl RunHead {
    fn into_entry(self, file: &SpoolFile, dictionaries: &Dictionaries) -> io::Result<SortedVersion> {
        let value = match self.value {
            HeadValue::Read(value) => value,
            HeadValue::At(from, len) => {
                let mut value = vec![0; len];
                file.file.read_exact_at(&mut value, from)?;
                value.into()
            }
        };
        let value = match self.kind & COMPRESSED {
            0 => value,
            _ => dictionaries
                .decompress(&value)
                .ok_or_else(|| io::Error::other("a value does not decompress"))?,
        };
        Ok(SortedVersion {
            revision: self.revision,
            key: self.key,
            is_put: self.kind & PUT != 0,
            value,
        })
    }
}

impl SortedVersions {
    pub(super) fn next(&mut self) -> io::Result<Option<SortedVersion>> {
        match self {
            SortedVersions::Memory(entries) => Ok(entries.pop_front()),
            SortedVersions::Disk {
                file,
                dictionaries,
                runs,
                heads,
            } => {
                let Some(Reverse((head, index))) = heads.pop() else {
                    return Ok(None);
                };
                if let Some(run) = runs.get_mut(index)
                    && let Some(next) = run.next(file)?
                {
                    heads.push(Reverse((next, index)));
                }
                head.into_entry(file, dictionaries).map(Some)
            }
        }
    }
}

/// A sorted part of the file.
#[derive(Debug)]
pub(super) struct SortedRun {
    buffer: Bytes,
    most: usize,
    /// Not read yet.
    from: u64,
    to: u64,
}

impl SortedRun {
    fn next(&mut self, file: &SpoolFile) -> io::Result<Option<RunHead>> {
        if self.buffer.is_empty() && self.from == self.to {
            return Ok(None);
        }
        self.fill(file, VERSION_HEADER_BYTES)?;
        let (revision, kind) = (self.buffer.get_i64(), self.buffer.get_u8());
        let (key, value) = (self.buffer.get_u32() as usize, self.buffer.get_u32() as usize);
        let is_short = key + value <= self.most;
        self.fill(file, if is_short { key + value } else { key })?;
        // The buffer is not to be held as long as the head.
        let copied = |bytes: Bytes| Bytes::copy_from_slice(&bytes);
        Ok(Some(RunHead {
            revision,
            key: copied(self.buffer.split_to(key)),
            kind,
            value: if is_short {
                HeadValue::Read(copied(self.buffer.split_to(value)))
            } else {
                self.skip(value)
            },
        }))
    }

    /// Continues after a value without reading it.
    fn skip(&mut self, len: usize) -> HeadValue {
        let at = self.from - self.buffer.len() as u64;
        let buffered = len.min(self.buffer.len());
        self.buffer.advance(buffered);
        self.from += (len - buffered) as u64;
        HeadValue::At(at, len)
    }

    /// Makes at least `len` bytes available.
    fn fill(&mut self, file: &SpoolFile, len: usize) -> io::Result<()> {
        if self.buffer.len() >= len {
            return Ok(());
        }
        let rest = usize::try_from(self.to - self.from).unwrap_or(usize::MAX);
        let more = self.most.max(len - self.buffer.len()).min(rest);
        let mut buffer = Vec::with_capacity(self.buffer.len() + more);
        buffer.extend_from_slice(&self.buffer);
        let old = buffer.len();
        buffer.resize(old + more, 0);
        file.file.read_exact_at(&mut buffer[old..], self.from)?;
        self.from += more as u64;
        self.buffer = buffer.into();
        if self.buffer.len() < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_sorted_in_memory_and_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        for memory in [usize::MAX, 4_000, 1] {
            let mut sorter = VersionSorter::within(Spool::new(dir.path()), Arc::default(), memory);
            for n in 0..500_i64 {
                let (revision, is_put) = (n * 7 % 101, n % 3 > 0);
                let entry = SortedVersion {
                    revision,
                    key: format!("key-{n:03}").into(),
                    is_put,
                    value: vec![7; usize::try_from(n).unwrap() * 3].into(),
                };
                sorter.push(entry).unwrap();
            }
            let mut sorted = sorter.finish().unwrap();
            let mut all = Vec::new();
            while let Some(entry) = sorted.next().unwrap() {
                assert_eq!(entry.value.len() % 3, 0);
                all.push(entry);
            }
            assert_eq!(all.len(), 500, "within {memory}");
            assert!(all.is_sorted(), "within {memory}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn long_values_of_many_runs_are_not_in_memory_together() {
        const LONG: usize = 100_000;
        const MEMORY: usize = 4 * LONG;
        // They do not compress.
        let random: Vec<u8> = (0..LONG).map(|_| rand::random()).collect();
        let value = |n: u16| Bytes::from([&n.to_be_bytes(), &random[2..]].concat());
        let dir = tempfile::tempdir().unwrap();
        let mut sorter = VersionSorter::within(Spool::new(dir.path()), Arc::default(), MEMORY);
        for n in 0..400_u16 {
            let entry = SortedVersion {
                revision: i64::from(n * 7 % 401),
                key: "key".into(),
                is_put: true,
                value: value(n),
            };
            sorter.push(entry).unwrap();
        }
        let mut sorted = sorter.finish().unwrap();
        let mut seen = Vec::new();
        loop {
            let SortedVersions::Disk { runs, heads, .. } = &sorted else {
                panic!("it fits into memory");
            };
            let held = |head: &RunHead| match &head.value {
                HeadValue::Read(value) => value.len(),
                HeadValue::At(..) => 0,
            };
            let held: usize = heads.iter().map(|Reverse((head, _))| held(head)).sum();
            let buffered: usize = runs.iter().map(|run| run.buffer.len()).sum();
            assert!(
                held + buffered <= 100 * MIN_RUN_BUFFER_BYTES * 2,
                "{held} and {buffered} bytes"
            );
            let Some(entry) = sorted.next().unwrap() else { break };
            let number = u16::from_be_bytes([entry.value[0], entry.value[1]]);
            assert_eq!(entry.value, value(number));
            assert_eq!(entry.revision, i64::from(number * 7 % 401));
            seen.push(entry.revision);
        }
        assert!(seen.len() == 400 && seen.is_sorted());
    }

    #[test]
    fn similar_values_take_little_space_until_they_are_sorted() {
        let dir = tempfile::tempdir().unwrap();
        let mut sorter = VersionSorter::within(Spool::new(dir.path()), Arc::default(), 100_000);
        for revision in (0..1_000).rev() {
            let entry = SortedVersion {
                revision,
                key: "key".into(),
                is_put: revision % 2 == 0,
                value: format!("{revision}").repeat(2_000).into(),
            };
            sorter.push(entry).unwrap();
        }
        let mut sorted = sorter.finish().unwrap();
        let SortedVersions::Disk { file, .. } = &sorted else {
            panic!("it fits into memory");
        };
        let bytes = file.file.metadata().unwrap().len();
        assert!(bytes < 200_000, "{bytes} bytes of 5.8 million");
        for revision in 0..1_000 {
            let entry = sorted.next().unwrap().unwrap();
            assert_eq!((entry.revision, entry.is_put), (revision, revision % 2 == 0));
            assert_eq!(entry.value, format!("{revision}").repeat(2_000));
        }
        assert_eq!(sorted.next().unwrap(), None);
    }
}
