//! Many members on TiKV: from nothing, scaled, robbed of their objects, deleted.

use std::collections::BTreeMap;
use std::time::Duration;

use crds::KubeBrainCluster;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::brains::{self, Brains, on_tikv};
use super::kit::{self, Kit, STATE_TIMEOUT};
use super::load::Load;
use super::pods::Watched;
use super::tikv::Tikv;

/// From nothing to Ready, on a machine that does other things.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// The same on a machine that does nothing else.
const FROM_NOTHING_GOAL: Duration = Duration::from_secs(30);

#[test]
fn three_members_come_up_and_scale_with_their_data() {
    kit::run("members-scale", async |kit| {
        let tikv = Tikv::start(&kit).await;
        let brains = kit.brains("a", on_tikv(&tikv.pd, 3)).await;
        let took = brains.until_ready().await;
        kit.number("three members from nothing", took, Some(FROM_NOTHING_GOAL));
        assert!(took < READY_TIMEOUT, "three members took {took:?}");
        Box::pin(check_settled(&brains, 3)).await;
        let watched = Watched::start(&brains).await;
        for replicas in [1, 3, 5, 2] {
            let load = Load::start(&brains, 1, &watched, None).await;
            brains.patch(json!({"replicas": replicas})).await;
            let took = brains.until_ready().await;
            kit.say(format_args!("{replicas} members after {:.1} s", took.as_secs_f32()));
            Box::pin(check_settled(&brains, replicas)).await;
            load.acknowledge(10).await;
            let outcome = load.end().await;
            assert!(outcome.failed.is_empty(), "{replicas} members: {:#?}", outcome.failed);
        }
        let load = Load::start(&brains, 1, &watched, None).await;
        let before = load.pause().await;
        brains.patch(json!({"replicas": 0})).await;
        brains.until_condition("Available", "False", &["Suspended"]).await;
        kit.eventually("without pods", async || match brains.pods().await.len() {
            0 => Ok(()),
            left => Err(format!("{left} pods are left")),
        })
        .await;
        brains.patch(json!({"replicas": 3})).await;
        brains.until_ready().await;
        Box::pin(check_settled(&brains, 3)).await;
        before.check().await;
    });
}

/// Members, leader, Services and budget are as the status says.
async fn check_settled(brains: &Brains<'_>, replicas: usize) {
    let cluster = brains.get().await;
    let status = cluster.status.clone().unwrap();
    let members: Vec<String> = status
        .members
        .unwrap_or_default()
        .into_iter()
        .map(|member| member.name)
        .collect();
    let expected: Vec<String> = (0..replicas)
        .map(|number| format!("{}-{number}", brains.name))
        .collect();
    assert_eq!(members, expected, "members in status");
    let pods: Vec<String> = brains.pods().await.iter().map(|pod| pod.name_any()).collect();
    assert_eq!(pods, expected, "pods");
    brains
        .kit
        .eventually("the leader alone behind its Service", async || {
            let (leader, behind) = (brains.leader().await, brains.endpoints("leader").await);
            (behind == [leader.clone()])
                .then_some(())
                .ok_or(format!("{leader} leads, {behind:?} are behind it"))
        })
        .await;
    brains
        .kit
        .eventually("every member behind the client Service", async || {
            let behind = brains.endpoints("client").await;
            (behind == expected)
                .then_some(())
                .ok_or(format!("{behind:?} are behind it"))
        })
        .await;
    for pod in brains.pods().await {
        let member = brains.member(&pod).await.unwrap();
        assert_eq!(member["name"], pod.name_any(), "{member}");
    }
    let budget = brains
        .kit
        .api::<PodDisruptionBudget>()
        .get_opt(&brains.name)
        .await
        .unwrap();
    assert_eq!(budget.is_some(), replicas > 1, "a budget for {replicas} members");
}

