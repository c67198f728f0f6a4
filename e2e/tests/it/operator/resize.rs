//! Growth in place: volumes with their class, and pods with what their node can give.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crds::KubeBrainCluster;
use crds::cluster::status::SpaceLimit;
use e2e_cluster::images::BRAIN_NEXT;
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod, PodTemplate};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use wire::etcdserverpb as pb;

use super::bad_days::can_be_deleted;
use super::brains::{Brains, condition, embedded, version};
use super::kit::{self, Kit, STATE_TIMEOUT};
use super::objects::uids;
use super::pods;

/// Creates a class that lets volumes grow, and a volume of it that the test resizes itself. Returns the directory of the volume.
async fn volume_that_grows(kit: &Kit, name: &str, size: &str) -> PathBuf {
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
            "capacity": {"storage": size},
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
    path
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
        volume_that_grows(&kit, "objects-grows", "1Gi").await;
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

/// A file system in memory whose size the test sets, unmounted at the end.
pub(super) struct Memory(PathBuf);

impl Memory {
    pub(super) fn mount(path: &Path, size: &str) -> Self {
        mount(&["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"], path);
        Self(path.to_owned())
    }

    pub(super) fn resize(&self, size: &str) {
        mount(&["-o", &format!("remount,size={size}")], &self.0);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A pod may still use it.
        programs::command::run("umount", [Path::new("--lazy"), &self.0]).unwrap();
    }
}

fn mount(words: &[&str], path: &Path) {
    let words = words.iter().map(Path::new).chain([path]);
    programs::command::run("mount", words).unwrap();
}

/// Puts values that do not compress until one is refused, and returns why.
async fn fill(brains: &Brains<'_>) -> String {
    let mut kv = Box::pin(brains.kv()).await;
    let mut random = StdRng::seed_from_u64(1);
    for number in 0..4_000 {
        let mut value = vec![0; 512 << 10];
        random.fill(value.as_mut_slice());
        let put = pb::PutRequest {
            key: format!("fill/{number:04}").into(),
            value: value.into(),
            ..pb::PutRequest::default()
        };
        if let Err(status) = kv.put(put).await {
            brains.kit.say(format!("refused after {number} values"));
            return status.message().to_owned();
        }
    }
    panic!("the volume is not full");
}

#[test]
fn volume_that_fills_up_grows_and_its_alarm_ends() {
    kit::run_troubled("resize-grows", async |kit| {
        let directory = volume_that_grows(&kit, "resize-grows", "512Mi").await;
        let memory = Memory::mount(&directory, "512m");
        let mut spec = embedded();
        spec["storage"]["embedded"]["storageClassName"] = json!("resize-grows");
        spec["storage"]["embedded"]["size"] = json!("512Mi");
        spec["storage"]["embedded"]["autoGrow"] = json!({"max": "1Gi", "step": "512Mi"});
        spec["flags"] = json!({"auto-disarm-nospace": "true"});
        let brains = kit.brains("a", spec).await;
        brains.until_ready().await;
        let member = uids::<Pod>(&kit).await["a-0"].clone();
        let before = brains.until_condition("SpaceLow", "False", &["AsExpected"]).await;
        let space = brains.get().await.status.unwrap().space.unwrap();
        assert_eq!(
            (space.limit, space.limit_bytes),
            (SpaceLimit::Disk, 512 << 20),
            "{before:?}"
        );

        assert_eq!(
            Box::pin(fill(&brains)).await,
            "etcdserver: mvcc: database space exceeded"
        );
        // It looks at its own pace, too: once a minute.
        brains.annotate("e2e.kubebrain.io/look", "1").await;
        let asked = |claim: &PersistentVolumeClaim| requested(claim) == Some(&Quantity("1Gi".to_owned()));
        kit.until::<PersistentVolumeClaim>("data-a-0", "asked to grow", STATE_TIMEOUT, asked)
            .await;
        brains.until_condition("SpaceLow", "True", &["DiskNearlyFull"]).await;
        memory.resize("1g");
        let grown = tokio::time::Instant::now();
        as_resizer(&kit, "resize-grows", "data-a-0", "1Gi").await;
        let kv = Box::pin(brains.kv()).await;
        kit.eventually("a put", async || {
            let put = pb::PutRequest {
                key: "after".into(),
                value: "growth".into(),
                ..pb::PutRequest::default()
            };
            kv.clone().put(put).await.map_err(|status| status.to_string())
        })
        .await;
        kit.number(
            "from a larger volume to the first write",
            grown.elapsed(),
            None::<Duration>,
        );
        brains.annotate("e2e.kubebrain.io/look", "2").await;
        brains.until_condition("SpaceLow", "False", &["AsExpected"]).await;
        brains.until_ready().await;
        assert_eq!(uids::<Pod>(&kit).await["a-0"], member, "restarted to grow");
        let space = brains.get().await.status.unwrap().space.unwrap();
        assert_eq!(space.limit_bytes, 1 << 30);
        can_be_deleted(&brains).await;
        let classes = Api::<k8s_openapi::api::storage::v1::StorageClass>::all(kit.client.clone());
        classes.delete("resize-grows", &DeleteParams::default()).await.unwrap();
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
