//! One pass over one cluster: observe, plan, apply, publish. Keeps nothing from pass to pass.

use std::sync::Arc;
use std::time::Duration;

use crds::KubeBrainCluster;
use crds::cluster::status::KubeBrainClusterStatus;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use tracing::info;

use crate::apply::Applier;
use crate::events::{Event, Events};
use crate::metrics::{Metrics, Outcome};
use crate::names::STATUS_MANAGER;
use crate::observe::observe;
use crate::plan::{Plan, plan};
use crate::spec::{self, Desired, Settings};
use crate::status::{self, Pass};

/// How often a settled cluster is looked at: a watch may miss things, and brains do not tell when their leader changes.
const RESYNC: Duration = Duration::from_secs(60);
/// How often a cluster is looked at while something is in flight or wrong.
const SOON: Duration = Duration::from_secs(5);
/// How often it is looked whether a person has put somebody else's object out of the way: no watch would tell.
const OBSTRUCTED: Duration = Duration::from_secs(15);
/// How soon a pass follows one that wrote something.
const NEXT: Duration = Duration::from_secs(1);

/// Why a pass failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0} failed")]
    Api(&'static str, #[source] Box<kube::Error>),
    #[error("an object does not serialise")]
    Serialise(#[from] serde_json::Error),
    #[error("could not {what}: {words}")]
    Step { what: String, words: String },
    #[error("the pass took longer than {0:?}")]
    Timeout(Duration),
    #[error("the pass panicked: {0}")]
    Panic(String),
}

impl Error {
    /// In words for the status, the API server's own if there are any.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Api(what, source) => match &**source {
                kube::Error::Api(status) => format!("{what} failed: {}", status.message),
                other => format!("{what} failed: {other}"),
            },
            other => other.to_string(),
        }
    }
}

fn api(what: &'static str) -> impl FnOnce(kube::Error) -> Error {
    move |error| Error::Api(what, Box::new(error))
}

/// What every pass needs.
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) settings: Settings,
    pub(crate) events: Events,
    pub(crate) metrics: Metrics,
}

/// What a pass came to, and when to look again.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    pub(crate) again: Duration,
}

/// One pass over the cluster that `known` names.
///
/// # Errors
/// The API server refused or did not answer, or a step failed; the status may not tell yet.
pub(crate) async fn reconcile(context: &Context, known: &KubeBrainCluster) -> Result<Option<Ended>, Error> {
    let clusters: Api<KubeBrainCluster> =
        Api::namespaced(context.client.clone(), &known.namespace().unwrap_or_default());
    // What triggered the pass may be older than the status of the last one.
    let Some(mut cluster) = clusters
        .get_opt(&known.name_any())
        .await
        .map_err(api("reading the cluster"))?
    else {
        return Ok(None);
    };
    if cluster.metadata.deletion_timestamp.is_some() {
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
    match spec::read(&cluster, &context.settings) {
        Ok(desired) => act(context, &clusters, &cluster, &desired).await.map(Some),
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
) -> Result<Ended, Error> {
    let observed = observe(&context.client, cluster, desired)
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
    let steps = if cluster.spec.paused { &[][..] } else { &plan.steps[..] };
    let applied = applier.run(steps).await;
    let pass = Pass {
        desired,
        observed: &observed,
        plan: &plan,
        applied: &applied,
    };
    let status = status::of(cluster, &pass);
    publish(context, clusters, cluster, &status).await?;
    if let Some((what, error)) = applied.failure.filter(|(_, error)| !error.is_invalid()) {
        return Err(Error::Step {
            what,
            words: error.words(),
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
    let renewals = plan.certificates.leaves.values().map(|stored| stored.renewal);
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
    let clusters: Api<KubeBrainCluster> =
        Api::namespaced(context.client.clone(), &known.namespace().unwrap_or_default());
    let found = clusters
        .get_opt(&known.name_any())
        .await
        .map_err(api("reading the cluster"))?;
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
    if cluster.status.as_ref() == Some(status) {
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

/// A context shared by all passes.
pub(crate) type Shared = Arc<Context>;
