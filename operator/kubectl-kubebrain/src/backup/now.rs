//! `backup now`: one backup, from the spec of a cluster or from the template of a schedule.

use std::io::Write;
use std::time::Duration;

use crds::backup::BackupPod;
use crds::cluster::backup::ClusterBackup;
use crds::{KubeBrainBackup, KubeBrainBackupSchedule, KubeBrainBackupSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::PostParams;
use plan::backup::location;
use plan::names::{MANUAL, is_reserved, labels};
use serde_json::json;
use tokio::time::Instant;

use super::BackupOptions;
use crate::connect::{FIELD_MANAGER, TargetNamespace};
use crate::wait::{ConditionState, watch};

/// Maximum length of the cluster's name in that of a backup, which has at most 49 characters.
const MAX_CLUSTER_CHARS: usize = 27;

/// Creates the backup, and returns its name.
///
/// # Errors
/// The cluster has no destination, or the schedule is of another one, or the API server refused or did not answer.
pub(super) async fn create(
    target: &TargetNamespace,
    options: &BackupOptions,
    now: Timestamp,
    out: &mut impl Write,
) -> anyhow::Result<String> {
    let name = options.name.clone().unwrap_or_else(|| name_at(&options.cluster, now));
    let mut backup = match &options.from_schedule {
        Some(schedule) => from_template(&name, &target.read(schedule).await?, &options.cluster)?,
        None => {
            let cluster = target.get(&options.cluster).await?;
            let Some(configured) = &cluster.spec.backup else {
                anyhow::bail!(
                    "the spec of {} has no backup, and so no destination: set spec.backup, or use --from-schedule",
                    options.cluster
                );
            };
            KubeBrainBackup::new(&name, spec_of(&options.cluster, configured)?)
        }
    };
    backup.metadata.namespace = Some(target.namespace.clone());
    backup.labels_mut().extend(labels([(MANUAL, "true")]));
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    let created = target.all::<KubeBrainBackup>().create(&params, &backup).await;
    created.map_err(|error| match error {
        kube::Error::Api(status) if status.is_already_exists() => {
            anyhow::anyhow!("KubeBrainBackup {name} exists already: choose another name")
        }
        error => target.explain(error, "create", &format!("KubeBrainBackup {name}")),
    })?;
    writeln!(out, "created KubeBrainBackup {name}, at {}", location(&backup))?;
    Ok(name)
}

/// Returns the default name of a backup.
fn name_at(cluster: &str, now: Timestamp) -> String {
    let cluster: String = cluster.chars().take(MAX_CLUSTER_CHARS).collect();
    let time = now.strftime("%Y%m%d%H%M%S");
    format!("{}-manual-{time}", cluster.trim_end_matches(['-', '.']))
}

/// Returns the backup of a schedule's template. It has no label of the schedule, so the schedule neither counts nor deletes it.
fn from_template(name: &str, schedule: &KubeBrainBackupSchedule, cluster: &str) -> anyhow::Result<KubeBrainBackup> {
    let template = &schedule.spec.template;
    let of = &template.spec.cluster_name;
    if of != cluster {
        anyhow::bail!(
            "KubeBrainBackupSchedule {} is of the cluster {of}, not of {cluster}",
            schedule.name_any()
        );
    }
    let mut backup = KubeBrainBackup::new(name, template.spec.clone());
    let mut metadata = template.metadata.clone().unwrap_or_default();
    metadata.labels.retain(|key, _| !is_reserved(key));
    metadata.annotations.retain(|key, _| !is_reserved(key));
    backup.metadata.labels = Some(metadata.labels);
    backup.metadata.annotations = (!metadata.annotations.is_empty()).then_some(metadata.annotations);
    Ok(backup)
}

/// Returns the spec of a backup to the place where the cluster is archived, on nodes where its archive may run.
fn spec_of(cluster: &str, configured: &ClusterBackup) -> serde_json::Result<KubeBrainBackupSpec> {
    // The schema fills in the rest.
    let spec = json!({"clusterName": cluster, "destination": configured.destination});
    let archive = configured.archive.as_ref().and_then(|archive| archive.pod.clone());
    let pod = archive.map(|pod| BackupPod {
        resources: None,
        node_selector: pod.node_selector,
        tolerations: pod.tolerations,
        priority_class_name: pod.priority_class_name,
    });
    Ok(KubeBrainBackupSpec {
        encryption: configured.encryption.clone(),
        user_secret_ref: configured.user_secret_ref.clone(),
        service_account_name: configured.service_account_name.clone(),
        pod: pod.filter(|pod| *pod != BackupPod::default()),
        ..serde_json::from_value(spec)?
    })
}

/// Waits until the backup is complete.
///
/// # Errors
/// It fails, or takes longer than `timeout`, or it is deleted.
pub(super) async fn until_complete(
    target: &TargetNamespace,
    name: &str,
    timeout: Duration,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    watch(target, name, Instant::now() + timeout, out, complete).await
}

/// Returns the state of a backup that is being made.
fn complete(backup: &KubeBrainBackup) -> ConditionState {
    let status = backup.status.clone().unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let find = |type_: &str| conditions.iter().find(|condition| condition.type_ == type_);
    let is_true = |condition: &&Condition| condition.status == "True";
    if let Some(complete) = find("Complete").filter(is_true) {
        let stored = status.stored_bytes.map(|bytes| format!(", {bytes} bytes"));
        return ConditionState::Done(format!(
            "{} at {}{}",
            complete.message,
            status.location.unwrap_or_else(|| location(backup)),
            stored.unwrap_or_default()
        ));
    }
    if let Some(failed) = find("Failed").filter(is_true) {
        return ConditionState::Failed(format!("{}: {}", failed.reason, failed.message));
    }
    ConditionState::NotYet(match find("Reconciling") {
        Some(reconciling) => format!("{}: {}", reconciling.reason, reconciling.message),
        None => "waiting for the operator".to_owned(),
    })
}
