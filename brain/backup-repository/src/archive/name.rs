//! Names of segments.

use std::str::FromStr;

/// The folder of archives. It is part of the format.
pub(crate) const ARCHIVES: &str = "archive";

/// Digits of a revision in a name, so that names are ordered as revisions are.
const REVISION_DIGITS: usize = 19;

/// The name of a segment: its first and its last revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentName {
    pub first: i64,
    pub last: i64,
}

impl SegmentName {
    /// Returns the object of the segment.
    pub(crate) fn object(self, cluster: &str) -> String {
        format!("{ARCHIVES}/{cluster}/{self}")
    }
}

/// Returns the object that says how far an archive is.
pub(super) fn head_object(cluster: &str) -> String {
    format!("{ARCHIVES}/{cluster}/head.json")
}

impl std::fmt::Display for SegmentName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { first, last } = self;
        write!(f, "{first:0REVISION_DIGITS$}-{last:0REVISION_DIGITS$}")
    }
}

/// A text is not the name of a segment.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of a segment")]
pub struct NotASegment(String);

impl FromStr for SegmentName {
    type Err = NotASegment;

    fn from_str(text: &str) -> Result<Self, NotASegment> {
        let parse = || {
            let (first, last) = text.split_once('-')?;
            let name = Self {
                first: first.parse().ok()?,
                last: last.parse().ok()?,
            };
            // Each segment has one name.
            (name.first >= 1 && name.first <= name.last && name.to_string() == text).then_some(name)
        };
        parse().ok_or_else(|| NotASegment(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_ordered_by_revisions() {
        let in_order = [(1, 9), (2, 8), (10, 10), (10, 11), (i64::MAX, i64::MAX)];
        let in_order = in_order.map(|(first, last)| SegmentName { first, last });
        let texts = in_order.map(|name| name.to_string());
        assert!(in_order.is_sorted() && texts.is_sorted(), "{texts:?}");
        for (name, text) in in_order.iter().zip(&texts) {
            assert_eq!(text.parse().as_ref(), Ok(name));
        }
        assert_eq!(texts[2], "0000000000000000010-0000000000000000010");
        assert_eq!(in_order[2].object("1f"), format!("archive/1f/{}", texts[2]));
        for text in ["", "1-2", "head.json", "0000000000000000011-0000000000000000010"] {
            assert!(text.parse::<SegmentName>().is_err(), "{text}");
        }
    }
}
