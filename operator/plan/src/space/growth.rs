//! The size of a claim: that of the spec, or a larger one if the volume is nearly full and may grow by itself.

use crds::cluster::storage::{AutoGrow, Embedded};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{LOW_PERCENT, StoreSpace};
use crate::member::{DiskSpace, MemberAnswer, MemberSpace};
use crate::quantity;

/// Smallest step without `autoGrow.step`.
const MIN_STEP_BYTES: u64 = 1 << 30;
/// Part of the present size that is added without `autoGrow.step`, as a divisor.
const STEP_DIVISOR: u64 = 4;
/// A file system that is more times as large as its claim is not that of the claim alone.
const SHARED_FACTOR: u64 = 2;

/// The sizes of a claim.
#[derive(Debug, Clone, Copy)]
pub struct ClaimSizes<'a> {
    /// The requested size.
    pub requested: Option<&'a Quantity>,
    /// The size of its volume.
    pub capacity: Option<&'a Quantity>,
}

/// Returns the size that a claim should have. A claim that has grown keeps its size.
pub fn wanted(embedded: &Embedded, claim: ClaimSizes<'_>, member: Option<&MemberAnswer>) -> Quantity {
    let (Some(auto), Some(requested)) = (&embedded.auto_grow, claim.requested) else {
        return embedded.size.clone();
    };
    let (Some(of_spec), Some(present)) = (quantity::bytes(&embedded.size), quantity::bytes(requested)) else {
        return embedded.size.clone();
    };
    if present < of_spec {
        return embedded.size.clone();
    }
    next(auto, present, claim, member).map_or_else(|| requested.clone(), quantity::of_bytes)
}

/// Returns the next size, if the volume is nearly full and not being enlarged already.
fn next(auto: &AutoGrow, present: u64, claim: ClaimSizes<'_>, member: Option<&MemberAnswer>) -> Option<u64> {
    let max = quantity::bytes(&auto.max).filter(|max| present < *max)?;
    let capacity = quantity::bytes(claim.capacity?).filter(|capacity| *capacity >= present)?;
    let member = member?;
    let space = member.space?;
    let disk = space.disk.filter(|disk| !is_shared(disk, capacity))?;
    let is_full = member.alarms.iter().any(|alarm| alarm == "NOSPACE") && !is_quota_used(&space);
    if percent(disk) < LOW_PERCENT && !is_full {
        return None;
    }
    let step = auto.step.as_ref().and_then(quantity::bytes);
    let step = step.unwrap_or_else(|| (present / STEP_DIVISOR).max(MIN_STEP_BYTES));
    // Rounded up to whole MiB, like every size that is written, but not above the maximum.
    let next = present.saturating_add(step).min(max);
    Some(next.div_ceil(1 << 20) << 20).map(|rounded| if rounded > max { max >> 20 << 20 } else { rounded })
}

fn percent(disk: DiskSpace) -> u64 {
    let space = MemberSpace {
        bytes: 0,
        quota_bytes: None,
        disk: Some(disk),
    };
    StoreSpace::of(&space, None).map_or(0, |space| space.percent())
}

/// Returns true if the alarm may be one of the quota, which a larger volume does not clear.
fn is_quota_used(space: &MemberSpace) -> bool {
    let quota = MemberSpace { disk: None, ..*space };
    StoreSpace::of(&quota, None).is_some_and(|quota| quota.percent() >= LOW_PERCENT)
}

fn is_shared(disk: &DiskSpace, capacity: u64) -> bool {
    disk.bytes > capacity.saturating_mul(SHARED_FACTOR)
}

/// Returns a message if the file system is not that of the claim alone: the claim is no measure of it, and does not grow by itself.
pub fn ignored(embedded: &Embedded, capacity: Option<&Quantity>, member: Option<&MemberAnswer>) -> Option<String> {
    embedded.auto_grow.as_ref()?;
    let capacity = capacity?;
    let disk = member?.space?.disk?;
    is_shared(&disk, quantity::bytes(capacity)?).then(|| {
        format!(
            "storage.embedded.autoGrow has no effect: the file system of the volume has {}, and its claim {}, so others use it too",
            quantity::of_bytes(disk.bytes).0,
            capacity.0
        )
    })
}

/// Returns what a user can do about a volume that is nearly full.
pub fn remedy(embedded: Option<&Embedded>, capacity: Option<&Quantity>) -> &'static str {
    let auto = embedded.and_then(|embedded| embedded.auto_grow.as_ref());
    let at_max = |auto: &AutoGrow| capacity.and_then(quantity::parse) >= quantity::parse(&auto.max);
    match auto {
        Some(auto) if at_max(auto) => "the volume has the size of storage.embedded.autoGrow.max: raise it",
        Some(_) => "the operator enlarges the volume by storage.embedded.autoGrow",
        None => "raise storage.embedded.size, or let it grow by storage.embedded.autoGrow",
    }
}
