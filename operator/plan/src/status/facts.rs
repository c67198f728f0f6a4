//! The facts that the conditions are computed from: a few plain values, gathered from a pass.

use std::time::Duration;

use crds::KubeBrainCluster;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::change::{self, ChangeInProgress};
use super::{ConditionStatus, StatusInput, lock, pod};
use crate::bootstrap::BootstrapObstacle;
use crate::certificates::CertificateProblem;
use crate::member::BrainRefusal;
use crate::names::ADOPT_CA;
use crate::observed::is_ready;
use crate::spec::{DesiredStorage, SpecRefusal};
use crate::steps::leadership::LeaderState;
use crate::steps::{CLUSTER_ID_CHANGED, DATA_REPLACED, Plan, claims, failed_trial};

/// Time before the end of an authority from which the conditions report it.
const AUTHORITY_WARNING: Duration = Duration::from_secs(30 * 24 * 3600);

/// A problem that only a user can resolve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocker {
    pub reason: &'static str,
    pub message: String,
}

/// State of the certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateState {
    /// TLS is disabled.
    Disabled,
    /// All certificates are valid for a while.
    Good,
    /// All certificates are valid, and the authority's key is being replaced.
    Rotating(String),
    /// All certificates are valid, and the authority expires soon.
    AuthorityExpires(String),
    /// Some certificates are missing.
    Missing(String),
    /// Some certificates are due for renewal, but were not renewed.
    Due(String),
    /// Some certificates have expired.
    Expired(String),
    /// They cannot be issued, or the given ones are unusable.
    Broken(CertificateProblem),
}

/// State of the volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeState {
    /// No volumes exist yet.
    None,
    Bound,
    /// A volume cannot grow, because its storage class does not allow it.
    NotExpandable(String),
    /// A volume did not grow, for this reason.
    ResizeFailed(String),
    Pending(String),
    Lost(String),
    /// A claim is being deleted; the text says what to do.
    Terminating(String),
    /// TiKV answers a member.
    Reachable,
    /// A member in a pod that the user creates serves from its data directory.
    Serving,
    /// No member reaches its storage, for this reason.
    Unreachable(String),
    /// Brains refuse the storage, for this reason.
    Refused {
        reason: &'static str,
        message: String,
    },
    /// A Secret for the connection to TiKV does not exist, or lacks a key.
    MissingSecret(String),
    /// No member has reported whether its storage can be reached.
    Unknown,
}

/// The facts that the conditions are computed from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionFacts {
    pub replicas: usize,
    pub ready: usize,
    pub pods: usize,
    /// Name of the leader's pod.
    pub leader: Option<String>,
    /// The holder of the leader lock, if it is another member.
    pub lock: Option<String>,
    /// Members serve, but too few answer the operator to decide whether one of them leads.
    pub lead_unknown: bool,
    /// The problem of a member, if there is one: `dev-0: …`.
    pub trouble: Option<String>,
    /// A member that does not start until a user acts.
    pub stuck: Option<Blocker>,
    /// Reason why the brains do not accept writes.
    pub alarm: Option<String>,
    pub change: ChangeInProgress,
    /// The change takes longer than the spec allows.
    pub overdue: bool,
    pub paused: bool,
    /// A request that is invalid or has no effect, with the reason.
    pub ignored: Option<String>,
    /// Steps exist that a pause holds back.
    pub pending: bool,
    pub trust: CertificateState,
    pub volumes: VolumeState,
    pub blocker: Option<Blocker>,
    /// Reason why the API server refuses missing pods.
    pub refused_pods: Option<Blocker>,
    /// The spec is the problem: it cannot be applied.
    pub refused: bool,
    /// Reason why a newer default image is not rolled out yet.
    pub image_waits: Option<String>,
    /// Objects that another manager keeps changing.
    pub contested: Option<String>,
    /// The step that failed, with the reason.
    pub failure: Option<String>,
    /// Time for which the cluster has not been ready.
    pub unready_for: Duration,
}

