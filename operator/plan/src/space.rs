//! The space of a store: how much of its limit is used, and when it is full at the present rate.
//!
//! Figures change all the time. They are written at most once an hour, and only if they have moved, so that a settled cluster costs no writes.

use crds::cluster::status::{SpaceLimit, SpaceStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

pub mod growth;
#[cfg(test)]
mod tests;

use crate::member::{DiskSpace, MemberSpace};
use crate::quantity;
use crate::status::{ConditionStatus, ConditionUpdate, whole_seconds};

/// The condition about the space.
pub const CONDITION: &str = "SpaceLow";

/// Percentage of a limit from which space is low.
const LOW_PERCENT: u64 = 80;
/// Percentage below which it is not low any more.
const AMPLE_PERCENT: u64 = 75;
/// Largest percentage that is reported. A brain is untrusted, and may report anything.
const MAX_PERCENT: u64 = 1000;
/// Percentage points by which another limit must be nearer to replace the one that the status has.
const OTHER_LIMIT_POINTS: u64 = 5;

/// Shortest time between two measurements.
const MEASUREMENT_INTERVAL: SignedDuration = SignedDuration::from_hours(1);
/// Time from the first measurement to the first rate: what a new cluster begins with is no rate.
const FIRST_RATE_INTERVAL: SignedDuration = SignedDuration::from_hours(6);
/// Change of the used bytes, or of the limit, from which it is worth a write, as a divisor of the limit.
const CHANGE_DIVISOR: u64 = 100;
/// Time before a store is full from which the condition reports it.
const FORECAST_WARNING: SignedDuration = SignedDuration::from_hours(3 * 24);
/// Longest forecast.
const LONGEST_FORECAST_SECONDS: i128 = 30 * 24 * 3600;
const SECONDS_PER_DAY: i128 = 24 * 3600;

/// The space of a store, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeenSpace {
    /// No leader has answered: the last measurement stays.
    Unknown,
    /// The leader has no limit, or does not report one.
    Unlimited,
    Limited(StoreSpace),
}

/// The limit that a store reaches first, and how much of it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreSpace {
    pub limit: SpaceLimit,
    /// Bytes that are used.
    pub used: u64,
    /// Bytes of the limit.
    pub bytes: u64,
}

impl StoreSpace {
    /// Returns the limit that is nearest by what a member reports; `None` if there is no limit. The limit of the former measurement is
    /// preferred if another one is hardly nearer.
    pub fn of(space: &MemberSpace, before: Option<SpaceLimit>) -> Option<Self> {
        let quota = space.quota_bytes.map(|bytes| Self {
            limit: SpaceLimit::Quota,
            used: space.bytes,
            bytes,
        });
        let disk = space.disk.map(Self::of_disk);
        let limits = || quota.into_iter().chain(disk);
        let nearest = limits().max_by_key(Self::percent)?;
        let kept = limits().find(|limit| Some(limit.limit) == before);
        Some(
            kept.filter(|kept| kept.percent() + OTHER_LIMIT_POINTS > nearest.percent())
                .unwrap_or(nearest),
        )
    }

    /// Returns the space of a file system.
    fn of_disk(disk: DiskSpace) -> Self {
        Self {
            limit: SpaceLimit::Disk,
            used: disk.bytes.saturating_sub(disk.available_bytes),
            bytes: disk.bytes,
        }
    }

    /// Returns the used part of the limit. It may be more than 100.
    pub fn percent(&self) -> u64 {
        let percent = u128::from(self.used) * 100 / u128::from(self.bytes.max(1));
        u64::try_from(percent).unwrap_or(MAX_PERCENT).min(MAX_PERCENT)
    }
}

