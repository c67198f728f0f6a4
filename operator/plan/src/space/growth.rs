//! The size of a claim: that of the spec, or a larger one if the volume is nearly full and may grow by itself.

use crds::cluster::storage::{AutoGrow, Embedded};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{LOW_PERCENT, StoreSpace};
use crate::member::{DiskSpace, MemberAnswer};
use crate::quantity;
use crate::steps::claims::ClaimsStatus;

/// Smallest step without `autoGrow.step`.
const MIN_STEP_BYTES: u64 = 1 << 30;
/// Part of the present size that is added without `autoGrow.step`, as a divisor.
const STEP_DIVISOR: u64 = 4;
/// Part of a claim's size by which its file system may differ, as a divisor, and bytes that it may differ in addition: a file system needs
/// some for itself.
const OVERHEAD_DIVISOR: u64 = 8;
const OVERHEAD_BYTES: u64 = 64 << 20;

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
    let Some(max) = quantity::bytes(&auto.max) else {
        return requested.clone();
    };
    let is_resized = claim.capacity.and_then(quantity::bytes) >= Some(present);
    if !is_resized && max < present {
        // A step that is not made yet may be taken back, to a smaller maximum.
        return if max > of_spec { &auto.max } else { &embedded.size }.clone();
    }
    next(auto, present, claim, member).map_or_else(|| requested.clone(), quantity::of_bytes)
}

/// Returns the next size, if the volume is nearly full and not being enlarged already.
fn next(auto: &AutoGrow, present: u64, claim: ClaimSizes<'_>, member: Option<&MemberAnswer>) -> Option<u64> {
    let max = quantity::bytes(&auto.max).filter(|max| present < *max)?;
    let capacity = quantity::bytes(claim.capacity?).filter(|capacity| *capacity >= present)?;
    let disk = member?.space?.disk.filter(|disk| is_of_claim(disk, capacity))?;
    if StoreSpace::of_disk(disk).percent() < LOW_PERCENT && disk.available_bytes >= disk.needed_bytes {
        return None;
    }
    let step = auto.step.as_ref().and_then(quantity::bytes);
    let step = step.unwrap_or_else(|| (present / STEP_DIVISOR).max(MIN_STEP_BYTES));
    // In whole MiB, like every size that is written, and not above the maximum.
    let next = present
        .saturating_add(step)
        .min(max)
        .checked_next_multiple_of(1 << 20)?;
    Some(if next > max { whole_mebibytes(max) } else { next })
}

fn whole_mebibytes(bytes: u64) -> u64 {
    bytes >> 20 << 20
}

/// Returns true if a file system is about as large as its claim. One of another size is shared, or does not grow with the claim.
fn is_of_claim(disk: &DiskSpace, capacity: u64) -> bool {
    disk.bytes.abs_diff(capacity) <= capacity / OVERHEAD_DIVISOR + OVERHEAD_BYTES
}

/// Returns a message if a volume does not grow by itself, although the spec asks for it: its file system is not that of the claim alone, or the
/// member does not report it.
pub fn ignored(embedded: &Embedded, capacity: Option<&Quantity>, member: Option<&MemberAnswer>) -> Option<String> {
    embedded.auto_grow.as_ref()?;
    let capacity = quantity::bytes(capacity?)?;
    let member = member?;
    let why = match member.space.map(|space| space.disk) {
        None => format!("the version {} of the brain does not report its space", member.version),
        Some(disk) if disk.is_some_and(|disk| !is_of_claim(&disk, capacity)) => {
            "the file system of the volume is not as large as its claim".to_owned()
        }
        Some(_) => return None,
    };
    Some(format!("storage.embedded.autoGrow has no effect: {why}"))
}

/// Returns what a user can do about a volume that is nearly full.
pub fn remedy(embedded: Option<&Embedded>, claims: &ClaimsStatus) -> &'static str {
    let Some(embedded) = embedded else {
        return "free space, or enlarge the volume";
    };
    let capacity = claims.capacity.as_ref().and_then(quantity::bytes);
    let at_max = |auto: &AutoGrow| capacity >= quantity::bytes(&auto.max).map(whole_mebibytes);
    match &embedded.auto_grow {
        Some(_) if claims.auto_grow_ignored.is_some() => {
            "enlarge the volume; storage.embedded.autoGrow has no effect, as the condition Progressing says"
        }
        Some(auto) if at_max(auto) => "the volume has the size of storage.embedded.autoGrow.max: raise it",
        Some(_) => "the operator enlarges the volume by storage.embedded.autoGrow",
        None => "raise storage.embedded.size, or let it grow by storage.embedded.autoGrow",
    }
}
