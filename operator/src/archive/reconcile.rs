//! One pass over the archive of a cluster: it applies or deletes the Deployment, and asks its pod how far it is.

use std::time::Duration;

use crds::KubeBrainCluster;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use plan::archive::{self, ArchiveReport, ArchiveState, ObservedArchive};
use plan::backup::BackupTarget;
use plan::backup::references::{self, NamedKind};
use plan::event::ClusterEvent;
use plan::last_apply::UnchangedApply;
use plan::member::BrainRefusal;
use plan::names::{self, ARCHIVE, MANAGER};
use plan::objects::ObjectKind;
use plan::observed::is_ready;
use plan::ownership::Ownership;
use plan::status;
use serde_json::{Value, json};
use tracing::info;

use super::{KEEPING_UP_INTERVAL, PROGRESS_INTERVAL};
use crate::backup::{Found, look};
use crate::cache::list_kept;
use crate::context::Context;
use crate::pass::{PassError, api};
use crate::{desired, jobs, probe};

/// Interval between passes over an archive that is suspended, or whose cluster another installation manages.
const IDLE_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of pods that are read in a pass.
const MAX_PODS_READ: usize = 8;
/// Reason of Archiving if the spec asks for what is not allowed.
const INVALID_SPEC: &str = "InvalidSpec";

/// The end of a pass: what it found, and the time until the next one; `None` if only a change needs one.
struct ArchivePass {
    found: ObservedArchive,
    again: Option<Duration>,
}

/// Runs one pass over the archive of a cluster. Returns the time until the next one, or `None` if only a change needs one.
///
/// # Errors
/// The API server refused or did not answer.
pub(super) async fn reconcile(context: &Context, cluster: &KubeBrainCluster) -> Result<Option<Duration>, PassError> {
    if !archive::concerns(cluster) {
        return Ok(None);
    }
    if context.installation.other(cluster).await.is_some() {
        return Ok(Some(IDLE_INTERVAL));
    }
    let namespace = cluster.namespace().unwrap_or_default();
    let all: Api<Deployment> = Api::namespaced(context.client.clone(), &namespace);
    let name = names::archive(&cluster.name_any());
    let live = all.get_opt(&name).await.map_err(api("reading the Deployment"))?;
    let pass = Box::pin(advance(context, cluster, (&all, live))).await?;
    context.backups.report(cluster, pass.found);
    Ok(pass.again)
}

