//! Days on which TiKV is another than it was, or cannot be trusted.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::json;

use super::bad_days::{can_be_deleted, until_named};
use super::brains::on_tikv;
use super::kit::{self, STATE_TIMEOUT};
use super::load::Load;
use super::pki::Authority;
use super::pods::{self, Watched};
use super::tikv::MockTikv;

#[test]
fn another_tikv_cluster_behind_the_same_name_is_refused_until_the_first_is_back() {
    kit::run_troubled("bad-cluster", async |kit| {
        let first = MockTikv::new("pd");
        let other = MockTikv {
            cluster_id: 8,
            ..MockTikv::new("other")
        };
        first.start(&kit).await;
        other.start(&kit).await;
        let brains = kit.brains("a", on_tikv(&first.pd(&kit), 1)).await;
        brains.until_ready().await;
        let pinned = brains.get().await.status.unwrap().storage.unwrap().cluster_id;
        assert_eq!(pinned.as_deref(), Some("7"));
        // brains that are started from now on refuse any other
        let flagged = |set: &StatefulSet| {
            let containers = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
            let args = containers.and_then(|spec| spec.containers[0].args.as_ref());
            args.is_some_and(|args| args.iter().any(|arg| arg == "--tikv-cluster-id=7"))
        };
        kit.until::<StatefulSet>("a", "started for one TiKV cluster", STATE_TIMEOUT, flagged)
            .await;
        let watched = Watched::start(&brains).await;
        let written = Load::start(&brains, 1, &watched, None).await.pause().await;

        first.lead_to(&kit, "other").await;
        let now = DeleteParams::default().grace_period(0);
        kit.api::<Pod>().delete("a-0", &now).await.unwrap();
        until_named(&brains, &["StorageReady"], "ClusterIDChanged").await;
        let refused = kit.api::<Pod>().get("a-0").await.unwrap();
        assert!(!pods::serves(&refused), "a brain serves on another TiKV cluster");
        first.lead_to(&kit, "pd").await;
        brains.until_ready().await;
        kit.eventually("serving", async || {
            let serves = watched.history().now.values().any(pods::serves);
            serves.then_some(()).ok_or("no pod serves".to_owned())
        })
        .await;
        written.check().await;
        assert_eq!(brains.get().await.status.unwrap().storage.unwrap().cluster_id, pinned);

        first.lead_to(&kit, "other").await;
        kit.api::<Pod>().delete("a-0", &now).await.unwrap();
        until_named(&brains, &["StorageReady"], "ClusterIDChanged").await;
        can_be_deleted(&brains).await;
    });
}

#[test]
fn authority_of_tikv_that_is_missing_or_wrong_is_named_and_heals() {
    kit::run_troubled("bad-trust", async |kit| {
        let mock_tikv = MockTikv {
            tls: Some("tikv-server"),
            ..MockTikv::new("pd")
        };
        let (authority, stranger) = (Authority::new("tikv"), Authority::new("somebody else"));
        let host = mock_tikv.host(&kit);
        kit.try_apply(&authority.secret("tikv-server", "tikv", &[&host]))
            .await
            .unwrap();
        kit.try_apply(&authority.secret("tikv-client", "brain", &[]))
            .await
            .unwrap();
        mock_tikv.start(&kit).await;
        let mut spec = on_tikv(&mock_tikv.pd(&kit), 1);
        spec["storage"]["tikv"]["tls"] = json!({
            "caSecretRef": {"name": "tikv-ca", "key": "ca.crt"},
            "clientSecretRef": {"name": "tikv-client"},
        });
        let brains = kit.brains("a", spec.clone()).await;
        until_named(&brains, &["StorageReady"], "tikv-ca").await;

        kit.try_apply(&stranger.bundle("tikv-ca")).await.unwrap();
        until_named(&brains, &["StorageReady"], "Unreachable").await;
        let beside = kit.brains("b", spec).await;
        until_named(&beside, &["StorageReady"], "Unreachable").await;
        can_be_deleted(&beside).await;

        let uid = kit.until::<Pod>("a-0", "there", STATE_TIMEOUT, |_| true).await.uid();
        kit.try_apply(&authority.bundle("tikv-ca")).await.unwrap();
        brains.until_ready().await;
        let after = kit.api::<Pod>().get("a-0").await.unwrap();
        assert_eq!(after.uid(), uid, "the pod was replaced");

        // running members continue without the Secret; its absence is reported, and heals
        let secrets = kit.api::<Secret>();
        secrets.delete("tikv-ca", &DeleteParams::default()).await.unwrap();
        brains
            .until_condition("StorageReady", "False", &["SecretMissing"])
            .await;
        kit.try_apply(&authority.bundle("tikv-ca")).await.unwrap();
        brains.until_condition("StorageReady", "True", &[]).await;
        brains.until_ready().await;
    });
}
