//! Computes the status from the observed state. Pure; the caller passes the clock.
//!
//! Invariants: conditions keep their transition time unless their status flips. The status does not change between passes while nothing
//! happens, so a settled cluster costs no writes.

use crds::KubeBrainCluster;
use crds::cluster::image::LocalRef;
use crds::cluster::status::{
    BundleKind, BundleRef, CaStatus, CertificateStatus, Connection, Endpoints, KubeBrainClusterStatus, LeaderStatus,
    MemberRole, MemberStatus, NextCa, RolloutStatus, SpaceLimit, StorageStatus,
};
use crds::cluster::tls::TlsMode;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::advisory::{self, MemberVersions};
use crate::applied::AppliedSteps;
use crate::archive;
use crate::bootstrap;
use crate::certificates::Leaf;
use crate::member::BrainRole;
use crate::names::{self, CLIENT_PORT, Names};
use crate::objects::{ObjectKey, ObjectKind};
use crate::observed::{Observed, is_ready};
use crate::space::{self, SeenSpace, StoreSpace, growth};
use crate::spec::is_external;
use crate::spec::{self, Desired, DesiredStorage};
use crate::steps::leadership::LeaderState;
use crate::steps::{Plan, revision, seen_store};

mod change;
mod conditions;
pub mod documented_reasons;
mod facts;
mod lock;
mod merge;
mod pod;
#[cfg(test)]
mod tests;

pub use change::ChangeInProgress;
pub use conditions::{ConditionStatus, ConditionUpdate};
pub use facts::ConditionFacts;
pub use merge::merge;
pub(crate) use merge::replace;
pub use pod::{UNSCHEDULABLE, sandbox_awaited_since, stuck as pod_stuck};

const OPERATOR_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The parts of a pass that the status needs.
pub struct StatusInput<'a> {
    pub desired: &'a Desired,
    pub observed: &'a Observed,
    pub plan: &'a Plan,
    pub applied: &'a AppliedSteps,
}

/// Returns the very first status: every condition, although nothing is known yet.
pub fn first(cluster: &KubeBrainCluster, now: Timestamp) -> KubeBrainClusterStatus {
    publishable(cluster, KubeBrainClusterStatus::default(), &conditions::first(), now)
}

/// Returns the status of a cluster that is deleted, while its keys are wiped; `trouble` is true if this fails.
pub fn deleting(cluster: &KubeBrainCluster, message: &str, trouble: bool, now: Timestamp) -> KubeBrainClusterStatus {
    let previous = cluster.status.clone().unwrap_or_default();
    let updates = conditions::deleting(message, trouble, previous.conditions.as_deref().unwrap_or_default());
    publishable(cluster, previous, &updates, now)
}

/// Returns the status when reads or writes fail repeatedly: everything else stays and describes the last observation.
pub fn failing(cluster: &KubeBrainCluster, message: &str, now: Timestamp) -> KubeBrainClusterStatus {
    let mut status = of_known(cluster);
    let generation = status.observed_generation;
    let previous = status.conditions.take().unwrap_or_default();
    let update = ConditionUpdate::new("Degraded", ConditionStatus::True, "ReconcileError", message);
    status.conditions = Some(merge::replace(&previous, &update, generation, now));
    status
}

/// Returns the present status without the conditions of others.
pub fn of_known(cluster: &KubeBrainCluster) -> KubeBrainClusterStatus {
    let mut status = cluster.status.clone().unwrap_or_default();
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(is_own);
    }
    status
}

/// Returns true for a condition of the operator. Conditions of other types belong to others.
fn is_own(condition: &Condition) -> bool {
    let optional = [
        "Stalled",
        space::CONDITION,
        archive::CONDITION,
        bootstrap::CONDITION,
        advisory::CONDITION,
    ];
    optional.contains(&&*condition.type_) || conditions::PERMANENT_CONDITIONS.contains(&&*condition.type_)
}

