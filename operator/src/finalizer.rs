//! The keys of a deleted cluster in TiKV: kept, or wiped before its resource is removed.
//!
//! `storage.tikv.whenDeleted: Delete` gives the resource a finalizer. When the resource is deleted, the brains are deleted first; then a
//! Job runs the brain's own `wipe`; then the finalizer is removed. An annotation removes the resource without the wipe, so that a deletion
//! never waits forever. A deletion that orphans the cluster's objects keeps the keys, too.

use crds::KubeBrainCluster;
use crds::cluster::storage::Retention;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, PostParams};
use kube::core::ApiResource;
use kube::{Api, Client, ResourceExt};
use plan::event::ClusterEvent;
use plan::names::{RESTART_HASH, SKIP_WIPE, WIPE, bootstrap as bootstrap_job};
use plan::objects::Renderer;
use plan::ownership::{self, Ownership};
use plan::spec::is_external;
use plan::spec::secrets::GivenSecrets;
use plan::status;
use tracing::warn;

use crate::api_error::FailureClass;
use crate::bootstrap;
use crate::cache::list_kept;
use crate::cache::received::ObjectStub;
use crate::context::Context;
use crate::desired;
use crate::finalizer_patch;
use crate::jobs;
use crate::metrics::ReconcileOutcome;
use crate::pass::{PassError, PassOutcome, SOON_REQUEUE, api};
use crate::publish::publish;

/// Finalizer that the API server sets on a deletion with `--cascade=orphan`, until the garbage collector has released the dependents.
const ORPHAN_FINALIZER: &str = "orphan";
/// Reason why the keys of such a cluster are kept.
const ORPHANED_REASON: &str = "the cluster was deleted without its objects, so its members keep running";
/// Maximum number of pods that are read in a pass.
const MAX_PODS_READ: usize = 16;

/// Adds the finalizer to a cluster that must be wiped, and removes it from any other.
///
/// # Errors
/// The API server refused or did not answer.
pub(crate) async fn ensure(clusters: &Api<ObjectStub>, cluster: &KubeBrainCluster) -> Result<(), PassError> {
    match (is_wanted(cluster), is_guarded(cluster)) {
        (true, false) => finalizer_patch::add(clusters, cluster, WIPE).await,
        (false, true) => finalizer_patch::remove(clusters, cluster, WIPE).await,
        (true, true) | (false, false) => Ok(()),
    }
}

fn is_wanted(cluster: &KubeBrainCluster) -> bool {
    let tikv = cluster.spec.storage.tikv.as_ref();
    tikv.is_some_and(|tikv| tikv.when_deleted == Retention::Delete)
}

fn is_guarded(cluster: &KubeBrainCluster) -> bool {
    cluster.finalizers().iter().any(|finalizer| finalizer == WIPE)
}

/// The progress of a cluster's deletion.
enum DeletionProgress {
    /// Nothing holds it back any more; the Event says why.
    Done(Box<ClusterEvent>),
    /// This condition must be met first.
    Waiting(String),
    /// It cannot continue by itself, or only later, for this reason.
    Trouble(String),
}

/// Runs one pass over a cluster that is being deleted. Returns `None` if it never needs another pass.
///
/// # Errors
/// The API server refused or did not answer.
pub(crate) async fn finish(
    context: &Context,
    clusters: &Api<ObjectStub>,
    cluster: &KubeBrainCluster,
) -> Result<Option<PassOutcome>, PassError> {
    if !is_guarded(cluster) {
        return Ok(None);
    }
    let progress = match released(cluster) {
        Some(event) => DeletionProgress::Done(Box::new(event)),
        None => advance(context, cluster).await?,
    };
    let (message, trouble) = match progress {
        DeletionProgress::Done(event) => {
            context.events.publish(cluster, *event).await;
            finalizer_patch::remove(clusters, cluster, WIPE).await?;
            // The finalizer may still exist, if another client changed the cluster in between.
            return Ok(Some(PassOutcome {
                outcome: ReconcileOutcome::Done,
                is_refused: false,
                again: SOON_REQUEUE,
            }));
        }
        DeletionProgress::Waiting(message) => (message, false),
        DeletionProgress::Trouble(message) => (message, true),
    };
    let status = status::deleting(cluster, &message, trouble, Timestamp::now());
    publish(context, clusters, cluster, &status).await?;
    Ok(Some(PassOutcome {
        outcome: if trouble {
            ReconcileOutcome::Stalled
        } else {
            ReconcileOutcome::Done
        },
        is_refused: false,
        again: SOON_REQUEUE,
    }))
}

