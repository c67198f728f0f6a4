//! Observes a cluster: owned objects, pods and claims from the stores, and the answers of the brains.
//!
//! Normally only brains are queried. The API server is queried for what the stores cannot know: an object that was refused because another
//! one of that name exists, an object in a store that lags, and the reason why pods are missing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crds::KubeBrainCluster;
use crds::cluster::tls::TlsMode;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use plan::bootstrap::ObservedBootstrap;
use plan::certificates::{CertificatePair, Leaf};
use plan::member::MemberAnswer;
use plan::objects::{ObjectKey, ObjectKind};
use plan::observed::Observed;
use plan::spec::{Desired, is_external};
use plan::{ownership, steps};

use crate::context::Context;
use crate::leader_watch::FollowedMember;
use crate::probe::{self, ClientIdentity, ProbeFailure, Prober};

mod by_name;
mod catch_up;
pub(crate) mod refused_pods;

pub(crate) use by_name::ask as ask_by_name;
pub(crate) use catch_up::{LateObjects, catch_up};

/// Maximum number of concurrent requests to brains of one cluster.
const CONCURRENT_PROBES: usize = 8;
/// Timeout for all probes of one reconcile together.
const PROBES_TIMEOUT: Duration = Duration::from_secs(8);
/// Maximum number of brains of one cluster that are queried in a pass.
const MAX_PROBED_MEMBERS: usize = 64;

/// Observes everything that belongs to a cluster. Objects that the stores do not show yet come from `late`.
///
/// # Errors
/// The API server refused or did not answer. A brain that does not answer is no error.
pub(crate) async fn observe(
    context: &Context,
    cluster: &KubeBrainCluster,
    desired: &Desired,
    late: LateObjects,
) -> kube::Result<Observed> {
    let names = &desired.names;
    let stores = &context.cache;
    let view = stores.view(&names.namespace, &names.cluster);
    let objects = view.objects.into_iter().map(|(kind, object)| {
        let key = ObjectKey::new(kind, object.name_any());
        (key, Arc::unwrap_or_clone(object))
    });
    let external = is_external(cluster);
    let pods = if external {
        context.external_pods.of(cluster).await?
    } else {
        view.pods
    };
    let mut observed = Observed {
        now: Timestamp::now(),
        objects: objects.collect(),
        pods: pods.into_iter().map(Arc::unwrap_or_clone).collect(),
        trial: None,
        claims: view.claims.into_iter().map(Arc::unwrap_or_clone).collect(),
        probes: BTreeMap::new(),
        applies: BTreeMap::new(),
        refusals: BTreeMap::new(),
        pod_monitors: stores.knows(ObjectKind::PodMonitor),
        given_secrets: context.user_secrets.of(cluster).await?,
        refused_pods: None,
        bootstrap: ObservedBootstrap::default(),
        archive: context.backups.archive(cluster),
        last_backup: context.backups.last_backup(cluster),
        advisories: context.advisories.known(),
    };
    late.overlay(&mut observed);
    ask_by_name(&context.client, cluster, desired, &mut observed).await?;
    observed.applies = context.apply_history.known(&names.namespace, observed.objects.keys());
    let uid = cluster.uid().unwrap_or_default();
    observed.trial = ownership::take_trial(&mut observed.pods, names, &uid);
    if !external {
        ownership::keep_own(&mut observed, names, &uid);
    }
    if !external {
        observed.refused_pods = refused_pods::look(&context.client, cluster, names, &observed).await;
    }
    let identity = identity(cluster, desired, &observed);
    let shown = identity.as_ref().ok().and_then(Option::as_ref);
    let members = members(desired, &observed, external, shown);
    let answers = Box::pin(ask(&context.prober, &members, &identity)).await;
    let refused = answers.iter().filter_map(|(pod, answer)| {
        let refusal = answer.as_ref().err()?.refusal.clone()?;
        Some((pod.clone(), refusal))
    });
    observed.refusals = refused.collect();
    let told = |answer: Result<MemberAnswer, ProbeFailure>| answer.map_err(|silence| silence.text);
    observed.probes = answers.into_iter().map(|(pod, answer)| (pod, told(answer))).collect();
    let answers = observed.probes.iter();
    let answers = answers.filter_map(|(pod, answer)| Some((pod.as_str(), answer.as_ref().ok()?)));
    context.leader_watches.follow(cluster, &members, &answers.collect());
    Ok(observed)
}