async fn advance(
    context: &Context,
    cluster: &KubeBrainCluster,
    (all, live): (&Api<Deployment>, Option<Deployment>),
) -> Result<ArchivePass, PassError> {
    let before = context.backups.position(cluster);
    let waiting = |reason: &str, message: String| archive::waiting(reason, message, before);
    let is_leaving = cluster.metadata.deletion_timestamp.is_some();
    let wanted = archive::wanted(cluster).filter(|_| !is_leaving);
    let owner = live.as_ref().map(|live| archive::owner(&live.metadata, cluster));
    let own = live.as_ref().filter(|_| owner == Some(Ownership::Ours));
    let Some(wanted) = wanted else {
        return end(context, cluster, (all, own)).await;
    };
    let name = names::archive(&cluster.name_any());
    match owner {
        Some(Ownership::Former) => {
            let message = format!("Deployment {name} of a deleted cluster of the same name still exists");
            return Ok(soon(waiting("Creating", message)));
        }
        Some(Ownership::Foreign | Ownership::Orphaned) => {
            let message = format!("Deployment {name} is not owned by this cluster: delete it or rename it");
            return Ok(soon(waiting("OwnershipConflict", message)));
        }
        Some(Ownership::Ours) | None => {}
    }
    let rendered = archive::deployment(cluster, wanted, &context.settings)?;
    let is_applied = match own {
        Some(live) => {
            let apply = UnchangedApply::of(&rendered, live);
            archive::is_applied(&rendered, live)? || context.backups.is_unchanged_by(cluster, apply.as_ref())
        }
        None => false,
    };
    // Without pods nothing is needed, and a pod that runs must be able to end.
    let needs_nothing = is_applied || cluster.spec.replicas == 0;
    if let Some((reason, message)) = obstacle(context, cluster, (wanted.0.into(), needs_nothing)).await? {
        // An archive that the spec may not ask for is ended.
        if let Some(live) = own.filter(|live| reason == INVALID_SPEC && live.metadata.deletion_timestamp.is_none()) {
            let deleted = jobs::delete(all, live).await;
            deleted.map_err(api("deleting the Deployment of the archive"))?;
            publish(context, cluster, "Deleted", "deleted").await;
        }
        return Ok(soon(waiting(reason, message)));
    }
    if !is_applied {
        if cluster.spec.paused {
            let message = "spec.paused is true: the Deployment of the archive is not changed";
            return Ok(soon(waiting("Paused", message.to_owned())));
        }
        let is_suspended = cluster.spec.replicas == 0;
        let available = plan::backup::waits_for(&cluster.name_any(), Some(cluster)).filter(|_| !is_suspended);
        if let Some(message) = available.filter(|_| own.is_none()) {
            return Ok(soon(waiting("WaitingForCluster", message)));
        }
        if !archive::is_recorded(cluster) {
            // The Deployment is created only once the status says that there may be one.
            return Ok(soon(waiting("Creating", "creating the Deployment".to_owned())));
        }
        apply(context, cluster, (all, own), rendered).await?;
    }
    if cluster.spec.replicas == 0 {
        let message = "spec.replicas is 0".to_owned();
        return Ok(ArchivePass {
            again: Some(IDLE_INTERVAL),
            ..soon(waiting("Suspended", message))
        });
    }
    let state = ask(context, cluster, own).await?;
    let before = (before, context.backups.has_failed(cluster));
    let report = archive::observed(&state, before, Timestamp::now());
    let keeps_up =
        report.condition.status == status::ConditionStatus::True && matches!(state, ArchiveState::Answered(_));
    let again = if keeps_up {
        KEEPING_UP_INTERVAL
    } else {
        PROGRESS_INTERVAL
    };
    Ok(ArchivePass {
        again: Some(again),
        ..soon(report)
    })
}

fn soon(report: ArchiveReport) -> ArchivePass {
    ArchivePass {
        found: ObservedArchive::Reported(Box::new(report)),
        again: Some(PROGRESS_INTERVAL),
    }
}

/// Ends an archive that the spec does not ask for, or that is suspended.
async fn end(
    context: &Context,
    cluster: &KubeBrainCluster,
    (all, own): (&Api<Deployment>, Option<&Deployment>),
) -> Result<ArchivePass, PassError> {
    let is_configured = archive::is_configured(cluster) && cluster.metadata.deletion_timestamp.is_none();
    let before = context.backups.position(cluster);
    let suspended = |message: &str| archive::waiting("Suspended", message, before);
    let Some(live) = own else {
        let found = if is_configured {
            let report = suspended("spec.backup.archive.suspend is true");
            ObservedArchive::Reported(Box::new(report))
        } else {
            ObservedArchive::Absent
        };
        return Ok(ArchivePass { found, again: None });
    };
    if cluster.spec.paused && cluster.metadata.deletion_timestamp.is_none() {
        let message = "spec.paused is true: the Deployment of the archive is not deleted";
        return Ok(soon(archive::waiting("Paused", message, before)));
    }
    if live.metadata.deletion_timestamp.is_none() {
        let deleted = jobs::delete(all, live).await;
        deleted.map_err(api("deleting the Deployment of the archive"))?;
        publish(context, cluster, "Deleted", "deleted").await;
    }
    Ok(soon(suspended("the Deployment of the archive is deleted")))
}

