//! `KubeBrainCluster`: a set of brains, servers that every etcd v3 client takes for etcd.
//!
//! There is one module per part of the spec. Rules that the API server can check are CEL rules on the type they concern; unit tests run
//! them, too. A default in the schema is part of the contract and never changes, so no image and no version has one.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

pub mod backup;
pub mod bootstrap;
pub mod election;
pub mod image;
pub mod maintenance_window;
pub mod pod;
pub(crate) mod schema;
pub mod services;
pub mod status;
pub mod storage;
#[cfg(test)]
mod tests;
pub mod tls;
pub mod tuning;
pub mod update_strategy;
pub mod workload;

use backup::ClusterBackup;
use bootstrap::Bootstrap;
use election::LeaderElection;
use image::{Image, LocalRef};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pod::{InheritedMetadata, PodSettings};
use services::{DisruptionBudget, Monitoring, Services};
use status::KubeBrainClusterStatus;
use storage::Storage;
use tls::Tls;
use tuning::{AutoCompaction, LogLevel};
use update_strategy::UpdateStrategy;
use workload::Workload;

/// Flags of the brain that follow from other fields of the spec. Only the operator sets them.
pub const OWN_FLAGS: &[&str] = &[
    "name",
    "data-dir",
    "wal-dir",
    "config-file",
    "listen-client-urls",
    "listen-client-http-urls",
    "advertise-client-urls",
    "listen-peer-urls",
    "initial-advertise-peer-urls",
    "initial-cluster",
    "initial-cluster-state",
    "initial-cluster-token",
    "discovery",
    "discovery-srv",
    "discovery-srv-name",
    "listen-metrics-urls",
    "leader-http",
    "cert-file",
    "key-file",
    "trusted-ca-file",
    "client-cert-auth",
    "client-cert-allowed-hostname",
    "client-crl-file",
    "auto-tls",
    "peer-cert-file",
    "peer-key-file",
    "peer-trusted-ca-file",
    "peer-client-cert-auth",
    "peer-client-cert-file",
    "peer-client-key-file",
    "peer-cert-allowed-cn",
    "peer-cert-allowed-hostname",
    "peer-crl-file",
    "peer-skip-client-san-verification",
    "experimental-peer-skip-client-san-verification",
    "peer-auto-tls",
    "storage",
    "embedded-cluster-id",
    "embedded-member",
    "tikv-pd-endpoints",
    "tikv-ca",
    "tikv-cert",
    "tikv-key",
    "tikv-key-prefix",
    "tikv-cluster-id",
    "election",
    "lease-namespace",
    "lease-name",
    "lease-kubeconfig",
    "force-new-cluster",
    "unsafe-no-fsync",
    "check",
    "version",
];

/// Flags of the brain that have a field of their own, with that field.
pub const TYPED_FLAGS: &[(&str, &str)] = &[
    ("quota-backend-bytes", "quota"),
    ("auto-compaction-mode", "autoCompaction.mode"),
    ("auto-compaction-retention", "autoCompaction.retention"),
    ("log-level", "logLevel"),
    ("election-lease-duration", "leaderElection.leaseDuration"),
    ("election-renew-deadline", "leaderElection.renewDeadline"),
    ("election-retry-period", "leaderElection.retryPeriod"),
    ("tikv-gc-interval", "storage.tikv.gc.interval"),
    ("tikv-gc-window", "storage.tikv.gc.window"),
];

