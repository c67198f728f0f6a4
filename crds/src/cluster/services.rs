//! Services of the brains, and their monitoring.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The Services in front of the brains. The headless one, which names each member, always exists.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Services {
    /// `<name>-client`: every ready brain.
    #[serde(default)]
    pub client: ClientService,

    /// `<name>-leader`: the leader alone; without endpoints while there is none.
    #[serde(default)]
    pub leader: Toggle,
}

/// The Service of every ready brain.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    cel,
    validation = Rule::new("!has(self.loadBalancerClass) || self.type == 'LoadBalancer'")
        .message("loadBalancerClass goes with type LoadBalancer: set services.client.type, or remove loadBalancerClass")
)]
pub struct ClientService {
    /// Type of the Service.
    #[serde(default, rename = "type")]
    pub type_: ServiceType,

    /// Annotations of this Service alone, such as those of a load balancer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,

    /// Preference among the endpoints, such as `PreferClose`; the values are Kubernetes'.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub traffic_distribution: Option<String>,

    /// Class of the load balancer; only with type LoadBalancer. It cannot be changed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub load_balancer_class: Option<String>,

    /// IP families of the Services. Kubernetes decides if this is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_family_policy: Option<IpFamilyPolicy>,
}

/// IP families of the Service, and of those that name each member and the leader. Kubernetes decides if it is not set.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum IpFamilyPolicy {
    /// One family.
    SingleStack,
    /// Both, where the Kubernetes cluster has both.
    PreferDualStack,
    /// Both, or none.
    RequireDualStack,
}

/// How a Service is reached.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum ServiceType {
    /// From inside the Kubernetes cluster.
    #[default]
    ClusterIP,
    /// Also on a port of every node.
    NodePort,
    /// Also through a load balancer.
    LoadBalancer,
}

/// The PodDisruptionBudget of the brains.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DisruptionBudget {
    /// Whether it is wanted.
    #[serde(default = "yes")]
    pub enabled: bool,

    /// How many ready brains an eviction may leave missing. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub max_unavailable: Option<i32>,
}

impl Default for DisruptionBudget {
    fn default() -> Self {
        Self {
            enabled: true,
            max_unavailable: None,
        }
    }
}

/// Something that can be switched off.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Toggle {
    /// Whether it is wanted.
    #[serde(default = "yes")]
    pub enabled: bool,
}

fn yes() -> bool {
    true
}

impl Default for Toggle {
    fn default() -> Self {
        Self { enabled: true }
    }
}

/// Scraping of the brains' metrics.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Monitoring {
    /// A PodMonitor of the Prometheus operator; nothing is made while its CRD is not installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_monitor: Option<PodMonitor>,
}

/// A PodMonitor of the Prometheus operator.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodMonitor {
    /// Whether it is wanted.
    #[serde(default)]
    pub enabled: bool,

    /// Labels by which a Prometheus selects it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,

    /// Time between two scrapes, such as `30s`; Prometheus' default if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9]+(h|m|s|ms))+$"), length(max = 32))]
    pub interval: Option<String>,
}
