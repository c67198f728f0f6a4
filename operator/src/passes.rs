//! Runs passes over resources other than clusters. A settled resource costs nothing; any other one is read at the beginning of each pass, so
//! no pass acts on a status that lags the operator's own writes.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube::core::{ApiResource, NamespaceResourceScope};
use kube::runtime::controller::{self, Action, Controller};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, instrument, warn};

use crate::archive::BackupReports;
use crate::cache::received::{ObjectStub, WholeObject};
use crate::cache::unsettled;
use crate::context::Context;
use crate::controller::{FailureCounts, RECONCILE_TIMEOUT, TRIGGER_DEBOUNCE, contain, note, pause};
use crate::pass::{PassError, api};
use crate::work_queue::WorkQueue;

/// Maximum number of concurrent passes over the resources of a kind.
const MAX_CONCURRENT_RECONCILES: u16 = 4;
/// Interval between passes over a resource whose cluster another installation manages.
pub(crate) const ELSEWHERE_INTERVAL: Duration = Duration::from_secs(60);
/// Reason of Reconciling while passes fail.
pub(crate) const RECONCILE_ERROR: &str = "ReconcileError";

/// A kind of resources that need passes.
pub(crate) trait ReconciledKind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
    /// Returns true if there is nothing to do until the resource changes.
    fn is_settled(&self) -> bool;

    /// Records what the status of a cluster says of the resource, whether it is settled or not.
    fn observed(&self, reports: &BackupReports);

    /// Records that the resource was deleted.
    fn gone(&self, _: &BackupReports) {}

    /// Records that all resources are about to be shown again.
    fn relisting(_: &BackupReports) {}

    /// Runs one pass. Returns the time until the next one, or `None` if only a change of the resource needs one.
    fn reconcile(
        context: &Context,
        namespace: &str,
        name: &str,
    ) -> impl Future<Output = Result<Option<Duration>, PassError>> + Send;

    /// Reports in the status that passes fail, in these words.
    fn report(&self, context: &Context, words: String) -> impl Future<Output = Result<(), PassError>> + Send;
}

struct GuardedReconciler {
    context: Context,
    failures: FailureCounts,
}

/// Runs passes over the resources of `namespace`, or of all, until `stop`, then finishes the running ones.
///
/// # Errors
/// The watch ended, which never happens.
pub(crate) async fn run<K: ReconciledKind>(
    context: Context,
    namespace: Option<String>,
    writer: Writer<K>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let queue = Arc::<WorkQueue<K>>::default();
    let store: Store<K> = writer.as_reader();
    let (cache, watched) = (context.cache.clone(), (queue.clone(), context.backups.clone()));
    let client = context.client.clone();
    let watch = async {
        // A backup is recorded only for a cluster that is known.
        cache.filled().await;
        unsettled::watch(client, namespace, writer, watched).await;
    };
    let passes = async {
        // Until the clusters are known, a pass would miss the one of its resource.
        tokio::select! {
            () = stop.cancelled() => return,
            () = context.cache.filled() => {}
        }
        let guarded = Arc::new(GuardedReconciler {
            context,
            failures: FailureCounts::default(),
        });
        Controller::for_stream(futures::stream::pending(), store)
            .reconcile_on(queue.stream())
            .with_config(
                controller::Config::default()
                    .debounce(TRIGGER_DEBOUNCE)
                    .concurrency(MAX_CONCURRENT_RECONCILES),
            )
            .graceful_shutdown_on(stop.clone().cancelled_owned())
            .run(guard::<K>, after_failure, guarded)
            .for_each(|ended| async move {
                if let Err(problem) = ended {
                    note(&problem);
                }
            })
            .await;
    };
    tokio::select! {
        () = passes => Ok(()),
        () = watch => anyhow::bail!("the watch of {} ended", K::plural(&())),
    }
}

/// Runs a pass so that it can neither hang nor terminate the process.
#[instrument(name = "pass", skip_all, fields(kind = %K::kind(&()), namespace = object.namespace(), name = object.name_any()))]
async fn guard<K: ReconciledKind>(object: Arc<K>, guarded: Arc<GuardedReconciler>) -> Result<Action, PassError> {
    let place = ObjectRef::from_obj(&*object);
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    match contain(Box::pin(K::reconcile(&guarded.context, &namespace, &name))).await {
        Ok(again) => {
            guarded.failures.forget(&place);
            Ok(again.map_or_else(Action::await_change, Action::requeue))
        }
        Err(problem) => {
            if matches!(problem, PassError::Panic(_)) {
                guarded.context.metrics.panicked();
            }
            guarded.context.metrics.failed(problem.class());
            let failures = guarded.failures.count(&place);
            tell::<K>(&guarded.context, &namespace, &name, &problem, failures).await;
            Err(problem)
        }
    }
}

/// Reports that passes fail.
async fn tell<K: ReconciledKind>(context: &Context, namespace: &str, name: &str, problem: &PassError, failures: u32) {
    let words = problem.message();
    if !problem.class().is_told(failures) {
        return info!(error = words, failures, "pass failed; will retry");
    }
    if matches!(problem, PassError::Panic(_)) {
        error!(error = words, failures, "pass panicked; will retry");
    } else {
        warn!(error = words, failures, "passes keep failing");
    }
    let report = async {
        match read::<K>(context, namespace, name).await? {
            Some(object) => object.report(context, words).await,
            None => Ok(()),
        }
    };
    match tokio::time::timeout(RECONCILE_TIMEOUT, report).await {
        Ok(Ok(())) => {}
        Ok(Err(unwritten)) => debug!(
            error = unwritten.message(),
            "could not write the failure into the status"
        ),
        Err(_) => debug!("timed out writing the failure into the status"),
    }
}

#[allow(clippy::needless_pass_by_value, reason = "the signature is the controller's")]
fn after_failure<K: ReconciledKind>(object: Arc<K>, problem: &PassError, guarded: Arc<GuardedReconciler>) -> Action {
    let failures = guarded.failures.of(&ObjectRef::from_obj(&*object));
    Action::requeue(pause(problem.class(), failures).mul_f64(rand::random_range(1.0..1.3)))
}

/// Returns the client for writes of resources: only the metadata of the answers is read.
pub(crate) fn stubs<K: ReconciledKind>(context: &Context, namespace: &str) -> Api<ObjectStub> {
    Api::namespaced_with(context.client.clone(), namespace, &ApiResource::erase::<K>(&()))
}

/// Returns the client for reads of resources.
pub(crate) fn whole<K: ReconciledKind>(context: &Context, namespace: &str) -> Api<WholeObject> {
    Api::namespaced_with(context.client.clone(), namespace, &ApiResource::erase::<K>(&()))
}

/// Reads the present state of a resource; `None` if it does not exist.
pub(crate) async fn read<K: ReconciledKind>(
    context: &Context,
    namespace: &str,
    name: &str,
) -> Result<Option<K>, PassError> {
    let found = whole::<K>(context, namespace).get_opt(name).await;
    let found = found.map_err(api("reading the resource"))?;
    Ok(found.and_then(|object| object.parse()))
}
