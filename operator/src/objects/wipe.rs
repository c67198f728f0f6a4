//! The Job that wipes the keys of a deleted cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Renderer;
use crate::names::{MANAGED_BY, MANAGER, labels};
use crate::spec::Tikv;

/// Pods that may fail before the Job has failed.
const RETRIES: i32 = 3;

impl Renderer<'_> {
    /// It runs the brain's own subcommand, with the image, the certificates and the place of the brains.
    pub(crate) fn wipe_job(&self, tikv: &Tikv) -> Job {
        let name = self.names().wipe();
        let brain = self.pod_spec();
        let containers = brain.containers.into_iter().map(|container| Container {
            name: "wipe".to_owned(),
            args: Some(self.wipe_arguments(tikv)),
            env: None,
            ports: None,
            liveness_probe: None,
            readiness_probe: None,
            startup_probe: None,
            volume_mounts: self.tikv_mounts(),
            ..container
        });
        let spec = PodSpec {
            containers: containers.collect(),
            volumes: self.tikv_volumes(),
            // The brains' own account goes with the cluster's other objects.
            service_account_name: None,
            topology_spread_constraints: None,
            restart_policy: Some("Never".to_owned()),
            ..brain
        };
        let mut owner = self.owner();
        // A deletion in the foreground would not wait for the wipe, but delete it.
        owner.block_owner_deletion = None;
        Job {
            metadata: ObjectMeta {
                owner_references: Some(vec![owner]),
                ..self.metadata(&name)
            },
            spec: Some(JobSpec {
                backoff_limit: Some(RETRIES),
                template: PodTemplateSpec {
                    metadata: Some(ObjectMeta {
                        labels: Some(self.wipe_labels()),
                        ..ObjectMeta::default()
                    }),
                    spec: Some(spec),
                },
                ..JobSpec::default()
            }),
            ..Job::default()
        }
    }

    /// Without those by which Services and budgets find brains.
    fn wipe_labels(&self) -> BTreeMap<String, String> {
        let inherited = self.labels().into_iter();
        let own = self.names().labels();
        let mut all: BTreeMap<String, String> = inherited.filter(|(key, _)| !own.contains_key(key)).collect();
        all.extend(labels([
            ("app.kubernetes.io/name", "kubebrain-wipe"),
            (MANAGED_BY, MANAGER),
        ]));
        all
    }

    fn wipe_arguments(&self, tikv: &Tikv) -> Vec<String> {
        let ungoverned = Tikv {
            gc: None,
            ..tikv.clone()
        };
        let mut flags = super::pod::tikv_flags(&ungoverned);
        // Also one that became known only later: nothing is restarted by it.
        flags.extend(tikv.cluster_id.as_ref().map(|id| ("tikv-cluster-id", id.clone())));
        flags.push(("initial-cluster-token", self.cluster_token()));
        let flags = flags.into_iter().map(|(flag, value)| format!("--{flag}={value}"));
        let ends = ["wipe".to_owned(), "--yes".to_owned()];
        ends.into_iter().chain(flags).collect()
    }
}
