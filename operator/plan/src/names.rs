//! Names, labels and addresses that follow from a cluster's name.
//!
//! They are a contract: users mount the Secrets and connect to the Services by these names.

use std::collections::BTreeMap;

use crate::certificates::Leaf;

/// Port for clients.
pub const CLIENT_PORT: i32 = 2379;
/// Port for other brains.
pub const PEER_PORT: i32 = 2380;
/// Port of metrics and probes, without certificates.
pub const METRICS_PORT: i32 = 2381;

/// Field manager of the objects' specs.
pub const MANAGER: &str = "kubebrain-operator";
/// Field manager of the status.
pub const STATUS_MANAGER: &str = "kubebrain-operator-status";

/// Field manager of the resource's finalizer.
pub const FINALIZER_MANAGER: &str = "kubebrain-operator-finalizer";

/// Finalizer of a resource whose keys in TiKV are wiped when it is deleted.
pub const WIPE: &str = "kubebrain.io/wipe-storage";
/// Annotation of the resource: `true` starts members without the restore of `spec.bootstrap`.
pub const SKIP_BOOTSTRAP: &str = "kubebrain.io/skip-bootstrap";
/// Annotation of the resource: `true` removes it without the wipe.
pub const SKIP_WIPE: &str = "kubebrain.io/skip-wipe";

/// Finalizer of a backup whose objects are deleted with its resource.
pub const DELETE_BACKUP: &str = "kubebrain.io/delete-backup";
/// Label of the Jobs and pods of a backup, with its name.
pub const BACKUP: &str = "kubebrain.io/backup";
/// Label of the backups of a schedule, with its name.
pub const SCHEDULE: &str = "kubebrain.io/schedule";

/// Label of a backup that a user asked for, although it may have the template of a schedule. No retention deletes it.
pub const MANUAL: &str = "kubebrain.io/manual";
/// Label of the Job that restores the first data of a cluster, and of its pods, with the name of the cluster.
pub const BOOTSTRAP: &str = "kubebrain.io/bootstrap";

/// Label of the Deployment and the pod of an archive, with the name of the cluster.
pub const ARCHIVE: &str = "kubebrain.io/archive";

/// Label with the cluster's name; the selector of everything that belongs to it.
pub const CLUSTER: &str = "kubebrain.io/cluster";
/// Annotation of the pod template with the hash over the parts whose change needs a restart.
pub const RESTART_HASH: &str = "kubebrain.io/restart-hash";
/// Annotation of the pod template with the hash over CPU and memory, which reach pods in place. On a pod, the hash of its present ones.
pub const RESOURCES_HASH: &str = "kubebrain.io/resources-hash";
/// Annotation of a StatefulSet with the names of the CPU and memory amounts that its former templates set.
pub const FORMER_RESOURCES: &str = "kubebrain.io/former-resources";
/// Annotation of a pod with the hash of the resources that changed its memory in place. Its brain must be restarted for them.
pub const MEMORY_RESIZED: &str = "kubebrain.io/memory-resized";
/// Annotation of a pod with the hash of the resources that it cannot get in place.
pub const RESIZE_REFUSED: &str = "kubebrain.io/resize-refused";
/// Annotation of the resource: an older version that may be rolled out although it may be unable to read the stored data.
pub const ALLOW_DOWNGRADE: &str = "kubebrain.io/allow-downgrade";
/// Annotation of the resource with the id of the store that is given up: any store that its brains have next is accepted.
pub const ACCEPT_STORE: &str = "kubebrain.io/accept-store";
/// Annotation of the resource: `true` replaces the only member without a trial of the new template.
pub const SKIP_TRIAL: &str = "kubebrain.io/skip-trial";
/// Annotation of the resource: the installation of the operator that manages it, by namespace and name of its Lease.
pub const MANAGED_BY_INSTALLATION: &str = "kubebrain.io/managed-by";
/// Label of a pod with its name, which the StatefulSet's controller sets.
pub const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
/// Label with the role of a brain; only the operator sets it.
pub const ROLE: &str = "kubebrain.io/role";
/// Label with the version that a pod runs.
pub const VERSION: &str = "app.kubernetes.io/version";
/// Annotation on a cluster with the phase that a replacement of the authority's key may enter.
pub const CA_ADVANCE: &str = "kubebrain.io/ca-advance";
/// Annotation on a cluster with the fingerprint of a key that a deleted cluster of the same name left, and that this cluster takes over.
pub const ADOPT_CA: &str = "kubebrain.io/adopt-ca";
/// Label by which the operator finds the objects it created.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Label that distinguishes brains from other objects of a cluster.
pub const COMPONENT: &str = "app.kubernetes.io/component";