/// Returns the status after a pass.
pub fn of(cluster: &KubeBrainCluster, pass: &StatusInput<'_>) -> KubeBrainClusterStatus {
    let previous = cluster.status.clone().unwrap_or_default();
    let now = pass.observed.now;
    let leader = leader(pass, previous.leader.as_ref());
    let facts = ConditionFacts::gather(cluster, pass);
    let seen_space = seen_space(pass, previous.space.as_ref().map(|space| space.limit));
    let rollout = &pass.plan.rollout;
    let names = &pass.desired.names;
    let complete = matches!(facts.change, ChangeInProgress::None | ChangeInProgress::Resizing(_)) && facts.is_serving();
    let handled = rollout.transfer.as_ref();
    let handled = handled.filter(|transfer| transfer.is_handled(pass.applied.handed_over));
    let status = KubeBrainClusterStatus {
        replicas: Some(count(rollout.pods)),
        ready_replicas: Some(count(rollout.ready)),
        updated_replicas: Some(count(rollout.updated)),
        selector: Some(selector(cluster, names)),
        version: version(pass).filter(|_| complete).or(previous.version.clone()),
        image: Some(pass.desired.image.clone()),
        pinned_image: if complete && is_applied(pass) && !is_external(cluster) {
            Some(spec::pinned_image(cluster, &pass.desired.image))
        } else {
            let unrecorded = spec::unrecorded_image(cluster).map(|image| spec::pinned_image(cluster, &image));
            previous.pinned_image.clone().or(unrecorded)
        },
        pinned_replicas: pass
            .plan
            .replicas
            .filter(|_| pass.applied.failure.is_none())
            .or(previous.pinned_replicas),
        current_revision: if complete {
            rollout.revision.clone()
        } else {
            previous.current_revision.clone()
        },
        update_revision: rollout.revision.clone(),
        leader,
        members: Some(members(pass)),
        connection: Some(connection(cluster, pass)),
        storage: Some(storage(cluster, pass)),
        space: space::status(previous.space.as_deref(), seen_space, now).map(Box::new),
        certificates: pass.desired.certificates.as_ref().map(|_| certificates(pass)),
        ca: authority(pass, previous.ca.clone()),
        rollout: rollout_status(cluster, pass, &facts),
        bootstrap: bootstrap::status(cluster, pass.plan.bootstrap.as_ref(), pass.observed).map(Box::new),
        backup: archive::status(cluster, &pass.observed.archive, pass.observed.last_backup.as_ref()),
        managed_by: previous.managed_by.clone(),
        last_handled_restart: pass.desired.restart.at.clone(),
        last_handled_transfer: handled
            .map(|transfer| transfer.wish.clone())
            .or(previous.last_handled_transfer.clone()),
        conditions: previous.conditions.clone(),
        ..KubeBrainClusterStatus::default()
    };
    // Under a refused spec, the values that were accepted before remain.
    let status = match pass.desired.refusal() {
        None => status,
        Some(_) => KubeBrainClusterStatus {
            image: previous.image,
            pinned_image: previous.pinned_image,
            connection: previous.connection,
            storage: previous.storage,
            last_handled_restart: previous.last_handled_restart,
            last_handled_transfer: previous.last_handled_transfer,
            ..status
        },
    };
    let mut updates = conditions::judge(&facts);
    let before = status.conditions.as_deref().unwrap_or_default();
    let quota_remedy = match is_external(cluster) {
        true => "delete keys, compact, or raise --quota-backend-bytes",
        false => "delete keys, compact, or raise spec.quota",
    };
    let disk_remedy = growth::remedy(pass.desired.storage.embedded(), &pass.plan.claims);
    let remedies = (quota_remedy, disk_remedy);
    updates.extend(space::condition(before, seen_space, status.space.as_deref(), remedies));
    updates.extend(bootstrap::condition(cluster, before, pass.plan.bootstrap.as_ref()));
    updates.extend(archive::condition(before, &pass.observed.archive));
    // A cluster without members runs no version.
    if facts.replicas > 0 || !pass.observed.pods.is_empty() {
        updates.extend(advisory::condition(
            before,
            &pass.observed.advisories,
            &member_versions(pass),
        ));
    }
    publishable(cluster, status, &updates, now)
}

