//! The state of a bootstrap, and the next step of it.

use crds::KubeBrainCluster;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;

use super::{BootstrapObstacle, BootstrapResult, cutover, due, is_own};
use crate::names::RESTART_HASH;
use crate::objects::{ObjectKey, ObjectKind, Renderer};
use crate::observed::Observed;
use crate::ownership::{self, Ownership};
use crate::spec::{Desired, HoldReason};
use crate::steps::claims::is_terminating;
use crate::steps::{Plan, PlanStep};

/// Reasons of [`BootstrapProgress::Pending`].
const SUSPENDED: &str = "Suspended";
const OWNERSHIP_CONFLICT: &str = "OwnershipConflict";
const INVALID_SPEC: &str = "InvalidSpec";
const WAITING: &str = "WaitingForObject";

/// The state of a bootstrap that the status does not call complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootstrapProgress {
    /// It cannot begin, for this reason.
    Pending { reason: &'static str, message: String },
    /// Its Job runs, or is created now.
    Running(String),
    /// It has all that its source has, and follows it until a user acts.
    Following(String),
    /// It ends at the request of a user; `follows` as long as its pod is ready.
    CuttingOver { message: String, follows: bool },
    /// There is a store; the result is `None` if the pods that had it are gone.
    Complete(Option<BootstrapResult>),
    /// The cluster had members before the status said anything.
    Served,
    /// Every attempt failed.
    Failed(String),
}

impl BootstrapProgress {
    /// Returns the change in progress, in words; `None` if nothing is done until a user acts.
    pub(crate) fn change(&self) -> Option<&str> {
        match self {
            Self::Pending { reason, .. } if *reason == SUSPENDED => None,
            Self::Pending { message, .. }
            | Self::Running(message)
            | Self::Following(message)
            | Self::CuttingOver { message, .. } => Some(message),
            Self::Complete(_) | Self::Served | Self::Failed(_) => None,
        }
    }

    /// Returns the id of the store that the program made or found.
    pub(crate) fn store_id(&self) -> Option<&str> {
        match self {
            Self::Complete(Some(result)) => result.store_id(),
            _ => None,
        }
    }

    /// Returns true if the number of members is 0, and the restore begins only with the first one.
    pub(crate) fn is_suspended(&self) -> bool {
        matches!(self, Self::Pending { reason, .. } if *reason == SUSPENDED)
    }

    /// Returns the problem that only a user can resolve, if there is one.
    pub(crate) fn problem(&self, desired: &Desired) -> Option<BootstrapObstacle> {
        match self {
            Self::Pending { reason, message } if [INVALID_SPEC, OWNERSHIP_CONFLICT].contains(reason) => {
                Some(BootstrapObstacle {
                    reason,
                    message: message.clone(),
                })
            }
            Self::Failed(message) => {
                let job = desired.names.bootstrap();
                Some(BootstrapObstacle {
                    reason: "BootstrapFailed",
                    message: format!("{message}; once the cause is gone, delete Job {job} to try again"),
                })
            }
            _ => None,
        }
    }
}

/// Returns the state of the bootstrap; `None` if the cluster needs none, or the status says that it is complete.
pub(crate) fn assess(cluster: &KubeBrainCluster, desired: &Desired, observed: &Observed) -> Option<BootstrapProgress> {
    due(cluster)?;
    let pending = |reason, message: String| BootstrapProgress::Pending { reason, message };
    let seen = &observed.bootstrap;
    let name = desired.names.bootstrap();
    let set = former_members(cluster, desired, observed);
    if let Some(job) = seen.job.as_ref().filter(|job| is_own(job, cluster)) {
        if is(job, "Complete") {
            return Some(BootstrapProgress::Complete(seen.result.clone()));
        }
        if set == Some(FormerMembers::Ours) {
            return Some(BootstrapProgress::Served);
        }
        if job.metadata.deletion_timestamp.is_some() {
            return Some(BootstrapProgress::Running(format!("waiting for the end of Job {name}")));
        }
        let trouble = seen.trouble.clone();
        if is(job, "Failed") {
            let message = trouble.unwrap_or_else(|| format!("Job {name} failed"));
            return Some(BootstrapProgress::Failed(message));
        }
        return cutover::progress(cluster, desired, observed).or_else(|| {
            Some(BootstrapProgress::Running(match trouble {
                Some(why) => format!("Job {name} is running: {why}"),
                None => format!("Job {name} is running"),
            }))
        });
    }
    let set_name = &desired.names.cluster;
    match set {
        None => {}
        Some(FormerMembers::Ours) => return Some(BootstrapProgress::Served),
        Some(FormerMembers::Leaving) => {
            let message = format!("StatefulSet {set_name} is of a cluster that was deleted, and is not gone yet");
            return Some(pending(WAITING, message));
        }
        Some(FormerMembers::Foreign) => {
            let message = format!("StatefulSet {set_name} is not owned by this cluster: delete it");
            return Some(pending(OWNERSHIP_CONFLICT, message));
        }
    }
    if seen.job.is_some() {
        let message = format!("Job {name} is not owned by this cluster: delete it");
        return Some(pending(OWNERSHIP_CONFLICT, message));
    }
    if desired.replicas == 0 {
        let message = "the restore begins once spec.replicas is not 0".to_owned();
        return Some(pending(SUSPENDED, message));
    }
    if desired.held == Some(HoldReason::Paused) {
        return Some(pending("Paused", "spec.paused is true".to_owned()));
    }
    let claim = observed
        .claims
        .iter()
        .find(|claim| claim.name_any() == desired.names.claim(0));
    if let Some(claim) = claim.filter(|claim| is_leaving(claim)) {
        let message = format!("the volume claim {} is being deleted", claim.name_any());
        return Some(pending(WAITING, message));
    }
    Some(match &seen.source {
        Some(Err(BootstrapObstacle { reason, message })) => pending(*reason, message.clone()),
        Some(Ok(_)) => BootstrapProgress::Running(format!("creating Job {name}")),
        None => pending("Creating", "the source of the data was not looked at yet".to_owned()),
    })
}

