//! Which backups a retention keeps: for `kubebrain backup prune`, and for schedules of the operator.
//!
//! Pure: no clock, no store. Ages count from the newest backup of the same cluster, not from now: if backups stop, none expires.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const SECONDS_PER_HOUR: i64 = 3_600;
const SECONDS_PER_DAY: i64 = 24 * SECONDS_PER_HOUR;

/// The backups to keep. A backup that any of the rules keeps is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// The newest ones, by number.
    pub last: usize,
    /// Those that are at most this much older than the newest one.
    pub within: Option<Duration>,
    /// The newest one of each hour, in this number of hours that have backups. Hours and all longer periods are those of UTC.
    pub hourly: usize,
    /// The newest one of each day, on this number of days that have backups.
    pub daily: usize,
    /// The newest one of each ISO week, in this number of weeks that have backups.
    pub weekly: usize,
    /// The newest one of each month, in this number of months that have backups.
    pub monthly: usize,
    /// The newest one of each year, in this number of years that have backups.
    pub yearly: usize,
}

/// A rule that keeps a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeptBy {
    Last,
    Within,
    Hourly,
    Daily,
    Weekly,
    Monthly,
    Yearly,
}

impl KeptBy {
    /// Returns its name in the output of a command.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            KeptBy::Last => "last",
            KeptBy::Within => "within",
            KeptBy::Hourly => "hourly",
            KeptBy::Daily => "daily",
            KeptBy::Weekly => "weekly",
            KeptBy::Monthly => "monthly",
            KeptBy::Yearly => "yearly",
        }
    }
}

/// A backup as far as a retention is concerned.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Retainable {
    /// The time of the backup.
    pub time: SystemTime,
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
                let age = backups[0].time.duration_since(backup.time).unwrap_or_default();
                if self.within.is_some_and(|within| age <= within) {
                    rules.insert(KeptBy::Within);
                }
                kept.insert(backup.name.as_str(), rules);
            }
            let mut keep_newest_of = |rule, count, period: fn(i64) -> i64| {
                let mut seen = BTreeSet::new();
                for backup in backups {
                    if seen.len() < count && seen.insert(period(unix_seconds(backup.time))) {
                        kept.entry(backup.name.as_str()).or_default().insert(rule);
                    }
                }
            };
            keep_newest_of(KeptBy::Hourly, self.hourly, |at| at.div_euclid(SECONDS_PER_HOUR));
            keep_newest_of(KeptBy::Daily, self.daily, |at| at.div_euclid(SECONDS_PER_DAY));
            // Weeks begin on Mondays, and 1970 began on a Thursday.
            keep_newest_of(KeptBy::Weekly, self.weekly, |at| {
                (at.div_euclid(SECONDS_PER_DAY) + 3).div_euclid(7)
            });
            keep_newest_of(KeptBy::Monthly, self.monthly, |at| {
                let (year, month) = year_and_month(at);
                year * 12 + month
            });
            keep_newest_of(KeptBy::Yearly, self.yearly, |at| year_and_month(at).0);
        }
        kept
    }
}

/// Returns the seconds since 1970, rounded down.
fn unix_seconds(time: SystemTime) -> i64 {
    let whole = |since: Duration| i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => whole(since),
        Err(before) => -whole(before.duration()) - i64::from(before.duration().subsec_nanos() > 0),
    }
}

/// Returns the year and the month, from 0, in UTC. Years are counted from March in between, so that a leap day is the last one.
fn year_and_month(seconds: i64) -> (i64, i64) {
    const DAYS_PER_400_YEARS: i64 = 146_097;
    // Days since the first of March of the year 0.
    let days = seconds.div_euclid(SECONDS_PER_DAY) + 719_468;
    let (era, day) = (days.div_euclid(DAYS_PER_400_YEARS), days.rem_euclid(DAYS_PER_400_YEARS));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153 + 2;
    (era * 400 + year + month / 12, month % 12)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use chrono::{DateTime, Utc};
    use proptest::prelude::*;

    use super::*;

    fn backup(time: &str) -> Retainable {
        Retainable {
            time: time.parse::<DateTime<Utc>>().unwrap().into(),
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
        check(Retention { hourly: 2, ..none }, &[4, 5]);
        check(Retention { daily: 3, ..none }, &[2, 3, 5]);
        check(Retention { weekly: 3, ..none }, &[2, 3, 5]);
        check(Retention { weekly: 9, ..none }, &[2, 3, 5]);
        check(Retention { monthly: 2, ..none }, &[3, 5]);
        check(Retention { monthly: 3, ..none }, &[0, 3, 5]);
        check(Retention { yearly: 1, ..none }, &[5]);
        check(Retention { yearly: 2, ..none }, &[5]);
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
            && newest.duration_since(backup.time).unwrap() <= within
        {
            return true;
        }
        let periods = [
            ("%Y-%j %H", retention.hourly),
            ("%Y-%j", retention.daily),
            ("%G-%V", retention.weekly),
            ("%Y-%m", retention.monthly),
            ("%Y", retention.yearly),
        ];
        periods.into_iter().any(|(format, count)| {
            let period = |of: &Retainable| DateTime::<Utc>::from(of.time).format(format).to_string();
            let newer: Vec<_> = newer.clone().map(|other| period(other)).collect();
            let later_periods: BTreeSet<_> = newer.iter().filter(|other| **other != period(backup)).collect();
            !newer.contains(&period(backup)) && later_periods.len() < count
        })
    }

    fn retention() -> impl Strategy<Value = Retention> {
        let within = proptest::option::of((0..60 * 86_400_u64).prop_map(Duration::from_secs));
        let count = || 0..5_usize;
        let counts = (count(), count(), count(), count(), count(), 0..3_usize);
        (within, counts).prop_map(|(within, (last, hourly, daily, weekly, monthly, yearly))| Retention {
            last,
            within,
            hourly,
            daily,
            weekly,
            monthly,
            yearly,
        })
    }

    fn backups() -> impl Strategy<Value = Vec<Retainable>> {
        // Around a new year, whose first days are in a week of the year before. Several share a time.
        let halves = proptest::collection::vec((0..48 * 120_i64, 0..2_u8), 0..40);
        halves.prop_map(|halves| {
            let begin: DateTime<Utc> = "2026-11-20T00:00:00Z".parse().unwrap();
            let named = halves.into_iter().enumerate();
            named
                .map(|(index, (half, cluster))| Retainable {
                    time: (begin + chrono::Duration::minutes(half / 5 * 5 * 30)).into(),
                    name: format!("b{index}"),
                    cluster: format!("c{cluster}"),
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn years_and_months_are_those_of_the_calendar(seconds in -62_000_000_000..250_000_000_000_i64) {
            use chrono::Datelike as _;
            let time = DateTime::from_timestamp(seconds, 0).unwrap();
            prop_assert_eq!(year_and_month(seconds), (i64::from(time.year()), i64::from(time.month0())));
            prop_assert_eq!(unix_seconds(time.into()), seconds);
        }

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

        #[test]
        fn second_prune_deletes_nothing(retention in retention(), backups in backups()) {
            let rules = retention.apply(&backups);
            let left = backups.iter().filter(|backup| !rules[backup.name.as_str()].is_empty());
            let left: Vec<_> = left.cloned().collect();
            prop_assert!(retention.apply(&left).values().all(|rules| !rules.is_empty()));
        }
    }
}