/// Returns why the archive cannot be as the spec asks for it, if it cannot. Objects that the spec names are looked at before the Deployment
/// is written, and not again as long as it stays.
async fn obstacle(
    context: &Context,
    cluster: &KubeBrainCluster,
    (target, needs_nothing): (BackupTarget<'_>, bool),
) -> Result<Option<(&'static str, String)>, PassError> {
    let given = context.user_secrets.of(cluster).await;
    let given = given.map_err(api("reading the objects"))?;
    if let Some(refusal) = desired::read(context, cluster, &given).refusal() {
        return Ok(Some((refusal.reason, refusal.message.clone())));
    }
    let refused = |refusal: plan::spec::SpecRefusal| (INVALID_SPEC, format!("backup.{}", refusal.message));
    if let Err(refusal) = references::check(target, &cluster.name_any(), &context.settings) {
        return Ok(Some(refused(refusal)));
    }
    let namespace = cluster.namespace().unwrap_or_default();
    let mut missing = None;
    for named in references::named(target) {
        let owner = context.cache.owner(ObjectKind::Secret, &namespace, named.name);
        if let Some(owner) = owner.filter(|_| named.kind == NamedKind::Secret) {
            return Ok(Some(refused(named.refused(&owner))));
        }
        if needs_nothing {
            continue;
        }
        match look(context, &namespace, &named).await? {
            Found::OfCluster(owner) => return Ok(Some(refused(named.refused(&owner)))),
            Found::Nothing => missing = missing.or(Some(named.missing())),
            Found::Usable => {}
        }
    }
    Ok(missing.map(|message| ("WaitingForObject", format!("backup.{message}"))))
}

/// Creates the Deployment, or changes exactly this one.
async fn apply(
    context: &Context,
    cluster: &KubeBrainCluster,
    (all, own): (&Api<Deployment>, Option<&Deployment>),
    mut rendered: Value,
) -> Result<(), PassError> {
    let apply = own.and_then(|live| UnchangedApply::of(&rendered, live));
    let mut params = PatchParams::apply(MANAGER);
    if let Some(live) = own {
        rendered["metadata"]["uid"] = json!(live.uid());
        params = params.force();
    }
    let name = names::archive(&cluster.name_any());
    let applied = all.patch(&name, &params, &Patch::Apply(&rendered)).await;
    let applied = applied.map_err(api("applying the Deployment of the archive"))?;
    let version = |of: &Deployment| of.metadata.resource_version.clone();
    match own {
        None => publish(context, cluster, "Created", "created").await,
        Some(live) if version(live) != version(&applied) => publish(context, cluster, "Updated", "updated").await,
        Some(_) => context.backups.left_unchanged(cluster, apply),
    }
    Ok(())
}

async fn publish(context: &Context, cluster: &KubeBrainCluster, reason: &'static str, verb: &str) {
    let name = names::archive(&cluster.name_any());
    let note = format!("{verb} Deployment {name}");
    info!(reason, "{note}");
    let about = ObjectReference {
        api_version: Some("apps/v1".to_owned()),
        kind: Some("Deployment".to_owned()),
        name: Some(name),
        ..ObjectReference::default()
    };
    let action = if reason == "Deleted" { "Delete" } else { "Apply" };
    let event = ClusterEvent::normal(reason, action, note).about(about);
    context.events.publish(cluster, event).await;
}

/// Asks the ready pod how far it is, or finds out why there is none.
async fn ask(
    context: &Context,
    cluster: &KubeBrainCluster,
    live: Option<&Deployment>,
) -> Result<ArchiveState, PassError> {
    let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let params = ListParams::default().labels(&format!("{ARCHIVE}={name}"));
    // Any client may create pods with this label.
    let found = list_kept(&pods, params, MAX_PODS_READ, |pod| archive::is_pod_of(pod, &name)).await;
    let mut found = found.map_err(api("reading the pod of the archive"))?;
    found.retain(|pod| pod.metadata.deletion_timestamp.is_none());
    found.sort_by_key(|pod| pod.metadata.creation_timestamp.clone());
    let address = |pod: &Pod| pod.status.as_ref()?.pod_ip.clone();
    if let Some(address) = found.iter().rev().filter(|pod| is_ready(pod)).find_map(address) {
        let Some(_permit) = context.prober.acquire().await else {
            return Ok(ArchiveState::Silent("the operator is shutting down".to_owned()));
        };
        return Ok(match probe::ask_archive(&address).await {
            Ok(state) => state,
            Err(why) => ArchiveState::Silent(why),
        });
    }
    let now = Timestamp::now().as_second();
    let stuck = found.last().and_then(|pod| status::pod_stuck(pod, now));
    let why = stuck.map(|stuck| format!("{}: {}", stuck.reason, stuck.message));
    let why = why.or_else(|| found.iter().rev().find_map(BrainRefusal::of_end).map(|end| end.message));
    let refused = || live.and_then(archive::refused_pods);
    Ok(ArchiveState::Missing(why.or_else(refused)))
}
