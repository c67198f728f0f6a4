//! The number of members while nothing may change: a pause stops the operator's changes, and reverts those of others.

use crds::KubeBrainCluster;
use kube::ResourceExt;

use super::{Plan, PlanStep};
use crate::objects::{ObjectKey, ObjectKind};
use crate::observed::Observed;
use crate::ownership::{self, Ownership};
use crate::spec::Desired;

/// Plans to set the number back to the one that the operator last set in the StatefulSet, if nothing may change, or while a trial holds
/// back its next template. An embedded store never has more than one member, whatever is known.
pub(super) fn hold(plan: &mut Plan, cluster: &KubeBrainCluster, desired: &Desired, observed: &Observed) {
    let key = ObjectKey::new(ObjectKind::StatefulSet, &desired.names.cluster);
    let Some(live) = observed.objects.get(&key) else {
        return;
    };
    let Some(running) = live.data["spec"]["replicas"].as_i64() else {
        return;
    };
    let running = i32::try_from(running).unwrap_or(i32::MAX);
    let told = cluster.status.as_ref().and_then(|status| status.pinned_replicas);
    let retains = plan
        .steps
        .iter()
        .any(|step| matches!(step, PlanStep::RetainClaims { .. }));
    if retains || plan.contested.contains_key(&key) {
        plan.replicas = told;
        return;
    }
    if desired.held.is_none() && !plan.is_blocked() && plan.trial.is_none() {
        let written = plan.steps.iter().find_map(|step| match step {
            PlanStep::Apply { object, .. } if object.key == key => object.body["spec"]["replicas"].as_i64(),
            _ => None,
        });
        let written = written.and_then(|written| i32::try_from(written).ok());
        plan.replicas = written.or(Some(running));
        return;
    }
    let most = if desired.storage.embedded().is_some() {
        1
    } else {
        i32::MAX
    };
    let wanted = told.unwrap_or(running).min(most);
    plan.replicas = told.or(Some(wanted));
    let whose = ownership::of(
        &live.metadata,
        &desired.names.cluster,
        &cluster.uid().unwrap_or_default(),
    );
    if let (true, Ownership::Ours, Some(uid)) = (running != wanted, whose, live.metadata.uid.clone()) {
        let step = PlanStep::Scale {
            set: key.name,
            uid,
            replicas: wanted,
        };
        plan.steps.insert(0, step);
    }
}
