//! Keys of rows: how keys, revisions and ids become bytes whose order is their order.
//!
//! | row | key of the row |
//! |---|---|
//! | index | `i` esc(key) |
//! | object | `o` esc(key) !revision |
//! | lease | `s` id |
//! | attachment | `a` id esc(key) |
//! | dictionary | `d` number |
//! | meta | `m` name |
//! | role | `r` name |
//! | user | `u` name |
//!
//! `esc` turns each 0x00 into 0x00 0xff and ends with 0x00 0x01. Invariant: for any two byte strings a < b, esc(a) is less than esc(b)
//! and no prefix of it, independent of the bytes that follow. At the first difference, either both have a byte (a 0x00 is still the
//! smallest, because no other byte begins an escape), or a has ended: then 0x00 0x01 is compared with 0x00 0xff or a byte above 0x00.
//! Revisions are bit-inverted, so that the newest version of a key comes first. Ids have their sign bit flipped, so that negative ones
//! come first.

use bytes::{BufMut, Bytes, BytesMut};

use etcd_types::types::{LeaseId, Revision};

const INDEX_KIND: u8 = b'i';
const OBJECT_KIND: u8 = b'o';
const LEASE_KIND: u8 = b's';
const ATTACHMENT_KIND: u8 = b'a';
const DICTIONARY_KIND: u8 = b'd';
const META_KIND: u8 = b'm';
const ROLE_KIND: u8 = b'r';
const USER_KIND: u8 = b'u';

const KEY_END: [u8; 2] = [0x00, 0x01];
const BEHIND_KEY_END: [u8; 2] = [0x00, 0x02];
const ESCAPED_ZERO: [u8; 2] = [0x00, 0xff];
const NUMBER_BYTES: usize = 8;

/// The key of a row is not one that this module wrote: the rows are damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Another kind of row was expected, or none is of this kind.
    #[error("a row of kind {expected:?} was expected, found {found:?}")]
    Kind {
        /// The expected first byte, as a character.
        expected: char,
        /// The first byte found; `None` for an empty key.
        found: Option<u8>,
    },
    /// A 0x00 is followed by neither of the two bytes it may be followed by.
    #[error("no escape at byte {0} of the row's key")]
    Escape(usize),
    /// The row's key ends too early or too late.
    #[error("the row's key has {found} bytes after its fields, expected {expected}")]
    Length {
        /// The expected number of bytes.
        expected: usize,
        /// The actual number of bytes.
        found: usize,
    },
    /// Names of users and roles are text.
    #[error("the row's key holds a name that is not text")]
    Name,
    /// Revisions are never negative.
    #[error("the row's key holds a negative revision")]
    Revision,
}

/// Rows from `from` on, up to but without `to`. Empty when `from >= to`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowRange {
    /// First row key of the range.
    pub from: Bytes,
    /// End of the range, not part of it.
    pub to: Bytes,
}

/// The longest key whose rows all have keys of at most `max_row_len` bytes, however many zeros it holds.
#[must_use]
pub fn longest(max_row_len: usize) -> usize {
    max_row_len.saturating_sub(64) / 2
}

/// Bytes that a key takes within the keys of its rows.
#[must_use]
pub fn escaped_len(key: &[u8]) -> usize {
    key.len() + key.iter().filter(|byte| **byte == 0).count() + KEY_END.len()
}

/// Bytes of the key of the index row of a key that takes `escaped` bytes.
#[must_use]
pub fn index_len(escaped: usize) -> usize {
    1 + escaped
}

/// The same of its object rows.
#[must_use]
pub fn object_len(escaped: usize) -> usize {
    1 + escaped + NUMBER_BYTES
}

/// The same of its attachment to a lease.
#[must_use]
pub fn attachment_len(escaped: usize) -> usize {
    1 + NUMBER_BYTES + escaped
}

/// Key of the index row of `key`.
#[must_use]
pub fn index_key(key: &[u8]) -> Bytes {
    escaped(INDEX_KIND, key, &KEY_END)
}

/// Returns the key whose index row has the key `row`. Shares memory with `row` if no byte was escaped.
///
/// # Errors
/// `row` is not the key of an index row.
pub fn parse_index(row: &Bytes) -> Result<Bytes, KeyError> {
    kind(row, INDEX_KIND)?;
    let (key, rest) = unescape(row, 1)?;
    length(row, rest, 0)?;
    Ok(key)
}

/// Index rows of the keys that etcd's `key` and `range_end` name.
#[must_use]
pub fn index_range(key: &[u8], range_end: &[u8]) -> RowRange {
    range(INDEX_KIND, key, range_end)
}

/// Key of the object row that holds the version of `key` written at `revision` (which is not negative).
#[must_use]
pub fn object_key(key: &[u8], revision: Revision) -> Bytes {
    debug_assert!(revision >= 0, "revisions are never negative");
    let mut row = BytesMut::with_capacity(1 + key.len() + KEY_END.len() + NUMBER_BYTES + 8);
    row.put_u8(OBJECT_KIND);
    escape(key, &mut row);
    row.put_u64(!revision.max(0).cast_unsigned());
    row.freeze()
}

