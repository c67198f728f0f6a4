//! Kinds that only some API servers know, because their CRD may be installed or removed. The operator checks for them from time to time,
//! more often if a cluster waits for one, and watches them while they exist.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crds::KubeBrainCluster;
use kube::Client;
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use plan::objects::ObjectKind;
use tokio::time::Instant;
use tracing::{debug, info};

use super::feed::WatchFeed;

/// Interval of checks for a kind that no cluster uses.
const UNUSED_KIND_INTERVAL: Duration = Duration::from_secs(180);
/// Interval of checks after a failed check, or while a cluster waits for the kind.
pub(super) const KIND_RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// A kind that may not exist.
pub(super) struct OptionalKind {
    pub(super) resource: ApiResource,
    /// True if it exists now.
    pub(super) known: Arc<AtomicBool>,
    /// Returns true if a cluster uses the kind.
    pub(super) asked: fn(&KubeBrainCluster) -> bool,
    pub(super) source: KeptObjects,
}

/// Objects of a kind that are kept.
pub(super) enum KeptObjects {
    /// Objects with these labels that a cluster owns.
    Owned { kind: ObjectKind, labels: String },
    /// Placement drivers of clusters of the TiDB operator.
    Tidb,
}

/// Fills `writer` forever; it is empty while the kind does not exist.
pub(super) async fn run(feed: WatchFeed, wanted: OptionalKind, mut writer: Writer<DynamicObject>) {
    let plural = &wanted.resource.plural;
    loop {
        match exists(&feed.client, &wanted.resource).await {
            Ok(true) => {
                if !wanted.known.swap(true, Ordering::Relaxed) {
                    info!(
                        kind = wanted.resource.kind,
                        group = wanted.resource.group,
                        "optional kind exists; watching it"
                    );
                    feed.name_all();
                }
                let watch = async {
                    match &wanted.source {
                        KeptObjects::Owned { kind, labels } => feed.objects(*kind, labels, &mut writer).await,
                        KeptObjects::Tidb => super::tidb_clusters(&feed, &mut writer).await,
                    }
                };
                Box::pin(while_existing(&feed.client, &wanted.resource, watch)).await;
            }
            Ok(false) => {
                let had = wanted.known.swap(false, Ordering::Relaxed);
                writer.apply_watcher_event(&Event::Init);
                writer.apply_watcher_event(&Event::InitDone);
                if had {
                    feed.name_all();
                }
                until_due(&feed, wanted.asked).await;
            }
            Err(error) => {
                debug!(%error, plural, "cannot discover an optional kind");
                tokio::time::sleep(KIND_RETRY_INTERVAL).await;
            }
        }
    }
}

/// Waits until the next check for a missing kind is due.
async fn until_due(feed: &WatchFeed, asked: fn(&KubeBrainCluster) -> bool) {
    let begun = Instant::now();
    while begun.elapsed() < UNUSED_KIND_INTERVAL {
        tokio::time::sleep(KIND_RETRY_INTERVAL).await;
        if feed.clusters.find(asked).is_some() {
            return;
        }
    }
}

/// Polls `watch` until the kind is removed.
pub(super) async fn while_existing(client: &Client, resource: &ApiResource, watch: impl Future<Output = ()>) {
    let gone = async {
        loop {
            tokio::time::sleep(UNUSED_KIND_INTERVAL).await;
            if matches!(exists(client, resource).await, Ok(false)) {
                return;
            }
        }
    };
    tokio::select! {
        () = watch => {}
        () = gone => {}
    }
}

pub(super) async fn exists(client: &Client, resource: &ApiResource) -> kube::Result<bool> {
    match client.list_api_group_resources(&resource.api_version).await {
        Ok(list) => Ok(list.resources.iter().any(|found| found.kind == resource.kind)),
        // Compare the code: an API server that does not know the group answers without a reason.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}
