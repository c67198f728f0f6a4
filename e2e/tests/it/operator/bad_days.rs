//! Days on which something below or beside the brains is wrong: each has its condition, and heals when the cause is gone.

use crds::KubeBrainCluster;
use k8s_openapi::api::core::v1::{Event, Namespace, PersistentVolumeClaim, Pod, ResourceQuota, Secret};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams};
use kube::runtime::wait::await_condition;
use serde_json::json;
use tokio::time::timeout;

use super::brains::{Brains, condition, embedded, is_observed, on_tikv};
use super::kit::{self, STATE_TIMEOUT};
use super::tikv::Tikv;

/// Waits until one of these conditions names `text` in its reason or message.
pub(super) async fn until_named(brains: &Brains<'_>, types: &[&str], text: &str) {
    let named = |cluster: &KubeBrainCluster| {
        is_observed(cluster)
            && types.iter().any(|type_| {
                let condition = condition(cluster, type_);
                condition.is_some_and(|it| it.reason.contains(text) || it.message.contains(text))
            })
    };
    let what = format!("naming {text:?} in {}", types.join(" or "));
    let cluster = brains.until(&what, named).await;
    let said = types.iter().filter_map(|type_| condition(&cluster, type_));
    let said = said.map(|it| format!("{}={} {}: {}", it.type_, it.status, it.reason, it.message));
    let said: Vec<String> = said.filter(|said| said.contains(text)).collect();
    brains.kit.say(said.join("; "));
    let ready = condition(&cluster, "Ready").map(|ready| ready.status.as_str());
    assert_ne!(ready, Some("True"), "Ready on a bad day: {said:?}");
    brains
        .kit
        .eventually(&format!("an Event that names {text:?}"), async || {
            let events = brains.kit.list::<Event>().await;
            let about = |event: &Event| {
                event.involved_object.kind.as_deref() == Some("KubeBrainCluster")
                    && event.involved_object.name.as_ref() == Some(&brains.name)
                    && event.type_.as_deref() == Some("Warning")
                    && event.message.as_ref().is_some_and(|message| message.contains(text))
            };
            events.iter().any(about).then_some(()).ok_or("there is none".to_owned())
        })
        .await;
}

/// Deletes the cluster, and waits until it and its pods are gone.
pub(super) async fn can_be_deleted(brains: &Brains<'_>) {
    let clusters = brains.kit.api::<KubeBrainCluster>();
    clusters
        .delete(&brains.name, &DeleteParams::foreground())
        .await
        .unwrap();
    brains.kit.until_gone::<KubeBrainCluster>(&brains.name).await;
    assert_eq!(brains.pods().await.len(), 0, "pods are left");
}

#[test]
fn second_cluster_on_one_prefix_is_refused() {
    kit::run_troubled("bad-prefix", async |kit| {
        let tikv = Tikv::start(&kit).await;
        let mut spec = on_tikv(&tikv.pd, 1);
        spec["storage"]["tikv"]["keyPrefix"] = json!("bad-prefix/shared");
        let first = kit.brains("a", spec.clone()).await;
        first.until_ready().await;
        let second = kit.brains("b", spec).await;
        second.until_condition("StorageReady", "False", &["PrefixTaken"]).await;
        until_named(&second, &["StorageReady"], "PrefixTaken").await;
        can_be_deleted(&second).await;
        first.until_ready().await;
    });
}

#[test]
fn image_that_does_not_exist_is_named_and_heals() {
    kit::run_troubled("bad-image", async |kit| {
        let mut spec = embedded();
        spec["image"] = json!({"repository": "kubebrain.io/no-such-image", "pullPolicy": "Never"});
        let brains = kit.brains("a", spec.clone()).await;
        let beside = kit.brains("b", spec).await;
        until_named(&brains, &["Ready", "Degraded", "Progressing"], "Image").await;
        can_be_deleted(&beside).await;
        brains.patch(json!({"image": null})).await;
        brains.until_ready().await;
    });
}

#[test]
fn resources_that_do_not_fit_are_named_and_heal() {
    kit::run_troubled("bad-resources", async |kit| {
        let mut spec = embedded();
        spec["pod"] = json!({"resources": {"requests": {"cpu": "1000"}}});
        let brains = kit.brains("a", spec.clone()).await;
        let beside = kit.brains("b", spec).await;
        until_named(&brains, &["Ready", "Degraded", "Progressing"], "nsufficient cpu").await;
        can_be_deleted(&beside).await;
        brains
            .patch(json!({"pod": {"resources": {"requests": {"cpu": "10m"}}}}))
            .await;
        brains.until_ready().await;
    });
}

