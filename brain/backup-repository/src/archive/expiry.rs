//! The segments of an archive that no backup needs.

use super::SegmentName;

/// Returns the segments of an archive that no backup needs which is kept: those that end before the oldest one. Without a backup none
/// expires.
#[must_use]
pub fn expired_segments(kept_revisions: &[i64], segments: &[SegmentName]) -> Vec<SegmentName> {
    let Some(oldest) = kept_revisions.iter().min() else {
        return Vec::new();
    };
    segments.iter().filter(|name| name.last <= *oldest).copied().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::archive::{self, path, spans};

    proptest! {
        /// The model: whether each revision can be restored from each backup that is kept.
        #[test]
        fn segment_expires_only_if_no_kept_backup_needs_it(
            kept in proptest::collection::vec(0..50_i64, 0..4), segments in archive::chain::tests::segments()
        ) {
            let expired = expired_segments(&kept, &segments);
            let left: Vec<_> = segments.iter().copied().filter(|name| !expired.contains(name)).collect();
            let (before, after) = (spans(&segments), spans(&left));
            for base in &kept {
                for goal in 0..60 {
                    let is_possible = path(&before, *base, goal).is_ok();
                    prop_assert_eq!(path(&after, *base, goal).is_ok(), is_possible, "{} to {}", base, goal);
                }
            }
            // Each segment that is left has a revision after a backup.
            prop_assert!(kept.is_empty() || left.iter().all(|name| kept.iter().any(|base| name.last > *base)));
            prop_assert!(!kept.is_empty() || expired.is_empty());
        }
    }
}
