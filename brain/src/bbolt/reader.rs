//! Reads a file, of which nothing is taken for granted.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use bytes::Bytes;

use super::Error;
use super::page::{BRANCH, BUCKET, ELEMENT, HEADER, Header, IS_BUCKET, LEAF, META, Meta, u32_at, u64_at};

/// Page sizes that are looked for. Bbolt takes that of the machine.
const PAGE_SIZES: std::ops::RangeInclusive<u32> = 9..=16;

/// The longest page with its overflow. Etcd's requests, and so its values, are far shorter.
const MAX_PAGE: u64 = 1 << 30;

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
    meta: Meta,
}

/// A page with its overflow.
#[derive(Debug, Clone)]
struct Page {
    number: u64,
    is_leaf: bool,
    count: usize,
    bytes: Bytes,
}

/// The root of a bucket.
#[derive(Debug, Clone)]
enum Root {
    Page(u64),
    /// The page of a small bucket, which stands behind its header.
    Inline(Bytes),
}

fn damaged(what: impl Into<String>) -> Error {
    Error::Damaged(what.into())
}

impl<'a, F: ReadAt + ?Sized> Reader<'a, F> {
    /// Opens a file of `len` bytes. Fails if it has no valid meta page, or is shorter than that says.
    pub fn open(file: &'a F, len: u64) -> Result<Self, Error> {
        let meta =
            newest_meta(file, len)?.ok_or_else(|| damaged("it has no valid meta page: it is no etcd database"))?;
        let size = u64::from(meta.page_size);
        let needed = meta.high_water.checked_mul(size);
        if needed.is_none_or(|needed| needed > len) {
            return Err(damaged(format!(
                "it has {len} bytes and says that it has {} pages of {size}: it is cut short",
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

    /// Returns the names of the buckets, in ascending order. Fails if the file cannot be read or is damaged.
    pub fn buckets(&self) -> Result<Vec<Bytes>, Error> {
        let mut entries = Entries::new(self, Root::Page(self.meta.root))?;
        let mut names = Vec::new();
        while let Some((flags, name, _)) = entries.next_element()? {
            if flags & IS_BUCKET == 0 {
                return Err(damaged("a pair outside of buckets"));
            }
            names.push(name);
        }
        Ok(names)
    }

    /// Returns the pairs of a bucket; `None` if there is no such bucket. Fails if the file cannot be read or is damaged.
    pub fn bucket(&self, wanted: &[u8]) -> Result<Option<Entries<'_, F>>, Error> {
        let mut entries = Entries::new(self, Root::Page(self.meta.root))?;
        while let Some((flags, name, header)) = entries.next_element()? {
            if name != wanted {
                continue;
            }
            let root = u64_at(&header, 0).filter(|_| flags & IS_BUCKET != 0 && header.len() >= BUCKET);
            let root = match root.ok_or_else(|| damaged("a bucket without a header"))? {
                0 => Root::Inline(header.slice(BUCKET..)),
                page => Root::Page(page),
            };
            return Entries::new(self, root).map(Some);
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
        let mut header = [0; HEADER];
        self.file.read_at(&mut header, number * size)?;
        let header = Header::decode(&header).ok_or_else(|| damaged("a page without a header"))?;
        if header.id != number {
            return Err(damaged(format!("page {number} says that it is page {}", header.id)));
        }
        let pages = u64::from(header.overflow) + 1;
        if number + pages > self.meta.high_water {
            return Err(damaged(format!("page {number} goes on behind the end of the file")));
        }
        let len = pages * size;
        if len > MAX_PAGE {
            return Err(damaged(format!("page {number} has {len} bytes, more than etcd writes")));
        }
        let mut bytes = vec![0; usize::try_from(len).map_err(|_| damaged("a page is too large"))?];
        self.file.read_at(&mut bytes, number * size)?;
        Page::new(number, bytes.into())
    }
}

/// Returns the meta page that counts, whatever the page size is.
fn newest_meta<F: ReadAt + ?Sized>(file: &F, len: u64) -> Result<Option<Meta>, Error> {
    let read = |offset: u64| -> Result<Option<Meta>, Error> {
        let mut bytes = [0; HEADER + META];
        if offset + bytes.len() as u64 > len {
            return Ok(None);
        }
        file.read_at(&mut bytes, offset)?;
        Ok(Meta::decode(&bytes[HEADER..]).filter(|meta| PAGE_SIZES.clone().any(|bits| meta.page_size == 1 << bits)))
    };
    let mut newest = read(0)?;
    for bits in PAGE_SIZES {
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
    fn new(number: u64, bytes: Bytes) -> Result<Self, Error> {
        let header = Header::decode(&bytes).ok_or_else(|| damaged("a page without a header"))?;
        let is_leaf = match header.flags {
            LEAF => true,
            BRANCH => false,
            flags => return Err(damaged(format!("page {number} is of an unknown kind, {flags:#x}"))),
        };
        let count = usize::from(header.count);
        if HEADER + count * ELEMENT > bytes.len() {
            return Err(damaged(format!("page {number} has more elements than space")));
        }
        Ok(Self {
            number,
            is_leaf,
            count,
            bytes,
        })
    }

    /// Returns `len` bytes at `position` from the element `index` on.
    fn slice(&self, index: usize, position: u32, len: u32) -> Result<Bytes, Error> {
        let from = HEADER + index * ELEMENT + position as usize;
        let to = from + len as usize;
        if to > self.bytes.len() || from < HEADER + self.count * ELEMENT {
            return Err(damaged(format!("an element of page {} is outside of it", self.number)));
        }
        Ok(self.bytes.slice(from..to))
    }

    fn numbers<const N: usize>(&self, index: usize) -> Result<[u32; N], Error> {
        let mut numbers = [0; N];
        for (at, number) in numbers.iter_mut().enumerate() {
            let found = u32_at(&self.bytes, HEADER + index * ELEMENT + at * 4);
            *number = found.ok_or_else(|| damaged("a page is cut short"))?;
        }
        Ok(numbers)
    }

    fn leaf_element(&self, index: usize) -> Result<(u32, Bytes, Bytes), Error> {
        let [flags, position, key_len, value_len] = self.numbers(index)?;
        let key = self.slice(index, position, key_len)?;
        let value = self.slice(index, position.saturating_add(key_len), value_len)?;
        Ok((flags, key, value))
    }

    fn branch_element(&self, index: usize) -> Result<(Bytes, u64), Error> {
        let [position, key_len] = self.numbers(index)?;
        let child = u64_at(&self.bytes, HEADER + index * ELEMENT + 8);
        let child = child.ok_or_else(|| damaged("a page is cut short"))?;
        Ok((self.slice(index, position, key_len)?, child))
    }
}

/// The pairs of a bucket in ascending order of keys.
#[derive(Debug)]
pub struct Entries<'a, F: ?Sized> {
    reader: &'a Reader<'a, F>,
    /// The way from the root to the current element: pages, and the next element of each.
    way: Vec<(Page, usize)>,
    last: Option<Bytes>,
    /// A bit for each page that was read.
    seen: Vec<u64>,
}

impl<'a, F: ReadAt + ?Sized> Entries<'a, F> {
    fn new(reader: &'a Reader<'a, F>, root: Root) -> Result<Self, Error> {
        let words = usize::try_from(reader.meta.high_water / 64 + 1).map_err(|_| damaged("it has too many pages"))?;
        let mut entries = Self {
            reader,
            way: Vec::new(),
            last: None,
            seen: vec![0; words],
        };
        match root {
            Root::Page(number) => entries.enter(number)?,
            Root::Inline(bytes) => entries.way.push((Page::new(0, bytes)?, 0)),
        }
        Ok(entries)
    }

    /// Returns the next pair; `None` at the end. Fails if the file cannot be read or is damaged.
    #[expect(clippy::should_implement_trait, reason = "it fails")]
    pub fn next(&mut self) -> Result<Option<(Bytes, Bytes)>, Error> {
        match self.next_element()? {
            Some((flags, ..)) if flags & IS_BUCKET != 0 => Err(damaged("a bucket within a bucket, which etcd has not")),
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
                let element = page.leaf_element(index)?;
                let number = page.number;
                return self.in_order(&element.1, number).map(|()| Some(element));
            }
            let (key, child) = page.branch_element(index)?;
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
        let pages = page.bytes.len() as u64 / u64::from(self.reader.meta.page_size);
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