/// The owner of the StatefulSet that exists before the restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FormerMembers {
    /// This cluster, whose members may run or have run: their store stays.
    Ours,
    /// An earlier cluster of the same name. Its members end, and its claim may end with it.
    Leaving,
    /// Another owner.
    Foreign,
}

fn former_members(cluster: &KubeBrainCluster, desired: &Desired, observed: &Observed) -> Option<FormerMembers> {
    let key = ObjectKey::new(ObjectKind::StatefulSet, &desired.names.cluster);
    let set = observed.objects.get(&key)?;
    let uid = cluster.uid().unwrap_or_default();
    Some(match ownership::of(&set.metadata, &cluster.name_any(), &uid) {
        Ownership::Foreign => FormerMembers::Foreign,
        Ownership::Ours | Ownership::Orphaned if set.metadata.deletion_timestamp.is_none() => FormerMembers::Ours,
        Ownership::Ours | Ownership::Orphaned | Ownership::Former => FormerMembers::Leaving,
    })
}

/// Returns true if a claim is being deleted, or is as soon as the StatefulSet or the pod is gone that owns it: the restore begins without either.
fn is_leaving(claim: &PersistentVolumeClaim) -> bool {
    let mut owners = claim.owner_references().iter();
    is_terminating(claim) || owners.any(|owner| ["StatefulSet", "Pod"].contains(&owner.kind.as_str()))
}

fn is(job: &Job, type_: &str) -> bool {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == type_ && condition.status == "True")
}

/// Plans to create the Job, and the claim that it fills, or to end a Job that was created for another spec, or the copy that its pod makes.
pub(crate) fn plan(
    plan: &mut Plan,
    cluster: &KubeBrainCluster,
    (desired, observed): (&Desired, &Observed),
    renderer: &Renderer<'_>,
) -> Result<(), serde_json::Error> {
    let cutover = match &plan.bootstrap {
        Some(
            BootstrapProgress::Running(_) | BootstrapProgress::Following(_) | BootstrapProgress::CuttingOver { .. },
        ) => cutover::steps(cluster, &observed.bootstrap),
        Some(BootstrapProgress::Failed(_)) => Vec::new(),
        _ => return Ok(()),
    };
    let job = observed.bootstrap.job.as_ref();
    if job.is_some_and(|job| job.metadata.deletion_timestamp.is_some()) {
        return Ok(());
    }
    if plan.is_blocked() {
        plan.steps.extend(cutover);
        if job.is_none() {
            let message = "the restore waits until nothing blocks the cluster".to_owned();
            plan.bootstrap = Some(BootstrapProgress::Pending {
                reason: "Creating",
                message,
            });
        }
        return Ok(());
    }
    let wanted = match &observed.bootstrap.source {
        Some(Ok(source)) => Some(Box::new(renderer.bootstrap_job(source)?)),
        _ => None,
    };
    if let (Some(job), Some(wanted)) = (job, &wanted)
        && is_outdated(job, wanted)
    {
        plan.steps.push(PlanStep::EndBootstrap { job: job.clone() });
        return Ok(());
    }
    plan.steps.extend(cutover);
    // A claim that was deleted while its pod waits is needed again.
    if job.is_some() || wanted.is_some() {
        let claim = renderer.bootstrap_claim();
        let claim = claim.filter(|_| observed.claims.iter().all(|it| it.name_any() != desired.names.claim(0)));
        plan.steps
            .extend(claim.map(|claim| PlanStep::CreateClaim { claim: Box::new(claim) }));
    }
    if job.is_none() {
        plan.steps.extend(wanted.map(|job| PlanStep::Bootstrap { job }));
    }
    Ok(())
}

/// Returns true if a Job that has not ended well has another template than the wanted one. Templates of Jobs cannot change, and an
/// interrupted restore is continued, or begun again.
fn is_outdated(job: &Job, wanted: &Job) -> bool {
    let hash = |job: &Job| job.annotations().get(RESTART_HASH).cloned();
    hash(job) != hash(wanted)
}
