//! What is there: owned objects, pods, claims, and what the brains themselves say.

use std::collections::BTreeMap;

use crds::KubeBrainCluster;
use futures::future::{join_all, try_join_all};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};

use crate::certificates::{Leaf, Pair};
use crate::names::CLUSTER;
use crate::objects::{Key, Kind};
use crate::plan;
use crate::probe::{self, Answer, Identity};
use crate::spec::Desired;

/// Everything that one pass looks at.
#[derive(Default)]
pub(crate) struct Observed {
    /// The wall clock when the pass began.
    pub(crate) now: Timestamp,
    /// Objects under the names that the cluster uses, whoever owns them.
    pub(crate) objects: BTreeMap<Key, DynamicObject>,
    /// The brains' pods.
    pub(crate) pods: Vec<Pod>,
    /// Their volume claims.
    pub(crate) claims: Vec<PersistentVolumeClaim>,
    /// What each running brain answered, by its pod; or why it did not.
    pub(crate) probes: BTreeMap<String, Result<Answer, String>>,
    /// Whether the API server knows PodMonitors. Looked up only if one is wanted.
    pub(crate) pod_monitors: bool,
}

/// Looks at everything that belongs to a cluster.
///
/// # Errors
/// The API server refused or did not answer. A brain that does not answer is no error.
pub(crate) async fn observe(client: &Client, cluster: &KubeBrainCluster, desired: &Desired) -> kube::Result<Observed> {
    let names = &desired.names;
    let monitoring = cluster
        .spec
        .monitoring
        .as_ref()
        .and_then(|all| all.pod_monitor.as_ref());
    let mut keys = vec![
        Key::new(Kind::ServiceAccount, &names.cluster),
        Key::new(Kind::Service, names.headless()),
        Key::new(Kind::Service, names.client()),
        Key::new(Kind::Service, names.leader()),
        Key::new(Kind::PodDisruptionBudget, &names.cluster),
        Key::new(Kind::StatefulSet, &names.cluster),
        // Where the API server does not know this kind, there is no such object either.
        Key::new(Kind::PodMonitor, &names.cluster),
    ];
    if desired.certificates.is_some() {
        keys.push(Key::new(Kind::Secret, names.authority()));
        keys.push(Key::new(Kind::ConfigMap, names.bundle()));
        keys.extend(Leaf::ALL.map(|leaf| Key::new(Kind::Secret, names.leaf(leaf))));
    }
    let selected = ListParams::default().labels(&format!("{CLUSTER}={}", names.cluster));
    let brains = ListParams::default().labels(&names.selector_text());
    let pods: Api<Pod> = Api::namespaced(client.clone(), &names.namespace);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &names.namespace);
    let (objects, pods, claims, pod_monitors) = tokio::try_join!(
        try_join_all(keys.into_iter().map(|key| get(client, &names.namespace, key))),
        pods.list(&brains),
        claims.list(&selected),
        knows_pod_monitors(client, monitoring.is_some_and(|monitor| monitor.enabled)),
    )?;
    let mut observed = Observed {
        now: Timestamp::now(),
        objects: objects.into_iter().flatten().collect(),
        pods: pods.items,
        claims: claims.items,
        probes: BTreeMap::new(),
        pod_monitors,
    };
    observed.pods.sort_by_key(ResourceExt::name_any);
    observed.probes = ask(desired, &observed).await;
    Ok(observed)
}

async fn get(client: &Client, namespace: &str, key: Key) -> kube::Result<Option<(Key, DynamicObject)>> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &key.kind.resource());
    match api.get(&key.name).await {
        Ok(object) => Ok(Some((key, object))),
        // By its code: an API server that does not know the kind answers without a reason.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

async fn knows_pod_monitors(client: &Client, wanted: bool) -> kube::Result<bool> {
    if !wanted {
        return Ok(false);
    }
    match client.list_api_group_resources("monitoring.coreos.com/v1").await {
        Ok(list) => Ok(list.resources.iter().any(|resource| resource.kind == "PodMonitor")),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}

/// Asks every brain that has an address, all at once.
async fn ask(desired: &Desired, observed: &Observed) -> BTreeMap<String, Result<Answer, String>> {
    let identity = desired.certificates.as_ref().map(|_| identity(desired, observed));
    let asked = observed.pods.iter().filter_map(|pod| {
        let running = pod.metadata.deletion_timestamp.is_none() && is_running(pod);
        let address = pod.status.as_ref()?.pod_ip.clone().filter(|_| running)?;
        Some((pod.name_any(), address))
    });
    let answers = asked.map(|(pod, address)| {
        let host = desired.names.member_host(&pod);
        let identity = identity.clone();
        async move {
            let answer = match identity {
                Some(None) => Err("the operator's certificate is not there yet".to_owned()),
                Some(Some(identity)) => probe::ask(&address, &host, Some(&identity)).await,
                None => probe::ask(&address, &host, None).await,
            };
            (pod, answer)
        }
    });
    join_all(answers).await.into_iter().collect()
}

/// The operator's certificate and the authority, as stored.
fn identity(desired: &Desired, observed: &Observed) -> Option<Identity> {
    let secret = observed
        .objects
        .get(&Key::new(Kind::Secret, desired.names.leaf(Leaf::OperatorClient)))?;
    let authority = observed
        .objects
        .get(&Key::new(Kind::Secret, desired.names.authority()))?;
    let Pair { certificate, key } = plan::stored_pair(secret, "tls.crt", "tls.key")?;
    let trusted = plan::stored_pair(authority, "ca.crt", "ca.key")?.certificate;
    Some(Identity {
        certificate,
        key,
        trusted,
    })
}

fn is_running(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
}

/// Whether a pod is ready.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    ready_since(pod).is_some()
}

/// Since when a pod is ready, in seconds of the wall clock; `None` if it is not.
pub(crate) fn ready_since(pod: &Pod) -> Option<i64> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions
        .iter()
        .find(|condition| condition.type_ == "Ready" && condition.status == "True")?;
    Some(ready.last_transition_time.as_ref().map_or(0, |time| time.0.as_second()))
}
