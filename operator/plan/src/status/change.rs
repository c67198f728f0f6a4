//! The change in progress. A change begins when it is first observed, and continues until all members serve.

use crds::KubeBrainCluster;
use crds::cluster::status::RolloutType;
use crds::cluster::update_strategy::UpdateStrategyType;
use crds::cluster::workload::WorkloadType;
use serde_json::Value;

use super::{ConditionFacts, StatusInput, count};
use crate::bootstrap::BootstrapProgress;
use crate::names::RESTART_HASH;
use crate::objects::{ObjectKey, ObjectKind};
use crate::steps::PlanStep;

/// A change in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeInProgress {
    /// No change is in progress.
    None,
    /// The members are created for the first time.
    Creating,
    /// The first data is restored, or the restore waits; the text says for what.
    Bootstrapping(String),
    /// Members are replaced by ones of the newest template; the text is the reason why the next one must wait, if any.
    Rolling(Option<String>),
    /// Members must be replaced, and the user does that.
    ByHand(String),
    /// Members must be replaced, and that waits for a maintenance window.
    OutsideWindow(String),
    /// Members are added or removed.
    Scaling,
    /// Volumes grow.
    Resizing(String),
    /// Objects of a deleted cluster of the same name still exist.
    Waiting(String),
}

impl ChangeInProgress {
    /// Returns the reason of the condition Progressing.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::None => "Reconciled",
            Self::Creating | Self::Waiting(_) => "Creating",
            Self::Bootstrapping(_) => "Bootstrapping",
            Self::Rolling(_) | Self::ByHand(_) => "RollingUpdate",
            Self::OutsideWindow(_) => "OutsideMaintenanceWindow",
            Self::Scaling => "Scaling",
            Self::Resizing(_) => "ResizingStorage",
        }
    }

    /// Returns the kind that `status.rollout` records; `None` for changes that every pass can observe again.
    pub fn rollout_type(&self) -> Option<RolloutType> {
        match self {
            // A restore, or the time until a window begins, may be of any length.
            Self::None | Self::Resizing(_) | Self::Bootstrapping(_) | Self::OutsideWindow(_) => None,
            Self::Creating | Self::Waiting(_) => Some(RolloutType::Creating),
            Self::Rolling(_) | Self::ByHand(_) => Some(RolloutType::RollingUpdate),
            Self::Scaling => Some(RolloutType::Scaling),
        }
    }
}

