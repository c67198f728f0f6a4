//! Every reason of a condition, with its meaning: the source of the table in `docs/reference/resource.md`.
//!
//! Reasons are part of the API: one keeps its meaning.

/// A reason of conditions.
#[derive(Debug)]
pub struct Reason {
    pub name: &'static str,
    /// The conditions that have it. A refused spec, and a blocker, give it to Ready, Progressing, Degraded and Stalled.
    pub conditions: &'static str,
    /// Its meaning, in Markdown.
    pub meaning: &'static str,
}

const fn reason(name: &'static str, conditions: &'static str, meaning: &'static str) -> Reason {
    Reason {
        name,
        conditions,
        meaning,
    }
}

/// All of them, in the order of the alphabet.
#[rustfmt::skip]
pub const REASONS: &[Reason] = &[
    reason("AlreadyStored", "Bootstrapped", "nothing was restored, because there was a store already: it is served as it is"),
    reason("Archiving", "Archiving", "the archive has everything but the changes of the last two minutes"),
    reason("AsExpected", "Ready, Degraded, SpaceLow, VersionAffected", "every member serves; nothing is wrong; there is space for three days or more; no advisory is about the version of a member"),
    reason("AuthorityExpires", "CertificatesReady", "the authority expires within 30 days, and every certificate with it: its issuer must renew it"),
    reason("AuthorityInvalid", "CertificatesReady, and as a blocker", "the Secret of the authority cannot sign, or has another key than the status records"),
    reason("AuthorityMissing", "CertificatesReady, and as a blocker", "the Secret of the authority is gone; only a new `caGeneration` makes another one"),
    reason("Behind", "Archiving", "the archive runs, but has not stored the changes of the last two minutes or more; its log says why"),
    reason("BootstrapFailed", "Bootstrapped, and as a blocker", "every attempt to restore the first data failed; the message has the words of the program. Once the cause is gone, delete the Job `<name>-bootstrap` to try again; a day later it is deleted anyway"),
    reason("Bootstrapping", "Ready, Progressing, Bootstrapped", "the first data is restored or copied, or that waits for what the message names"),
    reason("Bound", "StorageReady", "every volume is bound"),
    reason("CertificateError", "Ready, Degraded", "certificates are missing, have ended, or do not serve; CertificatesReady says why"),
    reason("ClusterIDChanged", "StorageReady, and as a refusal or a blocker", "the placement drivers belong to another TiKV cluster than the pinned one"),
    reason("ClusterRefNotFound", "as a refusal", "`storage.tikv.clusterRef` names no cluster, or one without placement drivers"),
    reason("ContainerCreationFailed", "Degraded", "the kubelet cannot make the container of a member, and the message has its words; or it cannot even begin, as a Secret, a ConfigMap or a volume that the pod mounts is missing"),
    reason("Copied", "Bootstrapped", "the first data was copied from the etcd, and compared with it"),
    reason("Corrupt", "StorageReady", "stored bytes are not what was written, or a part of the data is missing"),
    reason("CrashLoopBackOff", "Degraded", "a member keeps terminating; the message has the kubelet's words"),
    reason("Creating", "all", "members are made for the first time, or nothing was seen yet; the archive has stored nothing yet; the restore of the first data is held up by another problem"),
    reason("CuttingOver", "Bootstrapped", "the annotation `kubebrain.io/cutover` ends the copy of an etcd: it is brought to the last revision there, and compared. The message says why the last attempt failed, for example because the etcd is still written to"),
    reason("DataReplaced", "StorageReady, and as a blocker", "the only member of an embedded store serves another store than the pinned one, or does not find it; on TiKV: a cluster that served finds an empty key prefix; see below"),
    reason("DeadlineExceeded", "Progressing, Degraded, Stalled", "a change made no progress for `progressDeadlineSeconds`; a new spec starts the deadline again"),
    reason("Deleting", "Ready, Available, Progressing, Degraded", "the cluster is deleted, and its keys are wiped first"),
    reason("DestinationFailed", "Archiving", "the destination of the archive fails; the message has its words. The archive tries again until it succeeds, and nothing is lost as long as the members do not compact it"),
    reason("Disabled", "CertificatesReady", "`tls.mode` is `Disabled`"),
    reason("DiskNearlyFull", "SpaceLow", "more than four fifths of the file system of the volume are used; the message says what helps"),
    reason("DowngradeRefused", "as a blocker", "`spec.version` is older than what runs by its major or minor part, and may not read what is stored; the annotation `kubebrain.io/allow-downgrade` allows one version"),
    reason("Expired", "CertificatesReady", "a certificate has ended"),
    reason("FieldConflict", "Degraded", "another client keeps changing a field of an owned object; the operator reverts it at increasing intervals"),
    reason("FillsUp", "SpaceLow", "at the rate of the last hours the quota or the volume is used up within three days; `status.space` has the figures"),
    reason("Following", "Bootstrapped", "the copy has all that the etcd has, and follows it. Stop the clients that write there, then set the annotation `kubebrain.io/cutover: \"true\"`"),
    reason("FormatRefused", "StorageReady", "another version stored the data, in a format that this one does not read"),
    reason("HasGap", "Archiving", "the archive continues, but the members had compacted revisions before it could store them: these cannot be restored. It is said until its pod is replaced"),
    reason("ImagePullFailed", "Degraded", "the image of a member cannot be pulled; the message has the kubelet's words"),
    reason("ImmutableField", "as a blocker", "the StatefulSet would need to change a field that cannot change"),
    reason("InvalidAdvisories", "VersionAffected", "a file of advisories, or a record in it, cannot be read, and none of the others is about the version of a member; the message names it"),
    reason("InvalidSpec", "Archiving, Bootstrapped, and as a refusal or a blocker", "the spec contradicts itself, or the API server refuses what follows from it; `spec.backup` or `spec.bootstrap` names what belongs to a cluster, or a service account"),
    reason("Issued", "CertificatesReady", "every certificate is valid"),
    reason("KeyPrefixChanged", "as a refusal", "the key prefix is not the pinned one"),
    reason("KnownAdvisories", "VersionAffected", "advisories are about the version of a member; the message names them, and the version that fixes each"),
    reason("LeaderElected", "Available", "a member leads"),
    reason("LeaderUnknown", "Ready, Available, Degraded", "members are ready, but too few answer the operator to tell who leads"),
    reason("LeaseStoredHere", "as a blocker", "the brains store the API server that serves their Lease: use another lock, or another API server"),
    reason("MembersUnhealthy", "Ready, Degraded", "members are missing or not ready, and nothing is being changed"),
    reason("NamesNotCovered", "CertificatesReady, and as a blocker", "a given certificate does not have the names that it needs"),
    reason("NoBackup", "Archiving", "the backup cannot be made that the archive begins with; the message says why. The archived changes can be restored once there is one"),
    reason("NoLeader", "Ready, Available", "no member leads"),
    reason("NoSpace", "Ready, Available, Degraded", "an alarm keeps the brains from writing"),
    reason("NotExpandable", "StorageReady", "the storage class of a volume does not let it grow"),
    reason("NotRunning", "Archiving", "the archive has no pod that is ready; the message says why"),
    reason("NotTrusted", "CertificatesReady, and as a blocker", "a given certificate was not signed by `caBundle`"),
    reason("OutsideMaintenanceWindow", "Progressing", "outdated members wait for a window of `updateStrategy.maintenanceWindows`; the message says when the next one begins"),
    reason("OwnershipConflict", "Archiving, Bootstrapped, and as a blocker", "an object of another owner has the name of one of this cluster"),
    reason("Paused", "Ready, Progressing, Archiving, Bootstrapped", "`spec.paused` is true"),
    reason("PendingVolume", "StorageReady, Degraded", "a claim has no volume yet; Degraded when a member waits for it for long"),
    reason("PodsRefused", "Ready, Available, Degraded", "the API server refuses the pods that are missing; the message has its words"),
    reason("PrefixTaken", "StorageReady", "another cluster's data is below the key prefix"),
    reason("PrefixWiping", "StorageReady", "the keys below the prefix are being wiped, or were and not to the end"),
    reason("QuotaExceeded", "Ready, Available, Degraded", "a ResourceQuota refuses the pods that are missing"),
    reason("QuotaNearlyUsed", "SpaceLow", "more than four fifths of the quota are used: at its end the brains refuse writes"),
    reason("Reachable", "StorageReady", "TiKV answers; a member that the operator does not run serves from its data directory"),
    reason("ReconcileError", "Degraded, Archiving", "passes fail"),
    reason("Reconciled", "Progressing", "nothing is being changed"),
    reason("Renewing", "CertificatesReady", "a certificate is due for renewal and was not renewed"),
    reason("ResizeFailed", "StorageReady", "a volume did not grow"),
    reason("ResizingStorage", "Progressing", "volumes grow"),
    reason("Restored", "Bootstrapped", "the first data was restored from the backup or the snapshot"),
    reason("ResultLost", "Bootstrapped", "the first data was restored, or existed before, but the pod with the result is gone"),
    reason("RollingUpdate", "Ready, Progressing", "members are replaced"),
    reason("RotatingCertificates", "Progressing, CertificatesReady", "certificates are issued, or the authority's key is replaced"),
    reason("Scaling", "Ready, Progressing", "members are added or removed"),
    reason("SecretInvalid", "CertificatesReady, and as a blocker", "a given Secret does not hold what it should"),
    reason("SecretMissing", "CertificatesReady, StorageReady, and as a blocker", "a Secret that is needed does not exist; no pod is made or replaced without it"),
    reason("SpecTooLarge", "as a refusal", "the spec, or those of all clusters together, takes more memory than the operator has for it; other clusters are not affected"),
    reason("StorageUnreachable", "Ready, Available", "no member leads because of the storage"),
    reason("Suspended", "Ready, Available, Archiving, Bootstrapped", "`spec.replicas` is 0; for the archive also `spec.backup.archive.suspend`"),
    reason("TrialFailed", "as a blocker", "a new template does not run in the pod `<name>-trial`, so the only member keeps the one that it has; the message has the reason"),
    reason("UnknownVersion", "VersionAffected", "a member reports a version that cannot be compared with the advisories; the message has it"),
    reason("Unreachable", "StorageReady, Archiving", "TiKV does not answer, or a data directory cannot be used; the archive's pod does not answer the operator"),
    reason("Unschedulable", "Degraded", "the scheduler finds no node for a member; the message has its words"),
    reason("VolumeLost", "StorageReady", "the volume of a claim is gone"),
    reason("VolumeTerminating", "StorageReady, and as a blocker", "a claim is being deleted, and its data is lost when its pod ends: nothing is changed, so that the data can be copied out first"),
    reason("WaitingForBackup", "Bootstrapped", "the `KubeBrainBackup` that `spec.bootstrap` names does not exist, or is not complete"),
    reason("WaitingForCluster", "Archiving", "the archive begins once a member leads"),
    reason("WaitingForObject", "Archiving, Bootstrapped", "a Secret, a ConfigMap or a claim that `spec.backup` or `spec.bootstrap` names does not exist, or the member's claim is being deleted"),
    reason("WipeFailed", "StorageReady, Degraded", "the keys of the deleted cluster could not be wiped; it is tried again, and the annotation `kubebrain.io/skip-wipe: \"true\"` lets the cluster go without"),
    reason("Wiping", "StorageReady", "the keys of the deleted cluster are wiped"),
];

