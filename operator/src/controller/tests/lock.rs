//! A Lease as leader lock: the operator creates it, brains write it.

use futures::{FutureExt as _, StreamExt as _};

use super::*;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/brains/leases/dev-leader";

/// Returns a server with a settled cluster whose members would compete for a Lease, if it had any.
pub(super) fn competing(api: FakeApi) -> FakeApi {
    let tikv = json!({"pdEndpoints": ["pd:2379"]});
    let mut fake = FakeCluster::settled(json!({
        "storage": {"type": "TiKV", "embedded": null, "tikv": tikv},
        "leaderElection": {"backend": "Lease"},
    }));
    fake.edit(json!({"replicas": 0}));
    fake.settle();
    api.load(&fake);
    api
}

#[tokio::test(start_paused = true)]
async fn lease_that_was_deleted_is_made_again_and_its_holder_stays() {
    let rig = Rig::new(competing(FakeApi::new())).await;
    pass(&rig).await.unwrap();
    rig.api.remove(LEASE);
    rig.sync().await;
    pass(&rig).await.unwrap();
    let made = rig.api.get(LEASE).unwrap();
    assert_eq!(made["metadata"]["labels"]["kubebrain.io/cluster"], "dev");
    assert!(made.get("spec").is_none(), "{made}");
    let mut held = made;
    held["spec"] = json!({"holderIdentity": "dev-0_1", "renewTime": "2026-11-21T00:00:00.000000Z"});
    held["metadata"]["labels"]
        .as_object_mut()
        .unwrap()
        .remove("kubebrain.io/cluster");
    rig.api.put(LEASE, held);
    for _ in 0..2 {
        rig.sync().await;
        pass(&rig).await.unwrap();
    }
    let mended = rig.api.get(LEASE).unwrap();
    assert_eq!(mended["metadata"]["labels"]["kubebrain.io/cluster"], "dev");
    assert_eq!(mended["spec"]["holderIdentity"], "dev-0_1");
}

#[tokio::test(start_paused = true)]
async fn renewal_of_the_lease_starts_no_pass_and_a_new_holder_does() {
    let rig = Rig::new(competing(FakeApi::new())).await;
    pass(&rig).await.unwrap();
    let write = |holder: &str, second: u32| {
        let mut lease = rig.api.get(LEASE).unwrap();
        lease["spec"] = json!({"holderIdentity": holder, "renewTime": format!("2026-11-21T00:00:{second:02}.000000Z")});
        rig.api.put(LEASE, lease);
    };
    let mut named = std::pin::pin!(rig.queue.clone().stream());
    write("dev-0_1", 1);
    rig.sync().await;
    while named.next().now_or_never().is_some() {}
    write("dev-0_1", 2);
    rig.sync().await;
    assert!(named.next().now_or_never().is_none());
    write("dev-1_1", 3);
    rig.sync().await;
    assert!(named.next().now_or_never().is_some());
}