/// Returns key and revision of the version whose object row has the key `row`.
pub fn parse_object(row: &Bytes) -> Result<(Bytes, Revision), KeyError> {
    kind(row, OBJECT_KIND)?;
    let (key, rest) = unescape(row, 1)?;
    let revision = (!number(row, rest, 0)?).cast_signed();
    if revision < 0 {
        return Err(KeyError::Revision);
    }
    Ok((key, revision))
}

/// Object rows, of every revision, of the keys that etcd's `key` and `range_end` name.
#[must_use]
pub fn object_range(key: &[u8], range_end: &[u8]) -> RowRange {
    range(OBJECT_KIND, key, range_end)
}

/// Object rows of one key at `revision` and older, newest first: the first row is the key as it was at `revision`.
#[must_use]
pub fn object_versions(key: &[u8], revision: Revision) -> RowRange {
    RowRange {
        from: object_key(key, revision),
        to: escaped(OBJECT_KIND, key, &BEHIND_KEY_END),
    }
}

/// Key of the row of a lease.
#[must_use]
pub fn lease_key(id: LeaseId) -> Bytes {
    let mut row = BytesMut::with_capacity(1 + NUMBER_BYTES);
    row.put_u8(LEASE_KIND);
    row.put_u64(flip(id));
    row.freeze()
}

/// Returns the lease whose row has the key `row`.
pub fn parse_lease(row: &Bytes) -> Result<LeaseId, KeyError> {
    kind(row, LEASE_KIND)?;
    Ok(unflip(number(row, 1, 0)?))
}

/// The rows of all leases.
#[must_use]
pub fn lease_range() -> RowRange {
    whole(LEASE_KIND)
}

/// Key of the row that attaches `key` to a lease.
#[must_use]
pub fn attachment_key(id: LeaseId, key: &[u8]) -> Bytes {
    let mut row = BytesMut::with_capacity(1 + NUMBER_BYTES + key.len() + KEY_END.len() + 8);
    row.put_u8(ATTACHMENT_KIND);
    row.put_u64(flip(id));
    escape(key, &mut row);
    row.freeze()
}

/// Returns lease and key that the row with the key `row` attaches to each other.
pub fn parse_attachment(row: &Bytes) -> Result<(LeaseId, Bytes), KeyError> {
    kind(row, ATTACHMENT_KIND)?;
    let behind_id = row.len().min(1 + NUMBER_BYTES);
    let id = unflip(number(row, 1, row.len() - behind_id)?);
    let (key, rest) = unescape(row, behind_id)?;
    length(row, rest, 0)?;
    Ok((id, key))
}

/// Attachments of one lease.
#[must_use]
pub fn attachment_range(id: LeaseId) -> RowRange {
    let mut from = BytesMut::with_capacity(1 + NUMBER_BYTES);
    from.put_u8(ATTACHMENT_KIND);
    from.put_u64(flip(id));
    let mut to = BytesMut::with_capacity(1 + NUMBER_BYTES);
    match flip(id).checked_add(1) {
        Some(next) => {
            to.put_u8(ATTACHMENT_KIND);
            to.put_u64(next);
        }
        None => to.put_u8(ATTACHMENT_KIND + 1),
    }
    RowRange {
        from: from.freeze(),
        to: to.freeze(),
    }
}

/// The attachments of all leases.
#[must_use]
pub fn attachments_range() -> RowRange {
    whole(ATTACHMENT_KIND)
}

/// Key of the row of the dictionary with this number.
#[must_use]
pub fn dictionary_key(number: u64) -> Bytes {
    let mut row = BytesMut::with_capacity(1 + NUMBER_BYTES);
    row.put_u8(DICTIONARY_KIND);
    row.put_u64(number);
    row.freeze()
}

/// Returns the number of the dictionary whose row has the key `row`.
pub fn parse_dictionary(row: &Bytes) -> Result<u64, KeyError> {
    kind(row, DICTIONARY_KIND)?;
    number(row, 1, 0)
}

/// The rows of all dictionaries.
#[must_use]
pub fn dictionary_range() -> RowRange {
    whole(DICTIONARY_KIND)
}

/// Key of the meta row `name`.
#[must_use]
pub fn meta_key(name: &str) -> Bytes {
    named(META_KIND, name)
}

/// Returns the name of the meta row with the key `row`.
pub fn parse_meta(row: &Bytes) -> Result<Bytes, KeyError> {
    kind(row, META_KIND)?;
    Ok(row.slice(1..))
}

/// All meta rows.
#[must_use]
pub fn meta_range() -> RowRange {
    whole(META_KIND)
}

/// Key of the row of a role.
#[must_use]
pub fn role_key(name: &str) -> Bytes {
    named(ROLE_KIND, name)
}

