//! One pass over one cluster: observe, plan, apply, publish. Passes share only caches: of the API server's objects, and of the writes to
//! them.

use std::time::Duration;

use crds::KubeBrainCluster;
use crds::cluster::status::KubeBrainClusterStatus;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, ResourceExt};
use plan::applied::StepFailure;
use plan::bootstrap::BootstrapProgress;
use plan::spec::{self, Desired};
use plan::status::{self, StatusInput};
use plan::steps::{LeaderTransfer, Plan, plan};
use tracing::{debug, info};

use crate::api_error::FailureClass;
use crate::apply::{self, StepApplier};
use crate::bootstrap;
use crate::cache::received::ObjectStub;
use crate::context::Context;
use crate::desired;
use crate::finalizer;
use crate::metrics::ReconcileOutcome;
use crate::observe::{LateObjects, catch_up, observe};
use crate::pass::{PassError, PassOutcome, SOON_REQUEUE, api};
use crate::publish::publish;

/// Resync interval of a settled cluster, for changes that no watch reported.
const RESYNC_INTERVAL: Duration = Duration::from_secs(60);
/// Requeue interval while an object of another owner, or another cluster that is rolled out first, blocks the cluster. No watch reports the
/// end of such a block.
const BLOCKED_REQUEUE: Duration = Duration::from_secs(15);
/// Requeue interval after a reconcile that wrote something.
const AFTER_WRITE_REQUEUE: Duration = Duration::from_secs(1);
/// Requeue interval while the stores lag this process's writes. Usually their watches trigger a reconcile earlier.
const LAGGING_STORES_REQUEUE: Duration = Duration::from_millis(200);

/// Runs one pass over a cluster, after `failures` failed passes in a row. Returns `None` if the cluster never needs another pass.
///
/// # Errors
/// The API server refused or did not answer, or a step failed; the status may not report it yet.
pub(crate) async fn reconcile(
    context: &Context,
    cluster: &KubeBrainCluster,
    failures: u32,
) -> Result<Option<PassOutcome>, PassError> {
    let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
    let clusters = context.clusters(&namespace);
    let Some(late) = catch_up(context, &namespace, &name)
        .await
        .map_err(api("re-reading an object"))?
    else {
        return Ok(Some(behind()));
    };
    let mut cluster = late.cluster().unwrap_or_else(|| cluster.clone());
    if let Some(other) = context.installation.other(&cluster).await {
        context.leader_watches.leave(&cluster);
        context.installation.report(&context.events, &cluster, &other).await;
        return Ok(Some(PassOutcome {
            outcome: ReconcileOutcome::Elsewhere,
            is_refused: false,
            again: RESYNC_INTERVAL,
        }));
    }
    if cluster.metadata.deletion_timestamp.is_some() {
        context.leader_watches.leave(&cluster);
        return Box::pin(finalizer::finish(context, &clusters, &cluster)).await;
    }
    let manager = context.installation.own();
    let is_new = |status: &KubeBrainClusterStatus| status.conditions.as_ref().is_none_or(Vec::is_empty);
    let is_other = |status: &KubeBrainClusterStatus| manager.is_some() && status.managed_by.as_ref() != manager;
    let begun = match &cluster.status {
        Some(status) if !is_new(status) => is_other(status).then(|| status::of_known(&cluster)),
        _ => Some(status::first(&cluster, Timestamp::now())),
    };
    if let Some(mut begun) = begun {
        begun.managed_by = manager.cloned();
        match publish(context, &clusters, &cluster, &begun).await {
            Ok(Some(stored)) => {
                cluster.status = Some(begun);
                cluster.metadata.resource_version = stored.version;
            }
            Ok(None) => return Ok(Some(behind())),
            // The CRD is older than this operator: the running cluster is managed nevertheless.
            Err(error) if cluster.status.is_some() && error.class() == FailureClass::Invalid => {
                debug!(error = error.message(), "cannot record this installation in the status");
            }
            Err(error) => return Err(error),
        }
    }
    // The finalizer must be set before any key is stored that it must wipe.
    finalizer::ensure(&clusters, &cluster).await?;
    let given = context.user_secrets.of(&cluster).await;
    let given = given.map_err(api("reading the objects"))?;
    let desired = admitted(context, &cluster, desired::read(context, &cluster, &given));
    if let Some(moving) = moved(&cluster, &desired) {
        // Record this before any write with the new image: an operator that restarts in between sees from it that the cluster has begun.
        if publish(context, &clusters, &cluster, &moving).await?.is_none() {
            return Ok(Some(behind()));
        }
        cluster.status = Some(moving);
    }
    Box::pin(act(context, &clusters, &cluster, &desired, late, failures))
        .await
        .map(Some)
}