impl ConditionFacts {
    /// Returns true if every wanted member is ready and one of them leads; a suspended cluster has nothing to serve.
    pub fn is_serving(&self) -> bool {
        self.replicas > 0 && self.ready >= self.replicas && self.leader.is_some()
    }

    pub fn gather(cluster: &KubeBrainCluster, pass: &StatusInput<'_>) -> Self {
        let (plan, observed) = (pass.plan, pass.observed);
        let conditions = cluster
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_deref())
            .unwrap_or_default();
        let staying = || {
            observed
                .pods
                .iter()
                .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        };
        let alarms: Vec<String> = observed
            .probes
            .values()
            .flatten()
            .flat_map(|answer| answer.alarms.clone())
            .collect();
        let troubles = staying().filter_map(|pod| {
            let name = pod.name_any();
            let told = observed.probes.get(&name).and_then(|answer| match answer {
                Ok(answer) => pod::lacks(answer, plan.lead.pod()),
                Err(silence) => Some(silence.clone()),
            });
            let trouble = match pod::trouble(pod).filter(|_| !is_ready(pod)) {
                Some(trouble) if trouble == pod::NOT_READY => Some(match told {
                    Some(why) => format!("{trouble}: {why}"),
                    None => trouble,
                }),
                Some(trouble) => Some(trouble),
                None => told.filter(|_| observed.probes.get(&name).is_some_and(Result::is_err)),
            };
            trouble.map(|trouble| format!("{name}: {trouble}"))
        });
        let bootstrap = &observed.bootstrap;
        let refused_members = observed.refused_pods.as_deref().map(refused_pods);
        let refused_restore = bootstrap.refused_pods.as_deref().map(refused_pods);
        let volumes = volumes(pass);
        let stuck = staying().chain(&bootstrap.pods).find_map(|pod| {
            let stuck = pod::stuck(pod, observed.now.as_second())?;
            Some(match &volumes {
                VolumeState::Pending(claim) if pod::waits_for_volume(&stuck) => Blocker {
                    reason: "PendingVolume",
                    message: format!("no volume is bound to {claim}; {}", stuck.message),
                },
                _ => stuck,
            })
        });
        let mut facts = Self {
            replicas: usize::try_from(pass.desired.replicas).unwrap_or_default(),
            ready: plan.rollout.ready,
            pods: plan.rollout.pods + plan.rollout.terminating,
            leader: plan.lead.pod().map(str::to_owned),
            lock: lock::other_holder(cluster, pass, plan.lead.pod()),
            lead_unknown: plan.lead == LeaderState::Unknown && plan.rollout.ready > 0,
            trouble: troubles
                .into_iter()
                .next()
                .or_else(|| refused_members.as_ref().map(|refused| refused.message.clone())),
            refused_pods: refused_members.or(refused_restore),
            stuck,
            alarm: (!alarms.is_empty()).then(|| alarms.join("; ")),
            change: ChangeInProgress::None,
            overdue: false,
            paused: cluster.spec.paused,
            ignored: pass
                .desired
                .restart
                .ignored
                .clone()
                .or_else(|| quota(cluster))
                .or_else(|| plan.claims.auto_grow_ignored.clone()),
            pending: cluster.spec.paused
                && (plan.trial.is_some()
                    || plan.rollout.is_outside_window
                    || plan.safe_steps().len() < plan.steps.len()),
            trust: trust(cluster, pass),
            volumes,
            blocker: None,
            refused: pass.desired.refusal().is_some(),
            image_waits: pass.desired.image_waits.clone(),
            contested: contested(plan),
            failure: pass
                .applied
                .failure
                .as_ref()
                .map(|failure| format!("could not {}: {}", failure.step, failure.message)),
            unready_for: unready_for(conditions, observed.now.as_second()),
        };
        facts.blocker = blocker(pass, &facts.volumes).or_else(|| lock::stored_here(cluster, pass));
        if !facts.refused {
            facts.change = change::of(cluster, pass, &facts);
            facts.overdue = change::is_overdue(cluster, pass, &facts.change);
        }
        facts
    }
}

