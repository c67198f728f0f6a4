//! Growth in place: volumes with their class, and pods with what their node can give.

use crds::KubeBrainCluster;
use e2e_cluster::images::BRAIN_NEXT;
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod, PodTemplate};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::bad_days::can_be_deleted;
use super::brains::{condition, embedded, version};
use super::kit::{self, Kit, STATE_TIMEOUT};
use super::objects::uids;
use super::pods;

/// Creates a class that lets volumes grow, and a volume of it that the test resizes itself.
async fn volume_that_grows(kit: &Kit, name: &str) {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": "e2e.kubebrain.io/resizer",
        "allowVolumeExpansion": true,
    });
    let path = kit.harness().cluster.home().path(format!("volumes/{name}"));
    std::fs::create_dir_all(&path).unwrap();
    let volume = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOncePod"],
            "storageClassName": name,
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": path},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [e2e_cluster::kubelet::NODE_NAME]},
            ]}]}},
        },
    });
    for object in [class, volume] {
        kit.try_apply(&object).await.unwrap();
    }
}

fn requested(claim: &PersistentVolumeClaim) -> Option<&Quantity> {
    let resources = claim.spec.as_ref()?.resources.as_ref()?;
    resources.requests.as_ref()?.get("storage")
}

/// Writes the same as the resizer of a CSI driver when a volume has grown.
async fn as_resizer(kit: &Kit, volume: &str, claim: &str, size: &str) {
    let volumes = Api::<PersistentVolume>::all(kit.client.clone());
    let patch = Patch::Merge(json!({"spec": {"capacity": {"storage": size}}}));
    volumes.patch(volume, &PatchParams::default(), &patch).await.unwrap();
    let claims = kit.api::<PersistentVolumeClaim>();
    let patch = Patch::Merge(json!({"status": {"capacity": {"storage": size}, "conditions": null}}));
    claims
        .patch_status(claim, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

#[test]
fn claim_grows_with_its_class_and_without_it_blocks_nothing() {
    kit::run_troubled("objects-claims", async |kit| {
        volume_that_grows(&kit, "objects-grows").await;
        let mut spec = embedded();
        spec["storage"]["embedded"]["storageClassName"] = json!("objects-grows");
        let grows = kit.brains("grows", spec).await;
        let stays = kit.brains("stays", embedded()).await;
        grows.until_ready().await;
        stays.until_ready().await;
        let pods = uids::<Pod>(&kit).await;

        grows.patch(json!({"storage": {"embedded": {"size": "2Gi"}}})).await;
        grows.until_condition("Progressing", "True", &["ResizingStorage"]).await;
        let asked = |claim: &PersistentVolumeClaim| requested(claim) == Some(&Quantity("2Gi".to_owned()));
        kit.until::<PersistentVolumeClaim>("data-grows-0", "asked to grow", STATE_TIMEOUT, asked)
            .await;
        as_resizer(&kit, "objects-grows", "data-grows-0", "2Gi").await;
        let grown = |cluster: &crds::KubeBrainCluster| {
            let storage = cluster.status.as_ref().and_then(|status| status.storage.as_ref());
            storage.is_some_and(|storage| storage.capacity == Some(Quantity("2Gi".to_owned())))
        };
        grows.until("grown", grown).await;
        grows.until_ready().await;
        assert_eq!(uids::<Pod>(&kit).await["grows-0"], pods["grows-0"], "restarted to grow");

        // 200Gi: its volume has 100Gi already
        stays.patch(json!({"storage": {"embedded": {"size": "200Gi"}}})).await;
        let refused = stays.until_condition("StorageReady", "False", &["NotExpandable"]).await;
        assert!(refused.message.contains("data-stays-0"), "{}", refused.message);
        stays.patch(json!({"version": version(BRAIN_NEXT)})).await;
        let next = |pod: &Pod| pods::image(pod) == BRAIN_NEXT && pods::serves(pod);
        kit.until::<Pod>("stays-0", "of the next version", STATE_TIMEOUT, next)
            .await;
        stays.patch(json!({"storage": {"embedded": {"size": "1Gi"}}})).await;
        stays.until_condition("StorageReady", "True", &["Bound"]).await;
        stays.until_ready().await;
        stays.patch(json!({"storage": {"embedded": {"size": "200Gi"}}})).await;
        stays.until_condition("StorageReady", "False", &["NotExpandable"]).await;
        can_be_deleted(&stays).await;
        let classes = Api::<k8s_openapi::api::storage::v1::StorageClass>::all(kit.client.clone());
        classes.delete("objects-grows", &DeleteParams::default()).await.unwrap();
    });
}

/// Returns the request of the first container of a pod.
fn request(pod: &Pod, of: &str) -> Option<Quantity> {
    let resources = pod.spec.as_ref()?.containers[0].resources.as_ref()?;
    resources.requests.as_ref()?.get(of).cloned()
}

#[test]
fn resources_of_a_pod_change_in_place() {
    kit::run_troubled("resize-pod", async |kit| {
        let mut spec = embedded();
        spec["pod"] = json!({"resources": {"requests": {"cpu": "10m", "memory": "32Mi"}}});
        let brains = kit.brains("a", spec).await;
        brains.until_ready().await;
        let member = uids::<Pod>(&kit).await["a-0"].clone();
        brains
            .patch(json!({"pod": {"resources": {"requests": {"cpu": "20m", "memory": "32Mi"}}}}))
            .await;
        let resized = |pod: &Pod| request(pod, "cpu") == Some(Quantity("20m".to_owned()));
        kit.until::<Pod>("a-0", "resized", STATE_TIMEOUT, resized).await;
        brains.until_ready().await;
        assert_eq!(uids::<Pod>(&kit).await["a-0"], member, "replaced to be resized");
        kit.eventually("an Event", async || {
            let events = kit.list::<Event>().await;
            let about = |event: &Event| event.reason.as_deref() == Some("PodResized");
            events.iter().any(about).then_some(()).ok_or("none".to_owned())
        })
        .await;
        // no node has that many processors: the only member keeps running, and the status says why
        brains
            .patch(json!({"pod": {"resources": {"requests": {"cpu": "1000", "memory": "32Mi"}}}}))
            .await;
        let told = |cluster: &KubeBrainCluster| {
            let progressing = condition(cluster, "Progressing");
            progressing.is_some_and(|it| it.message.contains("a-0 keeps its resources"))
        };
        brains.until("told that a-0 stays", told).await;
        assert_eq!(
            uids::<Pod>(&kit).await["a-0"],
            member,
            "replaced by one that fits nowhere"
        );
        can_be_deleted(&brains).await;
    });
}

/// The cases by which the operator's own tests merge: a template is merged as a pod is.
#[test]
fn merges_of_tests_are_those_of_the_api_server() {
    kit::run_troubled("resize-merges", async |kit| {
        let cases = include_str!("../../../../operator/fake-api/fixtures/merges.json");
        let cases: Vec<serde_json::Value> = serde_json::from_str(cases).unwrap();
        let templates = kit.api::<PodTemplate>();
        for (number, case) in cases.iter().enumerate() {
            let name = format!("merge-{number}");
            let mut container = json!({"name": "brain", "image": "i"});
            if !case["before"].is_null() {
                container["resources"] = case["before"].clone();
            }
            let made = json!({
                "apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name, "namespace": kit.namespace},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}},
            });
            kit.try_apply(&made).await.unwrap();
            let containers = json!([{"name": "brain", "resources": case["patch"]}]);
            let patch = Patch::Strategic(json!({"template": {"spec": {"containers": containers}}}));
            let merged = templates.patch(&name, &PatchParams::default(), &patch).await.unwrap();
            let merged = serde_json::to_value(&merged).unwrap();
            let found = &merged["template"]["spec"]["containers"][0]["resources"]["limits"];
            assert_eq!(found, &case["after"]["limits"], "{case}");
        }
    });
}
