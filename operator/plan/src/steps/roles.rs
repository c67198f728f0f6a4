//! The role label, by which the leader's Service selects the leader.
//!
//! While the leader is unknown, labels stay unchanged: a brain that the operator cannot reach may still serve clients.

use std::collections::BTreeSet;

use kube::ResourceExt;

use super::leadership::LeaderState;
use super::{Plan, PlanStep};
use crate::member::BrainRole;
use crate::names::ROLE;
use crate::observed::Observed;

/// Labels every pod except the `strangers`, which serve other data.
pub(super) fn plan(plan: &mut Plan, observed: &Observed, strangers: &BTreeSet<String>) {
    for pod in &observed.pods {
        if pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let name = pod.name_any();
        let labelled = pod.labels().get(ROLE).map(String::as_str);
        let says = match observed.probes.get(&name) {
            Some(Ok(answer)) => Some(answer.role),
            _ => None,
        };
        let role = match &plan.lead {
            _ if strangers.contains(&name) => None,
            // A member that reports that it does not lead must not be selected by the leader's Service.
            LeaderState::Unknown if says != Some(BrainRole::Follower) || labelled != Some("leader") => continue,
            LeaderState::Unknown => Some("follower"),
            LeaderState::Held { pod, .. } if *pod == name => Some("leader"),
            LeaderState::Held { .. } if says.is_some() => Some("follower"),
            // It does not lead, and reports no other role.
            LeaderState::Held { .. } if labelled == Some("follower") => Some("follower"),
            _ => None,
        };
        if let (true, Some(uid)) = (labelled != role, pod.uid()) {
            plan.steps.push(PlanStep::Label { pod: name, uid, role });
        }
    }
}
