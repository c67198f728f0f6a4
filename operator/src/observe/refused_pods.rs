//! Finds the reason for missing pods. A StatefulSet's status does not show that the API server refuses its pods (a quota, admission). Its
//! controller reports this in Events, which are read only while pods are missing.

use crds::KubeBrainCluster;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, Client};
use plan::names::Names;
use plan::objects::{ObjectKey, ObjectKind};
use plan::observed::Observed;
use tracing::debug;

use crate::cache::list_kept;

/// Seconds that pods may be missing before the reason is looked up.
const MISSING_PODS_GRACE_SECONDS: i64 = 5;
/// Maximum number of Events that are read. Similar Events are counted as one.
const MAX_EVENTS: usize = 48;
/// Maximum number of characters of a reason that are kept.
const MAX_REASON_CHARS: usize = 512;

/// Returns the newest refusal since the cluster became not ready; `None` if no pod is missing or no refusal was reported.
pub(super) async fn look(
    client: &Client,
    cluster: &KubeBrainCluster,
    names: &Names,
    observed: &Observed,
) -> Option<String> {
    let since = missing_since(cluster, names, observed)?;
    let set = observed
        .objects
        .get(&ObjectKey::new(ObjectKind::StatefulSet, &names.cluster))?;
    let uid = set.metadata.uid.as_ref()?;
    newest(client, &names.namespace, uid, since).await
}

/// Returns the newest refusal of a pod of the object with this uid since then, in the words of its controller.
pub(crate) async fn newest(client: &Client, namespace: &str, uid: &str, since: i64) -> Option<String> {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let params = ListParams::default().fields(&format!("involvedObject.uid={uid},reason=FailedCreate"));
    let found = match list_kept(&events, params, MAX_EVENTS, |_| true).await {
        Ok(found) => found,
        Err(error) => {
            debug!(%error, "cannot read the Events of a controller");
            return None;
        }
    };
    let newest = found
        .into_iter()
        .filter_map(|event| Some((at(&event)?, event.message?)))
        .filter(|(at, _)| at.as_second() >= since)
        .max_by_key(|(at, _)| *at);
    newest.map(|(_, message)| message.chars().take(MAX_REASON_CHARS).collect())
}

/// Returns the time since which the cluster is not ready, if pods are missing and that is long enough ago.
fn missing_since(cluster: &KubeBrainCluster, names: &Names, observed: &Observed) -> Option<i64> {
    let set = observed
        .objects
        .get(&ObjectKey::new(ObjectKind::StatefulSet, &names.cluster))?;
    let wanted = usize::try_from(set.data["spec"]["replicas"].as_u64()?).ok()?;
    let conditions = cluster.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    let since = ready.last_transition_time.0.as_second();
    let missing = observed.pods.len() < wanted && ready.status != "True";
    (missing && since + MISSING_PODS_GRACE_SECONDS <= observed.now.as_second()).then_some(since)
}

/// Returns the time when an Event was last seen.
fn at(event: &Event) -> Option<Timestamp> {
    let series = event
        .series
        .as_ref()
        .and_then(|series| series.last_observed_time.as_ref());
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    series
        .map(|time| time.0)
        .or(last)
        .or_else(|| event.event_time.as_ref().map(|time| time.0))
}