/// Returns the change in progress and the time when it began; `None` if there is none.
fn rollout_status(cluster: &KubeBrainCluster, pass: &StatusInput<'_>, facts: &ConditionFacts) -> Option<RolloutStatus> {
    let rollout = &pass.plan.rollout;
    // A hand-over that was not requested from a member is not in progress.
    let hand_over = rollout.hand_over.clone().filter(|_| pass.applied.asked);
    let type_ = facts.change.rollout_type();
    let in_flight = type_.is_some() || hand_over.is_some();
    if !in_flight || (facts.replicas == 0 && facts.pods == 0) {
        return None;
    }
    let previous = cluster.status.as_ref();
    let before = previous.and_then(|status| status.rollout.clone());
    let now = Some(Time(whole_seconds(pass.observed.now)));
    let same = before.filter(|before| before.generation == cluster.metadata.generation);
    let same = same.filter(|before| before.type_.is_some() == type_.is_some());
    let moved = change::has_moved(cluster, pass);
    let lost = i32::from(pass.plan.lost_trial && pass.desired.held.is_none());
    let losses = same.as_ref().and_then(|same| same.trial_losses).unwrap_or_default() + lost;
    Some(RolloutStatus {
        generation: cluster.metadata.generation,
        type_,
        started_at: same
            .as_ref()
            .and_then(|same| same.started_at.clone())
            .or_else(|| now.clone()),
        last_progress_at: same
            .as_ref()
            .filter(|_| !moved)
            .and_then(|same| same.last_progress_at.clone())
            .or(now),
        step: rollout.step.map(str::to_owned),
        waiting_for: rollout.waiting.clone().or_else(|| pass.plan.trial.clone()),
        trial_losses: (losses > 0).then_some(losses),
        hand_over,
    })
}

/// Returns true if `published` equals `status`, ignoring conditions of others.
pub fn is_published(published: Option<&KubeBrainClusterStatus>, status: &KubeBrainClusterStatus) -> bool {
    let Some(mut published) = published.cloned() else {
        return false;
    };
    if let Some(conditions) = &mut published.conditions {
        conditions.retain(is_own);
    }
    published == *status
}

fn publishable(
    cluster: &KubeBrainCluster,
    mut status: KubeBrainClusterStatus,
    updates: &[ConditionUpdate],
    now: Timestamp,
) -> KubeBrainClusterStatus {
    let generation = cluster.metadata.generation;
    let previous = status.conditions.take().unwrap_or_default();
    status.observed_generation = generation;
    status.operator_version = Some(OPERATOR_VERSION.to_owned());
    status.conditions = Some(merge(&previous, updates, generation, now));
    status
}

/// Returns the leader with the time when it was first seen.
fn leader(pass: &StatusInput<'_>, previous: Option<&LeaderStatus>) -> Option<LeaderStatus> {
    let LeaderState::Held { pod, epoch } = &pass.plan.lead else {
        return None;
    };
    let same = previous.filter(|leader| leader.member == *pod && leader.epoch == Some(*epoch));
    let since = same
        .and_then(|leader| leader.since.clone())
        .unwrap_or(Time(whole_seconds(pass.observed.now)));
    Some(LeaderStatus {
        member: pod.clone(),
        epoch: Some(*epoch),
        since: Some(since),
    })
}

fn member_versions(pass: &StatusInput<'_>) -> MemberVersions {
    let probes = &pass.observed.probes;
    let answers = |pod: &&Pod| matches!(probes.get(&pod.name_any()), Some(Ok(_)));
    let answering = pass.observed.pods.iter().filter(answers).count();
    let wanted = usize::try_from(pass.desired.replicas).unwrap_or_default();
    MemberVersions {
        reported: probes.values().flatten().map(|answer| answer.version.clone()).collect(),
        is_partial: answering < wanted.max(pass.observed.pods.len()),
    }
}

/// Returns the version that every member reports; `None` if they differ, or one of them reports none.
fn version(pass: &StatusInput<'_>) -> Option<String> {
    let staying = pass.observed.pods.iter();
    let staying = staying.filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let mut reported = staying.map(|pod| Some(&pass.observed.probes.get(&pod.name_any())?.as_ref().ok()?.version));
    let first = reported.next()??;
    reported.all(|other| other == Some(first)).then(|| first.clone())
}

/// Returns the role of a member. A silent member leads if the others report it; one that reports itself as the leader may be out of date.
fn role(lead: &LeaderState, pod: &str, says: Option<BrainRole>) -> MemberRole {
    match (lead, says) {
        (LeaderState::Held { pod: leader, .. }, _) if leader == pod => MemberRole::Leader,
        (_, Some(BrainRole::Follower)) | (LeaderState::Held { .. }, Some(BrainRole::Leader)) => MemberRole::Follower,
        _ => MemberRole::Unknown,
    }
}

