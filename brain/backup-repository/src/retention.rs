//! Which backups a retention keeps, and the segments of archives that they need.
//!
//! Pure: no clock, no store. Ages count from the newest backup of the same cluster, not from now: if backups stop, none expires.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Datelike as _, Utc};

use crate::archive::SegmentName;

/// The backups to keep. A backup that any of the rules keeps is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// The newest ones, by number.
    pub last: usize,
    /// Those that are at most this much older than the newest one.
    pub within: Option<Duration>,
    /// The newest one of each day, on this number of days that have backups. Days, weeks and months are those of UTC.
    pub daily: usize,
    /// The newest one of each ISO week, in this number of weeks that have backups.
    pub weekly: usize,
    /// The newest one of each month, in this number of months that have backups.
    pub monthly: usize,
}

/// A rule that keeps a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeptBy {
    Last,
    Within,
    Daily,
    Weekly,
    Monthly,
}

impl KeptBy {
    /// Returns its name in the output of a command.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            KeptBy::Last => "last",
            KeptBy::Within => "within",
            KeptBy::Daily => "daily",
            KeptBy::Weekly => "weekly",
            KeptBy::Monthly => "monthly",
        }
    }
}

/// A backup as far as a retention is concerned.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Retainable {
    /// The time of the backup.
    pub time: DateTime<Utc>,
    /// Its name, which is unique, and orders backups of one time.
    pub name: String,
    /// The cluster that was backed up. Each cluster is counted separately.
    pub cluster: String,
}