#[test]
fn quota_that_refuses_pods_is_named_and_heals() {
    kit::run_troubled("bad-quota", async |kit| {
        let quota = json!({
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "no-pods"},
            "spec": {"hard": {"pods": "0"}},
        });
        kit.try_apply(&quota).await.unwrap();
        let counted = |quota: &ResourceQuota| quota.status.as_ref().is_some_and(|status| status.hard.is_some());
        kit.until::<ResourceQuota>("no-pods", "counted", STATE_TIMEOUT, counted)
            .await;
        let brains = kit.brains("a", embedded()).await;
        let beside = kit.brains("b", embedded()).await;
        until_named(&brains, &["Ready", "Degraded", "Progressing"], "exceeded quota").await;
        can_be_deleted(&beside).await;
        let quotas = kit.api::<ResourceQuota>();
        quotas.delete("no-pods", &DeleteParams::default()).await.unwrap();
        brains.until_ready().await;
    });
}

#[test]
fn missing_secret_of_tikv_is_named_and_the_cluster_can_be_deleted() {
    kit::run_troubled("bad-secret", async |kit| {
        let mut spec = on_tikv("pd.nowhere.svc:2379", 1);
        spec["storage"]["tikv"]["tls"] = json!({
            "caSecretRef": {"name": "tikv-ca", "key": "ca.crt"},
            "clientSecretRef": {"name": "tikv-client"},
        });
        let brains = kit.brains("a", spec).await;
        until_named(&brains, &["StorageReady", "Ready", "Degraded"], "tikv-ca").await;
        assert!(kit.api::<Secret>().get_opt("tikv-ca").await.unwrap().is_none());
        can_be_deleted(&brains).await;
    });
}

#[test]
fn unreachable_pd_is_named_and_heals() {
    kit::run_troubled("bad-pd", async |kit| {
        let brains = kit.brains("a", on_tikv("pd.bad-pd.svc:2379", 1)).await;
        let beside = kit.brains("b", on_tikv("pd.bad-pd.svc:2379", 1)).await;
        until_named(&brains, &["StorageReady"], "Unreachable").await;
        until_named(&beside, &["StorageReady"], "Unreachable").await;
        can_be_deleted(&beside).await;
        let tikv = Tikv::start(&kit).await;
        if tikv.is_mock() {
            brains.until_ready().await;
        }
    });
}

#[test]
fn claim_that_cannot_bind_is_named_and_heals() {
    kit::run_troubled("bad-claim", async |kit| {
        let mut spec = embedded();
        spec["storage"]["embedded"]["storageClassName"] = json!("later");
        let brains = kit.brains("a", spec.clone()).await;
        let beside = kit.brains("b", spec).await;
        until_named(&brains, &["StorageReady"], "data-a-0").await;
        can_be_deleted(&beside).await;
        let volume = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "bad-claim"},
            "spec": {
                "capacity": {"storage": "2Gi"},
                "accessModes": ["ReadWriteOncePod"],
                "storageClassName": "later",
                "claimRef": {"namespace": "bad-claim", "name": "data-a-0"},
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": "/tmp/kubebrain-e2e-bad-claim", "type": "DirectoryOrCreate"},
            },
        });
        let volumes = Api::<k8s_openapi::api::core::v1::PersistentVolume>::all(kit.client.clone());
        let volume = serde_json::from_value(volume).unwrap();
        volumes
            .create(&kube::api::PostParams::default(), &volume)
            .await
            .unwrap();
        let bound = |claim: &PersistentVolumeClaim| {
            let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
            phase == Some("Bound")
        };
        kit.until::<PersistentVolumeClaim>("data-a-0", "bound", STATE_TIMEOUT, bound)
            .await;
        brains.until_condition("StorageReady", "True", &[]).await;
        volumes.delete("bad-claim", &DeleteParams::default()).await.unwrap();
    });
}

#[test]
fn namespace_takes_its_brains_with_it() {
    kit::run_troubled("bad-namespace", async |kit| {
        // another one: this one is still needed
        let inner = "bad-namespace-inner";
        let namespaces = Api::<Namespace>::all(kit.client.clone());
        kit.harness().cluster.expect_log(&format!("/pods/{inner}_")).unwrap();
        kit.harness().cluster.expect_log(&format!(".{inner}\"")).unwrap();
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(inner.to_owned());
        namespaces
            .create(&kube::api::PostParams::default(), &namespace)
            .await
            .unwrap();
        let object = json!({
            "apiVersion": "kubebrain.io/v1alpha1",
            "kind": "KubeBrainCluster",
            "metadata": {"name": "a", "namespace": inner},
            "spec": embedded(),
        });
        kit.try_apply(&object).await.unwrap();
        let pods = Api::<Pod>::namespaced(kit.client.clone(), inner);
        let there = await_condition(pods, "a-0", |pod: Option<&Pod>| pod.is_some());
        timeout(STATE_TIMEOUT, there).await.expect("a pod in time").unwrap();
        let uid = namespaces.get(inner).await.unwrap().uid().unwrap();
        namespaces.delete(inner, &DeleteParams::default()).await.unwrap();
        let gone = await_condition(namespaces, inner, kube::runtime::conditions::is_deleted(&uid));
        timeout(STATE_TIMEOUT, gone)
            .await
            .expect("the namespace is gone in time")
            .unwrap();
    });
}
