//! What the conditions are judged by: few plain values, gathered from a pass.

use std::time::Duration;

use crds::KubeBrainCluster;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::change::{self, Change};
use super::{Pass, Verdict};
use crate::certificates::Problem;
use crate::observe::is_ready;

/// Something that only a person can put out of the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Obstacle {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// State of the certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trust {
    /// TLS is disabled.
    Disabled,
    /// All are valid for a while.
    Good,
    /// All are valid, and the authority's key is being replaced.
    Rotating(String),
    /// Some are missing.
    Missing(String),
    /// Some are due for renewal, but were not renewed.
    Due(String),
    /// Some have ended.
    Expired(String),
    /// They cannot be issued, or the given ones do not serve.
    Broken(Problem),
}

/// State of the volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Volumes {
    /// There are none yet.
    None,
    Bound,
    /// A volume cannot grow, because its storage class does not allow it.
    NotExpandable(String),
    /// A volume did not grow, and why.
    ResizeFailed(String),
    Pending(String),
    Lost(String),
    /// TiKV answered a member just now.
    Reachable,
    /// No member reaches TiKV, and why.
    Unreachable(String),
    /// A Secret for the way to TiKV, or what has to be in it, is not there.
    MissingSecret(String),
    /// No member has said whether TiKV can be reached.
    Unknown,
}

/// What the conditions are judged by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) replicas: usize,
    pub(crate) ready: usize,
    pub(crate) pods: usize,
    /// Name of the leader's pod.
    pub(crate) leader: Option<String>,
    /// What is wrong with a member, if anything: `dev-0: …`.
    pub(crate) trouble: Option<String>,
    /// Why the brains take no writes.
    pub(crate) alarm: Option<String>,
    pub(crate) change: Change,
    /// The change takes longer than the spec allows.
    pub(crate) overdue: bool,
    pub(crate) paused: bool,
    /// There are steps that a pause holds back.
    pub(crate) pending: bool,
    pub(crate) trust: Trust,
    pub(crate) volumes: Volumes,
    pub(crate) obstacle: Option<Obstacle>,
    /// A step failed, and why.
    pub(crate) failure: Option<String>,
    /// How long the cluster has not been ready.
    pub(crate) unready_for: Duration,
}

impl Facts {
    /// Whether every wanted member is ready and one of them leads; a suspended cluster has nothing to serve.
    pub(crate) fn is_serving(&self) -> bool {
        self.replicas > 0 && self.ready >= self.replicas && self.leader.is_some()
    }

    pub(crate) fn gather(cluster: &KubeBrainCluster, pass: &Pass<'_>, leader: Option<&str>) -> Self {
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
            let silent = observed
                .probes
                .get(&name)
                .and_then(|answer| answer.as_ref().err())
                .cloned();
            let trouble = if is_ready(pod) { silent } else { trouble(pod).or(silent) };
            trouble.map(|trouble| format!("{name}: {trouble}"))
        });
        let mut facts = Self {
            replicas: usize::try_from(pass.desired.replicas).unwrap_or_default(),
            ready: plan.rollout.ready,
            pods: plan.rollout.pods + plan.rollout.terminating,
            leader: leader.map(str::to_owned),
            trouble: troubles.into_iter().next(),
            alarm: (!alarms.is_empty()).then(|| alarms.join("; ")),
            change: Change::None,
            overdue: false,
            paused: cluster.spec.paused,
            pending: cluster.spec.paused && plan.safe_steps().len() < plan.steps.len(),
            trust: trust(pass),
            volumes: volumes(pass),
            obstacle: obstacle(pass),
            failure: pass
                .applied
                .failure
                .as_ref()
                .map(|(what, error)| format!("could not {what}: {}", error.words())),
            unready_for: unready_for(conditions, observed.now.as_second()),
        };
        facts.change = change::of(cluster, pass, conditions, &facts);
        facts.overdue = change::is_overdue(cluster, pass, &facts.change);
        facts
    }
}

fn unready_for(conditions: &[Condition], now: i64) -> Duration {
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
    let since = ready
        .filter(|ready| ready.status != Verdict::True.as_str())
        .map(|ready| ready.last_transition_time.0.as_second());
    Duration::from_secs(since.map_or(0, |since| u64::try_from(now - since).unwrap_or_default()))
}

/// What stops a pod, if anything, in the kubelet's and the scheduler's words.
pub(super) fn trouble(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let containers = status
        .container_statuses
        .iter()
        .flatten()
        .chain(status.init_container_statuses.iter().flatten());
    for container in containers {
        let state = container.state.as_ref()?;
        if let Some(waiting) = &state.waiting {
            let reason = waiting.reason.clone().unwrap_or_default();
            let last = container.last_state.as_ref().and_then(|last| last.terminated.as_ref());
            return Some(last.map_or(reason.clone(), |last| format!("{reason}: exit code {}", last.exit_code)));
        }
        if let Some(ended) = &state.terminated {
            return Some(format!(
                "{}: exit code {}",
                ended.reason.clone().unwrap_or_default(),
                ended.exit_code
            ));
        }
    }
    let conditions = status.conditions.iter().flatten();
    let scheduled = conditions
        .into_iter()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    if let Some(condition) = scheduled {
        return Some(
            condition
                .message
                .clone()
                .or_else(|| condition.reason.clone())
                .unwrap_or("not scheduled".to_owned()),
        );
    }
    (!is_ready(pod)).then(|| "not ready yet".to_owned())
}

