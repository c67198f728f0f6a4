//! Pages of 4 KiB that open every file of the log: magic, format version, fields, and a checksum at the very end.
//!
//! Every format version keeps the offsets of magic, version and checksum, so that a newer file can be distinguished from a
//! damaged one.

use super::frame::{number, short};
use engine::log::LogId;

/// Bytes of a page.
pub(super) const PAGE_BYTES: usize = 4096;
/// The newest format version this program reads and the one it writes.
pub(super) const FORMAT_VERSION: u32 = 1;
/// Offset of the fields of a file, after magic, version and the log's identity.
const FIELDS_OFFSET: usize = 32;
const CRC_OFFSET: usize = PAGE_BYTES - 4;

/// The reason why a page cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageError {
    Damaged,
    Newer(u32),
}

/// A page with up to 32 numbers.
pub(super) fn encode(magic: [u8; 8], id: LogId, fields: &[u64]) -> Vec<u8> {
    let mut page = vec![0; PAGE_BYTES];
    page[..8].copy_from_slice(&magic);
    page[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    page[16..32].copy_from_slice(&id.0);
    for (slot, field) in page[FIELDS_OFFSET..CRC_OFFSET].chunks_exact_mut(8).zip(fields) {
        slot.copy_from_slice(&field.to_le_bytes());
    }
    let crc = crc32c::crc32c(&page[..CRC_OFFSET]);
    page[CRC_OFFSET..].copy_from_slice(&crc.to_le_bytes());
    page
}

/// Checks a page and returns whose it is and its first `N` numbers.
pub(super) fn decode<const N: usize>(page: &[u8], magic: [u8; 8]) -> Result<(LogId, [u64; N]), PageError> {
    if page.len() != PAGE_BYTES || page[..8] != magic || short(page, CRC_OFFSET) != crc32c::crc32c(&page[..CRC_OFFSET])
    {
        return Err(PageError::Damaged);
    }
    let version = short(page, 8);
    if version > FORMAT_VERSION {
        return Err(PageError::Newer(version));
    }
    let mut id = [0; 16];
    id.copy_from_slice(&page[16..32]);
    Ok((LogId(id), std::array::from_fn(|n| number(page, FIELDS_OFFSET + 8 * n))))
}
