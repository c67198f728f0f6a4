//! Reads a file, and takes nothing in it for granted.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use bytes::Bytes;

use super::Error;
use super::page::{
    BRANCH_PAGE_FLAG, BUCKET_HEADER_BYTES, BUCKET_LEAF_FLAG, ELEMENT_BYTES, LEAF_PAGE_FLAG, META_BYTES, MetaPage,
    PAGE_HEADER_BYTES, PageHeader, u32_at, u64_at,
};

/// Page sizes that are looked for. Bbolt takes that of the machine.
const PAGE_SIZE_BITS: std::ops::RangeInclusive<u32> = 9..=16;

/// The longest page that is held in memory with its overflow. Of a longer one only the elements are, and keys and values are read one by
/// one.
const MAX_HELD_PAGE_BYTES: u64 = 1 << 20;

/// The longest key with its value. No storage takes a longer one.
const MAX_PAIR_BYTES: usize = 257 << 20;

/// The most levels of a tree.
const MAX_DEPTH: usize = 32;

/// A file that is read at any position.
pub trait ReadAt: Send + Sync {
    /// Fills `buffer` from `offset` on. Fails if the file is shorter, or if it cannot be read.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

impl ReadAt for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }
}

impl ReadAt for [u8] {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let from = usize::try_from(offset).ok().and_then(|offset| self.get(offset..));
        let found = from.and_then(|from| from.get(..buffer.len()));
        buffer.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Reads the buckets of a file.
#[derive(Debug)]
pub struct Reader<'a, F: ?Sized> {
    file: &'a F,
    meta: MetaPage,
}

/// A page with its overflow.
#[derive(Debug, Clone)]
struct Page {
    number: u64,
    is_leaf: bool,
    count: usize,
    /// The header and the elements, and all that follows unless it is long.
    bytes: Bytes,
    /// Bytes of the page.
    len: usize,
    /// Its place in the file.
    at: u64,
}

/// A part of a database.
#[derive(Debug)]
pub enum VisitedPart<'b> {
    /// The bucket of this name, whose pairs follow.
    Bucket(&'b Bytes),
    /// A key and its value in a bucket.
    Pair {
        /// The name of the bucket.
        bucket: &'b Bytes,
        /// The key.
        key: Bytes,
        /// Its value.
        value: Bytes,
    },
}

/// The root of a bucket.
#[derive(Debug, Clone)]
enum BucketRoot {
    Page(u64),
    /// The page of a small bucket, which is stored after the bucket's header.
    Inline(Bytes),
}

fn damaged(what: impl Into<String>) -> Error {
    Error::Damaged(what.into())
}

impl<'a, F: ReadAt + ?Sized> Reader<'a, F> {
    /// Opens a file of `len` bytes. Fails if it has no valid meta page, or is shorter than that says.
    pub fn open(file: &'a F, len: u64) -> Result<Self, Error> {
        let meta =
            newest_meta(file, len)?.ok_or_else(|| damaged("it has no valid meta page: it is not an etcd database"))?;
        let size = u64::from(meta.page_size);
        let needed = meta.high_water.checked_mul(size);
        if needed.is_none_or(|needed| needed > len) {
            return Err(damaged(format!(
                "it has {len} bytes instead of {} pages of {size}: it is truncated",
                meta.high_water
            )));
        }
        Ok(Self { file, meta })
    }

