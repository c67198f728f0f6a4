//! The state of a bootstrap, and the next step of it.

use crds::KubeBrainCluster;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt as _;

use super::{BootstrapObstacle, BootstrapResult, due, is_own};
use crate::objects::{ObjectKey, ObjectKind, Renderer};
use crate::observed::Observed;
use crate::spec::{Desired, HoldReason};
use crate::steps::claims::is_terminating;
use crate::steps::{Plan, PlanStep};

/// Reasons of [`BootstrapProgress::Pending`].
const SUSPENDED: &str = "Suspended";
const OWNERSHIP_CONFLICT: &str = "OwnershipConflict";
const INVALID_SPEC: &str = "InvalidSpec";

/// The state of a bootstrap that the status does not call complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootstrapProgress {
    /// It cannot begin, for this reason.
    Pending { reason: &'static str, message: String },
    /// Its Job runs, or is created now.
    Running(String),
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
            Self::Pending { message, .. } | Self::Running(message) => Some(message),
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
                    reason: *reason,
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
    if let Some(job) = seen.job.as_ref().filter(|job| is_own(job, cluster)) {
        if is(job, "Complete") {
            return Some(BootstrapProgress::Complete(seen.result.clone()));
        }
        if is_served(desired, observed) {
            return Some(BootstrapProgress::Served);
        }
        if job.metadata.deletion_timestamp.is_some() {
            return Some(BootstrapProgress::Running(format!("waiting for the end of Job {name}")));
        }
        let trouble = seen.trouble.clone();
        return Some(match is(job, "Failed") {
            true => BootstrapProgress::Failed(trouble.unwrap_or_else(|| format!("Job {name} failed"))),
            false => BootstrapProgress::Running(match trouble {
                Some(why) => format!("Job {name} is running: {why}"),
                None => format!("Job {name} is running"),
            }),
        });
    }
    if is_served(desired, observed) {
        return Some(BootstrapProgress::Served);
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
    if let Some(claim) = claim.filter(|claim| is_terminating(claim)) {
        let message = format!("the volume claim {} is being deleted", claim.name_any());
        return Some(pending("WaitingForObject", message));
    }
    Some(match &seen.source {
        Some(Err(BootstrapObstacle { reason, message })) => pending(*reason, message.clone()),
        Some(Ok(_)) => BootstrapProgress::Running(format!("creating Job {name}")),
        None => pending("Creating", "the source of the data was not looked at yet".to_owned()),
    })
}

/// Returns true if members may run, or have run: the StatefulSet exists, of any owner.
fn is_served(desired: &Desired, observed: &Observed) -> bool {
    let set = ObjectKey::new(ObjectKind::StatefulSet, &desired.names.cluster);
    observed.objects.contains_key(&set)
}

fn is(job: &Job, type_: &str) -> bool {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == type_ && condition.status == "True")
}

/// Plans to create the Job, and the claim that it fills.
pub(crate) fn plan(
    plan: &mut Plan,
    desired: &Desired,
    observed: &Observed,
    renderer: &Renderer<'_>,
) -> Result<(), serde_json::Error> {
    let Some(BootstrapProgress::Running(_)) = &plan.bootstrap else {
        return Ok(());
    };
    let (None, Some(Ok(source))) = (&observed.bootstrap.job, &observed.bootstrap.source) else {
        return Ok(());
    };
    if plan.is_blocked() {
        let message = "the restore waits until nothing blocks the cluster".to_owned();
        plan.bootstrap = Some(BootstrapProgress::Pending {
            reason: "Creating",
            message,
        });
        return Ok(());
    }
    let claim = renderer.bootstrap_claim();
    let claim = claim.filter(|_| observed.claims.iter().all(|it| it.name_any() != desired.names.claim(0)));
    plan.steps
        .extend(claim.map(|claim| PlanStep::CreateClaim { claim: Box::new(claim) }));
    let job = Box::new(renderer.bootstrap_job(source)?);
    plan.steps.push(PlanStep::Bootstrap { job });
    Ok(())
}
