//! Jobs, and what their pods report.

use std::time::Duration;

use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt};
use plan::member::BrainRefusal;
use plan::status;

use crate::cache::list_pages;
use crate::observe::refused_pods;
use crate::pass::{PassError, api};

/// Maximum number of pods that are kept in a pass: of failed ones, and of others. A Job that runs for days may have many failed ones.
const MAX_PODS_KEPT: usize = 16;
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
    let mut found = Vec::new();
    let listed = list_pages(&pods, params, |page| {
        found.extend(page.into_iter().filter(is_of_job));
        keep_newest(&mut found);
        true
    });
    listed.await.map_err(api("reading the pods of a Job"))?;
    Ok(found)
}

/// Sorts pods, the oldest one first, and keeps the newest failed ones, and the newest of all others.
fn keep_newest(pods: &mut Vec<Pod>) {
    pods.sort_by_key(|pod| pod.metadata.creation_timestamp.clone());
    let (mut failed, mut others) = (0, 0);
    let mut kept: Vec<bool> = pods
        .iter()
        .rev()
        .map(|pod| {
            let count = if phase(pod) == Some("Failed") {
                &mut failed
            } else {
                &mut others
            };
            *count += 1;
            *count <= MAX_PODS_KEPT
        })
        .collect();
    pods.retain(|_| kept.pop().unwrap_or_default());
}

/// The trouble of a Job that has not ended well.
#[derive(Debug, Default)]
pub(crate) struct JobTrouble {
    /// The failure that its newest pod reports, or the reason why that does not start, or why there is no pod.
    pub(crate) words: Option<String>,
    /// The pods that have not ended, the oldest one first.
    pub(crate) unfinished: Vec<Pod>,
    /// Why the API server refuses a pod, in its words.
    pub(crate) refused: Option<String>,
}

/// Returns the failure that the Job's newest pod reports, or the reason why it does not start, or why there is no pod.
pub(crate) async fn failure(client: &Client, namespace: &str, job: &Job) -> Result<Option<String>, PassError> {
    Ok(trouble(client, namespace, job).await?.words)
}

/// The same, with the pods.
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
            unfinished: Vec::new(),
            refused,
        });
    };
    let stuck = || {
        let stuck = status::pod_stuck(&newest, Timestamp::now().as_second())?;
        Some(format!("{}: {}", stuck.reason, stuck.message))
    };
    let words = refusal.map(|refusal| refusal.message).or_else(stuck);
    found.push(newest);
    found.retain(|pod| !has_ended(pod));
    Ok(JobTrouble {
        words,
        unfinished: found,
        refused: None,
    })
}

fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), Some("Failed" | "Succeeded")) || pod.metadata.deletion_timestamp.is_some()
}

fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}
