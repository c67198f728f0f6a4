//! Runs reconciles and isolates failures per cluster.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crds::KubeBrainCluster;
use futures::{FutureExt, StreamExt};
use kube::api::ListParams;
use kube::core::DynamicObject;
use kube::runtime::controller::{self, Action, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt};
use plan::event::ClusterEvent;
use runtime::backoff::Backoff;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, instrument, warn};

use crate::api_error::FailureClass;
use crate::cache::{self, Cache, CacheFeeds};
use crate::context::Context;
use crate::metrics::ReconcileOutcome;
use crate::pass::PassError;
use crate::reconcile::{reconcile, report_failure};
use crate::refusals::Refusals;
use crate::work_queue::WorkQueue;

/// Timeout of a pass. It is shorter than the grace period of the operator's pod.
pub(crate) const RECONCILE_TIMEOUT: Duration = Duration::from_secs(45);
/// Maximum number of concurrent passes.
const MAX_CONCURRENT_RECONCILES: u16 = 8;
/// Triggers within this time start one pass.
pub(crate) const TRIGGER_DEBOUNCE: Duration = Duration::from_millis(200);
/// Pause after failures in a row.
const FAILURE_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));
/// Pause after conflicts in a row. It is short because the faster writer is usually done.
const CONFLICT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
/// Time after which incomplete first lists cause a warning.
const SLOW_LISTS_WARNING_TIME: Duration = Duration::from_secs(30);

/// Failures in a row, by resource. Deleted resources are forgotten.
#[derive(Default)]
pub(crate) struct FailureCounts {
    in_a_row: Mutex<HashMap<ObjectRef<DynamicObject>, u32>>,
}

impl FailureCounts {
    /// Number of failures so far.
    pub(crate) fn of<K: Resource<DynamicType = ()>>(&self, object: &ObjectRef<K>) -> u32 {
        self.lock().get(&object.clone().erase()).copied().unwrap_or_default()
    }

    pub(crate) fn count<K: Resource<DynamicType = ()>>(&self, object: &ObjectRef<K>) -> u32 {
        let mut all = self.lock();
        let count = all.entry(object.clone().erase()).or_default();
        *count = count.saturating_add(1);
        *count
    }

