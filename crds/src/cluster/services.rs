//! Services of the brains, and their monitoring.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Services in front of the brains. The headless Service, which gives each member a DNS name, always exists.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Services {
    /// Service `<name>-client` in front of every ready brain.
    #[serde(default)]
    pub client: ClientService,

    /// Service `<name>-leader` in front of the leader alone. It has no endpoints while there is no leader.
    #[serde(default)]
    pub leader: Toggle,
}

/// Service in front of every ready brain.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(any(test, feature = "cel"), x_kube(cel))]
#[x_kube(
    validation = Rule::new("!has(self.loadBalancerClass) || self.type == 'LoadBalancer'")
        .message("loadBalancerClass requires type LoadBalancer: set services.client.type, or remove loadBalancerClass")
)]
pub struct ClientService {
    /// Type of the Service.
    #[serde(default, rename = "type")]
    pub type_: ServiceType,

    /// Annotations of this Service alone, such as those for a load balancer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,

    /// Preference among the endpoints, such as `PreferClose`. The values are those of Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub traffic_distribution: Option<String>,

    /// Class of the load balancer. Only with type LoadBalancer. It cannot be changed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub load_balancer_class: Option<String>,

    /// IP families of the client, leader and headless Services. Default: chosen by Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_family_policy: Option<IpFamilyPolicy>,
}

/// IP families of the client, leader and headless Services. Default: chosen by Kubernetes.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub enum IpFamilyPolicy {
    /// One family.
    SingleStack,
    /// Both families if the Kubernetes cluster has both.
    PreferDualStack,
    /// Both families; fails if the Kubernetes cluster does not have both.
    RequireDualStack,
}

/// How clients reach a Service.
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

/// PodDisruptionBudget of the brains.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DisruptionBudget {
    /// Enables the PodDisruptionBudget.
    #[serde(default = "yes")]
    pub enabled: bool,

    /// Maximum number of brains that may be missing after an eviction. Default: 1.
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

/// An object that is created unless it is switched off.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Toggle {
    /// Enables this Service.
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
    /// PodMonitor for the Prometheus operator. None is created while its CRD is not installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_monitor: Option<PodMonitor>,
}

/// PodMonitor for the Prometheus operator.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodMonitor {
    /// Enables the PodMonitor.
    #[serde(default)]
    pub enabled: bool,

    /// Labels by which a Prometheus selects the PodMonitor.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,

    /// Time between two scrapes, such as `30s`. Default: the one of Prometheus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9]+(h|m|s|ms))+$"), length(max = 32))]
    pub interval: Option<String>,
}
