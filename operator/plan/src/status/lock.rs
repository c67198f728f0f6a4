//! The status of a Lease as leader lock: a holder that is not the leader, and a brain's refusal of a Lease in its own store.

use crds::KubeBrainCluster;
use crds::cluster::election::ElectionBackend;

use super::StatusInput;
use super::facts::Blocker;
use crate::member::BrainRefusal;
use crate::objects::{ObjectKey, ObjectKind};
use crate::observed::is_ready;

/// Maximum length of a holder that is quoted: the name of a member. Brains write it.
const MAX_HOLDER_BYTES: usize = 253;

/// Returns the holder of the Lease, if it is another member than the `leader`. A brain's identity is its name, `_` and a random number.
pub(super) fn other_holder(cluster: &KubeBrainCluster, pass: &StatusInput<'_>, leader: Option<&str>) -> Option<String> {
    if cluster.spec.election().backend != ElectionBackend::Lease {
        return None;
    }
    let name = pass.desired.names.lease();
    let lease = pass
        .observed
        .objects
        .get(&ObjectKey::new(ObjectKind::Lease, name.as_str()))?;
    let identity = lease.data["spec"]["holderIdentity"].as_str().unwrap_or_default();
    let holder = identity.rsplit_once('_').map_or(identity, |(member, _)| member);
    if holder == leader? {
        return None;
    }
    let shown: String = holder
        .chars()
        .filter(|c| !c.is_control())
        .take(MAX_HOLDER_BYTES)
        .collect();
    Some(match shown.as_str() {
        "" => format!("Lease {name} has no holder"),
        shown => format!("Lease {name} is held by {shown}"),
    })
}

/// Returns the message of a brain that ended because it stores the API server that serves the Lease: the election would depend on itself.
pub(super) fn stored_here(cluster: &KubeBrainCluster, pass: &StatusInput<'_>) -> Option<Blocker> {
    if cluster.spec.election().backend != ElectionBackend::Lease {
        return None;
    }
    let ended = pass.observed.pods.iter().filter(|pod| !is_ready(pod));
    let mut refusals = ended.filter_map(BrainRefusal::of_end);
    let refusal = refusals.find(|refusal| refusal.code == "LeaseStoredHere")?;
    Some(Blocker {
        reason: "LeaseStoredHere",
        message: refusal.message,
    })
}