fn trust(pass: &Pass<'_>) -> Trust {
    let Some(wanted) = &pass.desired.certificates else {
        return Trust::Disabled;
    };
    let certificates = &pass.plan.certificates;
    if let Some(problem) = &certificates.problem {
        return Trust::Broken(problem.clone());
    }
    let now = pass.observed.now;
    let mut due = None;
    for (leaf, _) in wanted {
        let name = pass.desired.names.leaf(*leaf);
        let Some(stored) = pass.applied.leaves.get(leaf).or(certificates.leaves.get(leaf)) else {
            return Trust::Missing(format!("{name} holds no certificate"));
        };
        if now >= stored.certificate.not_after {
            return Trust::Expired(format!("the certificate in {name} has ended"));
        }
        if stored.renewal.is_some_and(|renewal| now >= renewal) {
            due = Some(format!("the certificate in {name} is due for renewal"));
        }
    }
    let rotating = certificates.waiting.clone().map(Trust::Rotating);
    due.map(Trust::Due).or(rotating).unwrap_or(Trust::Good)
}

/// What the members say of TiKV. One that is not open to clients yet says in its error what it waits for.
fn reach(pass: &Pass<'_>) -> Volumes {
    if let Some(why) = missing_secret(pass) {
        return Volumes::MissingSecret(why);
    }
    let answers: Vec<_> = pass.observed.probes.values().collect();
    if answers
        .iter()
        .any(|answer| matches!(answer, Ok(answer) if answer.storage.reachable))
    {
        return Volumes::Reachable;
    }
    if answers.iter().any(|answer| answer.is_ok()) {
        return Volumes::Unreachable("members do not get an answer from TiKV".to_owned());
    }
    if let Some(why) = pass.observed.pods.iter().find_map(refusal) {
        return Volumes::Unreachable(why);
    }
    let waiting = answers
        .iter()
        .find_map(|answer| answer.as_ref().err()?.strip_prefix("it answered 503: "));
    waiting.map_or(Volumes::Unknown, |why| Volumes::Unreachable(why.to_owned()))
}

/// What lacks of the Secrets for the way to TiKV: pods wait for them before they start.
fn missing_secret(pass: &Pass<'_>) -> Option<String> {
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

/// What a brain that ended says of storage that it must not use: TiKV's id, or whose the key prefix is.
fn refusal(pod: &Pod) -> Option<String> {
    const REFUSALS: [&str; 2] = ["the key prefix belongs to", "the store belongs to TiKV cluster"];
    let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
    containers.iter().find_map(|container| {
        let ended = |state: &Option<k8s_openapi::api::core::v1::ContainerState>| {
            state.as_ref()?.terminated.as_ref()?.message.clone()
        };
        let message = ended(&container.state).or_else(|| ended(&container.last_state))?;
        // A line of a log in JSON: its own quotes end the text, those in it are escaped, perhaps twice.
        let message = message.replace("\\\\\"", "'").replace("\\\"", "'");
        let start = REFUSALS.iter().find_map(|refusal| message.rfind(refusal))?;
        let text = message[start..].split(['"', '\n']).next()?;
        Some(text.chars().take(256).collect())
    })
}

fn volumes(pass: &Pass<'_>) -> Volumes {
    if pass.desired.storage.tikv().is_some() {
        return reach(pass);
    }
    let claims = &pass.plan.claims;
    if !claims.lost.is_empty() {
        return Volumes::Lost(claims.lost.join(", "));
    }
    if !claims.pending.is_empty() {
        return Volumes::Pending(claims.pending.join(", "));
    }
    if let Some((claim, why)) = pass.applied.refused_claims.first_key_value() {
        let message = format!("{claim} cannot grow: {why}");
        // The words of the API server's admission of claims.
        return if why.contains("must support resize") {
            Volumes::NotExpandable(message)
        } else {
            Volumes::ResizeFailed(message)
        };
    }
    if let Some((claim, why)) = claims.infeasible.first_key_value() {
        return Volumes::ResizeFailed(format!("{claim} cannot grow: {why}"));
    }
    if claims.count == 0 {
        Volumes::None
    } else {
        Volumes::Bound
    }
}

fn obstacle(pass: &Pass<'_>) -> Option<Obstacle> {
    let plan = pass.plan;
    if !plan.foreign.is_empty() {
        let names: Vec<String> = plan.foreign.iter().map(ToString::to_string).collect();
        let message = format!(
            "not owned by this cluster, so left alone: {}; delete or rename what stands there",
            names.join(", ")
        );
        return Some(Obstacle {
            reason: "OwnershipConflict",
            message,
        });
    }
    if let Some(problem) = plan.certificates.problem.as_ref().filter(|_| plan.certificates.stalled) {
        return Some(Obstacle {
            reason: problem.reason,
            message: problem.message.clone(),
        });
    }
    if !plan.fixed.is_empty() {
        let message = format!(
            "the StatefulSet cannot change {}: delete it with --cascade=orphan to have it made anew",
            plan.fixed.join(", ")
        );
        return Some(Obstacle {
            reason: "ImmutableField",
            message,
        });
    }
    let (what, error) = pass.applied.failure.as_ref().filter(|(_, error)| error.is_invalid())?;
    Some(Obstacle {
        reason: "InvalidSpec",
        message: format!("could not {what}: {}", error.words()),
    })
}
