//! Requests of a user to the operator: an annotation, or a field of the spec.

use std::io::{BufRead as _, IsTerminal as _, Write};

use anyhow::Context as _;
use crds::KubeBrainCluster;
use crds::cluster::tls::TlsMode;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use plan::status::whole_seconds;
use serde_json::json;

use super::connect::TargetNamespace;
use crds::wishes::{ANY, RESTART, TRANSFER_LEADER};

/// Requests another leader, and returns the request as written.
///
/// # Errors
/// The cluster or the member does not exist, or the API server refused or did not answer.
pub(super) async fn transfer_leader(
    target: &TargetNamespace,
    name: &str,
    to: Option<&str>,
    out: &mut impl Write,
) -> anyhow::Result<String> {
    let cluster = target.get(name).await?;
    let members: Vec<&str> = members(&cluster);
    if let Some(to) = to.filter(|to| !members.contains(to)) {
        anyhow::bail!("{to} is no member of {name}: its members are {}", members.join(", "));
    }
    let leader = leader(&cluster);
    if to.is_some() && to == leader {
        anyhow::bail!("{} already leads", to.unwrap_or_default());
    }
    // The time makes it differ from the previous request.
    let wish = format!("{}@{}", to.unwrap_or(ANY), now());
    target.annotate(name, TRANSFER_LEADER, &wish).await?;
    let (to, leader) = (to.unwrap_or("any other member"), leader.unwrap_or("an unknown member"));
    writeln!(out, "requested {to} as leader of {name} instead of {leader}")?;
    Ok(wish)
}

pub(super) fn members(cluster: &KubeBrainCluster) -> Vec<&str> {
    let members = cluster.status.iter().flat_map(|status| status.members.iter().flatten());
    members.map(|member| member.name.as_str()).collect()
}

pub(super) fn leader(cluster: &KubeBrainCluster) -> Option<&str> {
    Some(cluster.status.as_ref()?.leader.as_ref()?.member.as_str())
}

/// Requests a restart of all members, and returns the request as written.
///
/// # Errors
/// The cluster does not exist, or the API server refused or did not answer.
pub(super) async fn restart(target: &TargetNamespace, name: &str, out: &mut impl Write) -> anyhow::Result<String> {
    target.get(name).await?;
    let at = now();
    target.annotate(name, RESTART, &at).await?;
    writeln!(
        out,
        "requested a restart of {name} at {at}; to follow it: kubectl kubebrain wait rollout {name}"
    )?;
    Ok(at)
}

/// Raises the generation of the authority's key by one.
///
/// # Errors
/// The operator does not manage that key, or already replaces it; the user does not confirm; or the API server refused or did not answer.
pub(super) async fn rotate_ca(
    target: &TargetNamespace,
    name: &str,
    yes: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let cluster = target.get(name).await?;
    let tls = &cluster.spec.tls;
    if tls.mode != TlsMode::Operator {
        anyhow::bail!(
            "the operator issues no certificates for {name}: its tls.mode is {:?}",
            tls.mode
        );
    }
    if let Some(secret) = &tls.ca_secret_ref {
        anyhow::bail!(
            "the authority of {name} is your own: put the new key into Secret {}",
            secret.name
        );
    }
    let ca = cluster.status.as_ref().and_then(|status| status.ca.as_ref());
    let before = tls.ca_generation.unwrap_or(1);
    if let Some(ca) = ca.filter(|ca| ca.phase != "Stable" || ca.generation < before) {
        anyhow::bail!(
            "the key of {name} is already being replaced: generation {}, {}",
            ca.generation.max(before),
            ca.phase
        );
    }
    let next = before + 1;
    writeln!(
        out,
        "This sets spec.tls.caGeneration of {name} from {before} to {next}. If the cluster is managed in git, set it there instead, or the change will be reverted."
    )?;
    if !yes && !agreed(&format!("Replace the key of the authority of {name}?"), out)? {
        anyhow::bail!("nothing was changed");
    }
    let version = cluster.resource_version();
    let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"tls": {"caGeneration": next}}});
    target.patch(name, patch).await?;
    writeln!(
        out,
        "requested generation {next}; to see its phases: kubectl kubebrain status {name}"
    )?;
    Ok(())
}

/// Returns true if the user at the terminal agrees.
pub(super) fn agreed(question: &str, out: &mut impl Write) -> anyhow::Result<bool> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        anyhow::bail!("standard input is not a terminal: use --yes");
    }
    write!(out, "{question} [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    input.lock().read_line(&mut answer).context("read the answer")?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

/// Sets `spec.paused`.
///
/// # Errors
/// The cluster does not exist, or the API server refused or did not answer.
pub(super) async fn pause(
    target: &TargetNamespace,
    name: &str,
    paused: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let cluster = target.get(name).await?;
    let word = if paused { "paused" } else { "resumed" };
    if cluster.spec.paused == paused {
        writeln!(out, "{name} is already {word}")?;
        return Ok(());
    }
    target.patch(name, json!({"spec": {"paused": paused}})).await?;
    writeln!(out, "{word} {name}")?;
    Ok(())
}

fn now() -> String {
    whole_seconds(Timestamp::now()).to_string()
}
