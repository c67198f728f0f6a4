//! Several clusters and a default image that does not run: whatever happens to the first cluster, no second one loses a pod to it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::fleet::Fleet;

const WRONG: &str = "kubebrain.io/kubebrain:0.2.0";
const NAMESPACES: [&str; 3] = ["a", "b", "c"];

fn path(namespace: &str, rest: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/{rest}")
}

fn cluster_path(namespace: &str) -> String {
    format!("{CLUSTERS}/dev").replace("brains", namespace)
}

/// A server with a settled cluster in each namespace.
fn server(api: FakeApi) -> FakeApi {
    for namespace in NAMESPACES {
        let fake = FakeCluster::settled_in(namespace, json!({"tls": {"mode": "Disabled"}}));
        api.load(&fake);
        let mut pod = serde_json::to_value(&fake.seen.pods[0]).unwrap();
        pod["metadata"]["namespace"] = json!(namespace);
        api.put(&path(namespace, "pods/dev-0"), pod);
    }
    api
}

/// Returns an operator that starts with the wrong image, and does not know the clusters yet.
async fn operator(api: &FakeApi) -> Rig {
    let mut rig = Rig::new(api.clone()).await;
    WRONG.clone_into(&mut rig.context.settings.default_image);
    rig.context.fleet = Fleet::new(WRONG.to_owned(), 1, &[], Arc::default());
    rig
}

fn listed(rig: &Rig) {
    rig.context.fleet.add(rig.context.cache.clusters.clone());
}

/// Namespaces whose pods were deleted, or whose StatefulSets were written.
fn touched(api: &FakeApi) -> BTreeSet<String> {
    let writes = api.writes().into_iter();
    let touching = writes.filter(|write| {
        let deletes = write.method == http::Method::DELETE && write.path.contains("/pods/");
        deletes || write.path.contains("/statefulsets/")
    });
    let namespace = |write: RecordedRequest| {
        let (_, rest) = write.path.split_once("/namespaces/")?;
        Some(rest.split('/').next()?.to_owned())
    };
    touching.filter_map(namespace).collect()
}

fn edit(api: &FakeApi, namespace: &str, change: impl Fn(&mut Value)) {
    let path = cluster_path(namespace);
    let mut cluster = api.get(&path).unwrap();
    change(&mut cluster);
    api.put(&path, cluster);
}