    /// Returns the bytes of the pages in use, and of those that were.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.meta.high_water * u64::from(self.meta.page_size)
    }

    /// Visits all buckets and their pairs, both in ascending order. No page is read twice. Fails if the file cannot be read or is damaged,
    /// and if `visit` fails.
    pub fn visit<E: From<Error>>(&self, mut visit: impl FnMut(VisitedPart<'_>) -> Result<(), E>) -> Result<(), E> {
        let mut buckets = BucketEntries::new(self, BucketRoot::Page(self.meta.root))?;
        while let Some((name, root)) = buckets.next_bucket()? {
            visit(VisitedPart::Bucket(&name))?;
            let mut pairs = BucketEntries::beside(self, root, std::mem::take(&mut buckets.seen))?;
            while let Some((key, value)) = pairs.next()? {
                let bucket = &name;
                visit(VisitedPart::Pair { bucket, key, value })?;
            }
            buckets.seen = pairs.seen;
        }
        Ok(())
    }

    /// Returns the pairs of a bucket; `None` if there is no such bucket. Fails if the file cannot be read or is damaged.
    pub fn bucket(&self, wanted: &[u8]) -> Result<Option<BucketEntries<'_, F>>, Error> {
        let mut buckets = BucketEntries::new(self, BucketRoot::Page(self.meta.root))?;
        while let Some((name, root)) = buckets.next_bucket()? {
            if name == wanted {
                return BucketEntries::beside(self, root, buckets.seen).map(Some);
            }
        }
        Ok(None)
    }

    /// Returns the value of one key of a bucket that is small. Fails if the file cannot be read or is damaged.
    pub fn get(&self, bucket: &[u8], wanted: &[u8]) -> Result<Option<Bytes>, Error> {
        let Some(mut entries) = self.bucket(bucket)? else {
            return Ok(None);
        };
        while let Some((key, value)) = entries.next()? {
            if key == wanted {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    fn page(&self, number: u64) -> Result<Page, Error> {
        let size = u64::from(self.meta.page_size);
        if number < 2 || number >= self.meta.high_water {
            return Err(damaged(format!("page {number} is outside of the file")));
        }
        let mut header = [0; PAGE_HEADER_BYTES];
        self.file.read_at(&mut header, number * size)?;
        let header = PageHeader::decode(&header).ok_or_else(|| damaged("a page without a header"))?;
        if header.id != number {
            return Err(damaged(format!(
                "page {number} has the number {} in its header",
                header.id
            )));
        }
        let pages = u64::from(header.overflow) + 1;
        if number + pages > self.meta.high_water {
            return Err(damaged(format!("page {number} continues after the end of the file")));
        }
        let (at, len) = (number * size, pages * size);
        let elements = (PAGE_HEADER_BYTES + usize::from(header.count) * ELEMENT_BYTES) as u64;
        let held = if len <= MAX_HELD_PAGE_BYTES {
            len
        } else {
            elements.min(len)
        };
        let too_large = |_| damaged("a page is too large");
        let mut bytes = vec![0; usize::try_from(held).map_err(too_large)?];
        self.file.read_at(&mut bytes, at)?;
        let len = usize::try_from(len).map_err(too_large)?;
        Page::new(number, bytes.into(), (at, len))
    }

    /// Returns a part of a page.
    fn slice(&self, page: &Page, from: usize, len: usize) -> Result<Bytes, Error> {
        if from + len <= page.bytes.len() {
            return Ok(page.bytes.slice(from..from + len));
        }
        let mut bytes = vec![0; len];
        self.file.read_at(&mut bytes, page.at + from as u64)?;
        Ok(bytes.into())
    }
}

/// Returns the meta page that counts, whatever the page size is.
fn newest_meta<F: ReadAt + ?Sized>(file: &F, len: u64) -> Result<Option<MetaPage>, Error> {
    let read = |offset: u64| -> Result<Option<MetaPage>, Error> {
        let mut bytes = [0; PAGE_HEADER_BYTES + META_BYTES];
        if offset + bytes.len() as u64 > len {
            return Ok(None);
        }
        file.read_at(&mut bytes, offset)?;
        Ok(MetaPage::decode(&bytes[PAGE_HEADER_BYTES..])
            .filter(|meta| PAGE_SIZE_BITS.clone().any(|bits| meta.page_size == 1 << bits)))
    };
    let mut newest = read(0)?;
    for bits in PAGE_SIZE_BITS {
        let second = read(1 << bits)?.filter(|meta| meta.page_size == 1 << bits);
        if let Some(second) = second
            && newest.is_none_or(|first| first.page_size == second.page_size && first.txid < second.txid)
        {
            newest = Some(second);
        }
    }
    Ok(newest)
}

impl Page {
    /// Creates a page of `len` bytes at offset `at`; `bytes` are those in memory.
    fn new(number: u64, bytes: Bytes, (at, len): (u64, usize)) -> Result<Self, Error> {
        let header = PageHeader::decode(&bytes).ok_or_else(|| damaged("a page without a header"))?;
        let is_leaf = match header.flags {
            LEAF_PAGE_FLAG => true,
            BRANCH_PAGE_FLAG => false,
            flags => return Err(damaged(format!("page {number} is of an unknown kind, {flags:#x}"))),
        };
        let count = usize::from(header.count);
        if PAGE_HEADER_BYTES + count * ELEMENT_BYTES > bytes.len() {
            return Err(damaged(format!("page {number} has more elements than space")));
        }
        let page = Self {
            number,
            is_leaf,
            count,
            bytes,
            len,
            at,
        };
        page.check_lengths()?;
        Ok(page)
    }

    /// Checks that keys and values are as long together as the page has room for: then a file has no more content than bytes.
    fn check_lengths(&self) -> Result<(), Error> {
        let mut room = self.len - PAGE_HEADER_BYTES - self.count * ELEMENT_BYTES;
        for index in 0..self.count {
            let len = match self.is_leaf {
                true => {
                    let [_, _, key, value] = self.numbers(index)?;
                    key as usize + value as usize
                }
                false => {
                    let [_, key] = self.numbers(index)?;
                    key as usize
                }
            };
            if len > MAX_PAIR_BYTES {
                let what = format!(
                    "page {} has a key and a value of {len} bytes, more than any storage takes",
                    self.number
                );
                return Err(damaged(what));
            }
            room = room
                .checked_sub(len)
                .ok_or_else(|| damaged(format!("elements of page {} overlap", self.number)))?;
        }
        Ok(())
    }

    /// Returns where `len` bytes at `position` from the element `index` on are.
    fn place(&self, index: usize, position: u32, len: u32) -> Result<(usize, usize), Error> {
        let (from, len) = (
            PAGE_HEADER_BYTES + index * ELEMENT_BYTES + position as usize,
            len as usize,
        );
        if from + len > self.len || from < PAGE_HEADER_BYTES + self.count * ELEMENT_BYTES {
            return Err(damaged(format!("an element of page {} is outside of it", self.number)));
        }
        Ok((from, len))
    }

    fn numbers<const N: usize>(&self, index: usize) -> Result<[u32; N], Error> {
        let mut numbers = [0; N];
        for (at, number) in numbers.iter_mut().enumerate() {
            let found = u32_at(&self.bytes, PAGE_HEADER_BYTES + index * ELEMENT_BYTES + at * 4);
            *number = found.ok_or_else(|| damaged("a page is truncated"))?;
        }
        Ok(numbers)
    }

    /// Returns the flags of an element, and the places of its key and value.
    fn leaf_element(&self, index: usize) -> Result<LeafElement, Error> {
        let [flags, position, key_len, value_len] = self.numbers(index)?;
        Ok(LeafElement {
            flags,
            key: self.place(index, position, key_len)?,
            value: self.place(index, position.saturating_add(key_len), value_len)?,
        })
    }

    /// Returns the place of the key of an element, and its page.
    fn branch_element(&self, index: usize) -> Result<((usize, usize), u64), Error> {
        let [position, key_len] = self.numbers(index)?;
        let child = u64_at(&self.bytes, PAGE_HEADER_BYTES + index * ELEMENT_BYTES + 8);
        let child = child.ok_or_else(|| damaged("a page is truncated"))?;
        Ok((self.place(index, position, key_len)?, child))
    }
}

/// An element of a leaf: key and value as offset and length in its page.
struct LeafElement {
    flags: u32,
    key: (usize, usize),
    value: (usize, usize),
}

/// The pairs of a bucket in ascending order of keys.
#[derive(Debug)]
pub struct BucketEntries<'a, F: ?Sized> {
    reader: &'a Reader<'a, F>,
    /// The way from the root to the current element: pages, and the next element of each.
    way: Vec<(Page, usize)>,
    last: Option<Bytes>,
    /// A bit for each page that was read.
    seen: Vec<u64>,
}

impl<'a, F: ReadAt + ?Sized> BucketEntries<'a, F> {
    fn new(reader: &'a Reader<'a, F>, root: BucketRoot) -> Result<Self, Error> {
        let words = usize::try_from(reader.meta.high_water / 64 + 1).map_err(|_| damaged("it has too many pages"))?;
        Self::beside(reader, root, vec![0; words])
    }

    /// Entries that reach none of the pages that are seen already.
    fn beside(reader: &'a Reader<'a, F>, root: BucketRoot, seen: Vec<u64>) -> Result<Self, Error> {
        let mut entries = Self {
            reader,
            way: Vec::new(),
            last: None,
            seen,
        };
        match root {
            BucketRoot::Page(number) => entries.enter(number)?,
            BucketRoot::Inline(bytes) => {
                let len = bytes.len();
                entries.way.push((Page::new(0, bytes, (0, len))?, 0));
            }
        }
        Ok(entries)
    }

    /// Returns the name and the root of the next bucket; `None` at the end.
    fn next_bucket(&mut self) -> Result<Option<(Bytes, BucketRoot)>, Error> {
        let Some((flags, name, header)) = self.next_element()? else {
            return Ok(None);
        };
        if flags & BUCKET_LEAF_FLAG == 0 {
            return Err(damaged("a pair outside of buckets"));
        }
        let root = u64_at(&header, 0).filter(|_| header.len() >= BUCKET_HEADER_BYTES);
        let root = match root.ok_or_else(|| damaged("a bucket without a header"))? {
            0 => BucketRoot::Inline(header.slice(BUCKET_HEADER_BYTES..)),
            page => BucketRoot::Page(page),
        };
        Ok(Some((name, root)))
    }

    /// Returns the next pair; `None` at the end. Fails if the file cannot be read or is damaged.
    #[expect(clippy::should_implement_trait, reason = "it fails")]
    pub fn next(&mut self) -> Result<Option<(Bytes, Bytes)>, Error> {
        match self.next_element()? {
            Some((flags, ..)) if flags & BUCKET_LEAF_FLAG != 0 => {
                Err(damaged("a bucket within a bucket, which etcd does not use"))
            }
            Some((_, key, value)) => Ok(Some((key, value))),
            None => Ok(None),
        }
    }

    fn next_element(&mut self) -> Result<Option<(u32, Bytes, Bytes)>, Error> {
        while let Some((page, next)) = self.way.last_mut() {
            let index = *next;
            if index >= page.count {
                self.way.pop();
                continue;
            }
            *next += 1;
            if page.is_leaf {
                let LeafElement { flags, key, value } = page.leaf_element(index)?;
                let key = self.reader.slice(page, key.0, key.1)?;
                let value = self.reader.slice(page, value.0, value.1)?;
                let number = page.number;
                return self.in_order(&key, number).map(|()| Some((flags, key, value)));
            }
            let (key, child) = page.branch_element(index)?;
            let key = self.reader.slice(page, key.0, key.1)?;
            if self.last.as_ref().is_some_and(|last| *last >= key) {
                return Err(damaged(format!("keys below page {} are not in order", page.number)));
            }
            self.enter(child)?;
        }
        Ok(None)
    }

    fn in_order(&mut self, key: &Bytes, number: u64) -> Result<(), Error> {
        if self.last.as_ref().is_some_and(|last| last >= key) {
            return Err(damaged(format!("keys of page {number} are not in order")));
        }
        self.last = Some(key.clone());
        Ok(())
    }

    fn enter(&mut self, number: u64) -> Result<(), Error> {
        if self.way.len() >= MAX_DEPTH {
            return Err(damaged(format!("more than {MAX_DEPTH} levels of pages")));
        }
        let page = self.reader.page(number)?;
        let pages = page.len as u64 / u64::from(self.reader.meta.page_size);
        for number in number..number + pages {
            let (word, bit) = ((number / 64) as usize, 1_u64 << (number % 64));
            // The number is within the file.
            if self.seen[word] & bit != 0 {
                return Err(damaged(format!("page {number} is reached twice")));
            }
            self.seen[word] |= bit;
        }
        self.way.push((page, 0));
        Ok(())
    }
}
