//! Writes a file from front to back.

use std::io::{self, Seek, SeekFrom, Write};

use super::page::{
    BRANCH_PAGE_FLAG, BUCKET_HEADER_BYTES, BUCKET_LEAF_FLAG, ELEMENT_BYTES, LEAF_PAGE_FLAG, META_PAGE_FLAG, MetaPage,
    PAGE_HEADER_BYTES, PageHeader,
};

/// The size of pages in written files.
const PAGE_SIZE: usize = 4096;

/// Pages 0 and 1 are meta pages.
const FIRST_DATA_PAGE: u64 = 2;

/// The longest key that bbolt accepts.
const MAX_KEY_SIZE: usize = 32_768;

/// Writes a file. It is complete only when [`Writer::finish`] returns.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    /// The next page.
    next: u64,
    /// Buckets that are complete: name and header, in ascending order.
    buckets: Vec<(Vec<u8>, Vec<u8>)>,
    /// The bucket that is being written.
    current: Option<(Vec<u8>, TreeWriter)>,
}

impl<W: Write + Seek> Writer<W> {
    /// Begins a file at the beginning of `out`, which is best buffered: each page is one write. Fails if `out` fails.
    pub fn new(mut out: W) -> io::Result<Self> {
        out.seek(SeekFrom::Start(0))?;
        // Meta pages are written last.
        out.write_all(&[0; PAGE_SIZE * FIRST_DATA_PAGE as usize])?;
        Ok(Self {
            out,
            next: FIRST_DATA_PAGE,
            buckets: Vec::new(),
            current: None,
        })
    }

    /// Ends the current bucket, and begins another one. Fails if `name` is not greater than those before, or `out` fails.
    pub fn begin_bucket(&mut self, name: &[u8]) -> io::Result<()> {
        self.end_bucket()?;
        if self.buckets.last().is_some_and(|(last, _)| last.as_slice() >= name) {
            return Err(io::Error::other("buckets are written in the order of their names"));
        }
        self.current = Some((name.to_vec(), TreeWriter::default()));
        Ok(())
    }

    /// Adds a pair to the current bucket. Fails if `key` is not greater than the one before, if it is empty or too long, if there is
    /// no bucket, or if `out` fails.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let Some((_, tree)) = &mut self.current else {
            return Err(io::Error::other("a pair belongs to a bucket"));
        };
        let mut pages = PageWriter {
            out: &mut self.out,
            next: &mut self.next,
        };
        tree.push(&mut pages, 0, key, value)
    }

    /// Returns the bytes that are written so far.
    pub fn written(&self) -> u64 {
        self.next * PAGE_SIZE as u64
    }

    /// Writes the root bucket and the meta pages. Returns `out`, and the length of the file. Fails if `out` fails.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        self.end_bucket()?;
        let mut pages = PageWriter {
            out: &mut self.out,
            next: &mut self.next,
        };
        let mut root = TreeWriter::default();
        for (name, header) in &self.buckets {
            root.push(&mut pages, BUCKET_LEAF_FLAG, name, header)?;
        }
        let root = match root.finish(&mut pages)? {
            Some(root) => root,
            None => pages.write(LEAF_PAGE_FLAG, &[])?,
        };
        self.out.seek(SeekFrom::Start(0))?;
        for txid in 0..FIRST_DATA_PAGE {
            let meta = MetaPage {
                page_size: PAGE_SIZE as u32,
                root,
                high_water: self.next,
                txid,
            };
            let header = PageHeader {
                id: txid,
                flags: META_PAGE_FLAG,
                count: 0,
                overflow: 0,
            };
            let mut page = [&header.encode()[..], &meta.encode()].concat();
            page.resize(PAGE_SIZE, 0);
            self.out.write_all(&page)?;
        }
        self.out.flush()?;
        let len = self.written();
        Ok((self.out, len))
    }

    fn end_bucket(&mut self) -> io::Result<()> {
        let Some((name, tree)) = self.current.take() else {
            return Ok(());
        };
        let mut pages = PageWriter {
            out: &mut self.out,
            next: &mut self.next,
        };
        let root = tree.finish(&mut pages)?;
        let mut header = vec![0; BUCKET_HEADER_BYTES];
        match root {
            Some(root) => header[..8].copy_from_slice(&root.to_le_bytes()),
            // An empty bucket is inline: its only page is stored after its header.
            None => header.extend_from_slice(
                &PageHeader {
                    id: 0,
                    flags: LEAF_PAGE_FLAG,
                    count: 0,
                    overflow: 0,
                }
                .encode(),
            ),
        }
        self.buckets.push((name, header));
        Ok(())
    }
}

/// An element of a page that is not written yet.
#[derive(Debug)]
struct PendingElement {
    /// Of a leaf.
    flags: u32,
    key: Vec<u8>,
    /// Of a leaf.
    value: Vec<u8>,
    /// Of a branch: the page below.
    child: u64,
}

impl PendingElement {
    fn len(&self) -> usize {
        ELEMENT_BYTES + self.key.len() + self.value.len()
    }
}

