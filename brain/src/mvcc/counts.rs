//! Counts that the next page of a list will ask for again.
//!
//! A client that lists page by page pins the revision of the first page, and every page is answered with the number of keys
//! that are left. At a fixed revision that number never changes, so it is counted once and carried from page to page.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use super::Revision;
use super::op::Span;

/// Lists under way that are remembered. The oldest is forgotten: its next page counts again.
const LISTS: usize = 1_024;

#[derive(Debug, PartialEq, Eq)]
struct Left {
    from: Bytes,
    end: Bytes,
    at: Revision,
    count: i64,
}

/// How many keys spans hold at fixed revisions.
#[derive(Debug, Default)]
pub struct Counts {
    left: Mutex<VecDeque<Left>>,
}

impl Counts {
    /// The number of keys of a span at a revision, if it was noted.
    pub fn take(&self, span: &Span, at: Revision) -> Option<i64> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let found = left
            .iter()
            .rposition(|left| left.at == at && left.from == span.key && left.end == span.end)?;
        left.remove(found).map(|left| left.count)
    }

    /// Notes the number of keys of a span at a revision.
    pub fn note(&self, span: Span, at: Revision, count: i64) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if left.len() == LISTS {
            left.pop_front();
        }
        left.push_back(Left {
            from: span.key,
            end: span.end,
            at,
            count,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_found_for_its_span_and_revision_only() {
        let counts = Counts::default();
        let span = |key: &'static [u8]| Span {
            key: Bytes::from_static(key),
            end: Bytes::from_static(b"z"),
        };
        counts.note(span(b"b\0"), 7, 3);
        assert_eq!(counts.take(&span(b"b\0"), 8), None);
        assert_eq!(counts.take(&span(b"b"), 7), None);
        assert_eq!(counts.take(&span(b"b\0"), 7), Some(3));
    }

    #[test]
    fn the_oldest_list_is_forgotten() {
        let counts = Counts::default();
        let span = Span {
            key: Bytes::from_static(b"a"),
            end: Bytes::new(),
        };
        for at in 0..=1_024 {
            counts.note(span.clone(), at, at);
        }
        assert_eq!(counts.take(&span, 0), None);
        assert_eq!(counts.take(&span, 1), Some(1));
    }
}