/// Desired state of a KubeBrain cluster.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[cfg_attr(any(test, feature = "cel"), kube(cel))]
#[kube(
    group = "kubebrain.io",
    version = "v1alpha1",
    kind = "KubeBrainCluster",
    namespaced,
    status = "KubeBrainClusterStatus",
    doc = "A cluster of brains: etcd-v3-compatible servers for Kubernetes.",
    shortname = "kbc",
    category = "kubebrain",
    derive = "PartialEq",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#
    ),
    printcolumn(name = "Members", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Leader", type_ = "string", json_path = ".status.leader.member"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(
        name = "Available",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Available")].status"#,
        priority = 1
    ),
    printcolumn(name = "Storage", type_ = "string", json_path = ".spec.storage.type", priority = 1),
    printcolumn(name = "Image", type_ = "string", json_path = ".status.image", priority = 1),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#,
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    selectable = ".spec.storage.type",
    selectable = ".spec.version",
    validation = Rule::new("size(self.metadata.name) <= 45")
        .message("name must be at most 45 characters: pod, Service and Secret names are derived from it"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("name must start with a letter and hold only a-z, 0-9 and -: Service names are derived from it"),
    validation = Rule::new("self.spec.storage.type != 'Embedded' || self.spec.replicas <= 1")
        .message("Embedded storage is single-member: set replicas to 0 or 1"),
    validation = Rule::new("self.spec.storage.type != 'Embedded' || !has(self.spec.leaderElection)")
        .message("leaderElection has no effect with Embedded storage, whose single member always leads: remove it"),
    validation = Rule::new("!has(self.spec.updateStrategy) || self.spec.updateStrategy.type != 'OnDelete' || !has(self.spec.updateStrategy.maintenanceWindows) || size(self.spec.updateStrategy.maintenanceWindows) == 0")
        .message("updateStrategy.maintenanceWindows has no effect with type OnDelete, where you replace the pods: remove it"),
    validation = Rule::new("self.spec.workload.type != 'External' || !has(self.spec.updateStrategy)")
        .message("updateStrategy has no effect with workload.type External: the owner of the pods replaces them; remove it"),
    validation = Rule::new("self.spec.workload.type != 'External' || !has(self.spec.leaderElection)")
        .message("leaderElection has no effect with workload.type External: set the brain's flags where the pods are made; remove it"),
    validation = Rule::new("self.spec.workload.type != 'External' || !has(self.spec.podDisruptionBudget)")
        .message("podDisruptionBudget has no effect with workload.type External: create one together with the pods; remove it"),
    validation = Rule::new("self.spec.workload.type != 'External' || (!has(self.spec.pod) && !has(self.spec.podTemplate))")
        .message("pod and podTemplate have no effect with workload.type External: set them where the pods are made"),
    validation = Rule::new("self.spec.workload.type != 'External' || (!has(self.spec.image) && !has(self.spec.imagePullSecrets) && !has(self.spec.restartedAt))")
        .message("image, imagePullSecrets and restartedAt have no effect with workload.type External: set them where the pods are made"),
    validation = Rule::new("self.spec.workload.type != 'External' || (!has(self.spec.quota) && !has(self.spec.autoCompaction) && !has(self.spec.logLevel) && !has(self.spec.flags))")
        .message("quota, autoCompaction, logLevel and flags have no effect with workload.type External: set the brain's flags where the pods are made"),
    validation = Rule::new("self.spec.workload.type != 'External' || !has(self.spec.jwtSecretRef)")
        .message("jwtSecretRef has no effect with workload.type External: mount the Secret where the pods are made"),
    validation = Rule::new("self.spec.workload.type != 'External' || !has(self.spec.storage.tikv) || !has(self.spec.storage.tikv.gc)")
        .message("storage.tikv.gc has no effect with workload.type External: set --tikv-gc-interval where the pods are made; remove it"),
    validation = Rule::new("self.spec.workload.type != 'External' || !has(self.spec.storage.embedded)")
        .message("storage.embedded has no effect with workload.type External: make the volume where the pods are made; remove it"),
    validation = Rule::new("self.spec.workload.type != 'External' || !has(self.spec.bootstrap) || (!has(self.spec.bootstrap.fromBackup) && !has(self.spec.bootstrap.fromSnapshot) && !has(self.spec.bootstrap.fromEtcd))")
        .message("bootstrap has no effect with workload.type External: restore the data where the pods are made; remove it"),
    validation = Rule::new("self.spec.workload.type == 'External' || self.spec.storage.type != 'Embedded' || has(self.spec.storage.embedded)")
        .message("storage.embedded is required when type is Embedded: set storage.embedded.size, such as 10Gi"),
    validation = Rule::new("self.spec.storage.type != 'Embedded' || !has(self.spec.updateStrategy) || !has(self.spec.updateStrategy.leaderTransferTimeoutSeconds)")
        .message("updateStrategy.leaderTransferTimeoutSeconds has no effect with Embedded storage, whose only member cannot transfer leadership: remove it")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.storage.type == oldSelf.storage.type")
        .message("storage.type is immutable: create a new cluster and copy the data")
        .field_path(".storage.type"),
    validation = Rule::new("has(self.bootstrap) == has(oldSelf.bootstrap) && (!has(self.bootstrap) || self.bootstrap == oldSelf.bootstrap)")
        .message("bootstrap is immutable: it says where the first data came from"),
    validation = Rule::new("!has(self.quota) || isQuantity(string(self.quota))")
        .message("quota must be a size such as 8Gi or 10G; 10GB is written 10G")
        .field_path(".quota"),
    validation = Rule::new("!has(self.quota) || !isQuantity(string(self.quota)) || quantity(string(self.quota)).compareTo(quantity('16Mi')) >= 0")
        .message("quota must be at least 16Mi, such as 8Gi")
        .field_path(".quota"),
    validation = Rule::new("!has(self.restartedAt) || self.restartedAt.matches('^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})$')")
        .message("restartedAt must be a time such as 2026-11-21T00:00:00Z")
        .field_path(".restartedAt")
)]
pub struct KubeBrainClusterSpec {
    /// Number of brains. 0 suspends the cluster and keeps its data. Embedded storage allows 0 or 1. With workload External it is the number
    /// of pods that the operator expects.
    #[schemars(range(min = 0, max = 64))]
    #[serde(default = "one")]
    pub replicas: i32,

