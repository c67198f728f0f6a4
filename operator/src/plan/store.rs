//! The store of an embedded brain: whether it still is the one that holds the data.
//!
//! The first member has it; every other pod of such a cluster is one too many. A store other than the pinned one is never led to.

use std::collections::BTreeSet;

use crds::KubeBrainCluster;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::names::ACCEPT_STORE;
use crate::objects::pod::STORE_ID;
use crate::observe::{Observed, is_ready};
use crate::probe::{Answer, Refusal as BrainRefusal};
use crate::spec::{Desired, Refusal, accepted_store};

/// Reason of the refusal of a store that does not hold the data.
pub(crate) const DATA_REPLACED: &str = "DataReplaced";

/// Codes of a brain that refuses the store that it finds, or finds none.
const REFUSALS: [&str; 2] = ["StoreMismatch", "StoreMissing"];

/// Id of the store that serves; none while the only member does not.
pub(crate) fn seen<'a>(desired: &Desired, observed: &'a Observed) -> Option<&'a str> {
    desired.storage.embedded()?;
    let answer = answer(desired, observed).filter(|answer| answer.ready)?;
    answer.cluster.as_deref()
}

fn answer<'a>(desired: &Desired, observed: &'a Observed) -> Option<&'a Answer> {
    observed.probes.get(&desired.names.pod(0))?.as_ref().ok()
}

/// Refuses a store that does not hold the data: the member serves another one, or refuses what it finds.
pub(super) fn replaced(cluster: &KubeBrainCluster, desired: &Desired, observed: &Observed) -> Option<Refusal> {
    let pinned = desired.store.as_ref()?;
    let member = desired.names.pod(0);
    let found = answer(desired, observed).and_then(|answer| answer.cluster.as_ref());
    let what = match found {
        Some(found) if found == pinned => return None,
        Some(found) => format!("{member} serves the store {found}, and the data lies in {pinned}"),
        None => {
            let pod = observed.pods.iter().find(|pod| pod.name_any() == member)?;
            let running = observed
                .refusals
                .get(&member)
                .filter(|refusal| refusal.code != "Starting");
            let refusal = running.cloned().or_else(|| BrainRefusal::of_end(pod))?;
            if !REFUSALS.contains(&refusal.code.as_str()) {
                return None;
            }
            format!("{member} does not find the store {pinned}: {}", refusal.message)
        }
    };
    let anew = match accepted_store(cluster) {
        Some(accepted) if accepted == pinned => ", which has to be removed first: the present one was acted on before",
        _ => "",
    };
    Some(Refusal {
        reason: DATA_REPLACED,
        message: format!(
            "{what}; bring its volume back, or give that store up and go on with what is there by the annotation {ACCEPT_STORE}={pinned}{anew}"
        ),
    })
}

/// Returns the reason to make a pod anew that waits for a store which was given up since.
pub(super) fn waits_for_lost(pod: &Pod, desired: &Desired) -> Option<&'static str> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut variables = containers.flat_map(|container| container.env.iter().flatten());
    let waits = !is_ready(pod) && variables.any(|variable| variable.name == STORE_ID);
    let is_given_up = desired.storage.embedded().is_some() && desired.store.is_none();
    (waits && is_given_up).then_some("the store that it waits for is given up")
}

/// Pods that are not the member with the data: those beside the first one, and one that serves another store.
pub(super) fn strangers(desired: &Desired, observed: &Observed) -> BTreeSet<String> {
    if desired.storage.embedded().is_none() {
        return BTreeSet::new();
    }
    let member = desired.names.pod(0);
    let is_other = |pinned: &String| {
        let found = answer(desired, observed).and_then(|answer| answer.cluster.as_ref());
        found.is_some_and(|found| found != pinned)
    };
    let is_replaced = desired.store.as_ref().is_some_and(is_other);
    let pods = observed.pods.iter().map(ResourceExt::name_any);
    pods.filter(|pod| *pod != member || is_replaced).collect()
}
