//! Every reason of a condition of a schedule: the source of the table in `docs/reference/backup-schedule-resource.md`.
//!
//! Reasons are part of the API: one keeps its meaning.

use crate::status::documented_reasons::Reason;

const fn reason(name: &'static str, conditions: &'static str, meaning: &'static str) -> Reason {
    Reason {
        name,
        conditions,
        meaning,
    }
}

/// All of them, in the order of the alphabet. Reconciling has the reason of Ready, unless something keeps the operator from its work.
#[rustfmt::skip]
pub const REASONS: &[Reason] = &[
    reason("BackupFailed", "Ready", "the last backup failed; the message has its name and its words"),
    reason("InvalidSpec", "Ready, Stalled", "the schedule, the time zone or the retention cannot be read, or the template asks for what the operator does not allow"),
    reason("OwnershipConflict", "Reconciling", "a KubeBrainBackup that is not of this schedule has the name of the backup that is due"),
    reason("ReconcileError", "Reconciling", "passes fail; the message has the words of the API server"),
    reason("Scheduled", "Ready", "backups are made at the times of the schedule, and the last one did not fail"),
    reason("Suspended", "Ready", "`suspend` is true"),
];

/// A reason in the table that does not occur in the sources is outdated.
#[test]
fn every_documented_reason_is_in_the_sources() {
    let sources = [
        include_str!("status.rs"),
        include_str!("../../../src/backup_schedule.rs"),
        include_str!("../../../src/passes.rs"),
    ];
    for Reason { name, .. } in REASONS {
        let named = sources.iter().any(|source| source.contains(&format!("\"{name}\"")));
        assert!(named, "{name} is in the table and nowhere else");
    }
    assert!(
        REASONS.is_sorted_by_key(|reason| reason.name),
        "the table is in the order of the alphabet"
    );
}