    /// Version of the brain, as MAJOR.MINOR.PATCH. It is the image tag unless `image.digest` is set. A change replaces the brains in a
    /// rolling update. With workload External it is the version that the pods are expected to run; members of another version do not count
    /// as updated.
    #[schemars(regex(pattern = r"^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$"), length(max = 64))]
    pub version: String,

    /// Source of the brain's image. Default: the operator's `--default-image`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,

    /// Secrets in this namespace with credentials for the image's repository.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub image_pull_secrets: Vec<LocalRef>,

    /// Stops every change to the cluster's objects. The operator still renews certificates, labels the leader and reports the status.
    #[serde(default)]
    pub paused: bool,

    /// Restarts the brains one by one when set to a newer time, such as `2026-11-21T00:00:00Z`. A time older than the last one acted on
    /// changes nothing. A time more than five minutes in the future is ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub restarted_at: Option<String>,

    /// Selects who creates the pods that the brains run in.
    #[serde(default)]
    pub workload: Workload,

    /// Source of the cluster's first data. It cannot be changed later. Default: the cluster begins empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<Box<Bootstrap>>,

    /// Location of the data.
    pub storage: Storage,

    /// Certificates of the brains and of their clients.
    #[serde(default)]
    pub tls: Tls,

    /// Election of the leader. Forbidden with Embedded storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_election: Option<LeaderElection>,

    /// Pace and limits of a rolling update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,

    /// Services in front of the brains.
    #[serde(default)]
    pub services: Services,

    /// PodDisruptionBudget of the brains. None is created for fewer than two brains, because it would only block drains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_disruption_budget: Option<DisruptionBudget>,

    /// Scraping of the brains' metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitoring: Option<Monitoring>,

    /// Labels and annotations that every object of the cluster inherits. Those of this resource itself are not copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherited_metadata: Option<InheritedMetadata>,

    /// Resources, placement and other settings of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodSettings>,

    /// Partial PodTemplateSpec, merged last over the pod template of the operator as a strategic merge patch: lists merge by their keys,
    /// null removes a field, and the brain's container is named `brain`. Any field that the API server knows may be set. Fields that would
    /// give the pods more rights than brains need are refused unless the operator allows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::preserved_object")]
    pub pod_template: Option<serde_json::Value>,

    /// Size of the data at which the brains refuse writes with the NOSPACE alarm, such as `8Gi`. The volume of an embedded store runs full
    /// first if it is smaller. Default: the brain's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quantity>,

    /// Compaction by the brains themselves. A kube-apiserver compacts on its own; without one and without this field nothing is compacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_compaction: Option<AutoCompaction>,

    /// Log level of the brains. Default: Info.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_level: Option<LogLevel>,

    /// Secret with the keys for JSON Web Tokens: `jwt.pub`, and `jwt.key` if the brains sign tokens. It is mounted at `/etc/kubebrain/jwt`,
    /// so the flag `auth-token` can name these files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt_secret_ref: Option<LocalRef>,

    /// Additional flags of the brain, without the dashes, such as `max-txn-ops: "1024"`. Unknown flags and flags that the operator sets are
    /// refused.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::flags")]
    pub flags: BTreeMap<String, String>,

    /// Continuous archive of the cluster, by which it can be restored to any revision and second. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<ClusterBackup>,
}

impl KubeBrainClusterSpec {
    /// Returns the update strategy with defaults filled in.
    #[must_use]
    pub fn strategy(&self) -> UpdateStrategy {
        self.update_strategy.clone().unwrap_or_default()
    }

    /// Returns the settings of the election with defaults filled in.
    #[must_use]
    pub fn election(&self) -> LeaderElection {
        self.leader_election.clone().unwrap_or_default()
    }

    /// Returns the settings of the PodDisruptionBudget with defaults filled in.
    #[must_use]
    pub fn disruption_budget(&self) -> DisruptionBudget {
        self.pod_disruption_budget.clone().unwrap_or_default()
    }
}

fn one() -> i32 {
    1
}
