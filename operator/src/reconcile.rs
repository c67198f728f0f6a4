//! One pass over one cluster: observe, plan, apply, publish. What is kept from pass to pass are caches: of what the API server
//! has, and of what was written to it.

use std::time::Duration;

use crds::KubeBrainCluster;
use crds::cluster::status::KubeBrainClusterStatus;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use tracing::info;

use crate::api_error::{self, Class};
use crate::apply::{self, Applier};
use crate::events::{Event, Events};
use crate::follow::Followers;
use crate::given::GivenSecrets;
use crate::ledger::Ledger;
use crate::metrics::{Metrics, Outcome};
use crate::names::STATUS_MANAGER;
use crate::observe::{Late, Prober, catch_up, observe};
use crate::plan::{Plan, plan};
use crate::spec::{self, Desired, Settings};
use crate::status::{self, Pass};
use crate::stores::Stores;
use crate::stores::external::ExternalPods;

/// How often a settled cluster is looked at: a watch may miss things, and brains do not tell when their leader changes.
const RESYNC: Duration = Duration::from_secs(60);
/// How often a cluster is looked at while something is in flight or wrong.
const SOON: Duration = Duration::from_secs(5);
/// How often it is looked whether a person has put somebody else's object out of the way: no watch would tell.
const OBSTRUCTED: Duration = Duration::from_secs(15);
/// How soon a pass follows one that wrote something.
const NEXT: Duration = Duration::from_secs(1);
/// How soon it is looked whether the stores have caught up with what was written. Their watches usually start the pass before.
const BEHIND: Duration = Duration::from_millis(200);

/// Why a pass failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0} failed")]
    Api(&'static str, #[source] Box<kube::Error>),
    #[error("an object does not serialise")]
    Serialise(#[from] serde_json::Error),
    #[error("could not {what}: {words}")]
    Step { what: String, words: String, class: Class },
    #[error("the pass took longer than {0:?}")]
    Timeout(Duration),
    #[error("the pass panicked: {0}")]
    Panic(String),
}

impl Error {
    /// How to react to it.
    pub(crate) fn class(&self) -> Class {
        match self {
            Self::Api(_, source) => Class::of(source),
            Self::Step { class, .. } => *class,
            Self::Serialise(_) | Self::Timeout(_) | Self::Panic(_) => Class::Transient,
        }
    }

    /// In words for the status, the API server's own if there are any.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Api(what, source) => format!("{what} failed: {}", api_error::words(source)),
            other => other.to_string(),
        }
    }
}

fn api(what: &'static str) -> impl FnOnce(kube::Error) -> Error {
    move |error| Error::Api(what, Box::new(error))
}

/// What every pass needs.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) settings: Settings,
    pub(crate) events: Events,
    pub(crate) metrics: Metrics,
    pub(crate) stores: Stores,
    pub(crate) ledger: Ledger,
    pub(crate) given_secrets: GivenSecrets,
    pub(crate) prober: Prober,
    pub(crate) followers: Followers,
    pub(crate) external_pods: ExternalPods,
}

/// What a pass came to, and when to look again.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    pub(crate) again: Duration,
}

/// One pass over a cluster, after `failures` that failed in a row. `None` if there is nothing to do for it ever again.
///
/// # Errors
/// The API server refused or did not answer, or a step failed; the status may not tell yet.
pub(crate) async fn reconcile(
    context: &Context,
    cluster: &KubeBrainCluster,
    failures: u32,
) -> Result<Option<Ended>, Error> {
    let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
    let clusters: Api<KubeBrainCluster> = Api::namespaced(context.client.clone(), &namespace);
    let Some(late) = catch_up(context, &namespace, &name)
        .await
        .map_err(api("reading an object again"))?
    else {
        return Ok(Some(Ended {
            outcome: Outcome::Behind,
            again: BEHIND,
        }));
    };
    let mut cluster = late.cluster().unwrap_or_else(|| cluster.clone());
    if cluster.metadata.deletion_timestamp.is_some() {
        context.followers.leave(&cluster);
        return Ok(None);
    }
    if cluster
        .status
        .as_ref()
        .is_none_or(|status| status.conditions.as_ref().is_none_or(Vec::is_empty))
    {
        let first = status::first(&cluster, Timestamp::now());
        publish(context, &clusters, &cluster, &first).await?;
        cluster.status = Some(first);
    }
    let reference = cluster
        .spec
        .storage
        .tikv
        .as_ref()
        .and_then(|tikv| tikv.cluster_ref.as_ref());
    let namespace = cluster.namespace().unwrap_or_default();
    let referenced = reference.and_then(|reference| context.stores.tidb_cluster(&namespace, &reference.name));
    match spec::read(&cluster, &context.settings, referenced.as_deref()) {
        Ok(desired) => {
            let pass = Box::pin(act(context, &clusters, &cluster, &desired, late, failures));
            pass.await.map(Some)
        }
        Err(refusal) => {
            let status = status::refused(&cluster, &refusal, Timestamp::now());
            publish(context, &clusters, &cluster, &status).await?;
            Ok(Some(Ended {
                outcome: Outcome::Stalled,
                again: 5 * RESYNC,
            }))
        }
    }
}