/// Runs a pass over each cluster in this order. Clusters that were not changed are ready; pods that were deleted come back and do not run.
async fn passes(rig: &Rig, order: [&str; 3]) {
    for namespace in order {
        if !touched(&rig.api).contains(namespace) {
            edit(&rig.api, namespace, |cluster| {
                for condition in cluster["status"]["conditions"].as_array_mut().unwrap() {
                    let is_good = ["Ready", "Available", "StorageReady", "CertificatesReady"];
                    let is_good = is_good.iter().any(|type_| condition["type"] == *type_);
                    condition["status"] = json!(if is_good { "True" } else { "False" });
                }
            });
        }
        rig.sync().await;
        let cluster = rig.context.cache.cluster(namespace, "dev").unwrap();
        drop(reconcile(&rig.context, &cluster, 0).await);
        let pod = path(namespace, "pods/dev-0");
        if rig.api.get(&pod).is_none() {
            let set = format!("/apis/apps/v1/namespaces/{namespace}/statefulsets/dev");
            let set = rig.api.get(&set).unwrap();
            let mut made = set["spec"]["template"].clone();
            made["metadata"]["name"] = json!("dev-0");
            made["metadata"]["namespace"] = json!(namespace);
            made["metadata"]["ownerReferences"] = json!([{
                "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "dev", "uid": set["metadata"]["uid"], "controller": true,
            }]);
            made["status"] = json!({"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}]});
            rig.api.put(&pod, made);
        }
        rig.sync().await;
    }
}

/// The first cluster is half-way: its only pod was replaced and does not run.
async fn half_way(api: &FakeApi) -> Rig {
    let rig = operator(api).await;
    listed(&rig);
    for _ in 0..3 {
        passes(&rig, ["a", "b", "c"]).await;
    }
    assert_eq!(touched(api), BTreeSet::from(["a".to_owned()]));
    assert!(api.writes().iter().any(|write| write.path == path("a", "pods/dev-0")));
    rig
}

/// Changes a cluster half-way for one pass over all clusters, then reverts the change.
async fn disturbed(disturb: impl Fn(&mut Value), undo: impl Fn(&mut Value)) {
    let api = server(FakeApi::new());
    let rig = half_way(&api).await;
    edit(&api, "a", disturb);
    passes(&rig, ["a", "b", "c"]).await;
    edit(&api, "a", undo);
    for _ in 0..2 {
        passes(&rig, ["b", "c", "a"]).await;
    }
    assert_eq!(touched(&api), BTreeSet::from(["a".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn refusal_of_one_pass_half_way_frees_no_turn() {
    Box::pin(disturbed(
        |cluster| cluster["spec"]["flags"] = json!({"no-such-flag": "1"}),
        |cluster| cluster["spec"]["flags"] = json!({}),
    ))
    .await;
}

#[tokio::test(start_paused = true)]
async fn pause_half_way_frees_no_turn() {
    Box::pin(disturbed(
        |cluster| cluster["spec"]["paused"] = json!(true),
        |cluster| cluster["spec"]["paused"] = json!(false),
    ))
    .await;
}

#[tokio::test(start_paused = true)]
async fn restarted_operator_goes_on_with_the_cluster_that_is_half_way() {
    let api = server(FakeApi::new());
    drop(half_way(&api).await);
    let image = |api: &FakeApi| {
        let set = api.get("/apis/apps/v1/namespaces/a/statefulsets/dev").unwrap();
        set["spec"]["template"]["spec"]["containers"][0]["image"].clone()
    };
    assert_eq!(image(&api), WRONG);
    let rig = operator(&api).await;
    passes(&rig, ["a", "b", "c"]).await;
    assert_eq!(image(&api), WRONG, "it goes back for no list that is late");
    listed(&rig);
    for _ in 0..2 {
        passes(&rig, ["b", "c", "a"]).await;
    }
    assert_eq!(touched(&api), BTreeSet::from(["a".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn cluster_begins_only_when_its_status_says_so() {
    let fails = Arc::new(AtomicBool::new(true));
    let failing = fails.clone();
    let api = server(FakeApi::scripted(move |asked| {
        let is_status = asked.writes() && asked.path.ends_with("/namespaces/a/kubebrainclusters/dev/status");
        match is_status && failing.load(Ordering::SeqCst) {
            true => refuse(500, "InternalError"),
            false => ScriptedReply::Pass,
        }
    }));
    let rig = operator(&api).await;
    listed(&rig);
    passes(&rig, ["a", "b", "c"]).await;
    // The operator restarts, and only the status shows the state.
    drop(rig);
    fails.store(false, Ordering::SeqCst);
    let rig = operator(&api).await;
    listed(&rig);
    for _ in 0..3 {
        passes(&rig, ["b", "c", "a"]).await;
    }
    assert_eq!(touched(&api).len(), 1, "{:?}", touched(&api));
}

#[tokio::test(start_paused = true)]
async fn next_cluster_begins_when_the_first_runs_the_new_image() {
    let api = server(FakeApi::new());
    let rig = half_way(&api).await;
    edit(&api, "a", |cluster| {
        cluster["status"]["pinnedImage"]["image"] = json!(WRONG)
    });
    edit(&api, "a", |cluster| cluster["status"]["image"] = json!(WRONG));
    for _ in 0..2 {
        passes(&rig, ["b", "c", "a"]).await;
    }
    assert_eq!(touched(&api), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
}