/// Returns a message if a quota is larger than the volume.
fn quota(cluster: &KubeBrainCluster) -> Option<String> {
    let (quota, embedded) = (cluster.spec.quota.as_ref()?, cluster.spec.storage.embedded.as_ref()?);
    let (size, field) = match &embedded.auto_grow {
        Some(auto) => (&auto.max, "autoGrow.max"),
        None => (&embedded.size, "size"),
    };
    let (bytes, room) = (crate::quantity::parse(quota)?, crate::quantity::parse(size)?);
    (bytes > room).then(|| {
        format!(
            "quota {} is larger than storage.embedded.{field} {}: the volume is full before the quota is reached",
            quota.0, size.0
        )
    })
}

fn contested(plan: &Plan) -> Option<String> {
    let named = plan.contested.iter();
    let named: Vec<String> = named
        .map(|(key, contested)| format!("{key}: {}", contested.field))
        .collect();
    (!named.is_empty()).then(|| format!("another client keeps changing {}", named.join(", ")))
}

fn unready_for(conditions: &[Condition], now: i64) -> Duration {
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
    let since = ready
        .filter(|ready| ready.status != ConditionStatus::True.as_str())
        .map(|ready| ready.last_transition_time.0.as_second());
    Duration::from_secs(since.map_or(0, |since| u64::try_from(now - since).unwrap_or_default()))
}

fn trust(cluster: &KubeBrainCluster, pass: &StatusInput<'_>) -> CertificateState {
    let Some(wanted) = &pass.desired.certificates else {
        return CertificateState::Disabled;
    };
    let certificates = &pass.plan.certificates;
    if let Some(problem) = &certificates.problem {
        return CertificateState::Broken(problem.clone());
    }
    let now = pass.observed.now;
    let mut due = None;
    for (leaf, _) in wanted {
        let name = pass.desired.names.leaf(*leaf);
        let Some(stored) = pass.applied.leaves.get(leaf).or(certificates.leaves.get(leaf)) else {
            return CertificateState::Missing(format!("{name} holds no certificate"));
        };
        if now >= stored.certificate.not_after {
            return CertificateState::Expired(format!("the certificate in {name} has expired"));
        }
        if stored.renewal.is_some_and(|renewal| now >= renewal) {
            let end = stored.certificate.not_after;
            let why = certificates
                .waiting
                .as_ref()
                .map_or_else(String::new, |why| format!(": {why}"));
            due = Some(format!(
                "the certificate in {name} is due for renewal and expires at {end}{why}"
            ));
        }
    }
    let rotating = certificates.waiting.clone().map(CertificateState::Rotating);
    due.map(CertificateState::Due)
        .or(rotating)
        .or_else(|| authority_expires(cluster, pass).map(CertificateState::AuthorityExpires))
        .unwrap_or(CertificateState::Good)
}

/// The operator renews its own authority years before it expires; the user renews the user's own.
fn authority_expires(cluster: &KubeBrainCluster, pass: &StatusInput<'_>) -> Option<String> {
    let seen = pass.applied.authority.as_ref();
    let end = seen.or(pass.plan.certificates.authority.as_ref())?.not_after?;
    let left = end.duration_since(pass.observed.now);
    if Duration::try_from(left).is_ok_and(|left| left > AUTHORITY_WARNING) {
        return None;
    }
    let given = cluster.spec.tls.ca_secret_ref.as_ref();
    let name = given.map_or_else(|| pass.desired.names.authority(), |given| given.name.clone());
    Some(format!(
        "the certificate authority in Secret {name} expires at {end}, and every certificate with it: replace it by one that expires later"
    ))
}

