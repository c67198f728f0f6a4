//! The keys of a deleted cluster in TiKV: kept, or wiped before its resource is removed.
//!
//! `storage.tikv.whenDeleted: Delete` gives the resource a finalizer. When the resource is deleted, the brains are deleted first; then a
//! Job runs the brain's own `wipe`; then the finalizer is removed. An annotation removes the resource without the wipe, so that a deletion
//! never waits forever. A deletion that orphans the cluster's objects keeps the keys, too.

use std::time::Duration;

use crds::KubeBrainCluster;
use crds::cluster::storage::Retention;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::ApiResource;
use kube::{Api, Client, Resource, ResourceExt};
use plan::event::ClusterEvent;
use plan::member::BrainRefusal;
use plan::names::{FINALIZER_MANAGER, RESTART_HASH, SKIP_WIPE, WIPE};
use plan::objects::Renderer;
use plan::ownership::{self, Ownership};
use plan::spec::is_external;
use plan::spec::secrets::GivenSecrets;
use plan::status;
use serde_json::json;
use tracing::warn;

use crate::api_error::FailureClass;
use crate::cache::list_kept;
use crate::cache::received::ObjectStub;
use crate::context::Context;
use crate::desired;
use crate::metrics::ReconcileOutcome;
use crate::observe::refused_pods;
use crate::pass::{PassError, PassOutcome, SOON_REQUEUE, api};
use crate::publish::publish;

/// Finalizer that the API server sets on a deletion with `--cascade=orphan`, until the garbage collector has released the dependents.
const ORPHAN_FINALIZER: &str = "orphan";
/// Reason why the keys of such a cluster are kept.
const ORPHANED_REASON: &str = "the cluster was deleted without its objects, so its members keep running";
/// Maximum number of pods that are read in a pass.
const MAX_PODS_READ: usize = 16;
/// Pause before a failed Job is replaced.
const JOB_RETRY_DELAY: Duration = Duration::from_secs(60);

