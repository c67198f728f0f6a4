//! Claims that are being deleted below pods that still use them.

use super::*;

fn delete_claim(fake: &mut FakeCluster) {
    let now = Time(fake.seen.now);
    fake.seen.claims[0].metadata.deletion_timestamp = Some(now);
}

#[test]
fn pod_whose_claim_is_being_deleted_is_left_alone() {
    let mut fake = FakeCluster::settled(json!({}));
    fake.wait(60);
    fake.edit(json!({"restartedAt": "2026-11-21T00:00:01Z"}));
    assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
    delete_claim(&mut fake);
    for change in [json!({}), json!({"version": "0.2.0"}), json!({"replicas": 0})] {
        fake.edit(change.clone());
        assert_eq!(fake.pass(), Vec::<String>::new(), "{change}");
        assert_eq!(fake.condition("StorageReady"), "False/VolumeTerminating");
        assert_eq!(fake.condition("Stalled"), "True/VolumeTerminating");
    }
    let why = fake.plan().blocker.unwrap().message;
    assert!(
        why.contains("data-dev-0") && why.contains("etcdctl snapshot save"),
        "{why}"
    );
    // The pod was deleted: nothing can be lost any more.
    fake.seen.pods.clear();
    assert_eq!(fake.steps(), ["apply StatefulSet dev"]);
}

fn deletion(fake: &mut FakeCluster) -> Value {
    let set = fake.object(ObjectKind::StatefulSet, "dev");
    set.data["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"].clone()
}

#[test]
fn claims_are_kept_at_once_whatever_holds_the_spec_back() {
    const KEEP: &str = "retain the volume claims of dev when it is deleted";
    let policy = |wanted: &str| json!({"storage": {"embedded": {"whenDeleted": wanted}}});
    let deleted = || FakeCluster::settled(policy("Delete"));
    // The cluster is paused, its spec is refused, or another problem blocks it.
    let mut paused = deleted();
    paused.edit(json!({"paused": true}));
    let mut refused = deleted();
    refused.edit(json!({"replicas": 3}));
    let mut blocked = deleted();
    delete_claim(&mut blocked);
    for mut fake in [paused, refused, blocked] {
        assert_eq!(fake.pass(), Vec::<String>::new());
        fake.edit(policy("Retain"));
        assert_eq!(fake.pass(), [KEEP]);
        assert_eq!(deletion(&mut fake), "Retain");
        fake.edit(policy("Delete"));
        assert_eq!(
            fake.pass(),
            Vec::<String>::new(),
            "only what keeps data is not held back"
        );
    }
    let mut fake = deleted();
    fake.edit(policy("Retain"));
    assert_eq!(fake.pass(), [KEEP]);
    fake.settle();
    fake.edit(policy("Delete"));
    assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
    assert_eq!(deletion(&mut fake), "Delete");
}
