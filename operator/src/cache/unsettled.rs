//! Resources that are not settled, such as backups that have not ended, kept current by a watch. Settled ones need no pass and take no
//! memory, however many there are.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube::core::ApiResource;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt as _};
use tracing::{debug, info, warn};

use super::feed::watch_pages;
use super::optional::{KIND_RETRY_INTERVAL, exists, while_existing};
use super::received::WholeObject;
use crate::archive::BackupReports;
use crate::passes::ReconciledKind;
use crate::work_queue::WorkQueue;

/// Interval of checks for the definition while it is missing.
const DEFINITION_INTERVAL: Duration = Duration::from_secs(30);

/// Fills `writer` with the resources of `namespace`, or of all, that are not settled, and adds each change of them to `queue`. All are
/// shown to `reports`. It never ends.
/// The definition may be missing: it is younger than that of clusters.
pub(crate) async fn watch<K: ReconciledKind>(
    client: Client,
    namespace: Option<String>,
    mut writer: Writer<K>,
    (queue, reports): (Arc<WorkQueue<K>>, BackupReports),
) {
    let kind = ApiResource::erase::<K>(&());
    let mut is_missing = false;
    loop {
        match exists(&client, &kind).await {
            Ok(true) => {
                is_missing = false;
                let api: Api<WholeObject> = match &namespace {
                    Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
                    None => Api::all_with(client.clone(), &kind),
                };
                let watch = follow(api, &mut writer, (&queue, &reports));
                Box::pin(while_existing(&client, &kind, watch)).await;
            }
            Ok(false) => {
                if !is_missing {
                    info!(kind = kind.kind, "the definition is not installed: no backups are made");
                }
                is_missing = true;
                writer.apply_watcher_event(&Event::Init);
                writer.apply_watcher_event(&Event::InitDone);
                tokio::time::sleep(DEFINITION_INTERVAL).await;
            }
            Err(error) => {
                debug!(%error, kind = kind.kind, "cannot discover a kind");
                tokio::time::sleep(KIND_RETRY_INTERVAL).await;
            }
        }
    }
}

async fn follow<K: ReconciledKind>(
    api: Api<WholeObject>,
    writer: &mut Writer<K>,
    (queue, reports): (&WorkQueue<K>, &BackupReports),
) {
    let mut events = pin!(watch_pages(api, None));
    let mut failing = false;
    // Resources in the store; the deletion of any other starts no pass.
    let mut stored: HashSet<ObjectRef<K>> = HashSet::new();
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                if failing {
                    debug!(%error, kind = %K::kind(&()), "watch is still interrupted");
                } else {
                    warn!(%error, plural = %K::plural(&()), "watch interrupted; will retry");
                }
                failing = true;
                continue;
            }
        };
        failing = false;
        let read = |object: &WholeObject| {
            let parsed = object.parse::<K>();
            if parsed.is_none() {
                let (namespace, name) = (object.namespace(), object.name_any());
                warn!(
                    namespace,
                    name,
                    kind = %K::kind(&()),
                    "ignoring an object that is not of this kind in this version"
                );
            }
            parsed
        };
        match event {
            Event::Init => {
                stored.clear();
                K::relisting(reports);
                writer.apply_watcher_event(&Event::Init);
            }
            Event::InitDone => {
                writer.apply_watcher_event(&Event::InitDone);
                stored.iter().cloned().for_each(|object| queue.add(object));
            }
            Event::InitApply(object) => {
                let object = read(&object);
                object.iter().for_each(|object| object.observed(reports));
                if let Some(object) = object.filter(|object| !object.is_settled()) {
                    stored.insert(ObjectRef::from_obj(&object));
                    writer.apply_watcher_event(&Event::InitApply(object));
                }
            }
            Event::Apply(object) => {
                let Some(object) = read(&object) else {
                    continue;
                };
                object.observed(reports);
                let place = ObjectRef::from_obj(&object);
                if !object.is_settled() {
                    stored.insert(place.clone());
                    writer.apply_watcher_event(&Event::Apply(object));
                    queue.add(place);
                } else if stored.remove(&place) {
                    writer.apply_watcher_event(&Event::Delete(object));
                }
            }
            Event::Delete(object) => {
                let object = read(&object);
                object.iter().for_each(|object| object.gone(reports));
                if let Some(object) = object.filter(|object| stored.remove(&ObjectRef::from_obj(object))) {
                    writer.apply_watcher_event(&Event::Delete(object));
                }
            }
        }
    }
}
