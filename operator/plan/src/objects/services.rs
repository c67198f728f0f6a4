//! Services, PodDisruptionBudget and PodMonitor of the pods.

use std::collections::BTreeMap;

use crds::cluster::services::ServiceType;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::Renderer;
use crate::archive;
use crate::names::{ARCHIVE, CLIENT_PORT, METRICS_PORT, PEER_PORT, POD_NAME, ROLE, is_reserved, labels};

impl Renderer<'_> {
    /// The headless Service, which gives each member a DNS name. It also does so before a member is ready, or brains could not find each
    /// other.
    ///
    /// Its ports have the names of etcd's SRV records, by which brains and clients find all members.
    pub fn headless(&self) -> Service {
        let (client, peer) = if self.desired.certificates.is_some() {
            ("etcd-client-ssl", "etcd-server-ssl")
        } else {
            ("etcd-client", "etcd-server")
        };
        let spec = ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(self.pod_labels()),
            ports: Some(vec![
                named_port(client, "client", CLIENT_PORT),
                named_port(peer, "peer", PEER_PORT),
                port("metrics", METRICS_PORT),
            ]),
            ip_family_policy: self.families_of_all(),
            ..ServiceSpec::default()
        };
        Service {
            metadata: self.metadata(&self.names().headless()),
            spec: Some(spec),
            ..Service::default()
        }
    }

    /// Returns the labels by which Services select the brains. For pods that the user creates they are those of the spec's selector.
    fn pod_labels(&self) -> BTreeMap<String, String> {
        let selector = self.cluster.spec.workload.selector.as_ref();
        let given = selector.and_then(|selector| selector.match_labels.clone());
        given.unwrap_or_else(|| self.names().selector())
    }

    /// Returns the labels of pods that may serve clients. With an embedded store this is only the first pod, whatever their number.
    fn serving_labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.pod_labels();
        if self.names_only_member() {
            labels.insert(POD_NAME.to_owned(), self.names().pod(0));
        }
        labels
    }

    fn families(&self) -> Option<String> {
        let policy = self.cluster.spec.services.client.ip_family_policy;
        policy.map(|policy| format!("{policy:?}"))
    }

    /// Returns the IP families of Services that name each member, but only once members listen on all families.
    fn families_of_all(&self) -> Option<String> {
        self.families().filter(|_| self.epoch.listens_on_all_families())
    }

    /// The Service in front of every ready brain.
    pub fn client_service(&self) -> Service {
        let wanted = &self.cluster.spec.services.client;
        let type_ = match wanted.type_ {
            ServiceType::ClusterIP => "ClusterIP",
            ServiceType::NodePort => "NodePort",
            ServiceType::LoadBalancer => "LoadBalancer",
        };
        let mut metadata = self.metadata(&self.names().client());
        let own = wanted.annotations.clone().into_iter();
        metadata
            .annotations
            .get_or_insert_default()
            .extend(own.filter(|(key, _)| !is_reserved(key)));
        let spec = ServiceSpec {
            type_: Some(type_.to_owned()),
            selector: Some(self.serving_labels()),
            ports: Some(vec![port("client", CLIENT_PORT)]),
            traffic_distribution: wanted.traffic_distribution.clone(),
            load_balancer_class: wanted.load_balancer_class.clone(),
            ip_family_policy: self.families(),
            ..ServiceSpec::default()
        };
        Service {
            metadata,
            spec: Some(spec),
            ..Service::default()
        }
    }

    /// The Service in front of the leader alone: a pod has the label only while it is known to lead.
    pub fn leader_service(&self) -> Option<Service> {
        let mut selector = self.serving_labels();
        selector.insert(ROLE.to_owned(), "leader".to_owned());
        let spec = ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
            selector: Some(selector),
            ports: Some(vec![port("client", CLIENT_PORT)]),
            ip_family_policy: self.families_of_all(),
            ..ServiceSpec::default()
        };
        let metadata = self.metadata(&self.names().leader());
        let service = Service {
            metadata,
            spec: Some(spec),
            ..Service::default()
        };
        self.cluster.spec.services.leader.enabled.then_some(service)
    }

    /// One brain may be drained at a time, and a broken one always. With a single brain a budget could only block drains.
    pub fn disruption_budget(&self) -> Option<PodDisruptionBudget> {
        let budget = self.cluster.spec.disruption_budget();
        let wanted = budget.enabled && self.desired.replicas > 1;
        let spec = PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(budget.max_unavailable.unwrap_or(1))),
            selector: Some(LabelSelector {
                match_labels: Some(self.names().selector()),
                ..LabelSelector::default()
            }),
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            ..PodDisruptionBudgetSpec::default()
        };
        let metadata = self.metadata(&self.names().cluster);
        wanted.then(|| PodDisruptionBudget {
            metadata,
            spec: Some(spec),
            ..PodDisruptionBudget::default()
        })
    }

    /// Returns the PodMonitor of the members.
    pub fn pod_monitor(&self) -> Option<Value> {
        self.monitor(&self.names().cluster, self.pod_labels())
    }

    /// Returns the PodMonitor of the archive: alerts tell archives apart by their jobs, so each cluster has one.
    pub fn archive_monitor(&self) -> Option<Value> {
        archive::wanted(self.cluster)?;
        let pods = labels([(ARCHIVE, self.names().cluster.as_str())]);
        self.monitor(&self.names().archive_monitor(), pods)
    }

    /// Returns a PodMonitor of the Prometheus operator, as JSON because its types are not linked here.
    fn monitor(&self, name: &str, pods: BTreeMap<String, String>) -> Option<Value> {
        let wanted = self.cluster.spec.monitoring.as_ref()?.pod_monitor.as_ref()?;
        let mut metadata = self.metadata(name);
        let own = metadata.labels.take().unwrap_or_default();
        metadata.labels = Some(wanted.labels.clone().into_iter().chain(own).collect());
        let mut endpoint = json!({"port": "metrics", "path": "/metrics"});
        if let Some(interval) = &wanted.interval {
            endpoint["interval"] = json!(interval);
        }
        let monitor = json!({
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PodMonitor",
            "metadata": metadata,
            "spec": {"selector": {"matchLabels": pods}, "podMetricsEndpoints": [endpoint]},
        });
        wanted.enabled.then_some(monitor)
    }
}

fn port(name: &str, number: i32) -> ServicePort {
    named_port(name, name, number)
}

/// Returns a port of this name that leads to the container's port `target`.
fn named_port(name: &str, target: &str, number: i32) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: number,
        target_port: Some(IntOrString::String(target.to_owned())),
        protocol: Some("TCP".to_owned()),
        ..ServicePort::default()
    }
}