fn members(pass: &StatusInput<'_>) -> Vec<MemberStatus> {
    let staying = pass
        .observed
        .pods
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none());
    staying
        .map(|pod| {
            let name = pod.name_any();
            let answer = pass.observed.probes.get(&name);
            let (says, member_id, message) = match answer {
                Some(Ok(answer)) => {
                    let alarms = (!answer.alarms.is_empty()).then(|| answer.alarms.join("; "));
                    let message = alarms.or_else(|| pod::lacks(answer, pass.plan.lead.pod()));
                    (Some(answer.role), Some(format!("{:x}", answer.member)), message)
                }
                Some(Err(error)) => (None, None, Some(error.clone())),
                None => (None, None, pod::trouble(pod)),
            };
            MemberStatus {
                member_id,
                role: role(&pass.plan.lead, &name, says),
                ready: is_ready(pod),
                node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
                zone: pod.labels().get("topology.kubernetes.io/zone").cloned(),
                version: answer.and_then(|answer| answer.as_ref().ok().map(|answer| answer.version.clone())),
                revision: revision(pod).map(str::to_owned),
                message,
                name,
            }
        })
        .collect()
}

/// Returns the selector of the pods as text for the scale subresource.
fn selector(cluster: &KubeBrainCluster, names: &Names) -> String {
    let given = cluster.spec.workload.selector.as_ref().filter(|_| is_external(cluster));
    let given = given.and_then(|selector| selector.match_labels.clone());
    names::selector_text(&given.unwrap_or_else(|| names.selector()))
}

/// Returns the space that the leader reports.
fn seen_space(pass: &StatusInput<'_>, before: Option<SpaceLimit>) -> SeenSpace {
    let leader = pass.plan.lead.pod().and_then(|pod| pass.observed.probes.get(pod));
    let Some(Ok(leader)) = leader else {
        return SeenSpace::Unknown;
    };
    let nearest = leader.space.as_ref().and_then(|space| StoreSpace::of(space, before));
    nearest.map_or(SeenSpace::Unlimited, SeenSpace::Limited)
}

/// Returns the storage of the data. Id and prefix of TiKV keep the values that were recorded first.
fn storage(cluster: &KubeBrainCluster, pass: &StatusInput<'_>) -> StorageStatus {
    let tikv = pass.desired.storage.tikv();
    let seen = || {
        let answers = pass.observed.probes.values().flatten();
        answers.into_iter().find_map(|answer| answer.storage.cluster_id.clone())
    };
    let before = cluster.status.as_ref().and_then(|status| status.storage.as_ref());
    StorageStatus {
        type_: format!("{:?}", cluster.spec.storage.type_),
        cluster_id: tikv.and_then(|tikv| tikv.cluster_id.clone().or_else(seen)),
        store_id: store_id(pass, before.and_then(|before| before.store_id.clone())),
        accepted_store_id: accepted_store(cluster, pass, before),
        key_prefix: tikv.map(|tikv| tikv.key_prefix.clone()),
        capacity: pass.plan.claims.capacity.clone(),
        pd_endpoints: tikv.map(|tikv| tikv.pd_endpoints.clone()),
    }
}

/// Returns true if the StatefulSet has the wanted template, as far as it is known.
fn is_applied(pass: &StatusInput<'_>) -> bool {
    let set = ObjectKey::new(ObjectKind::StatefulSet, &pass.desired.names.cluster);
    pass.desired.held.is_none() && !pass.plan.is_blocked() && !pass.plan.contested.contains_key(&set)
}

/// Returns the id of the store. For an embedded store it is the first one that served, until it is given up and another one serves. Below a
/// prefix of TiKV, whose owner the brains check themselves, it is the one that served last. Before any one serves, it is the restored one.
fn store_id(pass: &StatusInput<'_>, before: Option<String>) -> Option<String> {
    let seen = seen_store(pass.desired, pass.observed).map(str::to_owned);
    match (&pass.desired.store, &pass.desired.storage) {
        (Some(_), DesiredStorage::Embedded(_)) => before,
        _ => seen.or(before).or_else(|| {
            let restored = pass.plan.bootstrap.as_ref()?.store_id()?;
            Some(restored.to_owned())
        }),
    }
}

/// Returns the annotation that gave a store up, from the time when another store serves until the annotation changes: it gives up only the
/// store that was lost when it was set.
fn accepted_store(
    cluster: &KubeBrainCluster,
    pass: &StatusInput<'_>,
    before: Option<&StorageStatus>,
) -> Option<String> {
    let accepted = spec::accepted_store(cluster)?;
    let before = before?;
    let is_handled = before.accepted_store_id.as_ref() == Some(accepted);
    let is_in_force = before.store_id.as_ref() == Some(accepted) && pass.desired.store.is_none();
    let serves = seen_store(pass.desired, pass.observed).is_some();
    (is_handled || (is_in_force && serves)).then(|| accepted.clone())
}