/// Returns true if a label or an annotation is in the operator's own group, whose keys select pods and record what was done with an object.
pub fn is_reserved(key: &str) -> bool {
    key.strip_prefix(crds::GROUP).is_some_and(|rest| rest.starts_with('/'))
}

/// Names of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// Name of the cluster, its StatefulSet and its ServiceAccount.
    pub cluster: String,
    /// Its namespace.
    pub namespace: String,
    /// DNS domain of the Kubernetes cluster, such as `cluster.local`.
    pub domain: String,
}

impl Names {
    pub fn headless(&self) -> String {
        format!("{}-headless", self.cluster)
    }

    pub fn client(&self) -> String {
        format!("{}-client", self.cluster)
    }

    pub fn leader(&self) -> String {
        format!("{}-leader", self.cluster)
    }

    pub fn authority(&self) -> String {
        format!("{}-ca", self.cluster)
    }

    pub fn bundle(&self) -> String {
        format!("{}-ca-bundle", self.cluster)
    }

    pub fn leaf(&self, leaf: Leaf) -> String {
        format!("{}-{}-tls", self.cluster, leaf.suffix())
    }

    /// Returns the name of the Job that wipes the keys of the deleted cluster.
    pub fn wipe(&self) -> String {
        format!("{}-wipe", self.cluster)
    }

    /// Returns the name of the Job that restores the first data of the cluster.
    pub fn bootstrap(&self) -> String {
        bootstrap(&self.cluster)
    }

    /// Returns the name of the volume claim of a member.
    pub fn claim(&self, ordinal: i32) -> String {
        format!("data-{}", self.pod(ordinal))
    }

    /// Returns the name of the Deployment that archives the cluster.
    pub fn archive(&self) -> String {
        archive(&self.cluster)
    }

    /// Returns the name of the PodMonitor of the archive. No cluster has one of its own with this name: names of clusters have no dots.
    pub fn archive_monitor(&self) -> String {
        format!("{}.archive", self.cluster)
    }

    /// Returns the name of the pod in which a new template is tried.
    pub fn trial(&self) -> String {
        trial(&self.cluster)
    }

    pub fn pod(&self, ordinal: i32) -> String {
        format!("{}-{ordinal}", self.cluster)
    }

    /// Returns `service.namespace.svc`.
    pub fn host(&self, service: &str) -> String {
        format!("{service}.{}.svc", self.namespace)
    }

    /// Returns the DNS name of a pod, as other brains and the certificate use it.
    pub fn member_host(&self, pod: &str) -> String {
        format!("{pod}.{}", self.host(&self.headless()))
    }

    /// Returns the domain whose SRV records name the members.
    pub fn discovery_domain(&self) -> String {
        format!("{}.{}", self.host(&self.headless()), self.domain)
    }

    /// Returns the name of the Lease that is the leader lock, if there is one.
    pub fn lease(&self) -> String {
        format!("{}-leader", self.cluster)
    }

    /// Returns the DNS names of the server certificate: both Services, every member by a wildcard, and localhost.
    pub fn server_hosts(&self) -> Vec<String> {
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
    pub fn member_hosts(&self) -> Vec<String> {
        let (members, headless) = (self.member_host("*"), self.host(&self.headless()));
        vec![
            format!("{members}.{}", self.domain),
            members,
            format!("{headless}.{}", self.domain),
            headless,
        ]
    }

    /// Returns the labels that select the brains' pods; they never change.
    pub fn selector(&self) -> BTreeMap<String, String> {
        labels([(CLUSTER, self.cluster.as_str()), (COMPONENT, "brain")])
    }

    /// Returns the labels of all objects created for this cluster.
    pub fn labels(&self) -> BTreeMap<String, String> {
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
pub fn trial(cluster: &str) -> String {
    format!("{cluster}-trial")
}

/// Returns the name of the Deployment that archives `cluster`.
pub fn archive(cluster: &str) -> String {
    format!("{cluster}-archive")
}

/// Returns the name of the Job that restores the first data of `cluster`.
pub fn bootstrap(cluster: &str) -> String {
    format!("{cluster}-bootstrap")
}

/// Formats a label selector as text.
pub fn selector_text(labels: &BTreeMap<String, String>) -> String {
    let parts: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    parts.join(",")
}

pub fn labels<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}