/// Returns the measurement to publish: the present one, or that of `before` as long as it says nearly the same.
pub fn status(before: Option<&SpaceStatus>, seen: SeenSpace, now: Timestamp) -> Option<SpaceStatus> {
    let seen = match seen {
        SeenSpace::Unknown => return before.cloned(),
        SeenSpace::Unlimited => return None,
        SeenSpace::Limited(seen) => seen,
    };
    let clamp = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let (used, limit) = (clamp(seen.used), clamp(seen.bytes));
    let first = SpaceStatus {
        limit: seen.limit,
        used_bytes: used,
        limit_bytes: limit,
        measured_at: Time(whole_seconds(now)),
        bytes_per_day: None,
        full_at: None,
    };
    let Some(before) = before.filter(|before| before.limit == seen.limit) else {
        return Some(first);
    };
    let elapsed = now.duration_since(before.measured_at.0);
    if elapsed.is_negative() {
        // The clock was set back.
        return Some(SpaceStatus {
            bytes_per_day: before.bytes_per_day,
            ..first
        });
    }
    let differs = |one: i64, other: i64| one.abs_diff(other) >= (limit.unsigned_abs() / CHANGE_DIVISOR).max(1);
    let interval = match before.bytes_per_day {
        Some(_) => MEASUREMENT_INTERVAL,
        None => FIRST_RATE_INTERVAL,
    };
    // A forecast is made anew until it is none: the growth that it is based on may have ended.
    let is_news = differs(used, before.used_bytes) || before.full_at.is_some();
    if elapsed >= interval && is_news {
        let rate = rate(before, used, elapsed.as_secs());
        return Some(SpaceStatus {
            bytes_per_day: Some(rate),
            full_at: full_at(limit.saturating_sub(used), rate, now),
            ..first
        });
    }
    if differs(limit, before.limit_bytes) {
        let rate = before.bytes_per_day;
        return Some(SpaceStatus {
            limit_bytes: limit,
            full_at: rate.and_then(|rate| full_at(limit.saturating_sub(used), rate, now)),
            ..before.clone()
        });
    }
    Some(before.clone())
}

/// Returns the bytes a day: the mean of the rate since the former measurement and of the rate that it had, so that one compaction or one
/// import does not decide alone.
fn rate(before: &SpaceStatus, used: i64, seconds: i64) -> i64 {
    let grown = i128::from(used) - i128::from(before.used_bytes);
    let since = grown * SECONDS_PER_DAY / i128::from(seconds.max(1));
    let mean = match before.bytes_per_day {
        Some(former) => (since + i128::from(former)) / 2,
        None => since,
    };
    i64::try_from(mean).unwrap_or(i64::MAX)
}

fn full_at(left: i64, rate: i64, now: Timestamp) -> Option<Time> {
    if rate <= 0 {
        return None;
    }
    let seconds = i128::from(left.max(0)) * SECONDS_PER_DAY / i128::from(rate);
    let seconds = i64::try_from(seconds)
        .ok()
        .filter(|seconds| i128::from(*seconds) <= LONGEST_FORECAST_SECONDS)?;
    let at = now.checked_add(SignedDuration::from_secs(seconds)).ok()?;
    Some(Time(whole_seconds(at)))
}

/// Returns the condition; `None` as long as no limit is known. `remedy` says what a user can do about a quota, and about a volume.
pub fn condition(
    before: &[Condition],
    seen: SeenSpace,
    status: Option<&SpaceStatus>,
    (quota_remedy, disk_remedy): (&str, &str),
) -> Option<ConditionUpdate> {
    let former = before.iter().find(|condition| condition.type_ == CONDITION);
    let seen = match seen {
        SeenSpace::Unknown => return former.map(|former| ConditionUpdate::kept(CONDITION, former)),
        SeenSpace::Unlimited => return None,
        SeenSpace::Limited(seen) => seen,
    };
    let status = status?;
    // Messages have no figures that change all the time.
    let (low, limit, remedy) = match seen.limit {
        SpaceLimit::Quota => (
            "QuotaNearlyUsed",
            format!("the quota of {}", quantity::of_bytes(seen.bytes).0),
            quota_remedy,
        ),
        SpaceLimit::Disk => (
            "DiskNearlyFull",
            "the file system of the volume".to_owned(),
            disk_remedy,
        ),
    };
    let was_low = former.is_some_and(|former| former.status == "True" && former.reason == low);
    if seen.percent() >= if was_low { AMPLE_PERCENT } else { LOW_PERCENT } {
        let message = format!("about four fifths or more of {limit} are used: {remedy}");
        return Some(ConditionUpdate::new(CONDITION, ConditionStatus::True, low, message));
    }
    let soon = |full: &&Time| full.0.duration_since(status.measured_at.0) <= FORECAST_WARNING;
    Some(match status.full_at.as_ref().filter(soon) {
        Some(full) => ConditionUpdate::new(
            CONDITION,
            ConditionStatus::True,
            "FillsUp",
            format!("at the present rate {limit} is used up at {}: {remedy}", full.0),
        ),
        None => ConditionUpdate::new(
            CONDITION,
            ConditionStatus::False,
            "AsExpected",
            "the store has space for three days or more at the present rate",
        ),
    })
}
