//! From what was seen to the status. Pure; the caller passes the clock.
//!
//! Invariants: conditions keep their transition time unless their status flips; nothing in the status changes from pass to pass
//! while nothing happens, so a settled cluster costs no writes.

use crds::KubeBrainCluster;
use crds::cluster::image::{KeyRef, LocalRef};
use crds::cluster::status::{
    CaStatus, CertificateStatus, Connection, Endpoints, KubeBrainClusterStatus, LeaderStatus, MemberRole, MemberStatus,
    NextCa, RolloutStatus, StorageStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::apply::Applied;
use crate::certificates::Leaf;
use crate::names::CLIENT_PORT;
use crate::observe::{Observed, is_ready};
use crate::plan::{Plan, revision};
use crate::probe::Role;
use crate::spec::{Desired, Refusal};

mod change;
mod conditions;
#[cfg(test)]
pub(crate) mod documented;
mod facts;
mod merge;
#[cfg(test)]
mod tests;

pub(crate) use change::Change;
pub(crate) use conditions::{Judgement, Verdict};
pub(crate) use facts::Facts;
pub(crate) use merge::merge;

const OPERATOR_VERSION: &str = env!("CARGO_PKG_VERSION");

/// One pass, as the status needs it.
pub(crate) struct Pass<'a> {
    pub(crate) desired: &'a Desired,
    pub(crate) observed: &'a Observed,
    pub(crate) plan: &'a Plan,
    pub(crate) applied: &'a Applied,
}

/// The very first status: every condition, though nothing is known yet.
pub(crate) fn first(cluster: &KubeBrainCluster, now: Timestamp) -> KubeBrainClusterStatus {
    publishable(cluster, KubeBrainClusterStatus::default(), &conditions::first(), now)
}

/// The status of a spec that cannot be acted on. What was seen before stays.
pub(crate) fn refused(cluster: &KubeBrainCluster, refusal: &Refusal, now: Timestamp) -> KubeBrainClusterStatus {
    let previous = cluster.status.clone().unwrap_or_default();
    let judgements = conditions::refused(refusal, previous.conditions.as_deref().unwrap_or_default());
    publishable(cluster, previous, &judgements, now)
}

/// The status when looking or writing fails again and again: all else stays, and speaks of what was seen last.
pub(crate) fn failing(cluster: &KubeBrainCluster, message: &str, now: Timestamp) -> KubeBrainClusterStatus {
    let mut status = cluster.status.clone().unwrap_or_default();
    let generation = status.observed_generation;
    let previous = status.conditions.take().unwrap_or_default();
    let judgement = Judgement::new("Degraded", Verdict::True, "ReconcileError", message);
    status.conditions = Some(merge::replace(&previous, &judgement, generation, now));
    status
}

/// The status after a pass.
pub(crate) fn of(cluster: &KubeBrainCluster, pass: &Pass<'_>) -> KubeBrainClusterStatus {
    let previous = cluster.status.clone().unwrap_or_default();
    let now = pass.observed.now;
    let leader = leader(pass, previous.leader.as_ref());
    let facts = Facts::gather(cluster, pass, leader.as_ref().map(|leader| leader.member.as_str()));
    let rollout = &pass.plan.rollout;
    let names = &pass.desired.names;
    let complete = facts.change == Change::None && facts.is_serving();
    let status = KubeBrainClusterStatus {
        replicas: Some(count(rollout.pods)),
        ready_replicas: Some(count(rollout.ready)),
        updated_replicas: Some(count(rollout.updated)),
        selector: Some(names.selector_text()),
        version: if complete {
            Some(cluster.spec.version.clone())
        } else {
            previous.version
        },
        image: Some(pass.desired.image.clone()),
        current_revision: if complete {
            rollout.revision.clone()
        } else {
            previous.current_revision
        },
        update_revision: rollout.revision.clone(),
        leader,
        members: Some(members(pass)),
        connection: Some(connection(cluster, pass.desired)),
        storage: Some(storage(cluster, pass)),
        certificates: pass.desired.certificates.as_ref().map(|_| certificates(pass)),
        ca: authority(pass, previous.ca),
        rollout: rollout_status(cluster, pass, &facts),
        last_handled_restart: pass.desired.restarted_at.clone(),
        last_handled_transfer: rollout.transfer.clone().or(previous.last_handled_transfer),
        ..KubeBrainClusterStatus::default()
    };
    let status = KubeBrainClusterStatus {
        conditions: previous.conditions,
        ..status
    };
    publishable(cluster, status, &conditions::judge(&facts), now)
}

/// The change in flight, and since when it goes on; nothing while none is.
fn rollout_status(cluster: &KubeBrainCluster, pass: &Pass<'_>, facts: &Facts) -> Option<RolloutStatus> {
    let rollout = &pass.plan.rollout;
    let in_flight = !matches!(facts.change, Change::None | Change::ByHand(_)) || rollout.hand_over.is_some();
    if !in_flight || (facts.replicas == 0 && facts.pods == 0) {
        return None;
    }
    let previous = cluster.status.as_ref();
    let before = previous.and_then(|status| status.rollout.clone());
    let now = Some(Time(whole_seconds(pass.observed.now)));
    let same = before.filter(|before| before.generation == cluster.metadata.generation);
    let counts = |status: &KubeBrainClusterStatus| (status.updated_replicas, status.ready_replicas, status.replicas);
    let moved = previous.map(counts)
        != Some((
            Some(count(rollout.updated)),
            Some(count(rollout.ready)),
            Some(count(rollout.pods)),
        ));
    Some(RolloutStatus {
        generation: cluster.metadata.generation,
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
        waiting_for: rollout.waiting.clone(),
        hand_over: rollout.hand_over.clone(),
    })
}