/// Returns the running brains that have an address, and how to reach them.
fn members(
    desired: &Desired,
    observed: &Observed,
    external: bool,
    identity: Option<&ClientIdentity>,
) -> Vec<FollowedMember> {
    let set = observed
        .objects
        .get(&ObjectKey::new(ObjectKind::StatefulSet, &desired.names.cluster));
    let set = set.and_then(|set| set.metadata.uid.as_deref());
    let pods = observed.pods.iter().filter(|pod| external || may_be_ours(pod, set));
    let running = pods.filter(|pod| pod.metadata.deletion_timestamp.is_none() && is_running(pod));
    let members = running.filter_map(|pod| {
        Some(FollowedMember {
            pod: pod.name_any(),
            uid: pod.uid()?,
            address: pod.status.as_ref()?.pod_ip.clone()?,
            host: desired.names.member_host(&pod.name_any()),
            identity: identity.cloned(),
        })
    });
    members.take(MAX_PROBED_MEMBERS).collect()
}

/// Queries every brain that has an address.
async fn ask(
    prober: &Prober,
    members: &[FollowedMember],
    identity: &Result<Option<ClientIdentity>, String>,
) -> BTreeMap<String, Result<MemberAnswer, ProbeFailure>> {
    let late = || {
        let text = "it was not queried in time: other members do not answer";
        Err(ProbeFailure::from(text.to_owned()))
    };
    let mut answers: BTreeMap<String, Result<MemberAnswer, ProbeFailure>> =
        members.iter().map(|member| (member.pod.clone(), late())).collect();
    let questions = futures::stream::iter(members.to_vec()).map(|member| async move {
        let pod = member.pod;
        let Some(_permit) = prober.acquire().await else {
            return (pod, Err(ProbeFailure::from("the operator is shutting down".to_owned())));
        };
        let answer = match identity {
            Ok(identity) => probe::ask(&member.address, &member.host, identity.as_ref()).await,
            Err(why) => Err(ProbeFailure::from(why.clone())),
        };
        (pod, answer)
    });
    let mut questions = std::pin::pin!(questions.buffer_unordered(CONCURRENT_PROBES));
    let collect = async {
        while let Some((pod, answer)) = questions.next().await {
            answers.insert(pod, answer);
        }
    };
    // Brains whose answer is still missing keep the answer that they were not asked.
    drop(tokio::time::timeout(PROBES_TIMEOUT, collect).await);
    answers
}

/// Returns true if a pod may run a brain of this cluster. A pod with another controller does not.
fn may_be_ours(pod: &Pod, set: Option<&str>) -> bool {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true));
    controller.is_none_or(|controller| Some(controller.uid.as_str()) == set)
}

/// Returns the operator's client certificate for brains, and the CA to verify them with; `None` without TLS.
///
/// # Errors
/// It does not exist yet, in words for the status.
pub(crate) fn identity(
    cluster: &KubeBrainCluster,
    desired: &Desired,
    observed: &Observed,
) -> Result<Option<ClientIdentity>, String> {
    let missing = || "the operator's certificate does not exist yet".to_owned();
    match cluster.spec.tls.mode {
        TlsMode::Disabled => Ok(None),
        TlsMode::Operator => stored(cluster, desired, observed).ok_or_else(missing).map(Some),
        TlsMode::Secret => given(cluster, observed).ok_or_else(missing).map(Some),
    }
}

/// Returns the operator's certificate and the published bundle, as stored. Foreign objects are not trusted.
fn stored(cluster: &KubeBrainCluster, desired: &Desired, observed: &Observed) -> Option<ClientIdentity> {
    let uid = cluster.uid().unwrap_or_default();
    let own = |kind, name: String| {
        let object = observed.objects.get(&ObjectKey::new(kind, name))?;
        let whose = ownership::of(&object.metadata, &desired.names.cluster, &uid);
        (whose == ownership::Ownership::Ours).then_some(object)
    };
    let secret = own(ObjectKind::Secret, desired.names.leaf(Leaf::OperatorClient))?;
    let bundle = own(ObjectKind::ConfigMap, desired.names.bundle())?;
    let CertificatePair { certificate, key } = steps::stored_pair(secret, "tls.crt", "tls.key")?;
    let trusted = bundle.data.get("data")?.get("ca.crt")?.as_str()?.to_owned();
    Some(ClientIdentity {
        certificate,
        key,
        trusted,
    })
}

/// Returns the same from Secrets of the user.
fn given(cluster: &KubeBrainCluster, observed: &Observed) -> Option<ClientIdentity> {
    let secrets = cluster.spec.tls.secrets.as_ref()?;
    let text = |name: &str, key: &str| {
        let secret = observed.given_secrets.get(name)?.as_ref()?;
        String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).ok()
    };
    let operator = &secrets.operator_client.name;
    Some(ClientIdentity {
        certificate: text(operator, "tls.crt")?,
        key: text(operator, "tls.key")?,
        trusted: text(&secrets.ca_bundle.name, &secrets.ca_bundle.key)?,
    })
}

fn is_running(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
}