/// Returns the event of a cluster that is deleted without a wipe, if it is.
fn released(cluster: &KubeBrainCluster) -> Option<ClusterEvent> {
    if cluster
        .annotations()
        .get(SKIP_WIPE)
        .is_some_and(|value| value == "true")
    {
        return Some(kept(cluster, "the annotation kubebrain.io/skip-wipe is set"));
    }
    if cluster
        .finalizers()
        .iter()
        .any(|finalizer| finalizer == ORPHAN_FINALIZER)
    {
        return Some(kept(cluster, ORPHANED_REASON));
    }
    if !is_wanted(cluster) {
        return Some(kept(cluster, "storage.tikv.whenDeleted is Retain"));
    }
    let conditions = cluster.status.as_ref()?.conditions.as_ref()?;
    let is_taken = conditions
        .iter()
        .any(|condition| condition.type_ == "StorageReady" && condition.reason == "PrefixTaken");
    is_taken.then(|| kept(cluster, "they belong to another cluster"))
}

/// Returns the Event that the keys are kept, with the reason.
fn kept(cluster: &KubeBrainCluster, why: &str) -> ClusterEvent {
    let storage = cluster.status.as_ref().and_then(|status| status.storage.as_ref());
    let prefix = storage.and_then(|storage| storage.key_prefix.as_ref());
    let prefix = prefix.map_or_else(String::new, |prefix| format!(" below {prefix:?}"));
    ClusterEvent::warning("WipeSkipped", "Wipe", format!("the keys{prefix} remain in TiKV: {why}"))
}

/// Takes the next step. Objects are read from the API server, because the stores may lag.
async fn advance(context: &Context, cluster: &KubeBrainCluster) -> Result<DeletionProgress, PassError> {
    let (name, namespace) = (cluster.name_any(), cluster.namespace().unwrap_or_default());
    if let StatefulSetLeft::Orphaned = delete_set(&context.client, cluster).await? {
        return Ok(DeletionProgress::Done(Box::new(kept(cluster, ORPHANED_REASON))));
    }
    let restoring = bootstrap_job(&name);
    if !bootstrap::end(context, cluster, &restoring).await? {
        return Ok(DeletionProgress::Waiting(format!(
            "waiting for the end of Job {restoring}"
        )));
    }
    let left = pods(context, cluster).await?;
    if !left.is_empty() {
        return Ok(DeletionProgress::Waiting(format!(
            "waiting for the end of {}",
            left.join(", ")
        )));
    }
    let desired = desired::read(context, cluster, &GivenSecrets::default());
    // If the spec cannot be applied, the pinned storage is used.
    if desired.refusal().is_some() && !has_stored(cluster) {
        let event = kept(cluster, "the spec was never applied, so nothing was stored");
        return Ok(DeletionProgress::Done(Box::new(event)));
    }
    let tikv = desired.storage.tikv().filter(|tikv| !tikv.pd_endpoints.is_empty());
    let Some(tikv) = tikv else {
        let message = format!(
            "the TiKV cluster that holds the keys is unknown: set the annotation {SKIP_WIPE}=true to keep them"
        );
        return Ok(DeletionProgress::Trouble(message));
    };
    let batch: Api<Job> = Api::namespaced(context.client.clone(), &namespace);
    let wanted = Renderer::new(cluster, &desired).wipe_job(tikv)?;
    let Some(job) = batch
        .get_opt(&desired.names.wipe())
        .await
        .map_err(api("reading the Job of the wipe"))?
    else {
        let made = batch.create(&PostParams::default(), &wanted).await;
        let refused = made.as_ref().err().map(FailureClass::of);
        if refused == Some(FailureClass::NamespaceTerminating) {
            let event = kept(cluster, "the namespace is being deleted, so no Job can wipe them");
            warn!(namespace, cluster = name, "{}", event.note);
            // No Event can be created in the namespace any more, only one about it.
            context
                .events
                .publish_about_namespace(&namespace, cluster, &event)
                .await;
            return Ok(DeletionProgress::Done(Box::new(event)));
        }
        made.map_err(api("creating the Job of the wipe"))?;
        return Ok(DeletionProgress::Waiting(format!(
            "created Job {}",
            desired.names.wipe()
        )));
    };
    let uid = cluster.uid().unwrap_or_default();
    if ownership::of(&job.metadata, &name, &uid) != Ownership::Ours {
        let message = format!(
            "Job {} is not owned by this cluster: delete it or rename it",
            job.name_any()
        );
        return Ok(DeletionProgress::Trouble(message));
    }
    if jobs::condition(&job, "Complete").is_some() {
        let note = format!("the keys below {:?} were deleted from TiKV", tikv.key_prefix);
        return Ok(DeletionProgress::Done(Box::new(ClusterEvent::normal(
            "StorageWiped",
            "Wipe",
            note,
        ))));
    }
    if is_outdated(&job, &wanted) {
        jobs::delete(&batch, &job)
            .await
            .map_err(api("deleting the Job of the wipe"))?;
        let message = format!("recreating Job {}: the spec changed", job.name_any());
        return Ok(DeletionProgress::Waiting(message));
    }
    let why = jobs::failure(&context.client, &namespace, &job).await?;
    let Some(failed) = jobs::condition(&job, "Failed") else {
        return Ok(match why {
            Some(why) => DeletionProgress::Trouble(why),
            None => DeletionProgress::Waiting(format!("Job {} is running", job.name_any())),
        });
    };
    if jobs::is_retry_due(failed) {
        jobs::delete(&batch, &job)
            .await
            .map_err(api("deleting the Job of the wipe"))?;
    }
    let message = failed.message.clone().unwrap_or_default();
    Ok(DeletionProgress::Trouble(why.unwrap_or(message)))
}