/// Fails unless `reason` is in the table.
#[cfg(any(test, feature = "testing"))]
#[track_caller]
pub fn check(reason: &str) {
    let known = REASONS.iter().any(|known| known.name == reason);
    assert!(known, "{reason} is not in the table of reasons");
}

/// A reason in the table that does not occur in the sources is outdated.
#[test]
fn every_documented_reason_is_in_the_sources() {
    let sources = [
        include_str!("conditions.rs"),
        include_str!("change.rs"),
        include_str!("facts.rs"),
        include_str!("lock.rs"),
        include_str!("pod.rs"),
        include_str!("../spec.rs"),
        include_str!("../spec/storage.rs"),
        include_str!("../certificates/provided.rs"),
        include_str!("../steps/certificates/provided.rs"),
        include_str!("../steps/certificates/authority.rs"),
        include_str!("../steps/claims.rs"),
        include_str!("../steps/downgrade.rs"),
        include_str!("../steps/store.rs"),
        include_str!("../steps/trial.rs"),
        include_str!("../space.rs"),
        include_str!("../advisory.rs"),
        include_str!("../archive/report.rs"),
        include_str!("../../../src/archive/reconcile.rs"),
        include_str!("../bootstrap.rs"),
        include_str!("../bootstrap/cutover.rs"),
        include_str!("../bootstrap/progress.rs"),
        include_str!("../bootstrap/status.rs"),
    ];
    for reason in REASONS {
        let name = reason.name;
        let named = sources.iter().any(|source| source.contains(&format!("\"{name}\"")));
        assert!(named, "{name} is in the table and nowhere else");
    }
    let is_sorted = REASONS.is_sorted_by_key(|reason| reason.name);
    assert!(is_sorted, "the table is in the order of the alphabet");
}