    pub(crate) fn forget<K: Resource<DynamicType = ()>>(&self, object: &ObjectRef<K>) {
        self.lock().remove(&object.clone().erase());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectRef<DynamicObject>, u32>> {
        self.in_a_row.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the pause after the n-th failure in a row, before jitter.
pub(crate) fn pause(class: FailureClass, failures: u32) -> Duration {
    let backoff = if class == FailureClass::Conflict {
        CONFLICT_BACKOFF
    } else {
        FAILURE_BACKOFF
    };
    backoff.after(failures.saturating_sub(1))
}

struct GuardedReconciler {
    context: Context,
    failures: FailureCounts,
    refusals: Refusals,
}

/// The inputs of the passes of one namespace, or of all.
pub(crate) struct ReconcileScope {
    pub(crate) context: Context,
    pub(crate) queue: Arc<WorkQueue>,
    pub(crate) feeds: CacheFeeds,
}

/// Runs passes until `stop`, then finishes the running ones.
///
/// # Errors
/// The watches ended, which never happens.
pub(crate) async fn run(scope: ReconcileScope, stop: CancellationToken) -> anyhow::Result<()> {
    let ReconcileScope { context, queue, feeds } = scope;
    let stores = context.cache.clone();
    let passes = async {
        if !filled(&stores, &stop).await {
            return;
        }
        context.fleet.add(stores.clusters.clone());
        let guarded = Arc::new(GuardedReconciler {
            context,
            failures: FailureCounts::default(),
            refusals: Refusals::default(),
        });
        // A separate watch fills the store; every cluster in it gets its first pass.
        for cluster in stores.clusters.state() {
            queue.add(ObjectRef::from_obj(&*cluster));
        }
        Controller::for_stream(futures::stream::pending(), stores.clusters.clone())
            .reconcile_on(queue.stream())
            .with_config(
                controller::Config::default()
                    .debounce(TRIGGER_DEBOUNCE)
                    .concurrency(MAX_CONCURRENT_RECONCILES),
            )
            .graceful_shutdown_on(stop.clone().cancelled_owned())
            .run(guard, after_failure, guarded)
            .for_each(|ended| async move {
                if let Err(problem) = ended {
                    note(&problem);
                }
            })
            .await;
    };
    tokio::select! {
        () = passes => Ok(()),
        () = cache::run(feeds) => anyhow::bail!("the watches ended"),
    }
}

/// Waits until all stores are filled once; `false` if `stop` came first. Earlier passes would see no objects and create them again.
async fn filled(stores: &Cache, stop: &CancellationToken) -> bool {
    let mut filling = std::pin::pin!(stores.filled());
    loop {
        tokio::select! {
            () = stop.cancelled() => return false,
            () = &mut filling => return true,
            () = tokio::time::sleep(SLOW_LISTS_WARNING_TIME) => warn!("still waiting for the first lists of all kinds; no cluster is reconciled"),
        }
    }
}

/// Logs problems of the controller itself. A failed pass is logged where it fails.
pub(crate) fn note(problem: &controller::Error<PassError, watcher::Error>) {
    match problem {
        controller::Error::ReconcilerFailed(..) => {}
        controller::Error::ObjectNotFound(_) => debug!("skipped a resource that was deleted before its pass"),
        problem => warn!(error = %problem, "a watch was interrupted"),
    }
}

/// Waits for the CRD; `None` if `stop` came first. It warns only after a while, because operator and CRD are often installed together.
pub(crate) async fn wait_for_definition(
    clusters: &Api<KubeBrainCluster>,
    stop: &CancellationToken,
) -> kube::Result<Option<()>> {
    for attempt in 1_u32.. {
        match clusters.list_metadata(&ListParams::default().limit(1)).await {
            Ok(_) => return Ok(Some(())),
            Err(kube::Error::Api(status)) if status.is_forbidden() => return Err(kube::Error::Api(status)),
            Err(problem) if attempt == 10 => {
                warn!(error = %problem, "cannot list KubeBrainClusters; is the CustomResourceDefinition installed?");
            }
            Err(problem) => info!(error = %problem, attempt, "cannot list KubeBrainClusters yet"),
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(None),
            () = tokio::time::sleep(Duration::from_secs(2)) => {}
        }
    }
    Ok(None)
}

/// Runs a pass so that it can neither hang nor terminate the process.
#[instrument(name = "reconcile", skip_all, fields(namespace = cluster.namespace(), name = cluster.name_any()))]
async fn guard(cluster: Arc<KubeBrainCluster>, guarded: Arc<GuardedReconciler>) -> Result<Action, PassError> {
    let object = ObjectRef::from_obj(&*cluster);
    if let Some(left) = guarded.refusals.left(&cluster) {
        return Ok(Action::requeue(left));
    }
    let began = Instant::now();
    let ended = contain(Box::pin(reconcile(
        &guarded.context,
        &cluster,
        guarded.failures.of(&object),
    )))
    .await;
    let metrics = &guarded.context.metrics;
    match ended {
        Ok(ended) => {
            guarded.failures.forget(&object);
            guarded.context.backups.ask(&cluster);
            let is_refused = ended.as_ref().is_some_and(|ended| ended.is_refused);
            guarded.refusals.record(&cluster, is_refused);
            let Some(ended) = ended else {
                return Ok(Action::await_change());
            };
            metrics.reconciled(ended.outcome, began.elapsed());
            Ok(Action::requeue(ended.again))
        }
        Err(problem) => {
            if matches!(problem, PassError::Panic(_)) {
                metrics.panicked();
            }
            metrics.reconciled(ReconcileOutcome::Failed, began.elapsed());
            metrics.failed(problem.class());
            let failures = guarded.failures.count(&object);
            tell(&guarded.context, &cluster, &problem, failures).await;
            Err(problem)
        }
    }
}

/// Runs a pass with a timeout, and turns a panic into an error, so that other passes are not affected.
pub(crate) async fn contain<T>(pass: impl Future<Output = Result<T, PassError>>) -> Result<T, PassError> {
    match tokio::time::timeout(RECONCILE_TIMEOUT, AssertUnwindSafe(pass).catch_unwind()).await {
        Ok(Ok(ended)) => ended,
        Ok(Err(panic)) => Err(PassError::Panic(panic_message(&*panic))),
        Err(_) => Err(PassError::Timeout(RECONCILE_TIMEOUT)),
    }
}

async fn tell(context: &Context, cluster: &KubeBrainCluster, problem: &PassError, failures: u32) {
    let words = problem.message();
    let class = problem.class();
    if !class.is_told(failures) {
        match class {
            FailureClass::Transient => info!(error = words, failures, "pass failed; will retry"),
            FailureClass::NamespaceTerminating if failures == 1 => {
                info!(
                    error = words,
                    "namespace is being deleted; waiting for the deletion of the cluster"
                );
            }
            _ => debug!(error = words, failures, "pass will be retried"),
        }
        return;
    }
    if matches!(problem, PassError::Panic(_)) {
        error!(error = words, failures, "pass panicked; will retry");
    } else {
        warn!(error = words, failures, "passes keep failing");
    }
    match tokio::time::timeout(RECONCILE_TIMEOUT, report_failure(context, cluster, &words)).await {
        Ok(Ok(())) => {}
        Ok(Err(unwritten)) => {
            debug!(
                error = unwritten.message(),
                "could not write the failure into the status"
            );
            // If the status has no room, for instance because of a megabyte of annotations, only this event reports the problem.
            let event = ClusterEvent::warning("StatusNotWritten", "Reconcile", words);
            context.events.publish(cluster, event).await;
        }
        Err(_) => debug!("timed out writing the failure into the status"),
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or("no message".to_owned())
}

#[allow(clippy::needless_pass_by_value, reason = "the signature is the controller's")]
fn after_failure(cluster: Arc<KubeBrainCluster>, problem: &PassError, guarded: Arc<GuardedReconciler>) -> Action {
    let failures = guarded.failures.of(&ObjectRef::from_obj(&*cluster));
    debug!(cluster = cluster.name_any(), failures, "backing off");
    Action::requeue(pause(problem.class(), failures).mul_f64(rand::random_range(1.0..1.3)))
}

#[cfg(test)]
mod tests;
