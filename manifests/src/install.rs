//! The values that differ between ways of installing: plain YAML has constants, the Helm chart has templates.

use serde_json::{Value, json};

use crate::chart::template;

/// Name of the operator's namespace, and of its ServiceAccount, Deployment and roles.
pub(crate) const NAMESPACE: &str = "kubebrain-system";
pub(crate) const NAME: &str = "kubebrain-operator";

/// Version of this build, which is also the tag of the images.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Repository of the operator's image.
pub(crate) const IMAGE: &str = "kubebrain.io/kubebrain-operator";
/// Repository of the brain's image for clusters that do not name one.
pub(crate) const BRAIN_IMAGE: &str = "kubebrain.io/kubebrain";

/// Time between two scrapes.
pub(crate) const INTERVAL: &str = "30s";

/// Values from which the objects of one installation are made.
pub(crate) struct Install {
    /// Name of the operator's objects.
    pub(crate) name: String,
    /// Namespace of the operator itself.
    pub(crate) namespace: String,
    /// Image of the operator, with tag or digest.
    pub(crate) image: String,
    /// Pull policy of the operator's image.
    pub(crate) pull_policy: String,
    /// Repository of the brain's image for clusters that do not name one.
    pub(crate) brain_image: String,
    /// Number of operator replicas; one of them leads.
    pub(crate) replicas: Value,
    /// CPU and memory of the operator.
    pub(crate) resources: Value,
    /// User, groups and profiles of the operator's pods.
    pub(crate) pod_security_context: Value,
    /// Arguments in addition to the fixed ones.
    pub(crate) arguments: Vec<String>,
    /// Fields of the pod in addition to the fixed ones.
    pub(crate) pod: Vec<(&'static str, Value)>,
    /// Ports of the API server that the NetworkPolicy allows.
    pub(crate) api_server_ports: Value,
    /// Labels and interval of the PodMonitor, labels of the PrometheusRule.
    pub(crate) monitoring: Monitoring,
}

/// Settings by which Prometheus finds the operator.
pub(crate) struct Monitoring {
    /// Additional labels of the PodMonitor.
    pub(crate) pod_monitor_labels: Option<String>,
    /// Time between two scrapes.
    pub(crate) interval: String,
    /// Additional labels of the PrometheusRule.
    pub(crate) rule_labels: Option<String>,
}

impl Install {
    /// Returns the values of the plain YAML, for kubectl and kustomize.
    pub(crate) fn plain() -> Self {
        Self {
            name: NAME.to_owned(),
            namespace: NAMESPACE.to_owned(),
            image: format!("{IMAGE}:{VERSION}"),
            pull_policy: "IfNotPresent".to_owned(),
            brain_image: BRAIN_IMAGE.to_owned(),
            replicas: json!(2),
            resources: resources(),
            pod_security_context: pod_security_context(),
            arguments: Vec::new(),
            pod: Vec::new(),
            api_server_ports: json!(api_server_ports().map(port)),
            monitoring: Monitoring {
                pod_monitor_labels: None,
                interval: INTERVAL.to_owned(),
                rule_labels: None,
            },
        }
    }

    /// Returns the templates of the Helm chart.
    pub(crate) fn chart() -> Self {
        Self {
            name: template::NAME.to_owned(),
            namespace: "{{ $.Release.Namespace }}".to_owned(),
            image: r#"{{ include "kubebrain-operator.image" $ }}"#.to_owned(),
            pull_policy: "{{ $.Values.image.pullPolicy }}".to_owned(),
            brain_image: "{{ $.Values.defaultImage }}".to_owned(),
            replicas: template::scalar("$.Values.replicas"),
            resources: template::block("$.Values.resources"),
            pod_security_context: template::block("$.Values.podSecurityContext"),
            arguments: vec![
                template::item_with("$.Values.watchNamespaces", r#"--namespace={{ join "," . }}"#),
                template::item_with(
                    "$.Values.allowedPodMetadata",
                    r#"--allowed-pod-metadata={{ join "," . }}"#,
                ),
                template::each("$.Values.extraArgs"),
            ],
            pod: [
                "affinity",
                "imagePullSecrets",
                "nodeSelector",
                "priorityClassName",
                "tolerations",
            ]
            .map(|field| (field, template::block(&format!("$.Values.{field}"))))
            .to_vec(),
            api_server_ports: json!([template::each_port("$.Values.networkPolicy.apiServerPorts")]),
            monitoring: Monitoring {
                pod_monitor_labels: Some("$.Values.podMonitor.labels".to_owned()),
                interval: "{{ $.Values.podMonitor.interval }}".to_owned(),
                rule_labels: Some("$.Values.prometheusRule.labels".to_owned()),
            },
        }
    }

    /// Returns the name, the labels and, for a namespaced object, the namespace.
    pub(crate) fn metadata(&self, name: &str, namespace: Option<&str>) -> Value {
        let mut metadata = json!({"name": name, "labels": self.labels()});
        if let Some(namespace) = namespace {
            metadata["namespace"] = json!(namespace);
        }
        metadata
    }

    /// Returns the name of the operator's object for `part`.
    pub(crate) fn named(&self, part: &str) -> String {
        format!("{}-{part}", self.name)
    }

    /// Returns the labels of every object that belongs to the operator itself.
    pub(crate) fn labels(&self) -> Value {
        json!({
            "app.kubernetes.io/name": self.name,
            "app.kubernetes.io/component": "operator",
            "app.kubernetes.io/part-of": "kubebrain",
        })
    }

    /// Returns the labels that select the operator's pods.
    pub(crate) fn selector(&self) -> Value {
        json!({"app.kubernetes.io/name": self.name})
    }
}

/// CPU and memory of the operator.
pub(crate) fn resources() -> Value {
    json!({"requests": {"cpu": "10m", "memory": "40Mi"}, "limits": {"memory": "128Mi"}})
}

/// Security context of the operator's pods. The restricted standard requires the unprivileged user of the image as a number.
pub(crate) fn pod_security_context() -> Value {
    json!({
        "runAsNonRoot": true,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    })
}

/// Ports of API servers: the Service's port and the server's own.
pub(crate) fn api_server_ports() -> [i32; 2] {
    [443, 6443]
}

/// A TCP port of a NetworkPolicy.
pub(crate) fn port(number: i32) -> Value {
    json!({"port": number, "protocol": "TCP"})
}

/// The operator's namespace, under the restricted pod security standard.
pub(crate) fn namespace() -> Value {
    let mut labels = Install::plain().labels();
    for mode in ["enforce", "warn", "audit"] {
        labels[format!("pod-security.kubernetes.io/{mode}")] = json!("restricted");
    }
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
}