fn connection(cluster: &KubeBrainCluster, pass: &StatusInput<'_>) -> Connection {
    let (tls, names) = (&cluster.spec.tls, &pass.desired.names);
    let (bundle, client) = match tls.mode {
        TlsMode::Disabled => (None, None),
        TlsMode::Operator => {
            let bundle = BundleRef {
                kind: BundleKind::ConfigMap,
                name: names.bundle(),
                key: "ca.crt".to_owned(),
            };
            (Some(bundle), Some(names.leaf(Leaf::ApiserverClient)))
        }
        TlsMode::Secret => {
            let bundle = tls.secrets.as_ref().map(|secrets| BundleRef {
                kind: BundleKind::Secret,
                name: secrets.ca_bundle.name.clone(),
                key: secrets.ca_bundle.key.clone(),
            });
            (bundle, None)
        }
    };
    Connection {
        endpoints: Some(endpoints(cluster, pass)),
        ca_bundle_ref: bundle,
        client_secret_ref: client.map(|name| LocalRef { name }),
    }
}

fn endpoints(cluster: &KubeBrainCluster, pass: &StatusInput<'_>) -> Endpoints {
    let names = &pass.desired.names;
    let scheme = match cluster.spec.tls.mode {
        TlsMode::Disabled => "http",
        TlsMode::Operator | TlsMode::Secret => "https",
    };
    let url = |host: String| format!("{scheme}://{host}:{CLIENT_PORT}");
    let leader = cluster
        .spec
        .services
        .leader
        .enabled
        .then(|| url(names.host(&names.leader())));
    let members: Vec<String> = if is_external(cluster) {
        let pods = pass.observed.pods.iter();
        pods.filter_map(|pod| resolvable(pod, &names.headless())).collect()
    } else {
        (0..pass.desired.replicas).map(|ordinal| names.pod(ordinal)).collect()
    };
    Endpoints {
        client: Some(url(names.host(&names.client()))),
        leader,
        members: Some(members.iter().map(|pod| url(names.member_host(pod))).collect()),
    }
}

/// Returns the DNS name of a pod that the user creates; `None` unless the pod has the headless Service as its subdomain.
fn resolvable(pod: &Pod, headless: &str) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let stays = pod.metadata.deletion_timestamp.is_none() && spec.subdomain.as_deref() == Some(headless);
    stays.then(|| spec.hostname.clone().unwrap_or_else(|| pod.name_any()))
}

/// Returns the certificates that this pass issued, and the existing ones.
fn certificates(pass: &StatusInput<'_>) -> Vec<CertificateStatus> {
    let mut stored = pass.plan.certificates.leaves.clone();
    stored.extend(pass.applied.leaves.clone());
    stored
        .into_values()
        .map(|stored| CertificateStatus {
            secret_name: stored.secret,
            not_after: Some(Time(stored.certificate.not_after)),
            renewal_time: stored.renewal.map(|renewal| Time(whole_seconds(renewal))),
            ca_generation: stored.generation,
        })
        .collect()
}

/// Returns the recorded authority. The record is never dropped: without it a lost authority would look like one that never existed.
fn authority(pass: &StatusInput<'_>, previous: Option<CaStatus>) -> Option<CaStatus> {
    let seen = pass
        .applied
        .authority
        .as_ref()
        .or(pass.plan.certificates.authority.as_ref());
    let Some(seen) = seen else { return previous };
    Some(CaStatus {
        generation: seen.generation,
        phase: seen.phase.to_owned(),
        since: Some(Time(seen.since)),
        not_after: seen.not_after.map(Time),
        bundle: seen
            .bundle
            .clone()
            .or_else(|| previous.as_ref().and_then(|previous| previous.bundle.clone())),
        fingerprint: seen
            .fingerprint
            .clone()
            .or_else(|| previous.and_then(|previous| previous.fingerprint)),
        next: seen.next.clone().map(|(generation, fingerprint)| NextCa {
            generation,
            fingerprint,
        }),
    })
}

/// Truncates to whole seconds, as the API server does; a fraction would always differ.
pub fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
