//! Waits for the operator, as it acts on a cluster.

use std::io::Write;
use std::time::Duration;

use crds::KubeBrainCluster;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use plan::maintenance;
use tokio::time::Instant;

use super::connect::TargetNamespace;
use super::requests::leader;
use super::wait::{ConditionState, watch};
use crds::wishes::{AHEAD, RESTART, Successor};

/// Time until the status must name another leader after the operator has handled the request.
const NEW_LEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// Waits until the newest spec and the newest restart request are completely rolled out.
///
/// # Errors
/// It takes longer than `timeout`, or only a change of the spec helps, or the cluster is deleted.
pub(super) async fn until_complete(
    target: &TargetNamespace,
    name: &str,
    timeout: Duration,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    watch(target, name, Instant::now() + timeout, out, complete).await
}

/// Waits until the operator has handled a request for another leader, and another member leads.
///
/// # Errors
/// It takes longer than `timeout`, or the former leader still leads, or the cluster is deleted.
pub(super) async fn until_transferred(
    target: &TargetNamespace,
    (name, wish): (&str, &str),
    timeout: Duration,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + timeout;
    let before = target.get(name).await?;
    let before = leader(&before).map(str::to_owned);
    let handled = |cluster: &KubeBrainCluster| {
        let status = cluster.status.as_ref();
        let is_handled = status.and_then(|status| status.last_handled_transfer.as_deref()) == Some(wish);
        if is_handled {
            return ConditionState::Done("the operator has handled it".to_owned());
        }
        let waiting = status.and_then(|status| status.rollout.as_ref()?.waiting_for.clone());
        ConditionState::NotYet(waiting.map_or("waiting for the operator".to_owned(), |why| {
            format!("the operator waits: {why}")
        }))
    };
    watch(target, name, deadline, out, handled).await?;
    let wanted = match Successor::of(wish) {
        Successor::Any => None,
        Successor::Pod(pod) => Some(pod),
    };
    let moved = |cluster: &KubeBrainCluster| match leader(cluster) {
        Some(leader) if wanted.is_some_and(|wanted| wanted == leader) => {
            ConditionState::Done(format!("{leader} leads"))
        }
        Some(leader) if wanted.is_none() && before.as_deref() != Some(leader) => {
            ConditionState::Done(format!("{leader} leads"))
        }
        Some(leader) => ConditionState::NotYet(format!("{leader} still leads")),
        None => ConditionState::NotYet("the leader is unknown".to_owned()),
    };
    watch(
        target,
        name,
        deadline.min(Instant::now() + NEW_LEADER_TIMEOUT),
        out,
        moved,
    )
    .await
}

/// Waits until the operator has accepted this restart request or a newer one.
///
/// # Errors
/// It takes longer than `timeout`, or the operator does not act on this cluster, or the cluster is deleted.
pub(super) async fn until_restart_is_taken(
    target: &TargetNamespace,
    (name, wish): (&str, &str),
    timeout: Duration,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let taken = |cluster: &KubeBrainCluster| {
        if cluster.spec.paused {
            return ConditionState::Failed(format!(
                "{name} is paused: no member is restarted before kubectl kubebrain resume {name}"
            ));
        }
        let handled = handled_restart(cluster);
        let wished = time(wish);
        match handled {
            // A restart time in the future hides every other request.
            Some(handled) if lies_ahead(handled) => ConditionState::NotYet(format!(
                "the operator still uses a restart time in the future, {handled}"
            )),
            Some(handled) if wished.is_some_and(|wished| handled >= wished) => {
                ConditionState::Done(match maintenance::closed(cluster, Timestamp::now()) {
                    Some(why) => format!("accepted; the members wait: {why}"),
                    None => "the operator restarts the members".to_owned(),
                })
            }
            _ => match condition(cluster, "Stalled").filter(|stalled| stalled.status == "True") {
                Some(stalled) => ConditionState::Failed(format!(
                    "the operator handles no requests for {name} now: {}: {}",
                    stalled.reason, stalled.message
                )),
                None => ConditionState::NotYet("waiting for the operator".to_owned()),
            },
        }
    };
    watch(target, name, Instant::now() + timeout, out, taken).await
}

fn time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// Returns the restart that the operator has acted on.
fn handled_restart(cluster: &KubeBrainCluster) -> Option<Timestamp> {
    time(cluster.status.as_ref()?.last_handled_restart.as_ref()?)
}

/// Returns true if the operator ignores this time.
fn lies_ahead(at: Timestamp) -> bool {
    at > Timestamp::now() + AHEAD
}

pub(super) fn condition<'a>(cluster: &'a KubeBrainCluster, type_: &str) -> Option<&'a Condition> {
    let conditions = cluster.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Returns the state of the roll-out of the spec.
fn complete(cluster: &KubeBrainCluster) -> ConditionState {
    let Some(status) = &cluster.status else {
        return ConditionState::NotYet("the operator has not reconciled it yet".to_owned());
    };
    if let Some(at) = wished_restart(cluster).filter(|at| has_unseen_restart(cluster) && lies_ahead(*at)) {
        return ConditionState::Failed(format!(
            "the annotation {RESTART} requests a restart in the future, at {at}: the operator ignores it"
        ));
    }
    if status.observed_generation != cluster.metadata.generation || has_unseen_restart(cluster) {
        return ConditionState::NotYet("the operator has not observed the newest spec yet".to_owned());
    }
    let is = |type_: &str, wanted: &str| condition(cluster, type_).is_some_and(|found| found.status == wanted);
    let message = |type_: &str| {
        let found = condition(cluster, type_);
        found.map_or("unknown".to_owned(), |found| {
            format!("{}: {}", found.reason, found.message)
        })
    };
    if is("Stalled", "True") {
        return ConditionState::Failed(message("Stalled"));
    }
    let progressing = condition(cluster, "Progressing");
    if progressing.is_some_and(|progressing| progressing.reason == "OutsideMaintenanceWindow") {
        return ConditionState::NotYet(message("Progressing"));
    }
    let suspended = cluster.spec.replicas == 0 && status.replicas == Some(0);
    if is("Progressing", "False") && status.rollout.is_none() && (is("Ready", "True") || suspended) {
        return ConditionState::Done(format!("{} is rolled out: {}", cluster.name_any(), message("Ready")));
    }
    let count = |number: Option<i32>| number.unwrap_or_default();
    let rollout = status.rollout.as_ref();
    let step = rollout
        .and_then(|rollout| rollout.step.as_ref())
        .map(|step| format!("; {step}"));
    let waiting = rollout
        .and_then(|rollout| rollout.waiting_for.as_ref())
        .map(|why| format!("; waiting: {why}"));
    let why = waiting.unwrap_or_else(|| format!("; {}", message("Ready")));
    ConditionState::NotYet(format!(
        "{} of {} members updated, {} ready{}{why}",
        count(status.updated_replicas),
        cluster.spec.replicas,
        count(status.ready_replicas),
        step.unwrap_or_default(),
    ))
}

/// Returns true if the annotation requests a later restart than the operator has acted on.
fn has_unseen_restart(cluster: &KubeBrainCluster) -> bool {
    wished_restart(cluster) > handled_restart(cluster)
}

fn wished_restart(cluster: &KubeBrainCluster) -> Option<Timestamp> {
    time(cluster.annotations().get(RESTART)?)
}
