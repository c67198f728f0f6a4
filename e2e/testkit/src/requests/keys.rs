//! Few keys, with all that makes an order of bytes hard: zeros, 0xff, prefixes of each other.

use bytes::Bytes;
use rand::RngExt as _;

use super::{NONE, RandomRequests, ZERO};

const KEYS: &[&[u8]] = &[
    b"\0",
    b"\0\0",
    b"\0\x01",
    b"\0\xff",
    b"\x01",
    b"a",
    b"a\0",
    b"a\0\0",
    b"a\0\xff",
    b"a\x01",
    b"aa",
    b"aaa",
    b"aab",
    b"ab",
    b"a\xff",
    b"a\xff\0",
    b"a\xff\xff",
    b"b",
    b"ba",
    b"/registry/pods/x",
    b"/registry/pods/y",
    b"/registry/pods",
    b"\xfe",
    b"\xff",
    b"\xff\0",
    b"\xff\xff",
    b"\xff\xff\xff",
];
const VALUES: &[&[u8]] = &[b"", b"", b"x", b"x", b"y", b"\0", b"\xff", b"x\0", b"a longer value"];

impl RandomRequests {
    /// One of few keys; rarely none, or a long one.
    pub fn key(&mut self) -> Bytes {
        match self.rng.random_range(0..100) {
            0 => NONE,
            1 => vec![b'k'; 300].into(),
            _ => Bytes::from_static(self.pick(KEYS)),
        }
    }

    /// A key and a range end.
    pub fn span(&mut self) -> (Bytes, Bytes) {
        let key = self.key();
        let range_end = match self.rng.random_range(0..10) {
            0..=3 => NONE,
            4 => ZERO,
            5..=6 => prefix_end(&key),
            _ => self.key(),
        };
        let key = if range_end == ZERO && self.chance(50) {
            ZERO
        } else {
            key
        };
        (key, range_end)
    }

    /// Often one that other keys have, too.
    pub fn value(&mut self) -> Bytes {
        match self.rng.random_range(0..20) {
            0 => vec![b'v'; 2_000].into(),
            1..=4 => self.rng.random_range(0..1_000_u32).to_string().into(),
            _ => Bytes::from_static(self.pick(VALUES)),
        }
    }
}

/// The end of the range of all keys with this prefix.
#[must_use]
pub fn prefix_end(prefix: &[u8]) -> Bytes {
    let Some(last) = prefix.iter().rposition(|byte| *byte < 0xff) else {
        return ZERO;
    };
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    end.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_before_what_follows_them() {
        for (prefix, end) in [
            (&b"a"[..], &b"b"[..]),
            (b"a\xff", b"b"),
            (b"\xff\xff", b"\0"),
            (b"", b"\0"),
        ] {
            assert_eq!(prefix_end(prefix), end, "{prefix:?}");
        }
    }
}
