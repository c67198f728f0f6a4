//! Another leader, because somebody wishes so: the annotation `kubebrain.io/transfer-leader` names a pod, or `any`. A text behind an
//! `@` makes one wish differ from the former one. Each is dealt with once, and then stands in the status.

use kube::ResourceExt;

use super::choose::Members;
use super::hand_over;
use crate::names::TRANSFER;
use crate::plan::Plan;
use crate::plan::leadership::Lead;

pub(super) fn plan(plan: &mut Plan, members: &Members<'_>) {
    let Some(wish) = members
        .cluster
        .annotations()
        .get(TRANSFER)
        .filter(|wish| !wish.is_empty())
    else {
        return;
    };
    let handled = members
        .cluster
        .status
        .as_ref()
        .and_then(|status| status.last_handled_transfer.as_ref());
    if handled == Some(wish) {
        return;
    }
    let Lead::Held { pod: leader, epoch } = &members.lead else {
        plan.rollout.waiting = Some("a wish for another leader waits until it is known who leads".to_owned());
        return;
    };
    plan.rollout.transfer = Some(wish.clone());
    let wanted = wish.split('@').next().unwrap_or_default();
    if wanted == leader {
        return;
    }
    let all = || members.updated.iter().copied();
    let to = match wanted {
        "any" => members.successor(all()),
        name => members.successor(all().filter(|pod| pod.name_any() == name)),
    };
    let from = all().find(|pod| pod.name_any() == *leader);
    if let (Some(from), Some(to)) = (from, to) {
        hand_over(plan, members, (from, to, *epoch));
    }
}
