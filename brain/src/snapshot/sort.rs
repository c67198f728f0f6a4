//! Sorts versions by revision with bounded memory: sorted runs on disk, merged in the end.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::FileExt as _;

use bytes::{Buf as _, Bytes};

use super::spool::{Spool, SpoolFile};
use crate::types::Revision;

/// Bytes of versions that are sorted in memory, and of buffers when runs are merged.
const MEMORY: usize = 16 << 20;

/// Memory that a version takes beside its bytes.
const OVERHEAD: usize = 128;

/// The smallest and the largest buffer of a run.
const BUFFER: (usize, usize) = (16 << 10, 256 << 10);

/// Bytes in front of key and value on disk: revision, kind, two lengths.
const HEADER: usize = 8 + 1 + 4 + 4;

/// A version. The order of its fields is the order of versions in the file: a deletion and the put that recreates its key have the
/// same revision.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) revision: Revision,
    pub(super) key: Bytes,
    pub(super) is_put: bool,
    /// As etcd stores it.
    pub(super) value: Bytes,
}

/// Collects versions.
#[derive(Debug)]
pub(super) struct Sorter {
    spool: Spool,
    memory: usize,
    entries: Vec<Entry>,
    bytes: usize,
    runs: Vec<(u64, u64)>,
    file: Option<BufWriter<SpoolFile>>,
    written: u64,
}

impl Sorter {
    pub(super) fn new(spool: Spool) -> Self {
        Self::within(spool, MEMORY)
    }

    pub(super) fn within(spool: Spool, memory: usize) -> Self {
        Self {
            spool,
            memory,
            entries: Vec::new(),
            bytes: 0,
            runs: Vec::new(),
            file: None,
            written: 0,
        }
    }

    pub(super) fn push(&mut self, entry: Entry) -> io::Result<()> {
        self.bytes += entry.key.len() + entry.value.len() + OVERHEAD;
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
            none => none.insert(BufWriter::with_capacity(BUFFER.1, self.spool.file()?)),
        };
        let from = self.written;
        for entry in self.entries.drain(..) {
            let len = |bytes: &Bytes| u32::try_from(bytes.len()).map_err(|_| io::Error::other("a version is too long"));
            out.write_all(&entry.revision.to_be_bytes())?;
            out.write_all(&[u8::from(entry.is_put)])?;
            out.write_all(&len(&entry.key)?.to_be_bytes())?;
            out.write_all(&len(&entry.value)?.to_be_bytes())?;
            out.write_all(&entry.key)?;
            out.write_all(&entry.value)?;
            self.written += (HEADER + entry.key.len() + entry.value.len()) as u64;
        }
        self.runs.push((from, self.written));
        self.bytes = 0;
        Ok(())
    }

    /// Returns all versions in order.
    pub(super) fn finish(mut self) -> io::Result<Sorted> {
        if self.file.is_none() {
            self.entries.sort_unstable();
            return Ok(Sorted::Memory(self.entries.into()));
        }
        if !self.entries.is_empty() {
            self.spill()?;
        }
        let file = self.file.take().ok_or_else(|| io::Error::other("there is no file"))?;
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        let buffer = (self.memory / self.runs.len().max(1)).clamp(BUFFER.0, BUFFER.1);
        let mut runs = Vec::with_capacity(self.runs.len());
        let mut heads = BinaryHeap::with_capacity(self.runs.len());
        for (index, (from, to)) in self.runs.into_iter().enumerate() {
            let mut run = Run {
                buffer: Bytes::new(),
                most: buffer,
                from,
                to,
            };
            if let Some(entry) = run.next(&file)? {
                heads.push(Reverse((entry, index)));
            }
            runs.push(run);
        }
        Ok(Sorted::Disk { file, runs, heads })
    }
}

/// Versions in order.
#[derive(Debug)]
pub(super) enum Sorted {
    Memory(VecDeque<Entry>),
    Disk {
        file: SpoolFile,
        runs: Vec<Run>,
        heads: BinaryHeap<Reverse<(Entry, usize)>>,
    },
}

impl Sorted {
    pub(super) fn next(&mut self) -> io::Result<Option<Entry>> {
        match self {
            Sorted::Memory(entries) => Ok(entries.pop_front()),
            Sorted::Disk { file, runs, heads } => {
                let Some(Reverse((entry, index))) = heads.pop() else {
                    return Ok(None);
                };
                if let Some(run) = runs.get_mut(index)
                    && let Some(next) = run.next(file)?
                {
                    heads.push(Reverse((next, index)));
                }
                Ok(Some(entry))
            }
        }
    }
}

/// A sorted part of the file.
#[derive(Debug)]
pub(super) struct Run {
    buffer: Bytes,
    most: usize,
    /// Not read yet.
    from: u64,
    to: u64,
}

impl Run {
    fn next(&mut self, file: &SpoolFile) -> io::Result<Option<Entry>> {
        if self.buffer.is_empty() && self.from == self.to {
            return Ok(None);
        }
        self.fill(file, HEADER)?;
        let (revision, kind) = (self.buffer.get_i64(), self.buffer.get_u8());
        let (key, value) = (self.buffer.get_u32() as usize, self.buffer.get_u32() as usize);
        self.fill(file, key + value)?;
        // The buffer is not to be held as long as the entry.
        let bytes = Bytes::copy_from_slice(&self.buffer.split_to(key + value));
        Ok(Some(Entry {
            revision,
            key: bytes.slice(..key),
            is_put: kind == 1,
            value: bytes.slice(key..),
        }))
    }

    /// Makes at least `len` bytes available.
    fn fill(&mut self, file: &SpoolFile, len: usize) -> io::Result<()> {
        if self.buffer.len() >= len {
            return Ok(());
        }
        let rest = usize::try_from(self.to - self.from).unwrap_or(usize::MAX);
        let more = self.most.max(len).min(rest);
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
            let mut sorter = Sorter::within(Spool::new(dir.path()), memory);
            for n in 0..500_i64 {
                let (revision, is_put) = (n * 7 % 101, n % 3 > 0);
                let entry = Entry {
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
}