/// Returns true if brains may have stored something: the storage they use is pinned before they are created.
fn has_stored(cluster: &KubeBrainCluster) -> bool {
    let storage = cluster.status.as_ref().and_then(|status| status.storage.as_ref());
    storage.is_some_and(|storage| storage.key_prefix.is_some())
}

/// Returns true if a Job has another template than the wanted one. Templates of Jobs cannot change, and an interrupted wipe continues where
/// it stopped. Older operators did not record the hash.
fn is_outdated(job: &Job, wanted: &Job) -> bool {
    let hash = |job: &Job| job.annotations().get(RESTART_HASH).cloned();
    let live = hash(job);
    live.is_some() && live != hash(wanted) && job.metadata.deletion_timestamp.is_none()
}

/// The StatefulSet of a cluster that is being deleted.
enum StatefulSetLeft {
    /// It is deleted, is being deleted, or never belonged to the cluster.
    None,
    /// The garbage collector released it: the cluster was deleted with `--cascade=orphan`.
    Orphaned,
}

/// Deletes the StatefulSet of the cluster, and the brains with it.
async fn delete_set(client: &Client, cluster: &KubeBrainCluster) -> Result<StatefulSetLeft, PassError> {
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), &cluster.namespace().unwrap_or_default());
    let found = sets
        .get_opt(&cluster.name_any())
        .await
        .map_err(api("reading the StatefulSet"))?;
    let uid = cluster.uid().unwrap_or_default();
    let Some(set) = found.filter(|set| set.metadata.deletion_timestamp.is_none()) else {
        return Ok(StatefulSetLeft::None);
    };
    match ownership::of(&set.metadata, &cluster.name_any(), &uid) {
        Ownership::Orphaned => return Ok(StatefulSetLeft::Orphaned),
        Ownership::Ours => jobs::delete(&sets, &set)
            .await
            .map_err(api("deleting the StatefulSet"))?,
        Ownership::Former | Ownership::Foreign => {}
    }
    Ok(StatefulSetLeft::None)
}

/// Returns the names of the pods in which brains may still run.
async fn pods(context: &Context, cluster: &KubeBrainCluster) -> Result<Vec<String>, PassError> {
    if is_external(cluster) {
        let pods = context
            .external_pods
            .of(cluster)
            .await
            .map_err(api("reading the pods"))?;
        return Ok(pods.iter().map(|pod| pod.name_any()).collect());
    }
    let name = cluster.name_any();
    let namespace = cluster.namespace().unwrap_or_default();
    let pods: Api<ObjectStub> =
        Api::namespaced_with(context.client.clone(), &namespace, &ApiResource::erase::<Pod>(&()));
    let params = ListParams::default().labels(&format!("{}={name}", plan::names::CLUSTER));
    // The label does not make foreign pods ours. Pods without a controller were ours.
    let may_be_ours = |pod: &ObjectStub| {
        let mut owners = pod.owner_references().iter();
        let controller = owners.find(|owner| owner.controller == Some(true));
        controller.is_none_or(|owner| owner.kind == "StatefulSet" && owner.name == name)
    };
    let found = list_kept(&pods, params, MAX_PODS_READ, may_be_ours).await;
    let found = found.map_err(api("reading the pods"))?;
    Ok(found.iter().map(ResourceExt::name_any).collect())
}