impl Retention {
    /// Returns true if no backup would be kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Retention::default()
    }

    /// Returns the rules that keep each backup, by its name. A backup without rules expires.
    #[must_use]
    pub fn apply<'a>(&self, backups: &'a [Retainable]) -> BTreeMap<&'a str, BTreeSet<KeptBy>> {
        let mut newest_first: Vec<_> = backups.iter().collect();
        newest_first.sort_unstable_by(|one, other| other.cmp(one));
        let mut clusters: BTreeMap<&str, Vec<&Retainable>> = BTreeMap::new();
        for backup in newest_first {
            clusters.entry(&backup.cluster).or_default().push(backup);
        }
        let mut kept = BTreeMap::new();
        for backups in clusters.values() {
            for (index, backup) in backups.iter().enumerate() {
                let mut rules = BTreeSet::new();
                if index < self.last {
                    rules.insert(KeptBy::Last);
                }
                let age = (backups[0].time - backup.time).to_std().unwrap_or_default();
                if self.within.is_some_and(|within| age <= within) {
                    rules.insert(KeptBy::Within);
                }
                kept.insert(backup.name.as_str(), rules);
            }
            let mut keep_newest_of = |rule, count, period: fn(&Retainable) -> (i32, u32)| {
                let mut seen = BTreeSet::new();
                for backup in backups {
                    if seen.len() < count && seen.insert(period(backup)) {
                        kept.entry(backup.name.as_str()).or_default().insert(rule);
                    }
                }
            };
            keep_newest_of(KeptBy::Daily, self.daily, |backup| {
                (backup.time.year(), backup.time.ordinal())
            });
            keep_newest_of(KeptBy::Weekly, self.weekly, |backup| {
                let week = backup.time.iso_week();
                (week.year(), week.week())
            });
            keep_newest_of(KeptBy::Monthly, self.monthly, |backup| {
                (backup.time.year(), backup.time.month())
            });
        }
        kept
    }
}

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
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::archive::{self, path, spans};

    fn backup(time: &str) -> Retainable {
        Retainable {
            time: time.parse().unwrap(),
            name: time.to_owned(),
            cluster: "c".to_owned(),
        }
    }

    /// The names of the backups that are kept, in the order of the list.
    fn kept(retention: &Retention, backups: &[Retainable]) -> Vec<String> {
        let rules = retention.apply(backups);
        let kept = backups.iter().filter(|backup| !rules[backup.name.as_str()].is_empty());
        kept.map(|backup| backup.name.clone()).collect()
    }

    #[test]
    fn each_rule_keeps_the_newest_of_its_periods() {
        let times = [
            "2026-01-31T23:00:00Z",
            "2026-02-01T01:00:00Z", // Sunday
            "2026-02-01T22:00:00Z",
            "2026-02-02T01:00:00Z", // Monday
            "2026-03-01T00:00:00Z",
            "2026-03-01T12:00:00Z",
        ];
        let all = times.map(backup);
        let check = |retention: Retention, expected: &[usize]| {
            let expected: Vec<_> = expected.iter().map(|at| times[*at].to_owned()).collect();
            assert_eq!(kept(&retention, &all), expected, "{retention:?}");
        };
        let none = Retention::default();
        check(none, &[]);
        check(Retention { last: 2, ..none }, &[4, 5]);
        let within = Some(Duration::from_secs(12 * 3_600));
        check(Retention { within, ..none }, &[4, 5]);
        check(Retention { daily: 3, ..none }, &[2, 3, 5]);
        check(Retention { weekly: 3, ..none }, &[2, 3, 5]);
        check(Retention { weekly: 9, ..none }, &[2, 3, 5]);
        check(Retention { monthly: 2, ..none }, &[3, 5]);
        check(Retention { monthly: 3, ..none }, &[0, 3, 5]);
    }

    #[test]
    fn each_cluster_is_counted_separately() {
        let mut all = ["2026-02-01T01:00:00Z", "2026-02-02T01:00:00Z", "2026-02-03T01:00:00Z"].map(backup);
        all[0].cluster = "other".to_owned();
        let retention = Retention {
            last: 1,
            ..Retention::default()
        };
        assert_eq!(kept(&retention, &all), [all[0].name.clone(), all[2].name.clone()]);
    }

    /// The model: asks of one backup whether each rule keeps it, by comparing it with all others.
    fn is_kept(retention: &Retention, backup: &Retainable, all: &[Retainable]) -> bool {
        let own: Vec<_> = all.iter().filter(|other| other.cluster == backup.cluster).collect();
        let newer = own.iter().filter(|other| **other > backup);
        if newer.clone().count() < retention.last {
            return true;
        }
        let newest = own.iter().map(|other| other.time).max().unwrap();
        if let Some(within) = retention.within
            && newest - backup.time <= chrono::Duration::from_std(within).unwrap()
        {
            return true;
        }
        let periods = [
            ("%Y-%j", retention.daily),
            ("%G-%V", retention.weekly),
            ("%Y-%m", retention.monthly),
        ];
        periods.into_iter().any(|(format, count)| {
            let period = |of: &Retainable| of.time.format(format).to_string();
            let newer: Vec<_> = newer.clone().map(|other| period(other)).collect();
            let later_periods: BTreeSet<_> = newer.iter().filter(|other| **other != period(backup)).collect();
            !newer.contains(&period(backup)) && later_periods.len() < count
        })
    }

    fn retention() -> impl Strategy<Value = Retention> {
        let within = proptest::option::of((0..60 * 86_400_u64).prop_map(Duration::from_secs));
        (0..5_usize, within, 0..5_usize, 0..5_usize, 0..5_usize).prop_map(|(last, within, daily, weekly, monthly)| {
            Retention {
                last,
                within,
                daily,
                weekly,
                monthly,
            }
        })
    }

    fn backups() -> impl Strategy<Value = Vec<Retainable>> {
        // Around a new year, whose first days are in a week of the year before. Several share a time.
        let hours = proptest::collection::vec((0..24 * 120_i64, 0..2_u8), 0..40);
        hours.prop_map(|hours| {
            let begin: DateTime<Utc> = "2026-11-20T00:00:00Z".parse().unwrap();
            let named = hours.into_iter().enumerate();
            named
                .map(|(index, (hour, cluster))| Retainable {
                    time: begin + chrono::Duration::hours(hour / 3 * 3),
                    name: format!("b{index}"),
                    cluster: format!("c{cluster}"),
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn backup_expires_only_if_no_rule_keeps_it(retention in retention(), backups in backups()) {
            let rules = retention.apply(&backups);
            prop_assert_eq!(rules.len(), backups.len());
            for backup in &backups {
                let is_expired = rules[backup.name.as_str()].is_empty();
                prop_assert_eq!(!is_expired, is_kept(&retention, backup, &backups), "{:?}", backup);
            }
        }

        #[test]
        fn newest_backup_of_a_cluster_never_expires(retention in retention(), backups in backups()) {
            prop_assume!(!retention.is_empty());
            let mut newest: HashMap<&str, &Retainable> = HashMap::new();
            for backup in &backups {
                let found = newest.entry(&backup.cluster).or_insert(backup);
                *found = (*found).max(backup);
            }
            let rules = retention.apply(&backups);
            for backup in newest.values() {
                prop_assert!(!rules[backup.name.as_str()].is_empty(), "{:?}", backup);
            }
        }

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

        #[test]
        fn second_prune_deletes_nothing(retention in retention(), backups in backups()) {
            let rules = retention.apply(&backups);
            let left = backups.iter().filter(|backup| !rules[backup.name.as_str()].is_empty());
            let left: Vec<_> = left.cloned().collect();
            prop_assert!(retention.apply(&left).values().all(|rules| !rules.is_empty()));
        }
    }
}
