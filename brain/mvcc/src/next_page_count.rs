//! Counts that the next page of a list will ask for again.
//!
//! A client that lists page by page pins the revision of the first page, and every page is answered with the number of keys
//! that are left. At a fixed revision that number never changes, so it is counted once and carried from page to page.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use super::op::Span;
use etcd_types::types::Revision;

/// Lists under way that are remembered. The oldest is forgotten: its next page counts again.
const MAX_LISTS: usize = 1_024;

/// Bytes of keys that are remembered. Clients send bounds of any length: one that takes more than its share is not.
const MAX_CACHE_BYTES: usize = 1 << 20;
const MAX_LIST_BYTES: usize = MAX_CACHE_BYTES / 8;

#[derive(Debug, PartialEq, Eq)]
struct RemainingCount {
    from: Bytes,
    end: Bytes,
    at: Revision,
    count: i64,
}

/// Numbers of keys of spans at fixed revisions.
#[derive(Debug, Default)]
pub struct PageCounts {
    left: Mutex<RemainingCounts>,
}

/// The oldest first.
#[derive(Debug, Default)]
struct RemainingCounts {
    left: VecDeque<RemainingCount>,
    bytes: usize,
}

impl RemainingCount {
    fn bytes(&self) -> usize {
        self.from.len() + self.end.len()
    }
}

impl PageCounts {
    /// Removes and returns the number of keys of a span at a revision, if it is cached.
    pub fn take(&self, span: &Span, at: Revision) -> Option<i64> {
        let mut lists = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let found = lists
            .left
            .iter()
            .rposition(|left| left.at == at && left.from == span.key && left.end == span.end)?;
        let left = lists.left.remove(found)?;
        lists.bytes -= left.bytes();
        Some(left.count)
    }

    /// Caches the number of keys of a span at a revision.
    pub fn note(&self, span: Span, at: Revision, count: i64) {
        let noted = RemainingCount {
            from: span.key,
            end: span.end,
            at,
            count,
        };
        if noted.bytes() > MAX_LIST_BYTES {
            return;
        }
        let mut lists = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        lists.bytes += noted.bytes();
        lists.left.push_back(noted);
        while lists.left.len() > MAX_LISTS || lists.bytes > MAX_CACHE_BYTES {
            let Some(oldest) = lists.left.pop_front() else { return };
            lists.bytes -= oldest.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_found_for_its_span_and_revision_only() {
        let cache = PageCounts::default();
        let span = |key: &'static [u8]| Span {
            key: Bytes::from_static(key),
            end: Bytes::from_static(b"z"),
        };
        cache.note(span(b"b\0"), 7, 3);
        assert_eq!(cache.take(&span(b"b\0"), 8), None);
        assert_eq!(cache.take(&span(b"b"), 7), None);
        assert_eq!(cache.take(&span(b"b\0"), 7), Some(3));
    }

    #[test]
    fn the_oldest_list_is_forgotten() {
        let cache = PageCounts::default();
        let span = Span {
            key: Bytes::from_static(b"a"),
            end: Bytes::new(),
        };
        for at in 0..=1_024 {
            cache.note(span.clone(), at, at);
        }
        assert_eq!(cache.take(&span, 0), None);
        assert_eq!(cache.take(&span, 1), Some(1));
    }

    #[test]
    fn bounds_of_lists_take_few_bytes() {
        let cache = PageCounts::default();
        for at in 0..64 {
            let end = Bytes::from(vec![0xff; if at % 2 == 0 { 2 << 20 } else { 64 << 10 }]);
            let key = Bytes::from_static(b"a");
            cache.note(Span { key, end }, at, at);
        }
        let left = &cache.left.lock().unwrap().left;
        let bytes: usize = left.iter().map(|left| left.from.len() + left.end.len()).sum();
        assert!(bytes <= 1 << 20, "{bytes} bytes are kept");
        assert!(left.iter().any(|left| left.at == 63), "the newest is forgotten");
    }
}
