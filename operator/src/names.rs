//! Names, labels and addresses that follow from a cluster's name.
//!
//! They are a contract: users mount the Secrets and connect to the Services by these names.

use std::collections::BTreeMap;

use crate::certificates::Leaf;

/// Port for clients.
pub(crate) const CLIENT_PORT: i32 = 2379;
/// Port for other brains.
pub(crate) const PEER_PORT: i32 = 2380;
/// Port of metrics and probes, without certificates.
pub(crate) const METRICS_PORT: i32 = 2381;

/// Field manager of the objects' specs.
pub(crate) const MANAGER: &str = "kubebrain-operator";
/// Field manager of the status.
pub(crate) const STATUS_MANAGER: &str = "kubebrain-operator-status";

/// Field manager of the resource's finalizer.
pub(crate) const FINALIZER_MANAGER: &str = "kubebrain-operator-finalizer";

/// Finalizer of a resource whose keys in TiKV are wiped when it is deleted.
pub(crate) const WIPE: &str = "kubebrain.io/wipe-storage";
/// Annotation of the resource: `true` removes it without the wipe.
pub(crate) const SKIP_WIPE: &str = "kubebrain.io/skip-wipe";

/// Label with the cluster's name; the selector of everything that belongs to it.
pub(crate) const CLUSTER: &str = "kubebrain.io/cluster";
/// Annotation of the pod template with the hash over the parts whose change needs a restart.
pub(crate) const RESTART_HASH: &str = "kubebrain.io/restart-hash";
/// Annotation of the pod template with the hash over CPU and memory, which reach pods in place. On a pod, the hash of its present ones.
pub(crate) const RESOURCES_HASH: &str = "kubebrain.io/resources-hash";
/// Annotation of a StatefulSet with the names of the CPU and memory amounts that its former templates set.
pub(crate) const FORMER_RESOURCES: &str = "kubebrain.io/former-resources";
/// Annotation of a pod with the hash of the resources that changed its memory in place. Its brain must be restarted for them.
pub(crate) const MEMORY_RESIZED: &str = "kubebrain.io/memory-resized";
/// Annotation of a pod with the hash of the resources that it cannot get in place.
pub(crate) const RESIZE_REFUSED: &str = "kubebrain.io/resize-refused";
/// Annotation of the resource: an older version that may be rolled out although it may be unable to read the stored data.
pub(crate) const ALLOW_DOWNGRADE: &str = "kubebrain.io/allow-downgrade";
/// Annotation of the resource with the id of the store that is given up: any store that its brains have next is accepted.
pub(crate) const ACCEPT_STORE: &str = "kubebrain.io/accept-store";
/// Annotation of the resource: `true` replaces the only member without a trial of the new template.
pub(crate) const SKIP_TRIAL: &str = "kubebrain.io/skip-trial";
/// Annotation of the resource: the installation of the operator that manages it, by namespace and name of its Lease.
pub(crate) const MANAGED_BY_INSTALLATION: &str = "kubebrain.io/managed-by";
/// Label of a pod with its name, which the StatefulSet's controller sets.
pub(crate) const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
/// Label with the role of a brain; only the operator sets it.
pub(crate) const ROLE: &str = "kubebrain.io/role";
/// Label with the version that a pod runs.
pub(crate) const VERSION: &str = "app.kubernetes.io/version";
/// Annotation on a cluster with the phase that a replacement of the authority's key may enter.
pub(crate) const CA_ADVANCE: &str = "kubebrain.io/ca-advance";
/// Annotation on a cluster with the fingerprint of a key that a deleted cluster of the same name left, and that this cluster takes over.
pub(crate) const ADOPT_CA: &str = "kubebrain.io/adopt-ca";
/// Label by which the operator finds the objects it created.
pub(crate) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Label that distinguishes brains from other objects of a cluster.
pub(crate) const COMPONENT: &str = "app.kubernetes.io/component";

/// Returns true if a label or an annotation is in the operator's own group, whose keys select pods and record what was done with an object.
pub(crate) fn is_reserved(key: &str) -> bool {
    key.strip_prefix(crds::GROUP).is_some_and(|rest| rest.starts_with('/'))
}