/// Evaluates the members' reports of TiKV. The error of a member that does not accept clients yet names the dependency it waits for.
fn reach(pass: &StatusInput<'_>) -> VolumeState {
    if let Some(refusal) = pass
        .plan
        .blocker
        .as_ref()
        .filter(|refusal| [CLUSTER_ID_CHANGED, DATA_REPLACED].contains(&refusal.reason))
    {
        let SpecRefusal { reason, message } = refusal.clone();
        return VolumeState::Refused { reason, message };
    }
    if let Some(why) = missing_secret(pass) {
        return VolumeState::MissingSecret(why);
    }
    let answers: Vec<_> = pass.observed.probes.values().collect();
    if answers
        .iter()
        .any(|answer| matches!(answer, Ok(answer) if answer.storage.reachable))
    {
        return VolumeState::Reachable;
    }
    if answers.iter().any(|answer| answer.is_ok()) {
        return VolumeState::Unreachable("members get no answer from TiKV".to_owned());
    }
    if let Some(refused) = refused(pass) {
        return refused;
    }
    let waiting = answers
        .iter()
        .find_map(|answer| answer.as_ref().err()?.strip_prefix("it answered 503: "));
    waiting.map_or(VolumeState::Unknown, |why| VolumeState::Unreachable(why.to_owned()))
}

/// Evaluates the members' reports of a data directory that the user provides.
fn serving(pass: &StatusInput<'_>) -> VolumeState {
    let mut answers = pass.observed.probes.values().flatten().peekable();
    if answers.peek().is_none() {
        return VolumeState::Unknown;
    }
    if answers.any(|answer| answer.storage.reachable) {
        VolumeState::Serving
    } else {
        VolumeState::Unreachable("no member can use its data directory".to_owned())
    }
}

/// Returns the missing part of the Secrets for the connection to TiKV: pods wait for them before they start.
fn missing_secret(pass: &StatusInput<'_>) -> Option<String> {
    let tls = pass.desired.storage.tikv()?.tls.as_ref()?;
    let client = &tls.client_secret_ref.name;
    let wanted = [
        (&tls.ca_secret_ref.name, tls.ca_secret_ref.key.as_str()),
        (client, "tls.crt"),
        (client, "tls.key"),
    ];
    wanted.into_iter().find_map(|(name, key)| {
        let given = pass.observed.given_secrets.get(name)?;
        let Some(secret) = given else {
            return Some(format!("Secret {name} does not exist: storage.tikv.tls names it"));
        };
        let has = secret.data.as_ref().is_some_and(|data| data.contains_key(key));
        (!has).then(|| format!("Secret {name} has no {key}: storage.tikv.tls names it"))
    })
}

/// Evaluates the storage reports of brains that do not serve. Older brains report it only as text.
fn refused(pass: &StatusInput<'_>) -> Option<VolumeState> {
    let observed = pass.observed;
    // The report of a running brain is newer than the reason why the previous container ended, but a new brain has no report yet.
    let newest = |pod: &Pod| {
        let running = observed.refusals.get(&pod.name_any()).cloned();
        running
            .filter(|refusal| refusal.code != "Starting")
            .or_else(|| BrainRefusal::of_end(pod))
    };
    let told: Vec<BrainRefusal> = observed.pods.iter().filter_map(newest).collect();
    let by_code = told.iter().find_map(|refusal| {
        let reason = match refusal.code.as_str() {
            "PrefixTaken" => "PrefixTaken",
            "PrefixWiping" => "PrefixWiping",
            "ClusterIDMismatch" => "ClusterIDChanged",
            "FormatTooNew" | "FormatTooOld" => "FormatRefused",
            "Corrupt" => "Corrupt",
            _ => return None,
        };
        Some(VolumeState::Refused {
            reason,
            message: refusal.message.clone(),
        })
    });
    by_code.or_else(|| {
        let away = |refusal: &&BrainRefusal| matches!(refusal.code.as_str(), "StorageUnreachable" | "");
        let why = told.iter().find(away)?.message.clone();
        Some(VolumeState::Unreachable(why))
    })
}

