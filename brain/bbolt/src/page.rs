//! The parts that pages are made of. Numbers are little-endian, as on every machine that etcd supports.

/// Bytes of a page's header.
pub(super) const PAGE_HEADER_BYTES: usize = 16;
/// Bytes of an element of a leaf or branch page, in addition to its key and value.
pub(super) const ELEMENT_BYTES: usize = 16;
/// Bytes of a meta page after its header.
pub(super) const META_BYTES: usize = 64;
/// Bytes of a bucket's header, which is the value of its name.
pub(super) const BUCKET_HEADER_BYTES: usize = 16;

/// A branch page.
pub(super) const BRANCH_PAGE_FLAG: u16 = 0x01;
/// A leaf page.
pub(super) const LEAF_PAGE_FLAG: u16 = 0x02;
/// A meta page.
pub(super) const META_PAGE_FLAG: u16 = 0x04;

/// The element of a leaf is a bucket.
pub(super) const BUCKET_LEAF_FLAG: u32 = 0x01;

/// The number in place of a page of free pages: readers find these themselves.
const NO_FREELIST: u64 = u64::MAX;

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;

/// The header of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageHeader {
    pub(super) id: u64,
    pub(super) flags: u16,
    pub(super) count: u16,
    /// The number of following pages that belong to this one.
    pub(super) overflow: u32,
}

impl PageHeader {
    pub(super) fn encode(self) -> [u8; PAGE_HEADER_BYTES] {
        let mut bytes = [0; PAGE_HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.flags.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.count.to_le_bytes());
        bytes[12..].copy_from_slice(&self.overflow.to_le_bytes());
        bytes
    }

    /// Decodes the header at the front of a page; `None` if that is too short.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; PAGE_HEADER_BYTES] = bytes.first_chunk()?;
        Some(Self {
            id: u64_at(bytes, 0)?,
            flags: u16::from_le_bytes([bytes[8], bytes[9]]),
            count: u16::from_le_bytes([bytes[10], bytes[11]]),
            overflow: u32_at(bytes, 12)?,
        })
    }
}

/// The content of a meta page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MetaPage {
    pub(super) page_size: u32,
    /// The page of the root bucket.
    pub(super) root: u64,
    /// The first page that was never used.
    pub(super) high_water: u64,
    pub(super) txid: u64,
}

impl MetaPage {
    pub(super) fn encode(self) -> [u8; META_BYTES] {
        let mut bytes = [0; META_BYTES];
        let (sequence, flags) = (0_u64, 0_u32);
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.page_size.to_le_bytes());
        bytes[12..16].copy_from_slice(&flags.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.root.to_le_bytes());
        bytes[24..32].copy_from_slice(&sequence.to_le_bytes());
        bytes[32..40].copy_from_slice(&NO_FREELIST.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.high_water.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.txid.to_le_bytes());
        let sum = fnv1a(&bytes[..56]);
        bytes[56..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes the part of a meta page after its header; `None` if it is no meta page, has another version, or does not match its checksum.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; META_BYTES] = bytes.first_chunk()?;
        let is_ours = u32_at(bytes, 0)? == MAGIC && u32_at(bytes, 4)? == VERSION;
        if !is_ours || u64_at(bytes, 56)? != fnv1a(&bytes[..56]) {
            return None;
        }
        Some(Self {
            page_size: u32_at(bytes, 8)?,
            root: u64_at(bytes, 16)?,
            high_water: u64_at(bytes, 40)?,
            txid: u64_at(bytes, 48)?,
        })
    }
}

/// Returns the number of four bytes at `at`; `None` if there are fewer.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// Returns the number of eight bytes at `at`; `None` if there are fewer.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// FNV-1a of 64 bits, the checksum of meta pages.
fn fnv1a(bytes: &[u8]) -> u64 {
    let offset = 0xcbf2_9ce4_8422_2325;
    bytes.iter().fold(offset, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