/// The outcome of a pass over a cluster that others wrote, or that this process wrote and does not see yet.
fn behind() -> PassOutcome {
    PassOutcome {
        outcome: ReconcileOutcome::Behind,
        is_refused: false,
        again: LAGGING_STORES_REQUEUE,
    }
}

/// Returns the desired state with another default image, if the cluster may move to it now.
fn admitted(context: &Context, cluster: &KubeBrainCluster, mut desired: Desired) -> Desired {
    if desired.refusal().is_some() {
        return desired;
    }
    if let Some(spec::ImageMove { to, .. }) = spec::image_moves(cluster, &context.settings.default_image) {
        match context.fleet.admit(cluster) {
            Ok(()) => desired.image = to,
            Err(why) => desired.image_waits = Some(format!("the default image {to} waits: {why}")),
        }
    }
    desired
}

/// Returns the status of a cluster that begins to move to another default image; `None` if it does not, or if the status already says so.
fn moved(cluster: &KubeBrainCluster, desired: &Desired) -> Option<KubeBrainClusterStatus> {
    let status = cluster.status.as_ref().filter(|_| desired.refusal().is_none())?;
    let begins = spec::image_moves(cluster, &desired.image).is_some() && status.image.as_ref() != Some(&desired.image);
    begins.then(|| KubeBrainClusterStatus {
        image: Some(desired.image.clone()),
        ..status::of_known(cluster)
    })
}

/// Observes, plans, applies and publishes.
async fn act(
    context: &Context,
    clusters: &Api<ObjectStub>,
    cluster: &KubeBrainCluster,
    desired: &Desired,
    late: LateObjects,
    failures: u32,
) -> Result<PassOutcome, PassError> {
    let mut observed = Box::pin(observe(context, cluster, desired, late))
        .await
        .map_err(api("reading the objects"))?;
    observed.bootstrap = Box::pin(bootstrap::look(context, cluster, desired)).await?;
    let (mut planned, mut outcome) = (plan(cluster, desired, &observed)?, apply::ApplyOutcome::default());
    // If applies changed nothing, plan a second time: the pass then continues as if these objects were as wanted.
    for _ in 0..2 {
        let applier = StepApplier {
            client: &context.client,
            events: &context.events,
            metrics: &context.metrics,
            apply_history: &context.apply_history,
            cluster,
            desired,
            observed: &observed,
        };
        let steps = match desired.held {
            Some(_) => planned.safe_steps(),
            None => planned.steps.clone(),
        };
        outcome = applier.run(&steps).await;
        if outcome.applied.unchanged == 0 || outcome.failed.is_some() {
            break;
        }
        observed.applies = context
            .apply_history
            .known(&desired.names.namespace, observed.objects.keys());
        planned = plan(cluster, desired, &observed)?;
        if outcome.applied.done > 0 {
            break;
        }
    }
    let plan = planned;
    let apply::ApplyOutcome { mut applied, failed } = outcome;
    // A transient error is not reported: the next pass may succeed.
    let told = |error: &apply::ApplyError| error.class().is_told(failures.saturating_add(1));
    let reported = failed.as_ref().filter(|failed| told(&failed.error));
    applied.failure = reported.map(|failed| StepFailure {
        step: failed.step.clone(),
        message: failed.error.message(),
        is_invalid: failed.error.is_invalid(),
    });
    let is_refused = applied.failure.as_ref().is_some_and(|failure| failure.is_invalid);
    let pass = StatusInput {
        desired,
        observed: &observed,
        plan: &plan,
        applied: &applied,
    };
    let status = status::of(cluster, &pass);
    let is_published = publish(context, clusters, cluster, &status).await?.is_some();
    let transferred = plan.rollout.transfer.as_ref().and_then(LeaderTransfer::event);
    let untried = plan.untried.clone().filter(|_| desired.held.is_none());
    for event in transferred.into_iter().chain(untried) {
        info!(reason = event.reason, "{}", event.note);
        context.events.publish(cluster, event).await;
    }
    if let Some(failed) = failed.filter(|failed| !failed.error.is_invalid()) {
        return Err(PassError::Step {
            what: failed.step,
            words: failed.error.message(),
            class: failed.error.class(),
        });
    }
    if applied.stale || !is_published {
        return Ok(behind());
    }
    let outcome = if is(&status, "Stalled", "True") {
        ReconcileOutcome::Stalled
    } else {
        ReconcileOutcome::Done
    };
    Ok(PassOutcome {
        outcome,
        is_refused,
        again: match desired.image_waits {
            _ if pins_more(cluster.status.as_ref(), &status) => AFTER_WRITE_REQUEUE,
            Some(_) => again(&status, &plan, applied.done, observed.now).min(BLOCKED_REQUEUE),
            None => again(&status, &plan, applied.done, observed.now),
        },
    })
}