fn volumes(pass: &StatusInput<'_>) -> VolumeState {
    match pass.desired.storage {
        DesiredStorage::Tikv(_) => return reach(pass),
        DesiredStorage::Unmanaged => return serving(pass),
        DesiredStorage::Embedded(_) => {}
    }
    let replaced = pass.plan.blocker.clone();
    if let Some(SpecRefusal { reason, message }) = replaced.filter(|refusal| refusal.reason == DATA_REPLACED) {
        return VolumeState::Refused { reason, message };
    }
    let seen = &pass.plan.claims;
    if !seen.lost.is_empty() {
        return VolumeState::Lost(seen.lost.join(", "));
    }
    if let Some(SpecRefusal { message, .. }) = claims::terminating(pass.desired, pass.observed) {
        return VolumeState::Terminating(message);
    }
    if !seen.pending.is_empty() {
        return VolumeState::Pending(seen.pending.join(", "));
    }
    if let Some((claim, why)) = pass.applied.refused_claims.first_key_value() {
        let message = format!("{claim} cannot grow: {why}");
        // This is the wording of the API server's admission of claims.
        return if why.contains("must support resize") {
            VolumeState::NotExpandable(message)
        } else {
            VolumeState::ResizeFailed(message)
        };
    }
    if let Some((claim, why)) = seen.infeasible.first_key_value() {
        return VolumeState::ResizeFailed(format!("{claim} cannot grow: {why}"));
    }
    if seen.count == 0 {
        return VolumeState::None;
    }
    let refused =
        refused(pass).filter(|refused| matches!(refused, VolumeState::Refused { .. }) && pass.plan.rollout.ready == 0);
    refused.unwrap_or(VolumeState::Bound)
}

/// Returns a refusal of pods, in the words of the StatefulSet's controller.
fn refused_pods(words: &str) -> Blocker {
    // The quota is exceeded, or requires a limit that the pods do not have.
    let reason = if words.contains("exceeded quota") || words.contains("failed quota") {
        "QuotaExceeded"
    } else {
        "PodsRefused"
    };
    Blocker {
        reason,
        message: words.to_owned(),
    }
}

fn blocker(pass: &StatusInput<'_>, volumes: &VolumeState) -> Option<Blocker> {
    let plan = pass.plan;
    if let Some(refusal) = pass.desired.refusal() {
        return Some(Blocker {
            reason: refusal.reason,
            message: refusal.message.clone(),
        });
    }
    if !plan.foreign.is_empty() {
        let names: Vec<String> = plan.foreign.iter().map(ToString::to_string).collect();
        let mut message = format!(
            "not owned by this cluster, so not changed: {}; delete or rename these objects",
            names.join(", ")
        );
        if let Some(fingerprint) = &plan.certificates.adoptable {
            message += &format!(
                ", or, to adopt the key that a deleted cluster left in Secret {}, set the annotation {ADOPT_CA} to {fingerprint}",
                pass.desired.names.authority()
            );
        }
        return Some(Blocker {
            reason: "OwnershipConflict",
            message,
        });
    }
    if let Some(problem) = plan.certificates.problem.as_ref().filter(|_| plan.certificates.stalled) {
        return Some(Blocker {
            reason: problem.reason,
            message: problem.message.clone(),
        });
    }
    if let Some(SpecRefusal { reason, message }) = plan.blocker.clone() {
        return Some(Blocker { reason, message });
    }
    let bootstrap = plan.bootstrap.as_ref().and_then(|it| it.problem(pass.desired));
    if let Some(BootstrapObstacle { reason, message }) = bootstrap {
        return Some(Blocker { reason, message });
    }
    if let Some(why) = &pass.applied.refused_trial {
        let SpecRefusal { reason, message } =
            failed_trial(&pass.desired.names, &format!("the trial is refused: {why}"));
        return Some(Blocker { reason, message });
    }
    if let VolumeState::Refused { reason, message } = volumes
        && *reason == CLUSTER_ID_CHANGED
    {
        let message = message.clone();
        return Some(Blocker { reason, message });
    }
    if !plan.fixed.is_empty() {
        let message = format!(
            "the StatefulSet cannot change {}: delete it with --cascade=orphan to have it created again",
            plan.fixed.join(", ")
        );
        return Some(Blocker {
            reason: "ImmutableField",
            message,
        });
    }
    let failure = pass.applied.failure.as_ref().filter(|failure| failure.is_invalid)?;
    Some(Blocker {
        reason: "InvalidSpec",
        message: format!("could not {}: {}", failure.step, failure.message),
    })
}
