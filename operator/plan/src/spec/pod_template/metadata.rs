//! Labels and annotations of pods. Runtimes, networks, clouds and webhooks read them, and grant a pod what they request. They reach a pod
//! by its template, and by the metadata that all objects of a cluster inherit; the ServiceAccount inherits no annotations.
//!
//! Keys that grant a pod nothing are listed. Keys without a domain are the user's own. All others were not reviewed, so they are refused
//! unless the operator allows them (`--allowed-pod-metadata`).

use crds::KubeBrainCluster;
use serde_json::Value;

use crate::names::is_reserved;

/// Keys that grant a pod nothing; an entry that ends with `/` or `-` is a prefix of keys. The keys for Services and their DNS names have no
/// effect on a pod, but all objects inherit them.
const HARMLESS_KEYS: [&str; 27] = [
    "app.kubernetes.io/",
    "argocd.argoproj.io/",
    "checksum/",
    "cluster-autoscaler.kubernetes.io/",
    "controller.kubernetes.io/pod-deletion-cost",
    "descheduler.alpha.kubernetes.io/",
    "external-dns.alpha.kubernetes.io/",
    "fluentbit.io/",
    "helm.sh/",
    "helm.toolkit.fluxcd.io/",
    "karpenter.sh/do-not-disrupt",
    "kubectl.kubernetes.io/",
    "kubernetes.io/change-cause",
    "kubernetes.io/description",
    "kustomize.toolkit.fluxcd.io/",
    "linkerd.io/inject",
    "meta.helm.sh/",
    "networking.gke.io/load-balancer-",
    "prometheus.io/",
    "reloader.stakater.com/",
    "service.alpha.kubernetes.io/",
    "service.beta.kubernetes.io/",
    "service.cilium.io/",
    "service.kubernetes.io/",
    "sidecar.istio.io/inject",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
/// A label without a domain that gives a pod an identity.
const IDENTITY_LABEL: &str = "aadpodidbinding";
/// The annotation that selected AppArmor profiles before there was a field.
const APP_ARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Returns the reason why a pod must not have this label or annotation, if any. `allowed` are keys, or prefixes of keys followed by `*`.
pub(crate) fn excess(key: &str, value: &str, allowed: &[String]) -> Option<String> {
    let is_like = |pattern: &String| match pattern.strip_suffix('*') {
        Some(beginning) => key.starts_with(beginning),
        None => key == pattern,
    };
    let is_harmless = |known: &&str| match known.ends_with(['/', '-']) {
        true => key.starts_with(known),
        false => key == *known,
    };
    // Runtimes write their domains in reverse order, without a slash: io.katacontainers.config.
    let is_own = !key.contains(['/', '.']) && key != IDENTITY_LABEL;
    if is_own || HARMLESS_KEYS.iter().any(is_harmless) || allowed.iter().any(is_like) {
        return None;
    }
    if key.starts_with(APP_ARMOR_ANNOTATION) {
        return (value != "runtime/default").then(|| "brains must run with the runtime's AppArmor profile".to_owned());
    }
    Some(format!(
        "it may inject an identity, a network or a container into the pod: remove it, or start the operator with --allowed-pod-metadata={key}"
    ))
}

/// Returns the first label or annotation of a podTemplate that pods must not have, with its path and the reason.
pub(crate) fn of_template(metadata: &Value, allowed: &[String]) -> Option<(String, String)> {
    ["annotations", "labels"].into_iter().find_map(|kind| {
        let mut all = metadata[kind].as_object().into_iter().flatten();
        all.find_map(|(key, value)| {
            let why = excess(key, value.as_str().unwrap_or_default(), allowed)?;
            Some((format!("metadata.{kind}[{key}]"), why))
        })
    })
}

/// Returns the same for metadata that all objects of a cluster would inherit, in words.
pub(in crate::spec) fn inherited(cluster: &KubeBrainCluster, allowed: &[String]) -> Option<String> {
    let inherited = cluster.spec.inherited_metadata.as_ref()?;
    let annotations = inherited.annotations.iter();
    let annotations = annotations.filter(|(key, _)| crate::objects::is_inherited(key));
    let labels = inherited.labels.iter().filter(|(key, _)| !is_reserved(key));
    let all = annotations.map(|each| ("annotations", each));
    let mut all = all.chain(labels.map(|each| ("labels", each)));
    all.find_map(|(kind, (key, value))| {
        Some(format!(
            "inheritedMetadata.{kind}[{key}]: {}",
            excess(key, value, allowed)?
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_that_nobody_looked_at_is_refused() {
        for key in [
            "container.apparmor.security.beta.kubernetes.io/brain",
            "container.seccomp.security.alpha.kubernetes.io/brain",
            "seccomp.security.alpha.kubernetes.io/pod",
            "eks.amazonaws.com/role-arn",
            "iam.gke.io/gcp-service-account",
            "azure.workload.identity/use",
            "aadpodidbinding",
            "k8s.v1.cni.cncf.io/networks",
            "cni.projectcalico.org/hostportPolicy",
            "io.katacontainers.config.hypervisor.path",
            "io.kubernetes.cri-o.userns-mode",
            "run.oci.keep_original_groups",
            "vault.hashicorp.com/agent-inject",
            "sidecar.istio.io/userVolume",
            "sidecar.istio.io/injector",
            "inject.example/anything",
            "scheduler.alpha.kubernetes.io/critical-pod",
            "networking.gke.io/interfaces",
            "anything.of.k8s.io/tomorrow",
        ] {
            let why = excess(key, "x", &[]);
            assert!(why.is_some(), "{key}");
            assert_eq!(excess(key, "x", &[key.to_owned()]), None, "{key}");
        }
        for key in [
            "note",
            "team",
            "app.kubernetes.io/instance",
            "sidecar.istio.io/inject",
            "prometheus.io/scrape",
            "checksum/config",
            "cluster-autoscaler.kubernetes.io/safe-to-evict",
            "kubectl.kubernetes.io/default-container",
            "external-dns.alpha.kubernetes.io/hostname",
            "networking.gke.io/load-balancer-type",
            "service.beta.kubernetes.io/aws-load-balancer-type",
        ] {
            assert_eq!(excess(key, "x", &[]), None, "{key}");
        }
        assert_eq!(
            excess(&format!("{APP_ARMOR_ANNOTATION}brain"), "runtime/default", &[]),
            None
        );
    }

    #[test]
    fn operator_allows_keys_and_beginnings_of_keys() {
        let allowed = ["example.com/*", "tools.example.org/owner"].map(str::to_owned);
        for key in ["example.com/team", "tools.example.org/owner"] {
            assert_eq!(excess(key, "x", &allowed), None, "{key}");
        }
        for key in ["a.example.com/team", "tools.example.org/owner2"] {
            let why = excess(key, "x", &allowed).unwrap_or_default();
            assert!(why.ends_with(&format!("--allowed-pod-metadata={key}")), "{why}");
        }
    }
}