/// Names of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Names {
    /// Name of the cluster, its StatefulSet and its ServiceAccount.
    pub(crate) cluster: String,
    /// Its namespace.
    pub(crate) namespace: String,
    /// DNS domain of the Kubernetes cluster, such as `cluster.local`.
    pub(crate) domain: String,
}

impl Names {
    pub(crate) fn headless(&self) -> String {
        format!("{}-headless", self.cluster)
    }

    pub(crate) fn client(&self) -> String {
        format!("{}-client", self.cluster)
    }

    pub(crate) fn leader(&self) -> String {
        format!("{}-leader", self.cluster)
    }

    pub(crate) fn authority(&self) -> String {
        format!("{}-ca", self.cluster)
    }

    pub(crate) fn bundle(&self) -> String {
        format!("{}-ca-bundle", self.cluster)
    }

    pub(crate) fn leaf(&self, leaf: Leaf) -> String {
        format!("{}-{}-tls", self.cluster, leaf.suffix())
    }

    /// Returns the name of the Job that wipes the keys of the deleted cluster.
    pub(crate) fn wipe(&self) -> String {
        format!("{}-wipe", self.cluster)
    }

    /// Returns the name of the pod in which a new template is tried.
    pub(crate) fn trial(&self) -> String {
        trial(&self.cluster)
    }

    pub(crate) fn pod(&self, ordinal: i32) -> String {
        format!("{}-{ordinal}", self.cluster)
    }

    /// Returns `service.namespace.svc`.
    pub(crate) fn host(&self, service: &str) -> String {
        format!("{service}.{}.svc", self.namespace)
    }

    /// Returns the DNS name of a pod, as other brains and the certificate use it.
    pub(crate) fn member_host(&self, pod: &str) -> String {
        format!("{pod}.{}", self.host(&self.headless()))
    }

    /// Returns the domain whose SRV records name the members.
    pub(crate) fn discovery_domain(&self) -> String {
        format!("{}.{}", self.host(&self.headless()), self.domain)
    }

    /// Returns the name of the Lease that is the leader lock, if there is one.
    pub(crate) fn lease(&self) -> String {
        format!("{}-leader", self.cluster)
    }

    /// Returns the DNS names of the server certificate: both Services, every member by a wildcard, and localhost.
    pub(crate) fn server_hosts(&self) -> Vec<String> {
        let mut hosts = Vec::new();
        for service in [self.client(), self.leader()] {
            let host = self.host(&service);
            hosts.push(format!("{service}.{}", self.namespace));
            hosts.push(format!("{host}.{}", self.domain));
            hosts.push(host);
            hosts.push(service);
        }
        hosts.extend(self.member_hosts());
        hosts.push("localhost".to_owned());
        hosts
    }

    /// Returns DNS names that cover every member, whatever their number.
    ///
    /// They include the headless Service's own name, under which members are discovered by their SRV records.
    pub(crate) fn member_hosts(&self) -> Vec<String> {
        let (members, headless) = (self.member_host("*"), self.host(&self.headless()));
        vec![
            format!("{members}.{}", self.domain),
            members,
            format!("{headless}.{}", self.domain),
            headless,
        ]
    }

    /// Returns the labels that select the brains' pods; they never change.
    pub(crate) fn selector(&self) -> BTreeMap<String, String> {
        labels([(CLUSTER, self.cluster.as_str()), (COMPONENT, "brain")])
    }

    /// Returns the labels of all objects created for this cluster.
    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        let mut all = self.selector();
        all.extend(labels([
            ("app.kubernetes.io/name", "kubebrain"),
            ("app.kubernetes.io/part-of", "kubebrain"),
            (MANAGED_BY, MANAGER),
        ]));
        all
    }
}

/// Returns the name of the pod in which a new template of `cluster` is tried.
pub(crate) fn trial(cluster: &str) -> String {
    format!("{cluster}-trial")
}

/// Formats a label selector as text.
pub(crate) fn selector_text(labels: &BTreeMap<String, String>) -> String {
    let parts: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    parts.join(",")
}

pub(crate) fn labels<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}
