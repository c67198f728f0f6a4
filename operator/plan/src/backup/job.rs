//! The Jobs of a backup: one makes it, one verifies it, one deletes what was stored.

use std::collections::BTreeMap;

use crds::KubeBrainBackup;
use crds::backup::status::BackupRuntime;
use crds::backup::{DEFAULT_BACKOFF_LIMIT, VerificationMode};
use crds::wishes::VERIFY;
use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
    PodFailurePolicyRule,
};
use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};

use super::access::ClusterAccess;
use super::pod::{PodPlacement, ProgramPod};
use super::target::BackupTarget;
use super::verification::DAMAGED_EXIT_CODE;
use super::{BACKUP_CONTAINER, deletion_job_name, job_name, verification_job_name};
use crate::names::BACKUP;

/// The file from which Kubernetes reads the result.
const RESULT_FILE: &str = "/dev/termination-log";
/// Seconds after which an ended Job and its logs are deleted. Its result is in the status by then; if it is not, the Job runs again, and
/// finds the backup that was made.
const ENDED_JOB_TTL_SECONDS: i32 = 24 * 3600;
/// Attempts of a Job that deletes. The next Job continues.
const DELETION_BACKOFF_LIMIT: i32 = 2;
/// Seconds after which an unfinished Job that deletes fails.
const DELETION_DEADLINE_SECONDS: i64 = 3600;

/// Renders the Job that makes the backup.
pub fn create_job(backup: &KubeBrainBackup, access: &ClusterAccess, runtime: &BackupRuntime) -> Job {
    let spec = &backup.spec;
    let mut pod = program("create", backup);
    pod.store(BackupTarget::from(backup), access);
    if spec.verify {
        pod.args.push("--verify".to_owned());
    }
    pod.flag("result-file", RESULT_FILE);
    job(pod, job_name(backup), (backup, runtime), limits(backup))
}

/// Renders the Job that verifies the stored backup of this name, for a request.
pub fn verification_job(backup: &KubeBrainBackup, stored: &str, request: &str, runtime: &BackupRuntime) -> Job {
    let name = backup.name_any();
    let target = BackupTarget::from(backup);
    let mut pod = ProgramPod::new("verify", target, "kubebrain-backup", (BACKUP, &name));
    pod.decrypt(target);
    pod.args.push(stored.to_owned());
    if backup.spec.verification_mode == VerificationMode::Restore {
        pod.args.push("--restore".to_owned());
    }
    let mut job = job(pod, verification_job_name(backup), (backup, runtime), limits(backup));
    let request = (VERIFY.to_owned(), request.to_owned());
    job.metadata.annotations = Some(BTreeMap::from([request]));
    if let Some(policy) = job.spec.as_mut().and_then(|spec| spec.pod_failure_policy.as_mut()) {
        policy.rules.push(damage_ends(BACKUP_CONTAINER));
    }
    job
}

/// Returns the number of pods that may fail and the seconds that a backup, or its verification, may take.
fn limits(backup: &KubeBrainBackup) -> (i32, i64) {
    let spec = &backup.spec;
    let timeout = crds::duration::parse(spec.timeout()).map_or(0, |timeout| timeout.as_secs());
    (
        spec.backoff_limit.unwrap_or(DEFAULT_BACKOFF_LIMIT),
        i64::try_from(timeout).unwrap_or(i64::MAX),
    )
}

/// Renders the Job that deletes the stored objects.
pub fn delete_job(backup: &KubeBrainBackup, runtime: &BackupRuntime) -> Job {
    let limits = (DELETION_BACKOFF_LIMIT, DELETION_DEADLINE_SECONDS);
    let mut pod = program("delete", backup);
    pod.args.push("--prune-archive".to_owned());
    job(pod, deletion_job_name(backup), (backup, runtime), limits)
}

/// Returns a pod that knows the request of `backup`.
fn program(action: &str, backup: &KubeBrainBackup) -> ProgramPod {
    let name = backup.name_any();
    let mut pod = ProgramPod::new(action, backup.into(), "kubebrain-backup", (BACKUP, &name));
    pod.flag("request-id", backup.uid().unwrap_or_default());
    pod
}

/// Returns the Job, with the number of pods that may fail and the seconds that it may take.
fn job(
    program: ProgramPod,
    name: String,
    (backup, runtime): (&KubeBrainBackup, &BackupRuntime),
    (backoff, deadline): (i32, i64),
) -> Job {
    let settings = backup.spec.pod.clone().unwrap_or_default();
    let placement = PodPlacement {
        resources: settings.resources,
        node_selector: settings.node_selector,
        tolerations: settings.tolerations,
        priority_class_name: settings.priority_class_name,
    };
    let labels = program.labels.clone();
    let pod = PodSpec {
        restart_policy: Some("Never".to_owned()),
        ..program.spec(BACKUP_CONTAINER, runtime, placement)
    };
    Job {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: backup.namespace(),
            labels: Some(labels.clone()),
            owner_references: Some(vec![owner(backup)]),
            ..ObjectMeta::default()
        },
        spec: Some(JobSpec {
            backoff_limit: Some(backoff),
            active_deadline_seconds: Some(deadline),
            ttl_seconds_after_finished: Some(ENDED_JOB_TTL_SECONDS),
            pod_failure_policy: Some(evictions_do_not_count()),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(labels),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod),
            },
            ..JobSpec::default()
        }),
        ..Job::default()
    }
}

/// The owner does not wait for its Jobs: it would delete the one that deletes the stored objects.
fn owner(backup: &KubeBrainBackup) -> OwnerReference {
    OwnerReference {
        api_version: KubeBrainBackup::api_version(&()).into_owned(),
        kind: KubeBrainBackup::kind(&()).into_owned(),
        name: backup.name_any(),
        uid: backup.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

/// Returns the rule by which evicted pods are not failed attempts.
pub(crate) fn evictions_do_not_count() -> PodFailurePolicy {
    PodFailurePolicy {
        rules: vec![PodFailurePolicyRule {
            action: "Ignore".to_owned(),
            on_pod_conditions: Some(vec![PodFailurePolicyOnPodConditionsPattern {
                type_: "DisruptionTarget".to_owned(),
                status: "True".to_owned(),
            }]),
            ..PodFailurePolicyRule::default()
        }],
    }
}

/// Returns the rule by which a Job fails at once if this container finds damage. Another attempt would find the same.
pub(crate) fn damage_ends(container: &str) -> PodFailurePolicyRule {
    PodFailurePolicyRule {
        action: "FailJob".to_owned(),
        on_exit_codes: Some(PodFailurePolicyOnExitCodesRequirement {
            container_name: Some(container.to_owned()),
            operator: "In".to_owned(),
            values: vec![DAMAGED_EXIT_CODE],
        }),
        ..PodFailurePolicyRule::default()
    }
}
