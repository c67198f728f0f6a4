//! Backups that are not settled yet, kept current by a watch. Settled ones need no pass and take no memory, however many there are.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crds::KubeBrainBackup;
use futures::StreamExt as _;
use kube::core::ApiResource;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt as _};
use plan::backup::is_settled;
use tracing::{debug, info, warn};

use super::feed::watch_pages;
use super::optional::{KIND_RETRY_INTERVAL, exists, while_existing};
use super::received::WholeObject;
use crate::archive::BackupReports;
use crate::work_queue::WorkQueue;

/// Interval of checks for the definition while it is missing.
const DEFINITION_INTERVAL: Duration = Duration::from_secs(30);

pub(crate) fn resource() -> ApiResource {
    ApiResource::erase::<KubeBrainBackup>(&())
}

/// Fills `writer` with the backups of `namespace`, or of all, that are not settled, and adds each change of them to `queue`. Those
/// that are complete are recorded in `reports`. It never ends.
/// The definition may be missing: it is younger than that of clusters.
pub(crate) async fn watch(
    client: Client,
    namespace: Option<String>,
    mut writer: Writer<KubeBrainBackup>,
    (queue, reports): (Arc<WorkQueue<KubeBrainBackup>>, BackupReports),
) {
    let kind = resource();
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
                    info!("the definition of KubeBrainBackup is not installed: no backups are made");
                }
                is_missing = true;
                writer.apply_watcher_event(&Event::Init);
                writer.apply_watcher_event(&Event::InitDone);
                tokio::time::sleep(DEFINITION_INTERVAL).await;
            }
            Err(error) => {
                debug!(%error, "cannot discover KubeBrainBackup");
                tokio::time::sleep(KIND_RETRY_INTERVAL).await;
            }
        }
    }
}

async fn follow(
    api: Api<WholeObject>,
    writer: &mut Writer<KubeBrainBackup>,
    (queue, reports): (&WorkQueue<KubeBrainBackup>, &BackupReports),
) {
    let mut events = pin!(watch_pages(api, None));
    let mut failing = false;
    // Backups in the store; the deletion of any other starts no pass.
    let mut stored: HashSet<ObjectRef<KubeBrainBackup>> = HashSet::new();
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                if failing {
                    debug!(%error, "watch of backups is still interrupted");
                } else {
                    warn!(%error, plural = "kubebrainbackups", "watch interrupted; will retry");
                }
                failing = true;
                continue;
            }
        };
        failing = false;
        let read = |object: &WholeObject| {
            let backup = object.parse::<KubeBrainBackup>();
            if backup.is_none() {
                let (namespace, name) = (object.namespace(), object.name_any());
                warn!(
                    namespace,
                    name, "ignoring an object that is not a KubeBrainBackup of this version"
                );
            }
            backup
        };
        match event {
            Event::Init => {
                stored.clear();
                writer.apply_watcher_event(&Event::Init);
            }
            Event::InitDone => {
                writer.apply_watcher_event(&Event::InitDone);
                stored.iter().cloned().for_each(|backup| queue.add(backup));
            }
            Event::InitApply(object) => {
                let backup = read(&object);
                backup.iter().for_each(|backup| reports.backed_up(backup));
                if let Some(backup) = backup.filter(|backup| !is_settled(backup)) {
                    stored.insert(ObjectRef::from_obj(&backup));
                    writer.apply_watcher_event(&Event::InitApply(backup));
                }
            }
            Event::Apply(object) => {
                let Some(backup) = read(&object) else {
                    continue;
                };
                reports.backed_up(&backup);
                let place = ObjectRef::from_obj(&backup);
                if !is_settled(&backup) {
                    stored.insert(place.clone());
                    writer.apply_watcher_event(&Event::Apply(backup));
                    queue.add(place);
                } else if stored.remove(&place) {
                    writer.apply_watcher_event(&Event::Delete(backup));
                }
            }
            Event::Delete(object) => {
                let backup = read(&object);
                if let Some(backup) = backup.filter(|backup| stored.remove(&ObjectRef::from_obj(backup))) {
                    writer.apply_watcher_event(&Event::Delete(backup));
                }
            }
        }
    }
}
