//! Annotations that give a pod something: a profile of the node, a network, another identity. They reach a pod by its template, and by the
//! metadata that all objects of a cluster inherit.
//!
//! Of Kubernetes' own domains only the keys that are known to give nothing are allowed. Other domains are free, as tools of all kinds read
//! them, but for those of container runtimes, networks and identities.

use crds::KubeBrainCluster;

/// Keys, or their beginnings, of the domains below that give a pod nothing. Those of Services and their DNS names mean nothing on a pod, but
/// all objects inherit them.
const HARMLESS: [&str; 12] = [
    "app.kubernetes.io/",
    "cluster-autoscaler.kubernetes.io/",
    "controller.kubernetes.io/pod-deletion-cost",
    "descheduler.alpha.kubernetes.io/",
    "external-dns.alpha.kubernetes.io/",
    "kubectl.kubernetes.io/",
    "kubernetes.io/description",
    "networking.gke.io/load-balancer-",
    "service.alpha.kubernetes.io/",
    "service.beta.kubernetes.io/",
    "service.cilium.io/",
    "service.kubernetes.io/",
];
/// Domains of Kubernetes itself.
const KUBERNETES: [&str; 2] = ["kubernetes.io", "k8s.io"];
/// The annotation by which AppArmor profiles were chosen before there was a field.
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
/// Domains whose annotations give a pod, or the account that it runs as, an identity, a network or a way around its container runtime.
const POWERFUL: [&str; 20] = [
    "ack.aliyun.com",
    "aliyun.com",
    "amazonaws.com",
    "azure.com",
    "azure.workload.identity",
    "cilium.io",
    "cncf.io",
    "cri-o.io",
    "gke.io",
    "hashicorp.com",
    "io.containerd",
    "io.katacontainers",
    "io.kubernetes.cri",
    "io.kubernetes.cri-o",
    "openshift.io",
    "ovn.org",
    "projectcalico.org",
    "run.oci",
    "spiffe.io",
    "tigera.io",
];

/// Why an annotation of a pod or its account is refused, if it is.
pub(in crate::spec) fn excess(key: &str, value: &str) -> Option<&'static str> {
    if key.starts_with(APP_ARMOR) {
        return (value != "runtime/default").then_some("brains run with the runtime's AppArmor profile");
    }
    if HARMLESS.iter().any(|known| key.starts_with(known)) {
        return None;
    }
    let domain = key.split_once('/').map_or(key, |(domain, _)| domain);
    if KUBERNETES.iter().any(|of| is_below(domain, of)) {
        return Some("it is not among the annotations of Kubernetes that a pod of a brain may have");
    }
    // Runtimes write their domains from the top: io.katacontainers.config.
    let powerful = POWERFUL
        .iter()
        .any(|of| is_below(domain, of) || domain.strip_prefix(of).is_some_and(|rest| rest.starts_with('.')));
    powerful.then_some(
        "annotations of this domain can give a pod an identity, a network or a runtime that brains do not have",
    )
}

fn is_below(domain: &str, parent: &str) -> bool {
    domain
        .strip_suffix(parent)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// The first annotation that all objects of a cluster would inherit and that its pods must not have.
pub(in crate::spec) fn inherited(cluster: &KubeBrainCluster) -> Option<String> {
    let inherited = cluster.spec.inherited_metadata.as_ref()?;
    let inherits = |key: &&String| crate::objects::is_inherited(key);
    let mut all = inherited.annotations.iter().filter(|(key, _)| inherits(key));
    all.find_map(|(key, value)| Some(format!("inheritedMetadata.annotations[{key}]: {}", excess(key, value)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_that_give_something_are_refused() {
        for key in [
            "container.apparmor.security.beta.kubernetes.io/brain",
            "container.seccomp.security.alpha.kubernetes.io/brain",
            "seccomp.security.alpha.kubernetes.io/pod",
            "eks.amazonaws.com/role-arn",
            "iam.amazonaws.com/role",
            "iam.gke.io/gcp-service-account",
            "azure.workload.identity/client-id",
            "k8s.v1.cni.cncf.io/networks",
            "cni.projectcalico.org/hostportPolicy",
            "io.katacontainers.config.hypervisor.path",
            "io.kubernetes.cri-o.userns-mode",
            "vault.hashicorp.com/agent-inject",
            "scheduler.alpha.kubernetes.io/critical-pod",
            "networking.gke.io/interfaces",
            "anything.of.k8s.io/tomorrow",
        ] {
            assert!(excess(key, "x").is_some(), "{key}");
        }
        for key in [
            "note",
            "example.com/team",
            "sidecar.istio.io/inject",
            "prometheus.io/scrape",
            "cluster-autoscaler.kubernetes.io/safe-to-evict",
            "kubectl.kubernetes.io/default-container",
            "external-dns.alpha.kubernetes.io/hostname",
            "networking.gke.io/load-balancer-type",
            "service.beta.kubernetes.io/aws-load-balancer-type",
            "service.cilium.io/global",
            "service.kubernetes.io/topology-mode",
            "notkubernetes.io/x",
            "exampleazure.com/x",
        ] {
            assert_eq!(excess(key, "x"), None, "{key}");
        }
        assert_eq!(excess(&format!("{APP_ARMOR}brain"), "runtime/default"), None);
    }
}
