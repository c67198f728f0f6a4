//! Runs passes over backups, beside those over clusters. A settled backup costs nothing; any other one is read at the beginning of each
//! pass, so no pass acts on a status that lags the operator's own writes.

use std::sync::Arc;
use std::time::Duration;

use crds::KubeBrainBackup;
use futures::StreamExt as _;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::{self, Action, Controller};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, ResourceExt as _};
use plan::backup::{BackupProgress, events, status_of};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, instrument, warn};

use crate::cache::backups;
use crate::cache::received::{ObjectStub, WholeObject};
use crate::context::Context;
use crate::controller::{FailureCounts, RECONCILE_TIMEOUT, TRIGGER_DEBOUNCE, contain, note, pause};
use crate::pass::{PassError, api};
use crate::publish::write_status;
use crate::work_queue::WorkQueue;

mod deletion;
mod reconcile;
#[cfg(test)]
mod tests;

use reconcile::reconcile;
pub(crate) use reconcile::{Found, look};

/// Maximum number of concurrent passes.
const MAX_CONCURRENT_RECONCILES: u16 = 4;

struct GuardedReconciler {
    context: Context,
    failures: FailureCounts,
}

/// Runs passes over the backups of `namespace`, or of all, until `stop`, then finishes the running ones.
///
/// # Errors
/// The watch ended, which never happens.
pub(crate) async fn run(context: Context, namespace: Option<String>, stop: CancellationToken) -> anyhow::Result<()> {
    let queue = Arc::<WorkQueue<KubeBrainBackup>>::default();
    let writer = Writer::default();
    let store: Store<KubeBrainBackup> = writer.as_reader();
    let reports = context.backups.clone();
    let filled = context.cache.clone();
    let watched = (context.client.clone(), namespace, queue.clone());
    let watch = async {
        // A backup is recorded only for a cluster that is known.
        filled.filled().await;
        let (client, namespace, queue) = watched;
        backups::watch(client, namespace, writer, (queue, reports)).await;
    };
    let passes = async {
        // Until the clusters are known, a pass would miss the one of its backup.
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
        () = watch => anyhow::bail!("the watch of backups ended"),
    }
}

/// Runs a pass so that it can neither hang nor terminate the process.
#[instrument(name = "backup", skip_all, fields(namespace = backup.namespace(), name = backup.name_any()))]
async fn guard(backup: Arc<KubeBrainBackup>, guarded: Arc<GuardedReconciler>) -> Result<Action, PassError> {
    let object = ObjectRef::from_obj(&*backup);
    let (namespace, name) = (backup.namespace().unwrap_or_default(), backup.name_any());
    match contain(Box::pin(reconcile(&guarded.context, &namespace, &name))).await {
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
            tell(&guarded.context, &namespace, &name, &problem, failures).await;
            Err(problem)
        }
    }
}

/// Reports that passes fail.
async fn tell(context: &Context, namespace: &str, name: &str, problem: &PassError, failures: u32) {
    let words = problem.message();
    if !problem.class().is_told(failures) {
        return info!(error = words, failures, "pass over a backup failed; will retry");
    }
    if matches!(problem, PassError::Panic(_)) {
        error!(error = words, failures, "pass over a backup panicked; will retry");
    } else {
        warn!(error = words, failures, "passes over a backup keep failing");
    }
    let report = async {
        let Some(backup) = read(context, namespace, name).await? else {
            return Ok(());
        };
        let progress = match backup.metadata.deletion_timestamp {
            Some(_) => BackupProgress::Deleting {
                message: words,
                is_trouble: true,
            },
            None => BackupProgress::Waiting {
                reason: "ReconcileError",
                message: words,
            },
        };
        publish(context, &backup, &progress).await
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
fn after_failure(backup: Arc<KubeBrainBackup>, problem: &PassError, guarded: Arc<GuardedReconciler>) -> Action {
    let failures = guarded.failures.of(&ObjectRef::from_obj(&*backup));
    Action::requeue(pause(problem.class(), failures).mul_f64(rand::random_range(1.0..1.3)))
}

/// Returns the client for writes of backups: only the metadata of the answers is read.
fn stubs(context: &Context, namespace: &str) -> Api<ObjectStub> {
    Api::namespaced_with(context.client.clone(), namespace, &backups::resource())
}

/// Reads the present state of a backup; `None` if it does not exist.
async fn read(context: &Context, namespace: &str, name: &str) -> Result<Option<KubeBrainBackup>, PassError> {
    let all: Api<WholeObject> = Api::namespaced_with(context.client.clone(), namespace, &backups::resource());
    let found = all.get_opt(name).await.map_err(api("reading the backup"))?;
    Ok(found.and_then(|object| object.parse()))
}

/// Writes the status if it differs, and publishes Events about its changes.
async fn publish(context: &Context, backup: &KubeBrainBackup, progress: &BackupProgress) -> Result<(), PassError> {
    publish_status(context, backup, status_of(backup, progress, Timestamp::now())).await
}

async fn publish_status(
    context: &Context,
    backup: &KubeBrainBackup,
    status: crds::KubeBrainBackupStatus,
) -> Result<(), PassError> {
    if backup.status.as_ref() == Some(&status) {
        return Ok(());
    }
    let namespace = backup.namespace().unwrap_or_default();
    if !write_status(&stubs(context, &namespace), backup, &status).await? {
        return Ok(());
    }
    for event in events(backup, &status) {
        info!(reason = event.reason, "{}", event.note);
        context.events.publish(backup, event).await;
    }
    Ok(())
}

/// Interval between passes over a backup that waits or runs.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
