//! Keys in TiKV: everything of one store begins with its prefix, and the prefix with its length.
//!
//! | what | after the prefix |
//! |---|---|
//! | register | `c` name |
//! | fence | `f` |
//! | fence shard | `f` number |
//! | row | `r` key of the row |
//! | slot | `w` slot, eight bytes, big endian |
//!
//! Invariant: no key with one prefix is in the range of another prefix, even if one prefix begins with the other.

use bytes::{BufMut, Bytes, BytesMut};

/// The longest prefix, in bytes.
pub(super) const MAX_PREFIX_LEN: usize = 255;

/// TiKV refuses keys that are longer than this once they are encoded (`storage.max-key-size`).
const MAX_ENCODED_LEN: usize = 8 << 10;

/// TiKV stores keys in groups of this many bytes, and one more for each.
const ENCODED_GROUP_BYTES: usize = 8;

/// The keys of one store.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    prefix: Bytes,
}

impl Keys {
    /// The keys with `prefix`, which has at most [`MAX_PREFIX_LEN`] bytes.
    pub(super) fn new(prefix: &[u8]) -> Option<Keys> {
        let len = u8::try_from(prefix.len()).ok()?;
        let mut bytes = BytesMut::with_capacity(1 + prefix.len());
        bytes.put_u8(len);
        bytes.put_slice(prefix);
        Some(Keys { prefix: bytes.freeze() })
    }

    /// Key of a register.
    pub(crate) fn register(&self, name: &str) -> Bytes {
        self.key(b'c', name.as_bytes())
    }

    /// End of the registers, not part of them, and where all else begins.
    pub(crate) fn registers_end(&self) -> Bytes {
        self.key(b'c' + 1, &[])
    }

    /// Key of the fence.
    pub(crate) fn fence(&self) -> Bytes {
        self.key(b'f', &[])
    }

    /// Returns the key of a fence shard, which moves with the fence, and stands for it in a change beside others.
    pub(crate) fn fence_shard(&self, number: u8) -> Bytes {
        self.key(b'f', &[number])
    }

    /// Key of a row.
    pub(crate) fn row(&self, key: &[u8]) -> Bytes {
        self.key(b'r', key)
    }

    /// End of the rows, not part of them.
    pub(crate) fn rows_end(&self) -> Bytes {
        self.key(b'r' + 1, &[])
    }

    /// The row that a key from TiKV is, sharing its memory; `None` for keys of other kinds.
    pub(crate) fn parse_row(&self, key: &Bytes) -> Option<Bytes> {
        let rest = key.strip_prefix(&self.prefix[..])?;
        (rest.first() == Some(&b'r')).then(|| key.slice(self.prefix.len() + 1..))
    }

    /// Key of a slot.
    pub(crate) fn slot(&self, slot: u64) -> Bytes {
        self.key(b'w', &slot.to_be_bytes())
    }

    /// End of the slots, not part of them.
    pub(crate) fn slots_end(&self) -> Bytes {
        self.key(b'w' + 1, &[])
    }

    /// The slot that a key from TiKV names; `None` for keys of other kinds.
    pub(crate) fn parse_slot(&self, key: &[u8]) -> Option<u64> {
        let rest = key.strip_prefix(&self.prefix[..])?;
        Some(u64::from_be_bytes(rest.strip_prefix(b"w")?.try_into().ok()?))
    }

    /// First key of the store and the end of its keys.
    pub(crate) fn whole(&self) -> (Bytes, Bytes) {
        (self.prefix.clone(), self.key(0xff, &[]))
    }

    /// The longest row key that TiKV takes.
    pub(crate) fn max_row_len(&self) -> usize {
        let longest = MAX_ENCODED_LEN / (ENCODED_GROUP_BYTES + 1) * ENCODED_GROUP_BYTES - 1;
        longest - self.prefix.len() - 1
    }

    fn key(&self, kind: u8, rest: &[u8]) -> Bytes {
        let mut key = BytesMut::with_capacity(self.prefix.len() + 1 + rest.len());
        key.put_slice(&self.prefix);
        key.put_u8(kind);
        key.put_slice(rest);
        key.freeze()
    }
}

