//! Two installations of the operator that see the same cluster.

use plan::names::MANAGED_BY_INSTALLATION;

use super::*;
use crate::installation::Installation;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/operators/leases/a";

/// Returns an operator that competes for this Lease in the namespace `operators`.
async fn operator(api: &FakeApi, name: &str) -> Rig {
    let mut rig = Rig::new(api.clone()).await;
    rig.context.installation = Installation::new(rig.context.client.clone(), Some(format!("operators/{name}")));
    rig
}

/// Renews the Lease of `a` for the n-th time.
fn renew(api: &FakeApi, holder: &str, number: u32) {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a", "namespace": "operators"},
        "spec": {"holderIdentity": holder, "renewTime": format!("2026-11-21T00:00:{number:02}.000000Z")},
    });
    api.put(LEASE, lease);
}

/// Runs a pass and returns the number of its writes.
async fn written(rig: &Rig) -> usize {
    rig.sync().await;
    rig.api.forget_requests();
    pass(rig).await.unwrap();
    rig.api.writes().len()
}

fn manager(api: &FakeApi) -> Value {
    api.get(&format!("{CLUSTERS}/dev")).unwrap()["status"]["managedBy"].clone()
}

/// Advances the paused clock.
async fn wait(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn cluster_of_another_installation_is_left_alone_as_long_as_that_lives() {
    let api = bare(FakeApi::new());
    renew(&api, "a-0", 1);
    let (first, second) = (operator(&api, "a").await, operator(&api, "b").await);
    pass(&first).await.unwrap();
    assert_eq!(manager(&api), "operators/a");
    assert_eq!(written(&second).await, 0);
    assert_eq!(api.events_about("KubeBrainCluster").len(), 1);
    // It is renewed, or released and won by another replica of a newer version.
    for (number, holder) in [(2, "a-0"), (3, ""), (4, "a-1")] {
        wait(50).await;
        renew(&api, holder, number);
        assert_eq!(written(&second).await, 0, "{number}");
        assert!(
            api.events_about("KubeBrainCluster").is_empty(),
            "it was reported before"
        );
    }
    let upgraded = operator(&api, "a").await;
    assert!(written(&upgraded).await > 0, "it is the same installation");
    // The Lease is no longer renewed.
    wait(70).await;
    assert!(written(&second).await > 0);
    assert_eq!(manager(&api), "operators/b");
    assert_eq!(written(&upgraded).await, 0, "it does not fight for it");
}

#[tokio::test(start_paused = true)]
async fn installation_whose_lease_cannot_be_read_counts_as_alive() {
    let api = bare(FakeApi::scripted(|asked| match asked.path == LEASE {
        true => refuse(403, "Forbidden"),
        false => ScriptedReply::Pass,
    }));
    let (first, second) = (operator(&api, "a").await, operator(&api, "b").await);
    pass(&first).await.unwrap();
    for _ in 0..3 {
        wait(70).await;
        assert_eq!(written(&second).await, 0);
    }
    // A user decides.
    let path = format!("{CLUSTERS}/dev");
    let mut cluster = api.get(&path).unwrap();
    cluster["metadata"]["annotations"][MANAGED_BY_INSTALLATION] = json!("operators/b");
    api.put(&path, cluster.clone());
    assert!(written(&second).await > 0);
    assert_eq!(manager(&api), "operators/b");
    assert_eq!(written(&first).await, 0);
    // A text that is not the name of a Lease is ignored, and no request is made for it.
    for nonsense in ["", "a", "operators/../pods/x", "Operators/A"] {
        cluster["metadata"]["annotations"][MANAGED_BY_INSTALLATION] = json!(nonsense);
        api.put(&path, cluster.clone());
        assert!(written(&second).await > 0, "{nonsense}");
        let leases = api.asked().into_iter().filter(|asked| asked.path.contains("leases"));
        assert_eq!(leases.count(), 0, "{nonsense}");
    }
}
