//! Every reason of a condition of a backup: the source of the table in `docs/reference/backup-resource.md`.
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

/// All of them, in the order of the alphabet. Complete, Failed and Reconciling have the same one, unless the resource is being deleted. Verified
/// has its own.
#[rustfmt::skip]
pub const REASONS: &[Reason] = &[
    reason("BackupFailed", "Failed, Stalled", "every attempt failed; the message has the words of the program. Create another backup once the cause is gone"),
    reason("Completed", "Complete", "the backup was made, and with `verify` read again"),
    reason("Damaged", "Verified", "the backup is not what was written, or a part is missing: it cannot be restored. Make another one"),
    reason("DeadlineExceeded", "Failed, Stalled", "it took longer than `timeout`; the message has the reason if there is one"),
    reason("Deleting", "Reconciling", "the resource is deleted, and the stored objects first"),
    reason("DeletionFailed", "Reconciling", "the stored objects cannot be deleted; it is tried again, and `deletionPolicy: Keep` lets the resource go without"),
    reason("InvalidSpec", "Failed, Stalled, Verified", "the spec asks for what the operator does not allow: an object that belongs to a cluster, or a service account"),
    reason("OwnershipConflict", "Reconciling, Verified", "a Job of another owner has the name of the one of this backup"),
    reason("ReconcileError", "Reconciling, Verified", "passes fail; the message has the words of the API server"),
    reason("ResultLost", "Complete", "the backup was made, but its pod is gone, and the result with it"),
    reason("Running", "Reconciling", "the Job runs; the message says why its pod does not start, or why the last attempt failed"),
    reason("VerificationFailed", "Verified", "the backup could not be read, and nothing is known about it; the message has the words of the program"),
    reason("Verified", "Verified", "the backup was read, and is as it was written"),
    reason("Verifying", "Verified", "the Job that verifies it runs; the message says why its pod does not start, or why the last attempt failed"),
    reason("WaitingForCluster", "Reconciling", "the cluster does not exist, or no member leads"),
    reason("WaitingForObject", "Reconciling, Verified", "a Secret, a ConfigMap or a claim that the spec names does not exist"),
];

/// A reason in the table that does not occur in the sources is outdated.
#[test]
fn every_documented_reason_is_in_the_sources() {
    let sources = [
        include_str!("references.rs"),
        include_str!("status.rs"),
        include_str!("verification.rs"),
        include_str!("../../../src/passes.rs"),
        include_str!("../../../src/backup/reconcile.rs"),
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
