//! Jobs, and what their pods report.

use std::time::Duration;

use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt};
use plan::member::BrainRefusal;
use plan::status;

use crate::cache::list_kept;
use crate::observe::refused_pods;
use crate::pass::{PassError, api};

/// Maximum number of pods that are read in a pass.
const MAX_PODS_READ: usize = 16;
/// Pause before a failed Job is replaced.
const JOB_RETRY_DELAY: Duration = Duration::from_secs(60);

/// Returns a condition of a Job that is true.
pub(crate) fn condition<'a>(job: &'a Job, type_: &str) -> Option<&'a JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == type_ && condition.status == "True")
}

/// Returns true if a Job failed long enough ago to be replaced.
pub(crate) fn is_retry_due(failed: &JobCondition) -> bool {
    let since = failed.last_transition_time.as_ref().map(|time| time.0);
    since.is_none_or(|since| Timestamp::now().duration_since(since).unsigned_abs() >= JOB_RETRY_DELAY)
}

/// Deletes exactly this object, with its dependents.
pub(crate) async fn delete<K>(objects: &Api<K>, object: &K) -> kube::Result<()>
where
    K: Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    delete_with(objects, object, DeleteParams::background()).await
}

/// The same, but the object stays until its dependents have ended.
pub(crate) async fn delete_after_dependents<K>(objects: &Api<K>, object: &K) -> kube::Result<()>
where
    K: Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    delete_with(objects, object, DeleteParams::foreground()).await
}

async fn delete_with<K>(objects: &Api<K>, object: &K, params: DeleteParams) -> kube::Result<()>
where
    K: Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: object.meta().uid.clone(),
            resource_version: None,
        }),
        ..params
    };
    match objects.delete(&object.name_any(), &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(answer)) if answer.is_not_found() || answer.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the pods of a Job, the oldest one first.
///
/// # Errors
/// The API server refused or did not answer.
pub(crate) async fn pods(client: &Client, namespace: &str, job: &Job) -> Result<Vec<Pod>, PassError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let params = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={}", job.name_any()));
    // Any client may create pods with this label.
    let is_of_job = |pod: &Pod| {
        let mut owners = pod.owner_references().iter();
        owners.any(|owner| owner.controller == Some(true) && Some(&owner.uid) == job.metadata.uid.as_ref())
    };
    let found = list_kept(&pods, params, MAX_PODS_READ, is_of_job).await;
    let mut found = found.map_err(api("reading the pods of a Job"))?;
    found.sort_by_key(|pod| pod.metadata.creation_timestamp.clone());
    Ok(found)
}

/// The trouble of a Job that has not ended well.
#[derive(Debug, Default)]
pub(crate) struct JobTrouble {
    /// The failure that its newest pod reports, or the reason why that does not start, or why there is no pod.
    pub(crate) words: Option<String>,
    /// The newest pod, if it has not ended.
    pub(crate) unfinished: Option<Pod>,
    /// Why the API server refuses a pod, in its words.
    pub(crate) refused: Option<String>,
}

/// Returns the failure that the Job's newest pod reports, or the reason why it does not start, or why there is no pod.
pub(crate) async fn failure(client: &Client, namespace: &str, job: &Job) -> Result<Option<String>, PassError> {
    Ok(trouble(client, namespace, job).await?.words)
}

/// The same, with the pod.
pub(crate) async fn trouble(client: &Client, namespace: &str, job: &Job) -> Result<JobTrouble, PassError> {
    let mut found = pods(client, namespace, job).await?;
    let refusal = found.iter().rev().find_map(BrainRefusal::of_end);
    let Some(newest) = found.pop() else {
        let refused = match job.uid() {
            Some(uid) => {
                let created = job.metadata.creation_timestamp.as_ref();
                let since = created.map_or(0, |time| time.0.as_second());
                refused_pods::newest(client, namespace, &uid, since).await
            }
            None => None,
        };
        return Ok(JobTrouble {
            words: refused.clone(),
            unfinished: None,
            refused,
        });
    };
    let stuck = || {
        let stuck = status::pod_stuck(&newest, Timestamp::now().as_second())?;
        Some(format!("{}: {}", stuck.reason, stuck.message))
    };
    Ok(JobTrouble {
        words: refusal.map(|refusal| refusal.message).or_else(stuck),
        unfinished: Some(newest).filter(|pod| !has_ended(pod)),
        refused: None,
    })
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Failed" | "Succeeded")) || pod.metadata.deletion_timestamp.is_some()
}
