//! `storage.tikv.whenDeleted: Delete`: with a cluster go its keys, and no others.

use crds::KubeBrainCluster;
use k8s_openapi::api::batch::v1::Job;
use kube::api::DeleteParams;
use serde_json::json;

use super::brains::{Brains, condition, on_tikv};
use super::kit::{self, STATE_TIMEOUT};
use super::load::Load;
use super::pods::Watched;
use super::tikv::MockTikv;

/// Writes some keys.
async fn write(brains: &Brains<'_>) -> super::load::Paused {
    let watched = Watched::start(brains).await;
    Load::start(brains, 1, &watched, None).await.pause().await
}

#[test]
fn keys_of_a_deleted_cluster_are_wiped_once_tikv_is_back() {
    kit::run_troubled("wipe", async |kit| {
        let tikv = MockTikv::new("pd");
        tikv.start(&kit).await;
        let spec = |prefix: &str| {
            let mut spec = on_tikv(&tikv.pd(&kit), 1);
            spec["storage"]["tikv"]["keyPrefix"] = json!(prefix);
            spec
        };
        let mut wiped = spec("wipe/a");
        wiped["storage"]["tikv"]["whenDeleted"] = json!("Delete");
        let beside = kit.brains("beside", spec("wipe/a-beside")).await;
        let brains = kit.brains("a", wiped).await;
        beside.until_ready().await;
        brains.until_ready().await;
        write(&brains).await;
        let kept = write(&beside).await;
        assert!(brains.count_keys().await > 0);

        // no PD answers at its name when the cluster is deleted
        tikv.lead_to(&kit, "nobody").await;
        let clusters = kit.api::<KubeBrainCluster>();
        clusters.delete("a", &DeleteParams::default()).await.unwrap();
        kit.until::<Job>("a-wipe", "there", STATE_TIMEOUT, |_| true).await;
        brains
            .until("being wiped", |cluster| {
                condition(cluster, "StorageReady").is_some_and(|it| it.reason.starts_with("Wip"))
            })
            .await;
        assert!(brains.pods().await.is_empty(), "brains run while their keys are wiped");
        tikv.lead_to(&kit, "pd").await;
        kit.until_gone::<KubeBrainCluster>("a").await;
        kit.until_gone::<Job>("a-wipe").await;

        // another cluster may have the prefix now, and finds nothing there
        let next = kit.brains("next", spec("wipe/a")).await;
        next.until_ready().await;
        assert_eq!(next.count_keys().await, 0);
        kept.check().await;
    });
}
