//! The end of a copy that follows an etcd, at the request of a user.
//!
//! The copy ends when its pod has an annotation. A user sets it on the cluster, and the operator on the pods: a pod that begins later gets it,
//! too. A pod that has it keeps it, because the copy may end at any time.

use crds::KubeBrainCluster;
use crds::cluster::status::BootstrapPhase;
use crds::wishes::{CUTOVER, CUTOVER_VALUE};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use super::{BootstrapProgress, ObservedBootstrap, due, figures, followed, is_cutover_requested};
use crate::observed::{Observed, is_ready};
use crate::spec::Desired;
use crate::steps::PlanStep;

/// Returns the state of a copy that follows its source, or that is ended; `None` if the Job does anything else.
pub(super) fn progress(
    cluster: &KubeBrainCluster,
    desired: &Desired,
    observed: &Observed,
) -> Option<BootstrapProgress> {
    let seen = &observed.bootstrap;
    let etcd = followed(due(cluster)?)?;
    let follows = seen.pods.iter().any(is_ready);
    let is_requested = is_cutover_requested(cluster);
    if seen.pods.iter().any(has_annotation) || (is_requested && desired.held.is_none()) {
        let message = if follows {
            "the copy is brought to the last revision of its source and compared; it does not end while clients write there"
                .to_owned()
        } else {
            let why = seen.trouble.as_ref().map(|why| format!("; the last attempt: {why}"));
            format!(
                "Job {} is running, and the cutover ends the copy once that has reached its source{}",
                desired.names.bootstrap(),
                why.unwrap_or_default()
            )
        };
        return Some(BootstrapProgress::CuttingOver { message, follows });
    }
    let source = match etcd.endpoints.as_slice() {
        [only] => only.clone(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
        [] => String::new(),
    };
    let next = if is_requested {
        "its cutover waits, because spec.paused is true".to_owned()
    } else {
        format!(
            "stop the clients that write there, then annotate the cluster with {CUTOVER}={CUTOVER_VALUE}, or run kubectl kubebrain cutover {}",
            desired.names.cluster
        )
    };
    // The message changes as often as the figures are written.
    let lag =
        figures::progress(cluster, observed, BootstrapPhase::Following).map(|progress| match progress.lag_revisions {
            1 => " and lacks 1 revision".to_owned(),
            lag => format!(" and lacks {lag} revisions"),
        });
    let lag = lag.unwrap_or_default();
    follows.then(|| BootstrapProgress::Following(format!("the copy of {source} follows its source{lag}: {next}")))
}

/// Returns the steps that end the copy.
pub(super) fn steps(cluster: &KubeBrainCluster, seen: &ObservedBootstrap) -> Vec<PlanStep> {
    let is_followed = due(cluster).is_some_and(|bootstrap| followed(bootstrap).is_some());
    if !is_followed || !is_cutover_requested(cluster) {
        return Vec::new();
    }
    let pods = seen.pods.iter().filter(|pod| !has_annotation(pod));
    let steps = pods.map(|pod| PlanStep::CutOver {
        pod: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
    });
    steps.collect()
}

/// Returns true if a pod ends its copy. Its program reads no value of the annotation, only that there is one.
fn has_annotation(pod: &Pod) -> bool {
    pod.annotations().get(CUTOVER).is_some_and(|value| !value.is_empty())
}
