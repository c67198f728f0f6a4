//! Checks that the TiKV cluster of the brains is still the one that holds the data, and that the Secrets that pods mount exist.

use crds::KubeBrainCluster;

use crate::observed::Observed;
use crate::spec::secrets::MAX_VALUE_BYTES;
use crate::spec::{Desired, SpecRefusal};

/// Reason for refusing to create pods that would mount a missing Secret.
const SECRET_MISSING: &str = "SecretMissing";
/// Maximum size of a Secret's value that is read, in KiB.
const MAX_VALUE_KIB: usize = MAX_VALUE_BYTES >> 10;

/// Reason for refusing another TiKV cluster.
pub const CLUSTER_ID_CHANGED: &str = "ClusterIDChanged";

/// Refuses an authority for TiKV that contains more than certificates, so that naming a Secret cannot reveal its other content. A Secret
/// that does not exist, or is too large to be kept, may have any content by the time when a pod mounts it.
pub(super) fn unfit_authority(desired: &Desired, observed: &Observed) -> Option<SpecRefusal> {
    let named = &desired.storage.tikv()?.tls.as_ref()?.ca_secret_ref;
    let (name, key) = (&named.name, &named.key);
    let refusal = |reason, what: String| {
        Some(SpecRefusal {
            reason,
            message: format!(
                "{what}: storage.tikv.tls.caSecretRef names it, and the operator creates and replaces no pod without it"
            ),
        })
    };
    let Some(secret) = observed.given_secrets.get(name)? else {
        return refusal(SECRET_MISSING, format!("Secret {name} does not exist"));
    };
    let Some(value) = secret.data.as_ref().and_then(|data| data.get(key)) else {
        return refusal(
            SECRET_MISSING,
            format!("Secret {name} has no {key}, or it is larger than {MAX_VALUE_KIB} KiB"),
        );
    };
    let only = std::str::from_utf8(&value.0).is_ok_and(crate::certificates::holds_only_certificates);
    if only {
        return None;
    }
    Some(SpecRefusal {
        reason: "SecretInvalid",
        message: format!(
            "Secret {name} of storage.tikv.tls.caSecretRef, key {key}: it does not hold certificates in PEM, and nothing else"
        ),
    })
}

/// Refuses to create pods that would wait for the keys of JSON Web Tokens.
pub(super) fn missing_keys(cluster: &KubeBrainCluster, observed: &Observed) -> Option<SpecRefusal> {
    let name = &cluster.spec.jwt_secret_ref.as_ref()?.name;
    let is_missing = observed.given_secrets.get(name)?.is_none();
    is_missing.then(|| SpecRefusal {
        reason: SECRET_MISSING,
        message: format!(
            "Secret {name} does not exist: jwtSecretRef names it, and the operator creates and replaces no pod without it"
        ),
    })
}

/// Refuses a TiKV cluster that does not hold the data, if members or the referenced object report another one.
pub(super) fn changed(desired: &Desired, observed: &Observed) -> Option<SpecRefusal> {
    let refusal = |message| SpecRefusal {
        reason: CLUSTER_ID_CHANGED,
        message,
    };
    let tikv = desired.storage.tikv()?;
    let mut answers = observed
        .probes
        .iter()
        .filter_map(|(pod, answer)| Some((pod, answer.as_ref().ok()?.storage.cluster_id.as_ref()?)));
    let pinned = tikv
        .cluster_id
        .as_ref()
        .or_else(|| answers.clone().next().map(|(_, id)| id))?;
    if let Some((pod, id)) = answers.find(|(_, id)| *id != pinned) {
        return Some(refusal(format!(
            "{pod} runs on the TiKV cluster {id}, but the data is in {pinned}: change storage.tikv so that it refers to that cluster again"
        )));
    }
    let referenced = tikv.referenced_id.as_ref().filter(|id| *id != pinned)?;
    Some(refusal(format!(
        "storage.tikv.clusterRef refers to the TiKV cluster {referenced}, but the data is in {pinned}: change it so that it refers to that cluster again"
    )))
}