#[test]
fn each_child_deleted_by_hand_comes_back() {
    kit::run("members-children", async |kit| {
        let tikv = Tikv::start(&kit).await;
        let brains = kit.brains("a", on_tikv(&tikv.pd, 2)).await;
        brains.until_ready().await;
        comes_back::<ServiceAccount>(&kit, &["a"]).await;
        comes_back::<Service>(&kit, &["a-client", "a-headless", "a-leader"]).await;
        comes_back::<PodDisruptionBudget>(&kit, &["a"]).await;
        comes_back::<ConfigMap>(&kit, &["a-ca-bundle"]).await;
        let leaves = [
            "a-server-tls",
            "a-peer-tls",
            "a-apiserver-client-tls",
            "a-operator-client-tls",
        ];
        comes_back::<Secret>(&kit, &leaves).await;
        let pods = uids::<Pod>(&kit).await;
        comes_back::<Pod>(&kit, &["a-0"]).await;
        // its pods stay, and the new one adopts them
        let before = uids::<Pod>(&kit).await;
        assert_ne!(before["a-0"], pods["a-0"]);
        let orphan = DeleteParams {
            propagation_policy: Some(kube::api::PropagationPolicy::Orphan),
            ..DeleteParams::default()
        };
        let sets = kit.api::<StatefulSet>();
        let uid = sets.get("a").await.unwrap().uid();
        sets.delete("a", &orphan).await.unwrap();
        kit.until::<StatefulSet>("a", "made anew", STATE_TIMEOUT, |set| set.uid() != uid)
            .await;
        brains.until_ready().await;
        let after = uids::<Pod>(&kit).await;
        assert_eq!(after, before, "pods by their uid");

        let cluster = brains.get().await;
        kit.api::<KubeBrainCluster>()
            .delete("a", &DeleteParams::foreground())
            .await
            .unwrap();
        kit.until_gone::<KubeBrainCluster>("a").await;
        let owned = |uids: BTreeMap<String, String>| uids.into_keys().filter(|name| name.starts_with("a")).count();
        assert_eq!(owned(uids::<StatefulSet>(&kit).await), 0, "of {:?}", cluster.uid());
        assert_eq!(owned(uids::<Secret>(&kit).await), 0);
    });
}

/// Deletes objects, and waits until there are others of their names.
async fn comes_back<K>(kit: &Kit, names: &[&str])
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
    K::DynamicType: Default,
{
    for name in names {
        let old = kit.api::<K>().get(name).await.unwrap().uid();
        kit.api::<K>().delete(name, &DeleteParams::default()).await.unwrap();
        kit.until::<K>(name, "made anew", STATE_TIMEOUT, |new| new.uid() != old)
            .await;
    }
    Brains::new(kit, "a").until_ready().await;
}

async fn uids<K>(kit: &Kit) -> BTreeMap<String, String>
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
    K::DynamicType: Default,
{
    let listed = kit.api::<K>().list(&ListParams::default()).await.unwrap();
    listed
        .iter()
        .map(|object| (object.name_any(), object.uid().unwrap()))
        .collect()
}

#[test]
fn a_foreign_object_of_our_name_is_not_touched() {
    kit::run_troubled("members-foreign", async |kit| {
        let mut foreign = Service::default();
        foreign.metadata.name = Some("a-client".to_owned());
        foreign.metadata.labels = Some([("mine".to_owned(), "yes".to_owned())].into());
        foreign.spec = serde_json::from_value(json!({"ports": [{"port": 1}]})).unwrap();
        let services = kit.api::<Service>();
        let foreign = services.create(&PostParams::default(), &foreign).await.unwrap();
        let brains = kit.brains("a", brains::embedded()).await;
        let named = |cluster: &KubeBrainCluster| {
            let ready = brains::condition(cluster, "Ready");
            ready.is_some_and(|ready| ready.status == "False" && ready.message.contains("a-client"))
        };
        brains.until("naming the foreign Service", named).await;
        let after = services.get("a-client").await.unwrap();
        assert_eq!(after.metadata.resource_version, foreign.metadata.resource_version);
        services.delete("a-client", &DeleteParams::default()).await.unwrap();
        brains.until_ready().await;
    });
}