/// Returns true if a status pins values that the previous one did not. The next pass creates objects with them.
fn pins_more(before: Option<&KubeBrainClusterStatus>, status: &KubeBrainClusterStatus) -> bool {
    let pins = |status: &KubeBrainClusterStatus| {
        (
            status.storage.clone(),
            status.pinned_image.clone(),
            status.pinned_replicas,
        )
    };
    before.is_none_or(|before| pins(before) != pins(status))
}

/// Returns the time until the next pass: short after a write or while the cluster is not well; else the next resync, renewal or take-back,
/// whichever comes first.
fn again(status: &KubeBrainClusterStatus, plan: &Plan, done: usize, now: Timestamp) -> Duration {
    if done > 0 {
        return AFTER_WRITE_REQUEUE;
    }
    if !plan.foreign.is_empty() {
        return BLOCKED_REQUEUE;
    }
    let settled = is(status, "Progressing", "False") && (is(status, "Ready", "True") || is(status, "Stalled", "True"));
    let suspended = is(status, "Progressing", "False") && status.replicas == Some(0);
    match plan.bootstrap {
        // Until a user acts, whose annotation starts a pass.
        Some(BootstrapProgress::Following(_)) => return BLOCKED_REQUEUE,
        // Clients wait for the end of the copy.
        Some(BootstrapProgress::CuttingOver { follows: true, .. }) => return AFTER_WRITE_REQUEUE,
        _ => {}
    }
    if !settled && !suspended {
        return SOON_REQUEUE;
    }
    let renewals = plan.certificates.leaves.values().filter_map(|stored| stored.renewal);
    // An overdue certificate cannot be renewed now; a change that makes this possible starts a pass.
    let left = renewals.filter_map(|renewal| Duration::try_from(renewal.duration_since(now)).ok());
    let held = plan.contested.values().map(|contested| contested.held);
    left.chain(held)
        .min()
        .unwrap_or(RESYNC_INTERVAL)
        .clamp(AFTER_WRITE_REQUEUE, RESYNC_INTERVAL)
}

fn is(status: &KubeBrainClusterStatus, type_: &str, wanted: &str) -> bool {
    let conditions = status.conditions.iter().flatten();
    conditions
        .into_iter()
        .any(|condition| condition.type_ == type_ && condition.status == wanted)
}

/// Reports in the status that passes fail. If that fails, too, the error is only returned: the next pass will retry.
///
/// # Errors
/// The API server refused or did not answer.
pub(crate) async fn report_failure(
    context: &Context,
    known: &KubeBrainCluster,
    message: &str,
) -> Result<(), PassError> {
    let namespace = known.namespace().unwrap_or_default();
    let clusters = context.clusters(&namespace);
    let found = context.cache.cluster(&namespace, &known.name_any());
    let Some(cluster) = found.filter(|cluster| cluster.metadata.deletion_timestamp.is_none()) else {
        return Ok(());
    };
    let status = status::failing(&cluster, message, Timestamp::now());
    publish(context, &clusters, &cluster, &status).await.map(drop)
}

#[cfg(test)]
mod tests {
    use plan::testing::FakeCluster;
    use serde_json::json;

    use super::*;

    #[test]
    fn renewal_that_is_overdue_hurries_nobody() {
        let mut fake = FakeCluster::settled(json!({}));
        fake.wait(60);
        fake.pass();
        let (status, mut plan) = (fake.cluster.status.clone().unwrap(), fake.plan());
        let mut after = |renewal: i64| {
            for stored in plan.certificates.leaves.values_mut() {
                stored.renewal = Timestamp::from_second(fake.seen.now.as_second() + renewal).ok();
            }
            again(&status, &plan, 0, fake.seen.now)
        };
        assert_eq!(after(7), Duration::from_secs(7));
        assert_eq!(after(-7), RESYNC_INTERVAL);
    }
}
