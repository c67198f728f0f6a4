//! What starts a pass, and what happens when one fails, hangs or panics: nothing to the others.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use crds::KubeBrainCluster;
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::runtime::controller::{self, Action, Controller};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{Predicate, WatchStreamExt, predicates, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::metrics::Outcome;
use crate::names::{CLUSTER, MANAGED_BY, MANAGER};
use crate::reconcile::{Error, Shared, reconcile, report_failure};

/// A pass that takes longer is given up. Shorter than the grace period of the operator's pod.
const PATIENCE: Duration = Duration::from_secs(45);
/// Passes at the same time.
const CONCURRENCY: u16 = 8;
/// Triggers within this time are one.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// Bounds of the pause after failures in a row; it doubles with each.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// Failures in a row before the status tells of them: one may be a hiccup.
const TELL_AFTER: u32 = 3;

/// Failures in a row, by cluster. A cluster that is gone is forgotten.
#[derive(Default)]
struct Failures {
    in_a_row: Mutex<HashMap<ObjectRef<KubeBrainCluster>, u32>>,
}

impl Failures {
    fn count(&self, cluster: &ObjectRef<KubeBrainCluster>) -> u32 {
        let mut all = self.in_a_row.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(cluster.clone()).or_default();
        *count = count.saturating_add(1);
        *count
    }

    fn forget(&self, cluster: &ObjectRef<KubeBrainCluster>) {
        self.in_a_row
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(cluster);
    }
}

/// The pause after the n-th failure in a row, before jitter.
fn pause(failures: u32) -> Duration {
    let (first, last) = BACKOFF;
    first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(last)
}

struct Guarded {
    context: Shared,
    failures: Failures,
}

/// Runs passes until `stop`; those that run then are finished. `keep` is given what is known of all clusters.
///
/// # Errors
/// The API server does not let the operator list clusters.
pub(crate) async fn run(
    context: Shared,
    namespace: Option<String>,
    stop: CancellationToken,
    keep: impl FnOnce(Store<KubeBrainCluster>),
) -> anyhow::Result<()> {
    let client = context.client.clone();
    if wait_for_definition(&scoped(&client, namespace.as_deref()), &stop)
        .await
        .context("list the clusters")?
        .is_none()
    {
        return Ok(());
    }
    let (reader, writer) = reflector::store();
    keep(reader.clone());
    let clusters = watcher(
        scoped::<KubeBrainCluster>(&client, namespace.as_deref()),
        watcher::Config::default(),
    );
    let changed = predicates::generation.combine(predicates::annotations);
    let triggers = kube::runtime::reflector(writer, clusters.default_backoff())
        .touched_objects()
        .predicate_filter(changed, kube::runtime::PredicateConfig::default());
    let ours = || watcher::Config::default().labels(&format!("{MANAGED_BY}={MANAGER}"));
    let space = namespace.as_deref();
    let guarded = Arc::new(Guarded {
        context,
        failures: Failures::default(),
    });
    Controller::for_stream(triggers, reader)
        .owns(scoped::<StatefulSet>(&client, space), ours())
        .owns(scoped::<Service>(&client, space), ours())
        .owns(scoped::<ServiceAccount>(&client, space), ours())
        .owns(scoped::<ConfigMap>(&client, space), ours())
        .owns(scoped::<Secret>(&client, space), ours())
        .owns(scoped::<PodDisruptionBudget>(&client, space), ours())
        .watches(scoped::<PartialObjectMeta<Pod>>(&client, space), ours(), |pod| {
            cluster_of(&pod)
        })
        .watches(
            scoped::<PartialObjectMeta<PersistentVolumeClaim>>(&client, space),
            ours(),
            |claim| cluster_of(&claim),
        )
        .with_config(
            controller::Config::default()
                .debounce(DEBOUNCE)
                .concurrency(CONCURRENCY),
        )
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(guard, after_failure, guarded)
        .for_each(|ended| async move {
            if let Err(problem) = ended {
                note(&problem);
            }
        })
        .await;
    Ok(())
}

/// Logs what the controller itself stumbled over. A failed pass was logged where it failed.
fn note(problem: &controller::Error<Error, watcher::Error>) {
    match problem {
        controller::Error::ReconcilerFailed(..) => {}
        controller::Error::ObjectNotFound(_) => debug!("a cluster was gone before its pass"),
        problem => warn!(error = %problem, "a watch was interrupted"),
    }
}

fn scoped<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

fn cluster_of<K>(object: &PartialObjectMeta<K>) -> Option<ObjectRef<KubeBrainCluster>>
where
    K: Resource<DynamicType = ()>,
{
    let name = object.metadata.labels.as_ref()?.get(CLUSTER)?;
    Some(ObjectRef::new(name).within(object.metadata.namespace.as_deref()?))
}

/// `None` if stopped before the definition was there. A warning comes only after a while: both are often installed together.
async fn wait_for_definition(clusters: &Api<KubeBrainCluster>, stop: &CancellationToken) -> kube::Result<Option<()>> {
    for attempt in 1_u32.. {
        match clusters.list(&ListParams::default().limit(1)).await {
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

/// A pass that can neither hang nor take the process down.
async fn guard(cluster: Arc<KubeBrainCluster>, guarded: Arc<Guarded>) -> Result<Action, Error> {
    let object = ObjectRef::from_obj(&*cluster);
    let began = Instant::now();
    let ended = contain(Box::pin(reconcile(&guarded.context, &cluster))).await;
    let metrics = &guarded.context.metrics;
    match ended {
        Ok(ended) => {
            guarded.failures.forget(&object);
            let Some(ended) = ended else {
                return Ok(Action::await_change());
            };
            metrics.reconciled(ended.outcome, began.elapsed());
            Ok(Action::requeue(ended.again))
        }
        Err(problem) => {
            if matches!(problem, Error::Panic(_)) {
                metrics.panicked();
            }
            metrics.reconciled(Outcome::Failed, began.elapsed());
            let failures = guarded.failures.count(&object);
            tell(&guarded.context, &cluster, &problem, failures).await;
            Err(problem)
        }
    }
}

/// Runs a pass so that neither its panic nor its patience is anybody else's.
async fn contain<T>(pass: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match tokio::time::timeout(PATIENCE, AssertUnwindSafe(pass).catch_unwind()).await {
        Ok(Ok(ended)) => ended,
        Ok(Err(panic)) => Err(Error::Panic(words(&*panic))),
        Err(_) => Err(Error::Timeout(PATIENCE)),
    }
}

async fn tell(context: &Shared, cluster: &KubeBrainCluster, problem: &Error, failures: u32) {
    let words = problem.words();
    if failures < TELL_AFTER {
        info!(error = words, failures, "a pass failed and will be repeated");
        return;
    }
    if matches!(problem, Error::Panic(_)) {
        error!(error = words, failures, "a pass panicked");
    } else {
        warn!(error = words, failures, "passes keep failing");
    }
    match tokio::time::timeout(PATIENCE, report_failure(context, cluster, &words)).await {
        Ok(Ok(())) => {}
        Ok(Err(problem)) => debug!(error = problem.words(), "the failure could not be put into the status"),
        Err(_) => debug!("the failure could not be put into the status in time"),
    }
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or("no message".to_owned())
}

#[allow(clippy::needless_pass_by_value, reason = "the signature is the controller's")]
fn after_failure(cluster: Arc<KubeBrainCluster>, _: &Error, guarded: Arc<Guarded>) -> Action {
    let object = ObjectRef::from_obj(&*cluster);
    let failures = {
        let all = guarded.failures.in_a_row.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&object).copied().unwrap_or(1)
    };
    debug!(cluster = cluster.name_any(), failures, "backing off");
    Action::requeue(pause(failures).mul_f64(rand::random_range(1.0..1.3)))
}

#[cfg(test)]
mod tests;