/// Adds the finalizer to a cluster that must be wiped, and removes it from any other.
///
/// # Errors
/// The API server refused or did not answer.
pub(crate) async fn ensure(clusters: &Api<ObjectStub>, cluster: &KubeBrainCluster) -> Result<(), PassError> {
    match (is_wanted(cluster), is_guarded(cluster)) {
        (true, false) => add_finalizer(clusters, cluster).await,
        (false, true) => remove_finalizer(clusters, cluster).await,
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

/// Adds the finalizer without changing those of others.
async fn add_finalizer(clusters: &Api<ObjectStub>, cluster: &KubeBrainCluster) -> Result<(), PassError> {
    let body = json!({
        "apiVersion": KubeBrainCluster::api_version(&()),
        "kind": KubeBrainCluster::kind(&()),
        "metadata": {"name": cluster.name_any(), "uid": cluster.uid(), "finalizers": [WIPE]},
    });
    let params = PatchParams::apply(FINALIZER_MANAGER).force();
    written(clusters.patch(&cluster.name_any(), &params, &Patch::Apply(body)).await)
}

/// Removes the finalizer, whatever manager set it: an apply would keep one that another manager owns. The list is replaced only if the
/// cluster has not changed since it was read, so the finalizers of others stay.
async fn remove_finalizer(clusters: &Api<ObjectStub>, cluster: &KubeBrainCluster) -> Result<(), PassError> {
    let others: Vec<&String> = cluster.finalizers().iter().filter(|name| *name != WIPE).collect();
    let body = json!({"metadata": {
        "uid": cluster.uid(), "resourceVersion": cluster.resource_version(), "finalizers": others,
    }});
    let params = PatchParams {
        field_manager: Some(FINALIZER_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    written(clusters.patch(&cluster.name_any(), &params, &Patch::Merge(body)).await)
}

/// A cluster that was deleted or changed in between is no error: the next pass sees it.
fn written(answer: kube::Result<ObjectStub>) -> Result<(), PassError> {
    match answer {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(answer)) if answer.is_not_found() || answer.is_conflict() => Ok(()),
        Err(error) => Err(api("writing the finalizer")(error)),
    }
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
            remove_finalizer(clusters, cluster).await?;
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
    let jobs: Api<Job> = Api::namespaced(context.client.clone(), &namespace);
    let wanted = Renderer::new(cluster, &desired).wipe_job(tikv)?;
    let Some(job) = jobs
        .get_opt(&desired.names.wipe())
        .await
        .map_err(api("reading the Job of the wipe"))?
    else {
        let made = jobs.create(&PostParams::default(), &wanted).await;
        let refused = made.as_ref().err().map(FailureClass::of);
        if refused == Some(FailureClass::NamespaceTerminating) {
            let event = kept(cluster, "the namespace is being deleted, so no Job can wipe them");
            warn!(namespace, cluster = name, "{}", event.note);
            // No Event can be created in the namespace any more, only one about it.
            context.events.publish_about_namespace(&namespace, &name, &event).await;
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
    let ended = |type_: &str| {
        let conditions = job.status.as_ref()?.conditions.as_ref()?;
        let mut conditions = conditions.iter();
        conditions.find(|condition| condition.type_ == type_ && condition.status == "True")
    };
    if ended("Complete").is_some() {
        let note = format!("the keys below {:?} were deleted from TiKV", tikv.key_prefix);
        return Ok(DeletionProgress::Done(Box::new(ClusterEvent::normal(
            "StorageWiped",
            "Wipe",
            note,
        ))));
    }
    if is_outdated(&job, &wanted) {
        delete(&jobs, &job).await.map_err(api("deleting the Job of the wipe"))?;
        let message = format!("recreating Job {}: the spec changed", job.name_any());
        return Ok(DeletionProgress::Waiting(message));
    }
    let why = failure(context, &namespace, &job).await?;
    let Some(failed) = ended("Failed") else {
        return Ok(match why {
            Some(why) => DeletionProgress::Trouble(why),
            None => DeletionProgress::Waiting(format!("Job {} is running", job.name_any())),
        });
    };
    let since = failed.last_transition_time.as_ref().map(|time| time.0);
    let is_due = since.is_none_or(|since| Timestamp::now().duration_since(since).unsigned_abs() >= JOB_RETRY_DELAY);
    if is_due {
        delete(&jobs, &job).await.map_err(api("deleting the Job of the wipe"))?;
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
        Ownership::Ours => delete(&sets, &set).await.map_err(api("deleting the StatefulSet"))?,
        Ownership::Former | Ownership::Foreign => {}
    }
    Ok(StatefulSetLeft::None)
}

/// Deletes exactly this object, with its dependents.
async fn delete<K>(objects: &Api<K>, object: &K) -> kube::Result<()>
where
    K: Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: object.meta().uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::background()
    };
    match objects.delete(&object.name_any(), &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(answer)) if answer.is_not_found() || answer.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
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

/// Returns the failure that the Job's newest pod reports, or the reason why it does not start, or why there is no pod.
async fn failure(context: &Context, namespace: &str, job: &Job) -> Result<Option<String>, PassError> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let params = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={}", job.name_any()));
    // Any client may create pods with this label.
    let is_of_job = |pod: &Pod| {
        let mut owners = pod.owner_references().iter();
        owners.any(|owner| owner.controller == Some(true) && Some(&owner.uid) == job.metadata.uid.as_ref())
    };
    let found = list_kept(&pods, params, MAX_PODS_READ, is_of_job).await;
    let mut found = found.map_err(api("reading the pods of the wipe"))?;
    found.sort_by_key(|pod| pod.metadata.creation_timestamp.clone());
    if let Some(refusal) = found.iter().rev().find_map(BrainRefusal::of_end) {
        return Ok(Some(refusal.message));
    }
    let now = Timestamp::now();
    if let Some(stuck) = found.last().and_then(|pod| status::pod_stuck(pod, now.as_second())) {
        return Ok(Some(format!("{}: {}", stuck.reason, stuck.message)));
    }
    let Some(uid) = job.uid().filter(|_| found.is_empty()) else {
        return Ok(None);
    };
    let since = job
        .metadata
        .creation_timestamp
        .as_ref()
        .map_or(0, |time| time.0.as_second());
    Ok(refused_pods::newest(&context.client, namespace, &uid, since).await)
}
