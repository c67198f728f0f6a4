//! The space of a store: how much of its limit is used, and when it is full at the present rate.
//!
//! Figures change all the time. They are written at most once an hour, and only if they have moved, so that a settled cluster costs no writes.

use crds::cluster::status::{SpaceLimit, SpaceStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

pub mod growth;
#[cfg(test)]
mod tests;

use crate::member::MemberSpace;
use crate::quantity;
use crate::status::{ConditionStatus, ConditionUpdate, whole_seconds};

/// The condition about the space.
pub const CONDITION: &str = "SpaceLow";

/// Percentage of a limit from which space is low.
const LOW_PERCENT: u64 = 80;
/// Percentage below which it is not low any more.
const AMPLE_PERCENT: u64 = 75;
/// Percentages that the condition names: a message must not change all the time.
const NAMED_PERCENTS: [u64; 3] = [95, 90, LOW_PERCENT];
/// Percentage points by which another limit must be nearer to replace the one that the status has.
const OTHER_LIMIT_POINTS: u64 = 5;

/// Shortest time between two measurements.
const MEASUREMENT_INTERVAL: SignedDuration = SignedDuration::from_hours(1);
/// Change of the used bytes from which a measurement is worth a write, as a divisor of the limit.
const CHANGE_DIVISOR: i64 = 100;
/// Time before a store is full from which the condition reports it.
const FORECAST_WARNING: SignedDuration = SignedDuration::from_hours(3 * 24);
/// Longest forecast.
const LONGEST_FORECAST_SECONDS: i128 = 30 * 24 * 3600;
const SECONDS_PER_DAY: i128 = 24 * 3600;

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
        let disk = space.disk.map(|disk| Self {
            limit: SpaceLimit::Disk,
            used: disk.bytes.saturating_sub(disk.available_bytes),
            bytes: disk.bytes,
        });
        let limits = || quota.into_iter().chain(disk);
        let nearest = limits().max_by_key(Self::percent)?;
        let kept = limits().find(|limit| Some(limit.limit) == before);
        Some(
            kept.filter(|kept| kept.percent() + OTHER_LIMIT_POINTS > nearest.percent())
                .unwrap_or(nearest),
        )
    }

    /// Returns the used part of the limit. It may be more than 100.
    pub fn percent(&self) -> u64 {
        let percent = u128::from(self.used) * 100 / u128::from(self.bytes.max(1));
        u64::try_from(percent).unwrap_or(u64::MAX)
    }
}

/// Returns the measurement to publish: the present one, or that of `before` as long as it says nearly the same.
pub fn status(before: Option<&SpaceStatus>, seen: Option<StoreSpace>, now: Timestamp) -> Option<SpaceStatus> {
    let Some(seen) = seen else { return before.cloned() };
    let clamp = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let (used, limit) = (clamp(seen.used), clamp(seen.bytes));
    let same = before.filter(|before| before.limit == seen.limit);
    let elapsed = same.map(|before| now.duration_since(before.measured_at.0));
    let is_due = match (same, elapsed) {
        (Some(before), Some(elapsed)) => {
            let moved = used.abs_diff(before.used_bytes) >= (limit / CHANGE_DIVISOR).unsigned_abs();
            // A clock that was set back must not stop all measurements.
            before.limit_bytes != limit || elapsed.is_negative() || (elapsed >= MEASUREMENT_INTERVAL && moved)
        }
        _ => true,
    };
    if !is_due {
        return before.cloned();
    }
    let rate = match (same, elapsed) {
        (Some(before), Some(elapsed)) if elapsed >= MEASUREMENT_INTERVAL => Some(rate(before, used, elapsed.as_secs())),
        (before, _) => before.and_then(|before| before.bytes_per_day),
    };
    Some(SpaceStatus {
        limit: seen.limit,
        used_bytes: used,
        limit_bytes: limit,
        measured_at: Time(whole_seconds(now)),
        bytes_per_day: rate,
        full_at: rate.and_then(|rate| full_at(limit - used, rate, now)),
    })
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

/// Returns the condition; `None` as long as no limit is known. `remedy` says what a user can do about a volume.
pub fn condition(
    before: &[Condition],
    seen: Option<StoreSpace>,
    status: Option<&SpaceStatus>,
    remedy: &str,
) -> Option<ConditionUpdate> {
    let former = before.iter().find(|condition| condition.type_ == CONDITION);
    let (Some(seen), Some(status)) = (seen, status) else {
        return former.map(|former| ConditionUpdate::kept(CONDITION, former));
    };
    let (low, what, remedy) = match seen.limit {
        SpaceLimit::Quota => (
            "QuotaNearlyUsed",
            format!("the quota of {}", quantity::of_bytes(seen.bytes).0),
            "delete keys, compact, or raise spec.quota",
        ),
        SpaceLimit::Disk => ("DiskNearlyFull", "the file system of the volume".to_owned(), remedy),
    };
    let percent = seen.percent();
    let was_low = former.is_some_and(|former| former.status == "True" && former.reason == low);
    if percent >= LOW_PERCENT || (was_low && percent >= AMPLE_PERCENT) {
        let named = NAMED_PERCENTS.iter().find(|named| percent >= **named);
        let named = named.map_or(AMPLE_PERCENT, |named| *named);
        let message = format!("more than {named} % of {what} is used: {remedy}");
        return Some(ConditionUpdate::new(CONDITION, ConditionStatus::True, low, message));
    }
    let warned = status
        .full_at
        .as_ref()
        .filter(|full| full.0.duration_since(status.measured_at.0) <= FORECAST_WARNING);
    Some(match warned {
        Some(full) => ConditionUpdate::new(
            CONDITION,
            ConditionStatus::True,
            "FillsUp",
            format!("at the present rate {what} is used up at {}: {remedy}", full.0),
        ),
        None => ConditionUpdate::new(
            CONDITION,
            ConditionStatus::False,
            "AsExpected",
            "the store has space for three days or more at the present rate",
        ),
    })
}
