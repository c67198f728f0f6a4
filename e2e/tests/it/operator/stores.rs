//! The only member and its store: it gets no second member with an empty store, an empty store does not take its place in silence, and a
//! template that does not run does not replace it.

use crds::KubeBrainCluster;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::brains::{embedded, version};
use super::kit::{self, STATE_TIMEOUT};
use super::load::Load;
use super::pods::{self, Watched};

fn store_id(cluster: &KubeBrainCluster) -> Option<String> {
    cluster.status.as_ref()?.storage.as_ref()?.store_id.clone()
}

#[test]
fn store_that_is_lost_is_named_until_it_is_given_up() {
    kit::run_troubled("store-lost", async |kit| {
        let brains = kit.brains("a", embedded()).await;
        brains.until_ready().await;
        let pinned = brains
            .until("a pinned store", |cluster| store_id(cluster).is_some())
            .await;
        let lost = store_id(&pinned).unwrap();

        // Members are added while the operator is paused.
        brains.patch(json!({"paused": true})).await;
        let three = Patch::Merge(json!({"spec": {"replicas": 3}}));
        let sets = kit.api::<StatefulSet>();
        sets.patch("a", &PatchParams::default(), &three).await.unwrap();
        let has_one = |set: &StatefulSet| set.spec.as_ref().and_then(|spec| spec.replicas) == Some(1);
        kit.until("a", "of one member again", STATE_TIMEOUT, has_one).await;
        kit.eventually("one pod", async || match brains.pods().await.len() {
            1 => Ok(()),
            pods => Err(format!("{pods} pods")),
        })
        .await;
        brains.patch(json!({"paused": false})).await;
        brains.until_ready().await;

        let now = DeleteParams::default().grace_period(0);
        let claims = kit.api::<PersistentVolumeClaim>();
        claims.delete("data-a-0", &DeleteParams::default()).await.unwrap();
        kit.api::<Pod>().delete("a-0", &now).await.unwrap();
        let stalled = brains.until_condition("Stalled", "True", &["DataReplaced"]).await;
        assert!(stalled.message.contains(&lost), "{}", stalled.message);
        let refused = kit.until::<Pod>("a-0", "there", STATE_TIMEOUT, |_| true).await;
        assert!(!pods::serves(&refused), "a brain serves an empty store");
        assert_eq!(store_id(&brains.get().await).as_ref(), Some(&lost));

        brains.annotate("kubebrain.io/accept-store", &lost).await;
        brains.until_ready().await;
        assert_ne!(store_id(&brains.get().await), Some(lost));
    });
}

#[test]
fn template_that_does_not_run_does_not_reach_the_only_member() {
    kit::run_troubled("store-trial", async |kit| {
        let brains = kit.brains("a", embedded()).await;
        brains.until_ready().await;
        let before = kit.until::<Pod>("a-0", "there", STATE_TIMEOUT, |_| true).await.uid();
        let watched = Watched::start(&brains).await;
        let load = Load::start(&brains, 1, &watched, None).await;

        let good = version(e2e_cluster::images::BRAIN);
        brains.patch(json!({"version": "9.9.9"})).await;
        let stalled = brains.until_condition("Stalled", "True", &["TrialFailed"]).await;
        assert!(stalled.message.contains("a-trial"), "{}", stalled.message);
        load.acknowledge(10).await;
        let member = kit.until::<Pod>("a-0", "there", STATE_TIMEOUT, |_| true).await;
        assert_eq!(member.uid(), before, "the member was replaced");
        brains.patch(json!({"version": good})).await;
        brains.until_ready().await;
        kit.until_gone::<Pod>("a-trial").await;
        let outcome = load.end().await;
        assert!(outcome.failed.is_empty(), "{:#?}", outcome.failed);

        // A template that runs does.
        brains.patch(json!({"flags": {"max-txn-ops": "256"}})).await;
        kit.until::<Pod>("a-0", "of the new template", STATE_TIMEOUT, |pod| pod.uid() != before)
            .await;
        brains.until_ready().await;
        kit.until_gone::<Pod>("a-trial").await;
    });
}
