//! The TiKV cluster below the brains: whether it still is the one that holds the data.

use crate::observe::Observed;
use crate::spec::{Desired, Refusal};

/// Reason of the refusal of another TiKV cluster.
pub(crate) const OTHER_CLUSTER: &str = "ClusterIDChanged";

/// Refuses an authority for TiKV that is more than certificates: naming a Secret is no way to read what else is in it.
pub(super) fn unfit_authority(desired: &Desired, observed: &Observed) -> Option<Refusal> {
    let named = &desired.storage.tikv()?.tls.as_ref()?.ca_secret_ref;
    let secret = observed.given_secrets.get(&named.name)?.as_ref()?;
    let value = secret.data.as_ref()?.get(&named.key)?;
    let only = std::str::from_utf8(&value.0).is_ok_and(crate::certificates::holds_only_certificates);
    (!only).then(|| Refusal {
        reason: "SecretInvalid",
        message: format!(
            "Secret {} of storage.tikv.tls.caSecretRef, key {}: it does not hold certificates in PEM, and nothing else",
            named.name, named.key
        ),
    })
}

/// Refuses a TiKV cluster that does not hold the data: members or the referenced object name another.
pub(super) fn changed(desired: &Desired, observed: &Observed) -> Option<Refusal> {
    let refusal = |message| Refusal {
        reason: OTHER_CLUSTER,
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
            "{pod} runs on the TiKV cluster {id}, and the data lies in {pinned}: have storage.tikv lead to that cluster again"
        )));
    }
    let referenced = tikv.referenced_id.as_ref().filter(|id| *id != pinned)?;
    Some(refusal(format!(
        "storage.tikv.clusterRef leads to the TiKV cluster {referenced}, and the data lies in {pinned}: have it lead to that cluster again"
    )))
}
