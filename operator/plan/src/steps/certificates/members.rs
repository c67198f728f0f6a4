//! The certificates that running members report as in use.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::member::LoadedCertificates;
use crate::observed::Observed;

/// Returns the reason why not every running member trusts the bundle with this digest.
pub(super) fn distrust(observed: &Observed, digest: &str) -> Option<String> {
    find(observed, |tls| {
        let peers = tls.peer_trust_bundle.as_deref().is_none_or(|found| found == digest);
        (tls.trust_bundle != digest || !peers).then(|| "it has another bundle".to_owned())
    })
}

/// Returns the reason why not every running member presents these certificates, identified by their fingerprints.
pub(super) fn outdated(observed: &Observed, server: &str, peer: &str) -> Option<String> {
    find(observed, |tls| {
        if tls.server.fingerprint != server {
            return Some("it has another server certificate".to_owned());
        }
        let other = tls.peer.as_ref().is_some_and(|found| found.fingerprint != peer);
        other.then(|| "it has another peer certificate".to_owned())
    })
}

/// Returns the objection to the first member that has one, with its name.
fn find(observed: &Observed, objection: impl Fn(&LoadedCertificates) -> Option<String>) -> Option<String> {
    observed.pods.iter().filter(|pod| is_running(pod)).find_map(|pod| {
        let name = pod.name_any();
        let why = match observed.probes.get(&name) {
            None => Some("it was not queried yet".to_owned()),
            Some(Err(error)) => Some(error.clone()),
            Some(Ok(answer)) => match &answer.tls {
                None => Some("it reports no certificates".to_owned()),
                Some(tls) => objection(tls),
            },
        };
        why.map(|why| format!("{name}: {why}"))
    })
}

fn is_running(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && phase == Some("Running")
}