/// The open page of one level.
#[derive(Debug, Default)]
struct TreeLevel {
    elements: Vec<PendingElement>,
    bytes: usize,
    /// A page of this level is written.
    has_pages: bool,
}

/// A tree that grows from its smallest key on: one open page on each level, the leaf first.
#[derive(Debug, Default)]
struct TreeWriter {
    levels: Vec<TreeLevel>,
    last: Option<Vec<u8>>,
}

impl TreeWriter {
    fn push<W: Write>(
        &mut self,
        pages: &mut PageWriter<'_, W>,
        flags: u32,
        key: &[u8],
        value: &[u8],
    ) -> io::Result<()> {
        if key.is_empty() || key.len() > MAX_KEY_SIZE || self.last.as_deref().is_some_and(|last| last >= key) {
            return Err(io::Error::other("keys of a bucket are written in ascending order"));
        }
        self.last = Some(key.to_vec());
        let element = PendingElement {
            flags,
            key: key.to_vec(),
            value: value.to_vec(),
            child: 0,
        };
        self.add(pages, 0, element)
    }

    /// Adds an element to the open page of a level, which is written first if it is full.
    fn add<W: Write>(
        &mut self,
        pages: &mut PageWriter<'_, W>,
        level: usize,
        element: PendingElement,
    ) -> io::Result<()> {
        if self.levels.len() == level {
            self.levels.push(TreeLevel::default());
        }
        let open = &self.levels[level];
        // Two long keys may take more than a page. Branches of one element would never become fewer.
        let fewest = if level == 0 { 1 } else { 2 };
        if open.elements.len() >= fewest && PAGE_HEADER_BYTES + open.bytes + element.len() > PAGE_SIZE {
            self.write(pages, level)?;
        }
        let open = &mut self.levels[level];
        open.bytes += element.len();
        open.elements.push(element);
        Ok(())
    }

    /// Writes the open page of a level, and adds it to the level above.
    fn write<W: Write>(&mut self, pages: &mut PageWriter<'_, W>, level: usize) -> io::Result<()> {
        let open = &mut self.levels[level];
        let flags = if level == 0 { LEAF_PAGE_FLAG } else { BRANCH_PAGE_FLAG };
        let elements = std::mem::take(&mut open.elements);
        (open.bytes, open.has_pages) = (0, true);
        let child = pages.write(flags, &elements)?;
        let key = elements.into_iter().next().map(|first| first.key).unwrap_or_default();
        let element = PendingElement {
            flags: 0,
            key,
            value: Vec::new(),
            child,
        };
        self.add(pages, level + 1, element)
    }

    /// Writes what is open. Returns the topmost page; `None` if there is no element.
    fn finish<W: Write>(mut self, pages: &mut PageWriter<'_, W>) -> io::Result<Option<u64>> {
        let mut level = 0;
        while let Some(open) = self.levels.get(level) {
            let is_top = level + 1 == self.levels.len();
            // The only element of the topmost level is the page of the whole tree.
            if let ([only], true) = (open.elements.as_slice(), is_top && level > 0 && !open.has_pages) {
                return Ok(Some(only.child));
            }
            if !open.elements.is_empty() {
                self.write(pages, level)?;
            }
            level += 1;
        }
        Ok(None)
    }
}

/// The file's pages, in their order.
struct PageWriter<'a, W> {
    out: &'a mut W,
    next: &'a mut u64,
}

impl<W: Write> PageWriter<'_, W> {
    /// Writes a page of elements. Returns its number.
    fn write(&mut self, flags: u16, elements: &[PendingElement]) -> io::Result<u64> {
        let too_large = |_| io::Error::other("a page is too large");
        let len = PAGE_HEADER_BYTES + elements.iter().map(PendingElement::len).sum::<usize>();
        let pages = len.div_ceil(PAGE_SIZE);
        let id = *self.next;
        let header = PageHeader {
            id,
            flags,
            count: u16::try_from(elements.len()).map_err(too_large)?,
            overflow: u32::try_from(pages - 1).map_err(too_large)?,
        };
        let mut page = Vec::with_capacity(pages * PAGE_SIZE);
        page.extend_from_slice(&header.encode());
        // Positions count from the element.
        let mut position = elements.len() * ELEMENT_BYTES;
        for element in elements {
            let (at, key) = (u32::try_from(position), u32::try_from(element.key.len()));
            let (at, key) = (at.map_err(too_large)?, key.map_err(too_large)?);
            if flags == LEAF_PAGE_FLAG {
                let value = u32::try_from(element.value.len()).map_err(too_large)?;
                for number in [element.flags, at, key, value] {
                    page.extend_from_slice(&number.to_le_bytes());
                }
            } else {
                for number in [at, key] {
                    page.extend_from_slice(&number.to_le_bytes());
                }
                page.extend_from_slice(&element.child.to_le_bytes());
            }
            position = position + element.key.len() + element.value.len() - ELEMENT_BYTES;
        }
        for element in elements {
            page.extend_from_slice(&element.key);
            page.extend_from_slice(&element.value);
        }
        page.resize(pages * PAGE_SIZE, 0);
        self.out.write_all(&page)?;
        *self.next += pages as u64;
        Ok(id)
    }
}