/// Returns the name of the role whose row has the key `row`.
pub fn parse_role(row: &Bytes) -> Result<String, KeyError> {
    parse_named(row, ROLE_KIND)
}

/// The rows of all roles.
#[must_use]
pub fn role_range() -> RowRange {
    whole(ROLE_KIND)
}

/// Key of the row of a user.
#[must_use]
pub fn user_key(name: &str) -> Bytes {
    named(USER_KIND, name)
}

/// Returns the name of the user whose row has the key `row`.
pub fn parse_user(row: &Bytes) -> Result<String, KeyError> {
    parse_named(row, USER_KIND)
}

/// The rows of all users.
#[must_use]
pub fn user_range() -> RowRange {
    whole(USER_KIND)
}

fn named(kind: u8, name: &str) -> Bytes {
    let mut row = BytesMut::with_capacity(1 + name.len());
    row.put_u8(kind);
    row.put_slice(name.as_bytes());
    row.freeze()
}

fn parse_named(row: &Bytes, expected: u8) -> Result<String, KeyError> {
    kind(row, expected)?;
    String::from_utf8(row[1..].to_vec()).map_err(|_| KeyError::Name)
}

/// Appends esc(`key`) to `out`.
pub fn escape(key: &[u8], out: &mut BytesMut) {
    if key.contains(&0) {
        for &byte in key {
            match byte {
                0 => out.put_slice(&ESCAPED_ZERO),
                _ => out.put_u8(byte),
            }
        }
    } else {
        out.put_slice(key);
    }
    out.put_slice(&KEY_END);
}

/// Reads the esc(key) that begins at `from` of `row`: returns the key, and the offset of the rest of the row. Shares memory with `row`
/// if no byte was escaped.
pub fn unescape(row: &Bytes, from: usize) -> Result<(Bytes, usize), KeyError> {
    let mut key = BytesMut::new();
    let mut start = from;
    loop {
        let tail = row.get(start..).unwrap_or_default();
        let zero = start
            + tail
                .iter()
                .position(|&byte| byte == 0)
                .ok_or(KeyError::Escape(row.len()))?;
        match row.get(zero + 1) {
            Some(0x01) if key.is_empty() => return Ok((row.slice(start..zero), zero + 2)),
            Some(0x01) => {
                key.put_slice(&row[start..zero]);
                return Ok((key.freeze(), zero + 2));
            }
            Some(0xff) => {
                key.put_slice(&row[start..=zero]);
                start = zero + 2;
            }
            _ => return Err(KeyError::Escape(zero)),
        }
    }
}

fn escaped(kind: u8, key: &[u8], end: &[u8; 2]) -> Bytes {
    let mut row = BytesMut::with_capacity(1 + key.len() + KEY_END.len() + 8);
    row.put_u8(kind);
    escape(key, &mut row);
    let body = row.len() - KEY_END.len();
    row[body..].copy_from_slice(end);
    row.freeze()
}

/// etcd's ranges: no `range_end` is one key, a single 0x00 is everything from `key` on.
fn range(kind: u8, key: &[u8], range_end: &[u8]) -> RowRange {
    let to = match range_end {
        [] => escaped(kind, key, &BEHIND_KEY_END),
        [0] => Bytes::copy_from_slice(&[kind + 1]),
        end => escaped(kind, end, &KEY_END),
    };
    RowRange {
        from: escaped(kind, key, &KEY_END),
        to,
    }
}

fn whole(kind: u8) -> RowRange {
    RowRange {
        from: Bytes::copy_from_slice(&[kind]),
        to: Bytes::copy_from_slice(&[kind + 1]),
    }
}

fn kind(row: &[u8], expected: u8) -> Result<(), KeyError> {
    match row.first().copied() {
        Some(found) if found == expected => Ok(()),
        found => Err(KeyError::Kind {
            expected: char::from(expected),
            found,
        }),
    }
}

fn length(row: &[u8], from: usize, expected: usize) -> Result<(), KeyError> {
    let found = row.len().saturating_sub(from);
    if found == expected {
        Ok(())
    } else {
        Err(KeyError::Length { expected, found })
    }
}

/// Decodes the number in the eight bytes at `from`. The row's key must have exactly as many further bytes as the caller says.
fn number(row: &[u8], from: usize, behind: usize) -> Result<u64, KeyError> {
    length(row, from, NUMBER_BYTES + behind)?;
    row.get(from..)
        .and_then(|tail| tail.first_chunk())
        .map(|bytes| u64::from_be_bytes(*bytes))
        .ok_or(KeyError::Length {
            expected: NUMBER_BYTES + behind,
            found: row.len().saturating_sub(from),
        })
}

fn flip(id: LeaseId) -> u64 {
    id.0.cast_unsigned() ^ (1 << 63)
}

fn unflip(number: u64) -> LeaseId {
    LeaseId((number ^ (1 << 63)).cast_signed())
}

#[cfg(test)]
mod tests;
