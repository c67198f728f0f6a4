//! Checks that the store of the brains is still the one that holds the data.
//!
//! An embedded store belongs to the first member; all other pods of such a cluster are surplus. Services never lead to a store other than
//! the pinned one. Below a prefix of TiKV a store must exist once one has served: a restored one may have another id, but an empty prefix
//! is not initialised again.

use std::collections::BTreeSet;

use crds::KubeBrainCluster;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::member::{BrainRefusal, MemberAnswer};
use crate::names::ACCEPT_STORE;
use crate::objects::pod::{BRAIN_CONTAINER, EXISTING_STATE_FLAG, STORE_ID_ENV};
use crate::observed::{Observed, is_ready};
use crate::spec::{Desired, DesiredStorage, SpecRefusal, accepted_store};

/// Reason for refusing a store that does not hold the data.
pub const DATA_REPLACED: &str = "DataReplaced";

/// Code of a brain that finds no store.
const STORE_MISSING: &str = "StoreMissing";
/// Codes of a brain that refuses the store it finds, or finds none.
const STORE_REFUSALS: [&str; 2] = ["StoreMismatch", STORE_MISSING];

/// Returns the id of the store that serves; `None` while no member with that store serves.
pub fn seen<'a>(desired: &Desired, observed: &'a Observed) -> Option<&'a str> {
    let answer = match desired.storage {
        DesiredStorage::Embedded(_) => answer(desired, observed).filter(|answer| answer.ready),
        DesiredStorage::Tikv(_) => observed.probes.values().flatten().find(|answer| answer.ready),
        DesiredStorage::Unmanaged => None,
    };
    answer?.cluster.as_deref()
}

fn answer<'a>(desired: &Desired, observed: &'a Observed) -> Option<&'a MemberAnswer> {
    observed.probes.get(&desired.names.pod(0))?.as_ref().ok()
}

/// Refuses a store that does not hold the data: the member serves another one, or refuses what it finds.
pub(super) fn replaced(cluster: &KubeBrainCluster, desired: &Desired, observed: &Observed) -> Option<SpecRefusal> {
    let pinned = desired.store.as_ref()?;
    let (what, back) = match desired.storage {
        DesiredStorage::Embedded(_) => (other_than(pinned, desired, observed)?, "bring its volume back"),
        DesiredStorage::Tikv(_) => {
            let served = observed.probes.values().flatten().any(|answer| answer.ready);
            let pods = observed.pods.iter().filter(|_| !served);
            let (pod, refusal) = pods
                .filter_map(refusal_of(observed))
                .find(|(_, refusal)| refusal.code == STORE_MISSING)?;
            let what = format!("{pod} does not find the store {pinned}: {}", refusal.message);
            (
                what,
                "change storage.tikv so that it refers to that store again, or restore it",
            )
        }
        DesiredStorage::Unmanaged => return None,
    };
    let anew = match accepted_store(cluster) {
        Some(accepted) if accepted == pinned => ", which must be removed first: the present one was already used",
        _ => "",
    };
    Some(SpecRefusal {
        reason: DATA_REPLACED,
        message: format!(
            "{what}; {back}, or abandon that store and continue with the present one: set the annotation {ACCEPT_STORE}={pinned}{anew}"
        ),
    })
}

/// Returns what is wrong with the embedded store, in words, unless it is the pinned one.
fn other_than(pinned: &String, desired: &Desired, observed: &Observed) -> Option<String> {
    let member = desired.names.pod(0);
    match answer(desired, observed).and_then(|answer| answer.cluster.as_ref()) {
        Some(found) if found == pinned => None,
        Some(found) => Some(format!(
            "{member} serves the store {found}, but the data is in {pinned}"
        )),
        None => {
            let pod = observed.pods.iter().find(|pod| pod.name_any() == member)?;
            let (_, refusal) = refusal_of(observed)(pod)?;
            let is_about_store = STORE_REFUSALS.contains(&refusal.code.as_str());
            is_about_store.then(|| format!("{member} does not find the store {pinned}: {}", refusal.message))
        }
    }
}

/// Returns the reason why a pod's brain does not serve, from its report or from the end of its previous container.
fn refusal_of(observed: &Observed) -> impl Fn(&Pod) -> Option<(String, BrainRefusal)> {
    |pod| {
        let running = observed.refusals.get(&pod.name_any());
        let running = running.filter(|refusal| refusal.code != "Starting").cloned();
        Some((pod.name_any(), running.or_else(|| BrainRefusal::of_end(pod))?))
    }
}

/// Returns the reason to recreate a pod that waits for a store that was given up since.
pub(super) fn waits_for_lost(pod: &Pod, desired: &Desired) -> Option<&'static str> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut brains = containers.filter(|container| container.name == BRAIN_CONTAINER);
    let waits = brains.any(|container| {
        let (mut variables, mut args) = (container.env.iter().flatten(), container.args.iter().flatten());
        variables.any(|variable| variable.name == STORE_ID_ENV) || args.any(|arg| arg == EXISTING_STATE_FLAG)
    });
    (waits && !is_ready(pod) && desired.store.is_none()).then_some("the store that it waits for is abandoned")
}

/// Returns pods that are not the member with the data: all but the first one, and any that serves another store.
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
