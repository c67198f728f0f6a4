//! `cutover`: ends the copy of an etcd that a cluster begins with.

use std::io::Write;
use std::time::Duration;

use crds::KubeBrainCluster;
use crds::cluster::status::BootstrapPhase;
use crds::wishes::{CUTOVER, CUTOVER_VALUE};
use plan::bootstrap::{CONDITION, followed, is_cutover_requested};
use tokio::time::Instant;

use super::connect::TargetNamespace;
use super::requests::agreed;
use super::rollout::condition;
use super::wait::{ConditionState, watch};

/// Asks the operator to end the copy.
///
/// # Errors
/// There is no copy, or it does not follow its source, or the user does not confirm, or the API server refused or did not answer.
pub(super) async fn request(
    target: &TargetNamespace,
    name: &str,
    yes: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let cluster = target.get(name).await?;
    let bootstrap = cluster.spec.bootstrap.as_deref();
    if bootstrap.is_none_or(|bootstrap| bootstrap.from_etcd.is_none()) {
        anyhow::bail!("the spec of {name} has no bootstrap.fromEtcd: there is no copy to end");
    }
    let Some(etcd) = bootstrap.and_then(followed) else {
        anyhow::bail!("bootstrap.fromEtcd.follow of {name} is false: its copy ends by itself");
    };
    if is_complete(&cluster) {
        anyhow::bail!("the copy of {name} is complete already");
    }
    if cluster.spec.paused {
        anyhow::bail!("{}", paused(name));
    }
    if is_cutover_requested(&cluster) {
        writeln!(out, "the cutover of {name} was requested before")?;
        return Ok(());
    }
    let status = cluster.status.as_ref().and_then(|status| status.bootstrap.as_ref());
    let Some(status) = status else {
        anyhow::bail!("the copy of {name} does not follow its source: the operator has not begun it yet");
    };
    if status.phase != BootstrapPhase::Following {
        anyhow::bail!(
            "the copy of {name} does not follow its source: its phase is {:?}: {}",
            status.phase,
            status.message.as_deref().unwrap_or("the operator gives no reason")
        );
    }
    writeln!(
        out,
        "This ends the copy of {} into {name}: it is brought to the last revision there and compared, and then the members start. Stop the clients that write there first: the copy does not end before.",
        etcd.endpoints.join(", ")
    )?;
    if !yes && !agreed(&format!("End the copy into {name}?"), out)? {
        anyhow::bail!("nothing was changed");
    }
    target.annotate(name, CUTOVER, CUTOVER_VALUE).await?;
    writeln!(
        out,
        "requested the cutover of {name}; to see its state: kubectl kubebrain status {name}"
    )?;
    Ok(())
}

/// Waits until the copy has ended, and was compared.
///
/// # Errors
/// It takes longer than `timeout`, or only a user can help, or the request is taken back, or the cluster is deleted.
pub(super) async fn until_complete(
    target: &TargetNamespace,
    name: &str,
    timeout: Duration,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    watch(target, name, Instant::now() + timeout, out, |cluster| {
        judge(cluster, name)
    })
    .await
}

fn judge(cluster: &KubeBrainCluster, name: &str) -> ConditionState {
    let found = condition(cluster, CONDITION);
    let text = found.map_or_else(
        || "waiting for the operator".to_owned(),
        |found| format!("{}: {}", found.reason, found.message),
    );
    if found.is_some_and(|found| found.status == "True") {
        return ConditionState::Done(text);
    }
    if !is_cutover_requested(cluster) {
        return ConditionState::Failed(format!("another client removed the annotation {CUTOVER} of {name}"));
    }
    if cluster.spec.paused {
        return ConditionState::Failed(paused(name));
    }
    match condition(cluster, "Stalled").filter(|stalled| stalled.status == "True") {
        Some(stalled) => ConditionState::Failed(format!("{}: {}", stalled.reason, stalled.message)),
        None => ConditionState::NotYet(text),
    }
}

fn is_complete(cluster: &KubeBrainCluster) -> bool {
    let status = cluster.status.as_ref().and_then(|status| status.bootstrap.as_ref());
    status.is_some_and(|status| status.phase == BootstrapPhase::Complete)
}

fn paused(name: &str) -> String {
    format!("{name} is paused: its copy does not end before kubectl kubebrain resume {name}")
}
