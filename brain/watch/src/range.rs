//! The keys that a watcher watches.

use bytes::Bytes;

/// The end of a range of keys. Every end is less than [`RangeEnd::Never`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RangeEnd {
    /// The range ends right before this key.
    Before(Bytes),
    /// The range has no end.
    Never,
}

impl RangeEnd {
    /// Returns true if `key` sorts before the end.
    pub(super) fn is_after(&self, key: &[u8]) -> bool {
        match self {
            RangeEnd::Before(end) => key < end.as_ref(),
            RangeEnd::Never => true,
        }
    }
}

/// The memory of a watcher in addition to its keys.
const WATCHER_BYTES: usize = 1 << 10;

/// A single key, or all keys from one up to an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange(pub(super) RangeShape);

/// The two kinds of range, which the index keeps apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RangeShape {
    One(Bytes),
    Span(Bytes, RangeEnd),
}

/// The error for a range that contains no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("mvcc: watcher range is empty")]
pub struct EmptyRange;

impl KeyRange {
    /// Returns the range of a request with `key` and `range_end`: an empty end means the key alone, an end of one zero byte means
    /// every key from `key` on, and an empty key is the smallest one, a zero byte. Fails with [`EmptyRange`] if the end is not
    /// after the key.
    pub fn from_request(key: Bytes, range_end: Bytes) -> Result<Self, EmptyRange> {
        let key = if key.is_empty() { Bytes::from_static(&[0]) } else { key };
        if range_end.is_empty() {
            return Ok(Self(RangeShape::One(key)));
        }
        if range_end.as_ref() == [0] {
            return Ok(Self(RangeShape::Span(key, RangeEnd::Never)));
        }
        if key >= range_end {
            return Err(EmptyRange);
        }
        Ok(Self(RangeShape::Span(key, RangeEnd::Before(range_end))))
    }

    /// Returns a range that contains the same keys of at most `longest` bytes, with bounds that are no longer than necessary: bytes
    /// beyond that length cannot distinguish keys.
    #[must_use]
    pub(super) fn fit(self, longest: usize) -> Self {
        let fit = |bound: Bytes| match bound.get(..=longest) {
            Some(start) if start.len() < bound.len() => Bytes::copy_from_slice(start),
            _ => bound,
        };
        Self(match self.0 {
            RangeShape::One(key) => RangeShape::One(fit(key)),
            RangeShape::Span(from, RangeEnd::Before(end)) => RangeShape::Span(fit(from), RangeEnd::Before(fit(end))),
            RangeShape::Span(from, RangeEnd::Never) => RangeShape::Span(fit(from), RangeEnd::Never),
        })
    }

    /// Returns approximately the most memory of a watcher of this range.
    #[must_use]
    pub fn watcher_bytes(&self) -> usize {
        WATCHER_BYTES
            + match &self.0 {
                RangeShape::One(key) | RangeShape::Span(key, RangeEnd::Never) => key.len(),
                RangeShape::Span(from, RangeEnd::Before(end)) => from.len() + end.len(),
            }
    }

    /// Returns true if `key` is in the range.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        match &self.0 {
            RangeShape::One(one) => one == key,
            RangeShape::Span(from, end) => from.as_ref() <= key && end.is_after(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(key: &'static [u8], end: &'static [u8]) -> Result<KeyRange, EmptyRange> {
        KeyRange::from_request(Bytes::from_static(key), Bytes::from_static(end))
    }

    #[test]
    fn no_end_means_the_key_alone() {
        let one = range(b"a", b"").unwrap();
        assert!(one.contains(b"a") && !one.contains(b"a\0") && !one.contains(b"b"));
    }

    #[test]
    fn an_end_of_zero_means_every_key_from_there_on() {
        let rest = range(b"b", b"\0").unwrap();
        assert!(rest.contains(b"b") && rest.contains(b"\xff\xff") && !rest.contains(b"a\xff"));
        let all = range(b"", b"\0").unwrap();
        assert!(all.contains(b"\0") && all.contains(b"\xff"));
    }

    #[test]
    fn an_empty_key_is_a_zero_byte() {
        let one = range(b"", b"").unwrap();
        assert!(one.contains(b"\0") && !one.contains(b"a"));
    }

    #[test]
    fn a_range_ends_right_before_its_end() {
        let span = range(b"a", b"c").unwrap();
        assert!(span.contains(b"a") && span.contains(b"b\xff") && !span.contains(b"c") && !span.contains(b"`"));
    }

    #[test]
    fn long_bounds_hold_the_same_keys_when_they_are_cut() {
        let bounds = |longest: usize| {
            let mut all = vec![Vec::new()];
            for _ in 0..longest {
                let longer = all
                    .iter()
                    .flat_map(|bound| [0_u8, 1, 0xff].map(|byte| [&bound[..], &[byte]].concat()));
                let longer: Vec<_> = longer.collect();
                all.extend(longer);
            }
            all.sort();
            all.dedup();
            all
        };
        for from in bounds(4) {
            for end in bounds(4) {
                let Ok(range) = KeyRange::from_request(from.clone().into(), end.clone().into()) else {
                    continue;
                };
                let cut = range.clone().fit(2);
                assert!(cut.watcher_bytes() <= WATCHER_BYTES + 6, "{cut:?}");
                for key in bounds(2) {
                    assert_eq!(
                        cut.contains(&key),
                        range.contains(&key),
                        "{key:?} in {range:?}, cut to {cut:?}"
                    );
                }
            }
        }
        let long = Bytes::from(vec![b'a'; 2 << 20]);
        assert!(
            KeyRange::from_request(long, Bytes::new())
                .unwrap()
                .fit(100)
                .watcher_bytes()
                < 2 * WATCHER_BYTES
        );
    }

    #[test]
    fn an_end_that_is_not_behind_the_key_is_refused() {
        assert_eq!(range(b"b", b"b"), Err(EmptyRange));
        assert_eq!(range(b"b", b"a"), Err(EmptyRange));
        assert_eq!(range(b"\0", b"\0").map(|all| all.contains(b"x")), Ok(true));
        assert_eq!(EmptyRange.to_string(), "mvcc: watcher range is empty");
    }
}