pub(super) fn of(cluster: &KubeBrainCluster, pass: &StatusInput<'_>, facts: &ConditionFacts) -> ChangeInProgress {
    let (plan, observed) = (pass.plan, pass.observed);
    if let Some(key) = plan.former.first() {
        return ChangeInProgress::Waiting(format!("{key} of a deleted cluster of the same name still exists"));
    }
    let set = observed
        .objects
        .get(&ObjectKey::new(ObjectKind::StatefulSet, &pass.desired.names.cluster));
    let previous = cluster.status.as_ref();
    let before = previous.and_then(|status| status.rollout.as_ref()?.type_);
    let ever = previous.is_some_and(|status| status.version.is_some() || status.current_revision.is_some());
    let complete = facts.ready == facts.replicas
        && facts.pods == facts.replicas
        && (facts.replicas == 0 || facts.leader.is_some());
    if cluster.spec.workload.type_ == WorkloadType::External {
        // The owner of the pods changes them; the other conditions report what is missing.
        return if ever || complete {
            ChangeInProgress::None
        } else {
            ChangeInProgress::Creating
        };
    }
    if let Some(what) = plan.bootstrap.as_ref().and_then(BootstrapProgress::change) {
        return ChangeInProgress::Bootstrapping(what.to_owned());
    }
    let Some(set) = set else {
        let is_suspended = plan.bootstrap.as_ref().is_some_and(BootstrapProgress::is_suspended);
        return if is_suspended {
            ChangeInProgress::None
        } else {
            ChangeInProgress::Creating
        };
    };
    let running = set.data["spec"]["replicas"]
        .as_u64()
        .and_then(|count| usize::try_from(count).ok());
    if running != Some(facts.replicas) {
        return if ever {
            ChangeInProgress::Scaling
        } else {
            ChangeInProgress::Creating
        };
    }
    let trial = plan.trial.as_ref().filter(|_| !cluster.spec.paused);
    if let Some(why) = trial.filter(|_| plan.rollout.is_outside_window) {
        return ChangeInProgress::Rolling(Some(why.clone()));
    }
    if !plan.rollout.outdated.is_empty() {
        return match &plan.rollout.waiting {
            Some(why) if cluster.spec.strategy().type_ == UpdateStrategyType::OnDelete => {
                ChangeInProgress::ByHand(why.clone())
            }
            // A change that was begun is finished first.
            Some(_) if plan.rollout.is_outside_window && !complete && before == Some(RolloutType::Scaling) => {
                ChangeInProgress::Scaling
            }
            Some(why) if plan.rollout.is_outside_window && (complete || before != Some(RolloutType::RollingUpdate)) => {
                ChangeInProgress::OutsideWindow(why.clone())
            }
            why => ChangeInProgress::Rolling(why.clone()),
        };
    }
    if let Some(why) = trial {
        return ChangeInProgress::Rolling(Some(why.clone()));
    }
    if let Some(why) = resources_wait(pass).filter(|_| !cluster.spec.paused && ever) {
        return ChangeInProgress::ByHand(why);
    }
    // A template that needs no new pods is not a change in progress.
    let hash = |set: &Value| set["spec"]["template"]["metadata"]["annotations"][RESTART_HASH].clone();
    let live = hash(&set.data);
    let template = plan.steps.iter().any(|step| match step {
        PlanStep::Apply { object, .. } => object.key.kind == ObjectKind::StatefulSet && hash(&object.body) != live,
        _ => false,
    });
    let is_told_by_hash = live.is_string();
    if (template || !(plan.rollout.adopted || is_told_by_hash)) && ever && facts.replicas > 0 && !cluster.spec.paused {
        let closed = pass.desired.windows.closed(pass.observed.now).filter(|_| complete);
        return closed.map_or(ChangeInProgress::Rolling(None), ChangeInProgress::OutsideWindow);
    }
    if complete {
        let stuck = |claim: &&String| {
            pass.applied.refused_claims.contains_key(*claim) || plan.claims.infeasible.contains_key(*claim)
        };
        return match plan.claims.growing.iter().find(|claim| !stuck(claim)) {
            Some(claim) => ChangeInProgress::Resizing(format!("{claim} is growing")),
            None => ChangeInProgress::None,
        };
    }
    match before {
        Some(RolloutType::Scaling) => ChangeInProgress::Scaling,
        Some(RolloutType::RollingUpdate) if ever => ChangeInProgress::Rolling(None),
        _ if !ever && facts.replicas > 0 => ChangeInProgress::Creating,
        _ if facts.replicas == 0 => ChangeInProgress::Scaling,
        _ => ChangeInProgress::None,
    }
}

/// Returns why members do not get the resources of the template, if a user must act: their nodes cannot give them, or the API server
/// refuses.
fn resources_wait(pass: &StatusInput<'_>) -> Option<String> {
    let refused = pass.applied.refused_resize.clone();
    pass.plan.stays.clone().or(refused)
}

/// Returns true if the number of pods, updated or ready ones changed since the former pass: that is progress.
pub(super) fn has_moved(cluster: &KubeBrainCluster, pass: &StatusInput<'_>) -> bool {
    let rollout = &pass.plan.rollout;
    let now = [rollout.updated, rollout.ready, rollout.pods].map(|pods| Some(count(pods)));
    let status = cluster.status.as_ref();
    status.map(|status| [status.updated_replicas, status.ready_replicas, status.replicas]) != Some(now)
}

/// Returns true if a change takes longer than the spec allows, counted from its latest progress. A new generation of the spec restarts the
/// count.
pub(super) fn is_overdue(cluster: &KubeBrainCluster, pass: &StatusInput<'_>, change: &ChangeInProgress) -> bool {
    // A slow driver may expand volumes slowly, and no step waits for that.
    if matches!(
        change,
        ChangeInProgress::None
            | ChangeInProgress::ByHand(_)
            | ChangeInProgress::OutsideWindow(_)
            | ChangeInProgress::Resizing(_)
            | ChangeInProgress::Bootstrapping(_)
    ) || cluster.spec.paused
    {
        return false;
    }
    let rollout = cluster.status.as_ref().and_then(|status| status.rollout.as_ref());
    // One without a type is that of a hand-over.
    let Some(rollout) = rollout.filter(|rollout| rollout.type_.is_some()) else {
        return false;
    };
    if rollout.generation != cluster.metadata.generation || has_moved(cluster, pass) {
        return false;
    }
    let Some(progress) = rollout.last_progress_at.as_ref().or(rollout.started_at.as_ref()) else {
        return false;
    };
    let deadline = i64::from(cluster.spec.strategy().progress_deadline_seconds);
    pass.observed.now.as_second() > progress.0.as_second() + deadline
}
