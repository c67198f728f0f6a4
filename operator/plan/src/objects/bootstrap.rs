//! The Job that restores a backup or a snapshot, or copies an etcd, before the first member starts, and the claim that it fills.

use crds::cluster::bootstrap::FromBackup;
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{Container, PersistentVolumeClaim, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;
use serde_json::Value;

use super::pod::{DATA_DIR, DATA_MOUNT, DATA_VOLUME, mount, port, probe};
use super::{Epoch, Renderer};
use crate::backup::pod::ProgramPod;
use crate::backup::{damage_ends, evictions_do_not_count};
use crate::bootstrap::{BOOTSTRAP_CONTAINER, BackupSource, BootstrapSource, followed};
use crate::drift;
use crate::names::{BOOTSTRAP, METRICS_PORT, RESTART_HASH, is_reserved};
use crate::spec::DesiredStorage;

/// Number of pods that may fail before the Job fails, within about half an hour.
const MAX_FAILED_PODS: i32 = 10;
/// The same for a copy that follows an etcd for days, within about ten hours if no pod does better.
const MAX_FAILED_FOLLOWERS: i32 = 100;
/// Seconds between two questions whether a copy has reached its source.
const READINESS_PERIOD_SECONDS: i32 = 2;
/// Seconds after which an ended Job and its logs are deleted. One that failed is created again then.
const ENDED_JOB_TTL_SECONDS: i32 = 24 * 3600;
/// The file from which Kubernetes reads the result.
const RESULT_FILE: &str = "/dev/termination-log";
/// The name that stands for the newest backup.
const LATEST: &str = "latest";

impl Renderer<'_> {
    /// Renders the claim of the first member, as the StatefulSet's controller would create it; `None` if members have no volumes.
    pub fn bootstrap_claim(&self) -> Option<PersistentVolumeClaim> {
        let claim = self.claim(self.desired.storage.embedded()?);
        Some(PersistentVolumeClaim {
            metadata: ObjectMeta {
                name: Some(self.names().claim(0)),
                namespace: Some(self.names().namespace.clone()),
                ..claim.metadata
            },
            ..claim
        })
    }

    /// Renders the Job. Its pods run where brains do, with their image, but reach a backup as its own pods do.
    ///
    /// # Errors
    /// The template fails to serialise.
    pub fn bootstrap_job(&self, source: &BootstrapSource) -> Result<Job, serde_json::Error> {
        let cluster = self.names().cluster.clone();
        let bootstrap = self.cluster.spec.bootstrap.clone().unwrap_or_default();
        let follows = followed(&bootstrap).is_some();
        let (app, own) = ("kubebrain-bootstrap", (BOOTSTRAP, cluster.as_str()));
        let (mut program, bump) = match source {
            BootstrapSource::Backup(backup) => {
                let from = bootstrap.from_backup.unwrap_or_default();
                let mut program = ProgramPod::new("restore", backup.target(), app, own);
                program.decrypt(backup.target());
                program.args.extend(point(&from, backup));
                (program, from.bump_revision)
            }
            BootstrapSource::Snapshot(file) => {
                let from = bootstrap.from_snapshot;
                (
                    ProgramPod::of_snapshot(file, app, own),
                    from.and_then(|from| from.bump_revision),
                )
            }
            BootstrapSource::Etcd(etcd) => (ProgramPod::of_etcd(etcd, app, own), None),
        };
        if let Some(bump) = bump {
            program.flag("bump-revision", bump.to_string());
            program.args.push("--mark-compacted".to_owned());
        }
        program.args.push("--once".to_owned());
        // A store that another cluster of this name has left has another id.
        program.flag("request-id", self.cluster.uid().unwrap_or_default());
        program.flag("result-file", RESULT_FILE);
        let reports = matches!(source, BootstrapSource::Etcd(_));
        if reports {
            let any = Epoch::NEWEST.any_address();
            program.flag("listen-metrics-urls", format!("http://{any}:{METRICS_PORT}"));
        }
        let located = self.store_flags().into_iter();
        program
            .args
            .extend(located.map(|(flag, value)| format!("--{flag}={value}")));
        program.volumes.extend(self.tikv_volumes().into_iter().flatten());
        program.mounts.extend(self.tikv_mounts().into_iter().flatten());
        if let Some(claim) = self.bootstrap_claim() {
            program.claim(DATA_VOLUME, claim.metadata.name.as_deref().unwrap_or_default(), false);
            program.mounts.push(mount(DATA_VOLUME, DATA_MOUNT, false));
        }
        let mut labels = self.labels();
        let own = self.names().labels();
        labels.retain(|key, _| !own.contains_key(key) && !is_reserved(key));
        labels.extend(program.labels.clone());
        let metadata = self.metadata(&self.names().bootstrap());
        let template = self.bootstrap_template(program, labels.clone(), reports)?;
        let mut annotations = metadata.annotations.clone().unwrap_or_default();
        annotations.insert(RESTART_HASH.to_owned(), drift::digest(&template));
        let mut policy = evictions_do_not_count();
        // The newest backup may have been deleted while it was read: then another one is the newest.
        let is_fixed = match source {
            BootstrapSource::Backup(backup) => backup.name.is_some(),
            BootstrapSource::Snapshot(_) => true,
            BootstrapSource::Etcd(_) => false,
        };
        if is_fixed {
            policy.rules.push(damage_ends(BOOTSTRAP_CONTAINER));
        }
        Ok(Job {
            metadata: ObjectMeta {
                labels: Some(labels),
                annotations: Some(annotations),
                ..metadata
            },
            spec: Some(JobSpec {
                backoff_limit: Some(if follows { MAX_FAILED_FOLLOWERS } else { MAX_FAILED_PODS }),
                ttl_seconds_after_finished: Some(ENDED_JOB_TTL_SECONDS),
                pod_failure_policy: Some(policy),
                template: serde_json::from_value(template)?,
                ..JobSpec::default()
            }),
            ..Job::default()
        })
    }

    /// Returns the template of the pods. The program `reports` if it has metrics, and says whether it has reached its source.
    fn bootstrap_template(
        &self,
        program: ProgramPod,
        labels: std::collections::BTreeMap<String, String>,
        reports: bool,
    ) -> Result<Value, serde_json::Error> {
        let brain = self.pod_spec();
        let containers = brain.containers.into_iter().map(|container| Container {
            name: BOOTSTRAP_CONTAINER.to_owned(),
            args: Some(program.args.clone()),
            env: Some(program.env.clone()).filter(|env| !env.is_empty()),
            ports: reports.then(|| vec![port("metrics", METRICS_PORT)]),
            liveness_probe: None,
            readiness_probe: reports.then(|| probe("/readyz", READINESS_PERIOD_SECONDS, 3)),
            startup_probe: None,
            volume_mounts: Some(program.mounts.clone()),
            ..container
        });
        let spec = PodSpec {
            containers: containers.collect(),
            volumes: Some(program.volumes.clone()),
            service_account_name: program.account.clone(),
            topology_spread_constraints: None,
            restart_policy: Some("Never".to_owned()),
            ..brain
        };
        let mut template = serde_json::to_value(PodTemplateSpec {
            metadata: Some(ObjectMeta {
                labels: Some(labels),
                annotations: Some(self.annotations()),
                ..ObjectMeta::default()
            }),
            spec: Some(spec),
        })?;
        if self.desired.pod_template.is_some() {
            self.follow_template(&mut template)?;
        }
        Ok(template)
    }

    /// Returns the flags that locate the store of the members.
    fn store_flags(&self) -> Vec<(&'static str, String)> {
        match &self.desired.storage {
            DesiredStorage::Embedded(_) => vec![("data-dir", DATA_DIR.to_owned())],
            DesiredStorage::Tikv(tikv) => self.prefix_flags(tikv),
            DesiredStorage::Unmanaged => Vec::new(),
        }
    }
}

/// Returns the arguments that name the backup and the point.
fn point(from: &FromBackup, source: &BackupSource) -> Vec<String> {
    let point = match (from.revision, &from.time, from.end) {
        (Some(revision), ..) => Some(format!("--at-revision={revision}")),
        (None, Some(time), _) => Some(format!("--at-time={time}")),
        (None, None, Some(true)) => Some("--at-end".to_owned()),
        _ => None,
    };
    let newest = || point.is_none().then(|| LATEST.to_owned());
    let name = source.name.clone().or_else(newest);
    name.into_iter().chain(point).collect()
}