/// Whether `published` says what `status` says. Conditions of other types are somebody else's, and no difference.
pub(crate) fn is_published(published: Option<&KubeBrainClusterStatus>, status: &KubeBrainClusterStatus) -> bool {
    let Some(mut published) = published.cloned() else {
        return false;
    };
    if let Some(conditions) = &mut published.conditions {
        conditions.retain(|condition| condition.type_ == "Stalled" || conditions::ALWAYS.contains(&&*condition.type_));
    }
    published == *status
}

fn publishable(
    cluster: &KubeBrainCluster,
    mut status: KubeBrainClusterStatus,
    judgements: &[Judgement],
    now: Timestamp,
) -> KubeBrainClusterStatus {
    let generation = cluster.metadata.generation;
    let previous = status.conditions.take().unwrap_or_default();
    status.observed_generation = generation;
    status.operator_version = Some(OPERATOR_VERSION.to_owned());
    status.conditions = Some(merge(&previous, judgements, generation, now));
    status
}

/// The member that calls itself leader, in the highest epoch if several do. It keeps the time at which it was first seen.
fn leader(pass: &Pass<'_>, previous: Option<&LeaderStatus>) -> Option<LeaderStatus> {
    let answers = pass
        .observed
        .probes
        .iter()
        .filter_map(|(pod, answer)| answer.as_ref().ok().map(|answer| (pod, answer)));
    let (pod, answer) = answers
        .filter(|(_, answer)| answer.is_leader())
        .max_by_key(|(_, answer)| answer.epoch)?;
    let same = previous.filter(|leader| leader.member == *pod && leader.epoch == Some(answer.epoch));
    let since = same
        .and_then(|leader| leader.since.clone())
        .unwrap_or(Time(whole_seconds(pass.observed.now)));
    Some(LeaderStatus {
        member: pod.clone(),
        epoch: Some(answer.epoch),
        since: Some(since),
    })
}

fn members(pass: &Pass<'_>) -> Vec<MemberStatus> {
    let staying = pass
        .observed
        .pods
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none());
    staying
        .map(|pod| {
            let name = pod.name_any();
            let answer = pass.observed.probes.get(&name);
            let (role, member_id, message) = match answer {
                Some(Ok(answer)) => {
                    let role = match answer.role {
                        Role::Leader => MemberRole::Leader,
                        Role::Follower => MemberRole::Follower,
                        Role::None => MemberRole::Unknown,
                    };
                    let message = (!answer.alarms.is_empty()).then(|| answer.alarms.join("; "));
                    (role, Some(format!("{:x}", answer.member)), message)
                }
                Some(Err(error)) => (MemberRole::Unknown, None, Some(error.clone())),
                None => (MemberRole::Unknown, None, facts::trouble(pod)),
            };
            MemberStatus {
                member_id,
                role,
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

/// Where the data lies. Id and prefix of TiKV stay what they were when they were first known.
fn storage(cluster: &KubeBrainCluster, pass: &Pass<'_>) -> StorageStatus {
    let tikv = pass.desired.storage.tikv();
    let seen = || {
        let answers = pass.observed.probes.values().flatten();
        answers.into_iter().find_map(|answer| answer.storage.cluster_id.clone())
    };
    StorageStatus {
        type_: format!("{:?}", cluster.spec.storage.type_),
        cluster_id: tikv.and_then(|tikv| tikv.cluster_id.clone().or_else(seen)),
        key_prefix: tikv.map(|tikv| tikv.key_prefix.clone()),
        capacity: pass.plan.claims.capacity.clone(),
        pd_endpoints: tikv.map(|tikv| tikv.pd_endpoints.clone()),
    }
}

fn connection(cluster: &KubeBrainCluster, desired: &Desired) -> Connection {
    let secure = desired.certificates.is_some();
    Connection {
        endpoints: Some(endpoints(cluster, desired)),
        ca_bundle_ref: secure.then(|| KeyRef {
            name: desired.names.bundle(),
            key: "ca.crt".to_owned(),
        }),
        client_secret_ref: secure.then(|| LocalRef {
            name: desired.names.leaf(Leaf::ApiserverClient),
        }),
    }
}

fn endpoints(cluster: &KubeBrainCluster, desired: &Desired) -> Endpoints {
    let names = &desired.names;
    let scheme = if desired.certificates.is_some() {
        "https"
    } else {
        "http"
    };
    let url = |host: String| format!("{scheme}://{host}:{CLIENT_PORT}");
    let leader = cluster
        .spec
        .services
        .leader
        .enabled
        .then(|| url(names.host(&names.leader())));
    let members = (0..desired.replicas)
        .map(|ordinal| url(names.member_host(&names.pod(ordinal))))
        .collect();
    Endpoints {
        client: Some(url(names.host(&names.client()))),
        leader,
        members: Some(members),
    }
}

/// Those that this pass issued, and those that were there.
fn certificates(pass: &Pass<'_>) -> Vec<CertificateStatus> {
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

/// What is known of the authority. It is never forgotten: without it a lost authority would be taken for one that never was.
fn authority(pass: &Pass<'_>, previous: Option<CaStatus>) -> Option<CaStatus> {
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

/// The API server keeps whole seconds; a fraction would differ for ever.
pub(crate) fn whole_seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
