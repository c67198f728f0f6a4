//! Foreign objects that an apply would take over without a conflict, because it sets no field that their owner has set.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::lock::competing;
use super::*;

/// Puts a foreign object at `path` before the operator creates its own; it must stay unchanged.
async fn check(path: &str, kind: &str, content: Value) {
    let name = path.rsplit('/').next().unwrap();
    let mut foreign = json!({"kind": kind, "apiVersion": "v1", "metadata": {"name": name, "namespace": "brains"}});
    for (field, value) in content.as_object().unwrap() {
        foreign[field] = value.clone();
    }
    // It is created between the check whether it exists and the answer.
    let (own, asked) = (path.to_owned(), Arc::<AtomicUsize>::default());
    let api = FakeApi::scripted(move |request| {
        let first = request.path == own && !request.writes() && asked.fetch_add(1, Ordering::SeqCst) == 0;
        if first {
            refuse(404, "NotFound")
        } else {
            ScriptedReply::Pass
        }
    });
    let api = competing(api);
    api.remove(path);
    let foreign = api.put(path, foreign);
    let rig = Rig::new(api).await;
    assert_eq!(pass(&rig).await.unwrap_err().class(), FailureClass::Conflict, "{path}");
    let tried = rig
        .api
        .writes()
        .into_iter()
        .filter(|write| path.starts_with(&write.path));
    let methods: Vec<String> = tried.map(|write| write.method.to_string()).collect();
    assert_eq!(methods, ["POST"], "an apply of {path} would succeed");
    rig.sync().await;
    pass(&rig).await.unwrap();
    let stalled = condition(&stored_status(&rig), "Stalled").clone();
    assert_eq!(stalled["reason"], "OwnershipConflict", "{stalled}");
    assert!(stalled["message"].as_str().unwrap().contains(name), "{stalled}");
    assert_eq!(rig.api.get(path).unwrap(), foreign);
}

#[tokio::test(start_paused = true)]
async fn object_that_an_apply_would_take_over_is_left_alone() {
    let lease = "/apis/coordination.k8s.io/v1/namespaces/brains/leases/dev-leader";
    check(lease, "Lease", json!({"spec": {"holderIdentity": "theirs"}})).await;
    check(&format!("{NAMESPACE}/serviceaccounts/dev"), "ServiceAccount", json!({})).await;
    let map = format!("{NAMESPACE}/configmaps/dev-ca-bundle");
    check(&map, "ConfigMap", json!({"data": {"theirs": "yes"}})).await;
}

/// A cluster with the name of a foreign ServiceAccount, which its spec names.
#[tokio::test(start_paused = true)]
async fn no_pod_runs_as_an_account_of_somebody_else() {
    let account = format!("{NAMESPACE}/serviceaccounts/dev");
    for labels in [json!({}), json!({"app.kubernetes.io/managed-by": "kubebrain-operator"})] {
        let api = competing(FakeApi::new());
        let mut own = api.get(&format!("{CLUSTERS}/dev")).unwrap();
        own["spec"]["pod"] = json!({"serviceAccountName": "dev"});
        api.put(&format!("{CLUSTERS}/dev"), own);
        api.remove("/apis/apps/v1/namespaces/brains/statefulsets/dev");
        api.remove(&account);
        let metadata = json!({"name": "dev", "namespace": "brains", "labels": labels});
        api.put(
            &account,
            json!({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": metadata}),
        );
        let rig = Rig::new(api).await;
        for _ in 0..4 {
            drop(pass(&rig).await);
            rig.sync().await;
        }
        let stalled = condition(&stored_status(&rig), "Stalled").clone();
        assert_eq!(stalled["reason"], "OwnershipConflict", "{stalled}");
        assert!(
            rig.api
                .get("/apis/apps/v1/namespaces/brains/statefulsets/dev")
                .is_none()
        );
    }
}