/// Observe, plan, apply, publish.
async fn act(
    context: &Context,
    clusters: &Api<KubeBrainCluster>,
    cluster: &KubeBrainCluster,
    desired: &Desired,
    late: Late,
    failures: u32,
) -> Result<Ended, Error> {
    let observed = observe(context, cluster, desired, late)
        .await
        .map_err(api("looking at the objects"))?;
    let plan = plan(cluster, desired, &observed)?;
    let applier = Applier {
        client: &context.client,
        events: &context.events,
        metrics: &context.metrics,
        cluster,
        desired,
        observed: &observed,
    };
    let steps = if cluster.spec.paused {
        plan.safe_steps()
    } else {
        plan.steps.clone()
    };
    let mut applied = applier.run(&steps).await;
    // A hiccup is not worth a word: the next pass may find nothing wrong.
    let told = |error: &apply::Error| error.class().is_told(failures.saturating_add(1));
    let silent = applied.failure.take_if(|(_, error)| !told(error));
    let pass = Pass {
        desired,
        observed: &observed,
        plan: &plan,
        applied: &applied,
    };
    let status = status::of(cluster, &pass);
    publish(context, clusters, cluster, &status).await?;
    if let Some((what, error)) = silent.or(applied.failure).filter(|(_, error)| !error.is_invalid()) {
        return Err(Error::Step {
            what,
            words: error.words(),
            class: error.class(),
        });
    }
    let outcome = if is(&status, "Stalled", "True") {
        Outcome::Stalled
    } else {
        Outcome::Done
    };
    Ok(Ended {
        outcome,
        again: again(&status, &plan, applied.done, observed.now),
    })
}

/// When to look again: soon after a write, until all is well; else at the next resync or renewal, whichever comes first.
fn again(status: &KubeBrainClusterStatus, plan: &Plan, done: usize, now: Timestamp) -> Duration {
    if done > 0 {
        return NEXT;
    }
    if !plan.foreign.is_empty() {
        return OBSTRUCTED;
    }
    let settled = is(status, "Progressing", "False") && (is(status, "Ready", "True") || is(status, "Stalled", "True"));
    let suspended = is(status, "Progressing", "False") && status.replicas == Some(0);
    if !settled && !suspended {
        return SOON;
    }
    let renewals = plan.certificates.leaves.values().filter_map(|stored| stored.renewal);
    let left = renewals.map(|renewal| Duration::try_from(renewal.duration_since(now)).unwrap_or(NEXT));
    left.min().unwrap_or(RESYNC).clamp(NEXT, RESYNC)
}

fn is(status: &KubeBrainClusterStatus, type_: &str, verdict: &str) -> bool {
    let conditions = status.conditions.iter().flatten();
    conditions
        .into_iter()
        .any(|condition| condition.type_ == type_ && condition.status == verdict)
}

/// Says in the status that passes fail. An error of this is only returned: the next pass will try again.
///
/// # Errors
/// The API server refused or did not answer.
pub(crate) async fn report_failure(context: &Context, known: &KubeBrainCluster, message: &str) -> Result<(), Error> {
    let namespace = known.namespace().unwrap_or_default();
    let clusters: Api<KubeBrainCluster> = Api::namespaced(context.client.clone(), &namespace);
    let found = context.stores.cluster(&namespace, &known.name_any());
    let Some(cluster) = found.filter(|cluster| cluster.metadata.deletion_timestamp.is_none()) else {
        return Ok(());
    };
    publish(
        context,
        &clusters,
        &cluster,
        &status::failing(&cluster, message, Timestamp::now()),
    )
    .await
}

/// Writes the status if it differs, and tells of what flipped.
async fn publish(
    context: &Context,
    clusters: &Api<KubeBrainCluster>,
    cluster: &KubeBrainCluster,
    status: &KubeBrainClusterStatus,
) -> Result<(), Error> {
    if status::is_published(cluster.status.as_ref(), status) {
        return Ok(());
    }
    let body = json!({
        "apiVersion": KubeBrainCluster::api_version(&()),
        "kind": KubeBrainCluster::kind(&()),
        "metadata": {"name": cluster.name_any(), "uid": cluster.uid()},
        "status": status,
    });
    let params = PatchParams::apply(STATUS_MANAGER).force();
    match clusters
        .patch_status(&cluster.name_any(), &params, &Patch::Apply(body))
        .await
    {
        Ok(_) => {}
        // It was deleted meanwhile, and perhaps made anew: nobody is left to tell.
        Err(kube::Error::Api(answer)) if answer.is_not_found() || answer.is_conflict() => return Ok(()),
        Err(error) => return Err(api("writing the status")(error)),
    }
    for event in flips(cluster, status) {
        info!(reason = event.reason, "{}", event.note);
        context.events.publish(cluster, event).await;
    }
    Ok(())
}

/// Conditions whose flip people want to hear of.
fn flips(cluster: &KubeBrainCluster, status: &KubeBrainClusterStatus) -> Vec<Event> {
    let before = |type_: &str| {
        let conditions = cluster
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_deref())
            .unwrap_or_default();
        conditions
            .iter()
            .find(|condition| condition.type_ == type_)
            .map(|condition| condition.status.clone())
    };
    let mut events = Vec::new();
    for condition in status.conditions.iter().flatten() {
        let former = before(&condition.type_);
        if former.as_deref() == Some(condition.status.as_str()) {
            continue;
        }
        let note = || format!("{}: {}", condition.reason, condition.message);
        match (condition.type_.as_str(), condition.status.as_str()) {
            ("Ready", "True") => events.push(Event::normal("Ready", "Publish", note())),
            ("Ready", "False") if former.as_deref() == Some("True") => {
                events.push(Event::warning("NotReady", "Publish", note()));
            }
            ("Stalled", "True") => events.push(Event::warning("Stalled", "Publish", note())),
            ("Degraded", "True") if condition.reason != "InvalidSpec" => {
                events.push(Event::warning("Degraded", "Publish", note()));
            }
            _ => {}
        }
    }
    events
}