/// A key as TiKV and PD order it: groups of eight bytes, each followed by 255 less the zeros that fill it up.
pub(super) fn encode(key: &[u8]) -> Bytes {
    let mut encoded = BytesMut::with_capacity((key.len() / ENCODED_GROUP_BYTES + 1) * (ENCODED_GROUP_BYTES + 1));
    let mut rest = key;
    loop {
        let (group, behind) = rest.split_at(rest.len().min(ENCODED_GROUP_BYTES));
        encoded.put_slice(group);
        encoded.put_bytes(0, ENCODED_GROUP_BYTES - group.len());
        encoded.put_u8(0xff - u8::try_from(ENCODED_GROUP_BYTES - group.len()).unwrap_or(0));
        if group.len() < ENCODED_GROUP_BYTES {
            return encoded.freeze();
        }
        rest = behind;
    }
}

/// The key that was encoded; `None` when it was not. The empty key stands for itself: PD knows it as either end.
pub(super) fn decode(encoded: &[u8]) -> Option<Bytes> {
    let mut key = BytesMut::with_capacity(encoded.len());
    for group in encoded.chunks(ENCODED_GROUP_BYTES + 1) {
        let (&marker, bytes) = group.split_last()?;
        let filled = usize::from(0xff - marker);
        if bytes.len() != ENCODED_GROUP_BYTES || filled > ENCODED_GROUP_BYTES {
            return None;
        }
        key.put_slice(&bytes[..ENCODED_GROUP_BYTES - filled]);
        if filled > 0 {
            break;
        }
    }
    Some(key.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_prefix_contains_the_keys_of_another() {
        for (one, other) in [("a", "ab"), ("", "a"), ("a", "b"), ("ab", "abw")] {
            let (one, other) = (Keys::new(one.as_bytes()).unwrap(), Keys::new(other.as_bytes()).unwrap());
            for (keys, (from, to)) in [(&one, other.whole()), (&other, one.whole())] {
                for key in [
                    keys.register("election"),
                    keys.fence(),
                    keys.row(b""),
                    keys.row(&[0xff; 9]),
                    keys.slot(0),
                    keys.slot(u64::MAX),
                    keys.slots_end(),
                ] {
                    assert!(key < from || key >= to, "{key:?} lies in {from:?}..{to:?}");
                    let (from, to) = keys.whole();
                    assert!(key >= from && key < to, "{key:?} lies outside {from:?}..{to:?}");
                }
            }
        }
        assert!(Keys::new(&[b'p'; MAX_PREFIX_LEN]).is_some());
        assert!(Keys::new(&[b'p'; MAX_PREFIX_LEN + 1]).is_none());
    }

    #[test]
    fn rows_and_slots_are_read_back() {
        let keys = Keys::new(b"p").unwrap();
        assert_eq!(keys.parse_row(&keys.row(b"key")).unwrap(), "key");
        assert_eq!(keys.parse_row(&keys.slot(7)), None);
        assert_eq!(keys.parse_slot(&keys.slot(7)), Some(7));
        assert_eq!(keys.parse_slot(&keys.row(b"key")), None);
        assert_eq!(keys.parse_slot(&Keys::new(b"pw").unwrap().slot(7)), None);
    }

    #[test]
    fn the_longest_row_is_as_long_as_tikv_takes() {
        let keys = Keys::new(b"prefix").unwrap();
        let longest = keys.row(&vec![0xff; keys.max_row_len()]);
        assert!(encode(&longest).len() <= MAX_ENCODED_LEN);
        let longer = keys.row(&vec![0xff; keys.max_row_len() + 1]);
        assert!(encode(&longer).len() > MAX_ENCODED_LEN);
    }

    #[test]
    fn encoding_keeps_the_order_and_is_undone() {
        let mut keys: Vec<Vec<u8>> = vec![vec![]];
        for byte in [0, 1, 0x7f, 0xff] {
            for len in [1, 7, 8, 9, 16, 17] {
                keys.push(vec![byte; len]);
            }
        }
        keys.sort();
        let encoded: Vec<Bytes> = keys.iter().map(|key| encode(key)).collect();
        assert!(encoded.is_sorted_by(|a, b| a < b));
        for (key, encoded) in keys.iter().zip(encoded) {
            assert_eq!(decode(&encoded).unwrap(), key);
        }
        assert_eq!(decode(b"").unwrap(), "");
        for broken in [&b"short"[..], &[0, 0, 0, 0, 0, 0, 0, 0, 9]] {
            assert_eq!(decode(broken), None);
        }
    }
}
