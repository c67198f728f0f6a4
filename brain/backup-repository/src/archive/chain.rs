//! Which segments lead from one revision to another.
//!
//! Pure. Segments of one cluster may overlap if two archives were written at once: what they have in common is equal, so nothing is lost
//! by taking both.

use super::SegmentName;

/// Segments without a gap between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    pub first: i64,
    pub last: i64,
    /// In order. None is a part of another one.
    pub segments: Vec<SegmentName>,
}

/// The reason why an archive does not lead to a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// It ends before.
    #[error("revision {wanted} is beyond the end of the archive, which is revision {end}")]
    BeyondEnd { wanted: i64, end: i64 },
    /// It has later revisions, but not these.
    #[error("the archive lacks the revisions {from} to {to}")]
    Lacks { from: i64, to: i64 },
}

/// Returns the spans of an archive, the oldest one first.
#[must_use]
pub fn spans(segments: &[SegmentName]) -> Vec<Span> {
    let mut sorted = segments.to_vec();
    sorted.sort_unstable_by_key(|name| (name.first, std::cmp::Reverse(name.last)));
    let mut spans: Vec<Span> = Vec::new();
    for name in sorted {
        match spans.last_mut() {
            Some(span) if name.last <= span.last => {}
            Some(span) if name.first <= span.last + 1 => {
                span.last = name.last;
                span.segments.push(name);
            }
            _ => spans.push(Span {
                first: name.first,
                last: name.last,
                segments: vec![name],
            }),
        }
    }
    spans
}

/// Returns the segments that hold all revisions after `base` up to `goal`.
pub fn path(spans: &[Span], base: i64, goal: i64) -> Result<Vec<SegmentName>, ChainError> {
    if goal <= base {
        return Ok(Vec::new());
    }
    let next = base + 1;
    let Some(at) = spans.iter().position(|span| next <= span.last) else {
        let end = spans.last().map_or(base, |span| span.last);
        return Err(ChainError::BeyondEnd {
            wanted: goal,
            end: end.max(base),
        });
    };
    let span = &spans[at];
    if next < span.first {
        return Err(ChainError::Lacks {
            from: next,
            to: span.first - 1,
        });
    }
    if goal > span.last {
        return Err(match spans.get(at + 1) {
            Some(later) => ChainError::Lacks {
                from: span.last + 1,
                to: later.first - 1,
            },
            None => ChainError::BeyondEnd {
                wanted: goal,
                end: span.last,
            },
        });
    }
    let needed = |name: &&SegmentName| name.last > base && name.first <= goal;
    Ok(span.segments.iter().filter(needed).copied().collect())
}

/// Returns the revision that a backup can be brought to.
#[must_use]
pub fn reach(spans: &[Span], base: i64) -> i64 {
    let span = spans.iter().find(|span| span.first <= base + 1 && base < span.last);
    span.map_or(base, |span| span.last)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    pub(crate) fn segments() -> impl Strategy<Value = Vec<SegmentName>> {
        let some = proptest::collection::vec((1..40_i64, 0..9_i64), 0..12);
        some.prop_map(|some| {
            let name = |(first, more)| SegmentName {
                first,
                last: first + more,
            };
            some.into_iter().map(name).collect()
        })
    }

    fn revisions(segments: &[SegmentName]) -> BTreeSet<i64> {
        segments.iter().flat_map(|name| name.first..=name.last).collect()
    }

    proptest! {
        /// The model: the set of revisions that are in any segment.
        #[test]
        fn path_exists_only_if_no_revision_is_missing(
            segments in segments(), base in 0..50_i64, goal in 0..50_i64
        ) {
            let spans = spans(&segments);
            let stored = revisions(&segments);
            let missing: Vec<i64> = (base + 1..=goal).filter(|revision| !stored.contains(revision)).collect();
            match path(&spans, base, goal) {
                Ok(path) => {
                    prop_assert_eq!(&missing, &Vec::<i64>::new());
                    let found = revisions(&path);
                    prop_assert!((base + 1..=goal).all(|revision| found.contains(&revision)));
                    prop_assert!(path.is_sorted());
                    prop_assert!(path.iter().all(|name| segments.contains(name) && name.last > base && name.first <= goal));
                }
                Err(ChainError::Lacks { from, to }) => {
                    prop_assert_eq!(missing.first(), Some(&from));
                    prop_assert!((from..=to).all(|revision| !stored.contains(&revision)) && stored.contains(&(to + 1)));
                }
                Err(ChainError::BeyondEnd { wanted, end }) => {
                    prop_assert_eq!(wanted, goal);
                    prop_assert!(!missing.is_empty() && end < goal);
                    prop_assert!(stored.iter().all(|revision| *revision <= end));
                }
            }
        }

        #[test]
        fn reach_of_a_backup_is_the_last_revision_with_a_path(segments in segments(), base in 0..50_i64) {
            let spans = spans(&segments);
            let reach = reach(&spans, base);
            prop_assert!(path(&spans, base, reach).is_ok());
            prop_assert!(path(&spans, base, reach + 1).is_err());
        }
    }

    #[test]
    fn span_ends_where_a_segment_is_missing() {
        let names = [(11, 20), (21, 30), (41, 50), (51, 60)].map(|(first, last)| SegmentName { first, last });
        let spans = spans(&names);
        assert_eq!(spans.len(), 2);
        assert_eq!(path(&spans, 10, 25).unwrap(), names[..2]);
        assert_eq!(path(&spans, 45, 51).unwrap(), names[2..]);
        assert_eq!(path(&spans, 10, 45), Err(ChainError::Lacks { from: 31, to: 40 }));
        assert_eq!(path(&spans, 9, 25), Err(ChainError::Lacks { from: 10, to: 10 }));
        let beyond = ChainError::BeyondEnd { wanted: 61, end: 60 };
        assert_eq!(path(&spans, 40, 61), Err(beyond));
    }
}
