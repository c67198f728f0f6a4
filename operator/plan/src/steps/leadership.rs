//! The leader according to the brains' reports. A brain that does not answer may still lead.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::observed::Observed;

/// The leadership as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LeaderState {
    /// This pod leads, in this epoch.
    Held { pod: String, epoch: i64 },
    /// Every member answers, and none leads.
    Nobody,
    /// Too few members answer to decide.
    #[default]
    Unknown,
}

impl LeaderState {
    /// Returns the leader's pod, if it is known.
    pub fn pod(&self) -> Option<&str> {
        match self {
            Self::Held { pod, .. } => Some(pod),
            Self::Nobody | Self::Unknown => None,
        }
    }
}

/// Returns the leader, ignoring the `strangers`. If two brains claim to lead, the one in the higher epoch does: the other does not know of
/// the change yet. If only followers answer, the leader that they name leads, provided that its pod is one of ours.
pub fn lead(observed: &Observed, strangers: &BTreeSet<String>) -> LeaderState {
    let staying = |pod: &&Pod| pod.metadata.deletion_timestamp.is_none() && !strangers.contains(&pod.name_any());
    let answers = || {
        observed
            .probes
            .iter()
            .filter(|(pod, _)| !strangers.contains(*pod))
            .filter_map(|(pod, answer)| Some((pod, answer.as_ref().ok()?)))
    };
    let newest = answers().map(|(_, answer)| answer.epoch).max();
    let claims = answers().filter(|(_, answer)| answer.is_leader() && Some(answer.epoch) == newest);
    if let Some((pod, answer)) = claims.max_by_key(|(_, answer)| answer.epoch) {
        return LeaderState::Held {
            pod: pod.clone(),
            epoch: answer.epoch,
        };
    }
    let named = answers()
        .filter(|(_, answer)| Some(answer.epoch) == newest)
        .find_map(|(_, answer)| Some((answer.leader.as_ref()?.name.clone(), answer.epoch)));
    if let Some((pod, epoch)) = named {
        let known = observed.pods.iter().any(|each| each.name_any() == pod);
        return if known {
            LeaderState::Held { pod, epoch }
        } else {
            LeaderState::Unknown
        };
    }
    let mut members = observed.pods.iter().filter(staying);
    let all = members.all(|pod| matches!(observed.probes.get(&pod.name_any()), Some(Ok(_))));
    if all { LeaderState::Nobody } else { LeaderState::Unknown }
}
