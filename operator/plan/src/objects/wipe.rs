//! The Job that wipes the keys of a deleted cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::Renderer;
use super::pod::BRAIN_CONTAINER;
use crate::drift;
use crate::names::{MANAGED_BY, MANAGER, RESTART_HASH, labels};
use crate::spec::TikvConnection;

/// Number of pods that may fail before the Job fails.
const MAX_FAILED_PODS: i32 = 3;
/// Seconds after which an unfinished Job fails; the next one continues where it stopped.
const JOB_DEADLINE_SECONDS: i64 = 3600;
/// Fields of a pod by which a podTemplate defines where brains run, and under which account.
const POD_FIELDS: [&str; 14] = [
    "affinity",
    "dnsConfig",
    "dnsPolicy",
    "hostAliases",
    "hostNetwork",
    "imagePullSecrets",
    "nodeSelector",
    "os",
    "preemptionPolicy",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "securityContext",
    "tolerations",
];
/// The same for the brain's container.
const CONTAINER_FIELDS: [&str; 4] = ["image", "imagePullPolicy", "resources", "securityContext"];

impl Renderer<'_> {
    /// Renders the Job. It runs the brain's own subcommand with the image, the certificates and the placement of the brains.
    ///
    /// # Errors
    /// The template fails to serialise.
    pub fn wipe_job(&self, tikv: &TikvConnection) -> Result<Job, serde_json::Error> {
        let name = self.names().wipe();
        let template = self.wipe_template(tikv)?;
        let mut owner = self.owner();
        // A foreground deletion would not wait for the wipe, but delete the Job.
        owner.block_owner_deletion = None;
        let mut metadata = ObjectMeta {
            owner_references: Some(vec![owner]),
            ..self.metadata(&name)
        };
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.insert(RESTART_HASH.to_owned(), drift::digest(&template));
        Ok(Job {
            metadata,
            spec: Some(JobSpec {
                backoff_limit: Some(MAX_FAILED_PODS),
                active_deadline_seconds: Some(JOB_DEADLINE_SECONDS),
                template: serde_json::from_value(template)?,
                ..JobSpec::default()
            }),
            ..Job::default()
        })
    }

    fn wipe_template(&self, tikv: &TikvConnection) -> Result<Value, serde_json::Error> {
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
            // The brains' own account is deleted with the cluster's other objects.
            service_account_name: None,
            topology_spread_constraints: None,
            restart_policy: Some("Never".to_owned()),
            ..brain
        };
        let mut template = serde_json::to_value(PodTemplateSpec {
            metadata: Some(ObjectMeta {
                labels: Some(self.wipe_labels()),
                ..ObjectMeta::default()
            }),
            spec: Some(spec),
        })?;
        if self.desired.pod_template.is_some() {
            self.follow_template(&mut template)?;
        }
        Ok(template)
    }

    /// Applies what the podTemplate sets for the brains' pods and their container. Other containers and volumes are omitted: such
    /// containers would not terminate.
    pub(super) fn follow_template(&self, template: &mut Value) -> Result<(), serde_json::Error> {
        let merged = self.template()?;
        for field in POD_FIELDS {
            template["spec"][field] = merged["spec"][field].clone();
        }
        let mut containers = merged["spec"]["containers"].as_array().into_iter().flatten();
        if let Some(brain) = containers.find(|container| container["name"] == BRAIN_CONTAINER) {
            for field in CONTAINER_FIELDS {
                template["spec"]["containers"][0][field] = brain[field].clone();
            }
        }
        let group = format!("{}/", crds::GROUP);
        let own = self.names().labels();
        for kind in ["labels", "annotations"] {
            for (key, value) in merged["metadata"][kind].as_object().into_iter().flatten() {
                if !key.starts_with(&group) && !own.contains_key(key) && *key != drift::RESTARTED_AT {
                    template["metadata"][kind][key] = json!(value);
                }
            }
        }
        super::drop_nulls(template);
        Ok(())
    }

    /// Returns the labels without those by which Services and budgets select brains.
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

    fn wipe_arguments(&self, tikv: &TikvConnection) -> Vec<String> {
        let flags = self.prefix_flags(tikv).into_iter();
        let flags = flags.map(|(flag, value)| format!("--{flag}={value}"));
        let ends = ["wipe".to_owned(), "--yes".to_owned()];
        ends.into_iter().chain(flags).collect()
    }

    /// Returns the flags by which the program finds the key prefix of the cluster.
    pub(super) fn prefix_flags(&self, tikv: &TikvConnection) -> Vec<(&'static str, String)> {
        let ungoverned = TikvConnection {
            gc: None,
            ..tikv.clone()
        };
        let mut flags = super::pod::tikv_flags(&ungoverned);
        // The id is also set if it became known only later, because it restarts no brain here.
        flags.extend(tikv.cluster_id.as_ref().map(|id| ("tikv-cluster-id", id.clone())));
        flags.push(("initial-cluster-token", self.cluster_token()));
        flags
    }
}
