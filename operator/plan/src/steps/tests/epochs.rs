//! Operators of other epochs.

use super::*;
use crate::objects::Epoch;

fn tikv(replicas: usize) -> Value {
    let tikv = json!({"pdEndpoints": ["pd:2379"]});
    json!({"replicas": replicas, "storage": {"type": "TiKV", "embedded": null, "tikv": tikv}})
}

/// A cluster that serves, made by an operator of `epoch`.
fn made_in(epoch: Epoch, spec: Value) -> FakeCluster {
    let mut fake = FakeCluster::settled(spec);
    fake.made_in(epoch);
    fake.wait(3600);
    fake
}

fn set(fake: &FakeCluster) -> Value {
    written(fake)["StatefulSet dev"].clone()
}

fn arguments(fake: &FakeCluster) -> String {
    set(fake)["spec"]["template"]["spec"]["containers"][0]["args"].to_string()
}

#[test]
fn newer_operator_leaves_clusters_as_they_are() {
    for epoch in Epoch::ALL {
        for spec in [
            json!({}),
            tikv(3),
            json!({"services": {"client": {"ipFamilyPolicy": "PreferDualStack"}}}),
        ] {
            let mut fake = made_in(epoch, spec.clone());
            let before = written(&fake);
            assert_eq!(fake.pass(), Vec::<String>::new(), "{epoch:?} {spec}");
            assert_eq!(written(&fake), before);
        }
    }
}

#[test]
fn roll_out_takes_a_cluster_to_the_newest_epoch() {
    let mut fake = made_in(Epoch::First, tikv(3));
    assert!(arguments(&fake).contains("https://0.0.0.0:2379"));
    fake.edit(json!({"version": "0.2.0"}));
    assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
    assert!(arguments(&fake).contains("https://[::]:2379"), "{}", arguments(&fake));
    let mut replaced = Vec::new();
    for _ in 0..12 {
        let steps = fake.pass();
        replaced.extend(steps.into_iter().filter(|step| step.starts_with("delete pod")));
        fake.kubelet_keeping_the_leader();
        fake.wait(60);
    }
    replaced.sort();
    assert_eq!(replaced, ["delete pod dev-0", "delete pod dev-1", "delete pod dev-2"]);
    assert_eq!(fake.steps(), Vec::<String>::new());
}

#[test]
fn change_that_restarts_nobody_keeps_the_epoch() {
    let mut fake = made_in(Epoch::First, tikv(3));
    for edit in [
        json!({"replicas": 2}),
        json!({"inheritedMetadata": {"labels": {"team": "a"}}}),
        json!({"updateStrategy": {"minReadySeconds": 7}}),
    ] {
        fake.edit(edit.clone());
        fake.pass();
        assert!(arguments(&fake).contains("0.0.0.0"), "{edit}");
        assert!(set(&fake)["metadata"]["annotations"]["kubebrain.io/render-epoch"].is_null());
    }
    assert_eq!(set(&fake)["spec"]["replicas"], 2);
}

#[test]
fn set_of_a_newer_operator_is_rendered_as_far_as_this_one_can() {
    let mut fake = FakeCluster::settled(json!({}));
    let annotations = fake
        .object(ObjectKind::StatefulSet, "dev")
        .metadata
        .annotations
        .as_mut()
        .unwrap();
    annotations.insert("kubebrain.io/render-epoch".to_owned(), "99".to_owned());
    assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
    assert_eq!(set(&fake)["metadata"]["annotations"]["kubebrain.io/render-epoch"], "4");
}
