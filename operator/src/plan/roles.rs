//! The role label, by which the leader's Service finds the leader. A leader that is not known has no label.

use kube::ResourceExt;

use super::{Plan, Step};
use crate::names::ROLE;
use crate::observe::Observed;
use crate::probe::Role;

pub(super) fn plan(plan: &mut Plan, observed: &Observed) {
    for pod in &observed.pods {
        if pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let name = pod.name_any();
        let role = match observed.probes.get(&name) {
            Some(Ok(answer)) if answer.is_leader() => Some("leader"),
            Some(Ok(answer)) if answer.role == Role::Follower => Some("follower"),
            _ => None,
        };
        let labelled = pod.labels().get(ROLE).map(String::as_str);
        if let (true, Some(uid)) = (labelled != role, pod.uid()) {
            plan.steps.push(Step::Label { pod: name, uid, role });
        }
    }
}
