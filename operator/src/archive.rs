//! Runs passes over the archives of clusters, beside those over the clusters, so that trouble of an archive never holds up a cluster.
//!
//! A pass over a cluster asks for one over its archive, and that one leaves its result in [`BackupReports`], from where the next pass over
//! the cluster takes it into the status. A cluster without an archive costs nothing.

use std::sync::Arc;
use std::time::Duration;

use crds::KubeBrainCluster;
use futures::StreamExt as _;
use kube::ResourceExt as _;
use kube::runtime::controller::{self, Action, Controller};
use kube::runtime::reflector::ObjectRef;
use plan::archive::{ObservedArchive, waiting};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, instrument, warn};

use crate::context::Context;
use crate::controller::{FailureCounts, TRIGGER_DEBOUNCE, contain, note, pause};
use crate::pass::PassError;

mod reconcile;
mod reports;
#[cfg(test)]
mod tests;

use reconcile::reconcile;
pub(crate) use reports::BackupReports;

/// Maximum number of concurrent passes.
const MAX_CONCURRENT_RECONCILES: u16 = 4;
/// Interval between passes over an archive that keeps up: each reads a Deployment and lists its pods.
const KEEPING_UP_INTERVAL: Duration = Duration::from_secs(20);
/// The same while something changes or is wrong.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

struct GuardedReconciler {
    context: Context,
    failures: FailureCounts,
}

/// Runs passes over the archives of the clusters in the cache until `stop`, then finishes the running ones.
pub(crate) async fn run(context: Context, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => return,
        () = context.cache.filled() => {}
    }
    let (clusters, queue) = (context.cache.clusters.clone(), context.backups.archives());
    let guarded = Arc::new(GuardedReconciler {
        context,
        failures: FailureCounts::default(),
    });
    Controller::for_stream(futures::stream::pending(), clusters)
        .reconcile_on(queue.stream())
        .with_config(
            controller::Config::default()
                .debounce(TRIGGER_DEBOUNCE)
                .concurrency(MAX_CONCURRENT_RECONCILES),
        )
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(guard, after_failure, guarded)
        .for_each(|ended| async move {
            if let Err(problem) = ended {
                note(&problem);
            }
        })
        .await;
}

/// Runs a pass so that it can neither hang nor terminate the process.
#[instrument(name = "archive", skip_all, fields(namespace = cluster.namespace(), name = cluster.name_any()))]
async fn guard(cluster: Arc<KubeBrainCluster>, guarded: Arc<GuardedReconciler>) -> Result<Action, PassError> {
    let object = ObjectRef::from_obj(&*cluster);
    match contain(Box::pin(reconcile(&guarded.context, &cluster))).await {
        Ok(again) => {
            guarded.failures.forget(&object);
            Ok(again.map_or_else(Action::await_change, Action::requeue))
        }
        Err(problem) => {
            if matches!(problem, PassError::Panic(_)) {
                guarded.context.metrics.panicked();
            }
            guarded.context.metrics.failed(problem.class());
            let failures = guarded.failures.count(&object);
            tell(&guarded.context, &cluster, &problem, failures);
            Err(problem)
        }
    }
}

/// Reports that passes fail.
fn tell(context: &Context, cluster: &KubeBrainCluster, problem: &PassError, failures: u32) {
    let words = problem.message();
    if !problem.class().is_told(failures) {
        return info!(error = words, failures, "pass over an archive failed; will retry");
    }
    if matches!(problem, PassError::Panic(_)) {
        error!(error = words, failures, "pass over an archive panicked; will retry");
    } else {
        warn!(error = words, failures, "passes over an archive keep failing");
    }
    let report = waiting("ReconcileError", words, context.backups.position(cluster));
    context
        .backups
        .report(cluster, ObservedArchive::Reported(Box::new(report)));
}

#[allow(clippy::needless_pass_by_value, reason = "the signature is the controller's")]
fn after_failure(cluster: Arc<KubeBrainCluster>, problem: &PassError, guarded: Arc<GuardedReconciler>) -> Action {
    let failures = guarded.failures.of(&ObjectRef::from_obj(&*cluster));
    Action::requeue(pause(problem.class(), failures).mul_f64(rand::random_range(1.0..1.3)))
}
