//! The store of the brains, and its existence.

use super::*;
use crate::names::ACCEPT_STORE;
use crate::testing::STORE;

const OTHER: &str = "00000000000000c2";

fn template(fake: &FakeCluster) -> String {
    written(fake)["StatefulSet dev"]["spec"]["template"]["spec"]["containers"][0].to_string()
}

/// Makes the brain of the first pod serve this store.
fn serve(fake: &mut FakeCluster, store: &str) {
    for answer in fake.seen.probes.values_mut().flatten() {
        answer.cluster = Some(store.to_owned());
    }
}

fn pinned(fake: &FakeCluster) -> Option<String> {
    fake.cluster.status.as_ref()?.storage.as_ref()?.store_id.clone()
}

fn message(fake: &FakeCluster) -> String {
    let conditions = fake.cluster.status.as_ref().unwrap().conditions.as_ref().unwrap();
    let stalled = conditions.iter().find(|condition| condition.type_ == "Stalled");
    stalled.map_or_else(String::new, |stalled| stalled.message.clone())
}

fn role(fake: &mut FakeCluster, pod: &str) -> Option<String> {
    fake.pod(pod).labels_mut().get(ROLE).cloned()
}

fn set_replicas(fake: &mut FakeCluster, replicas: i32) {
    let set = fake.object(ObjectKind::StatefulSet, "dev");
    set.data["spec"]["replicas"] = json!(replicas);
    fake.controllers();
    fake.kubelet();
}

#[test]
fn store_is_pinned_once_it_served_and_restarts_nobody() {
    let mut fake = FakeCluster::new(json!({}));
    for _ in 0..2 {
        fake.pass();
    }
    assert!(template(&fake).contains(r#"{"name":"ETCD_EMBEDDED_MEMBER","value":"dev-0"}"#));
    assert!(!template(&fake).contains("existing"), "there is no store yet");
    fake.kubelet();
    fake.pass();
    assert_eq!(pinned(&fake).as_deref(), Some(STORE));
    assert_eq!(fake.condition("Ready"), "True/AsExpected");
    assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
    assert_eq!(
        fake.condition("Ready"),
        "True/AsExpected",
        "no pod has to be replaced for it"
    );
    assert_eq!(fake.pass(), Vec::<String>::new());
    let template = template(&fake);
    assert!(template.contains("--initial-cluster-state=existing"), "{template}");
    assert!(template.contains(&format!(r#"{{"name":"ETCD_EMBEDDED_CLUSTER_ID","value":"{STORE}"}}"#)));
}

#[test]
fn other_store_is_not_led_to_until_it_is_accepted() {
    let mut fake = FakeCluster::settled(json!({}));
    assert_eq!(role(&mut fake, "dev-0").as_deref(), Some("leader"));
    serve(&mut fake, OTHER);
    fake.edit(json!({"logLevel": "Debug"}));
    assert_eq!(fake.pass(), ["label pod dev-0"]);
    assert_eq!(role(&mut fake, "dev-0"), None);
    for condition in ["Ready", "StorageReady"] {
        assert_eq!(fake.condition(condition), "False/DataReplaced");
    }
    for condition in ["Degraded", "Stalled"] {
        assert_eq!(fake.condition(condition), "True/DataReplaced");
    }
    assert!(
        message(&fake).contains(&format!("{ACCEPT_STORE}={STORE}")),
        "{}",
        message(&fake)
    );
    assert_eq!(pinned(&fake).as_deref(), Some(STORE));
    let annotate = |fake: &mut FakeCluster, id: &str| {
        fake.cluster
            .annotations_mut()
            .insert(ACCEPT_STORE.to_owned(), id.to_owned());
    };
    annotate(&mut fake, OTHER);
    fake.pass();
    assert_eq!(
        fake.condition("Stalled"),
        "True/DataReplaced",
        "it names the store that is given up"
    );
    annotate(&mut fake, STORE);
    fake.pass();
    assert_eq!(pinned(&fake).as_deref(), Some(OTHER));
    assert_eq!(role(&mut fake, "dev-0").as_deref(), Some("leader"));
    // The annotation may stay: it does not affect the new store.
    serve(&mut fake, "00000000000000c3");
    fake.pass();
    assert_eq!(fake.condition("Stalled"), "True/DataReplaced");
}

#[test]
fn brain_that_does_not_find_its_store_is_made_anew_once_the_store_is_given_up() {
    for code in ["StoreMismatch", "StoreMissing"] {
        is_made_anew_after(code);
    }
}

/// Makes the brain of a pod end with this code repeatedly.
fn end_with(fake: &mut FakeCluster, pod: &str, code: &str) {
    fake.set_ready(pod, false);
    let refusal = json!({"code": code, "message": "data directory /d holds no store"}).to_string();
    let ended = json!({"terminated": {"exitCode": 1, "message": refusal}});
    let mut status = serde_json::to_value(&fake.pod(pod).status).unwrap();
    status["containerStatuses"] = json!([{
        "name": "brain", "ready": false, "restartCount": 3, "image": "", "imageID": "",
        "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended,
    }]);
    fake.pod(pod).status = serde_json::from_value(status).unwrap();
}

fn is_made_anew_after(code: &str) {
    let mut fake = FakeCluster::settled(json!({}));
    fake.wait(60);
    fake.seen.pods.clear();
    fake.controllers();
    end_with(&mut fake, "dev-0", code);
    fake.pass();
    assert_eq!(fake.condition("Degraded"), "True/DataReplaced");
    assert!(message(&fake).contains("holds no store"), "{}", message(&fake));
    fake.cluster
        .annotations_mut()
        .insert(ACCEPT_STORE.to_owned(), STORE.to_owned());
    assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
    assert!(!template(&fake).contains("existing"), "{}", template(&fake));
    assert_eq!(fake.pass(), ["delete pod dev-0"]);
    fake.kubelet();
    serve(&mut fake, OTHER);
    fake.pass();
    assert_eq!(pinned(&fake).as_deref(), Some(OTHER));
    fake.pass();
    assert!(template(&fake).contains("existing"));
    assert_eq!(fake.condition("Ready"), "True/AsExpected");
}

#[test]
fn empty_prefix_of_a_cluster_that_served_is_begun_anew_only_when_its_store_is_given_up() {
    let tikv =
        json!({"replicas": 2, "storage": {"type": "TiKV", "embedded": null, "tikv": {"pdEndpoints": ["pd:2379"]}}});
    let mut fake = FakeCluster::new(tikv);
    fake.pass();
    fake.pass();
    assert!(!template(&fake).contains("existing"), "there is no store yet");
    fake.kubelet();
    fake.settle();
    assert_eq!(pinned(&fake).as_deref(), Some(STORE));
    assert!(template(&fake).contains("--initial-cluster-state=existing"));
    assert!(!template(&fake).contains("ETCD_EMBEDDED"));
    assert_eq!(fake.condition("Ready"), "True/AsExpected", "nobody is restarted for it");
    // A restored store has another id.
    serve(&mut fake, OTHER);
    fake.pass();
    assert_eq!(pinned(&fake).as_deref(), Some(OTHER));
    assert_eq!(fake.condition("Ready"), "True/AsExpected");

    fake.wait(60);
    fake.seen.pods.clear();
    fake.controllers();
    for pod in ["dev-0", "dev-1"] {
        end_with(&mut fake, pod, "StoreMissing");
    }
    fake.pass();
    assert_eq!(fake.condition("Stalled"), "True/DataReplaced");
    assert_eq!(fake.condition("StorageReady"), "False/DataReplaced");
    assert!(
        message(&fake).contains("change storage.tikv so that it refers to that store again"),
        "{}",
        message(&fake)
    );
    fake.cluster
        .annotations_mut()
        .insert(ACCEPT_STORE.to_owned(), OTHER.to_owned());
    assert_eq!(fake.pass(), ["apply StatefulSet dev"]);
    assert!(!template(&fake).contains("existing"), "{}", template(&fake));
    for _ in 0..2 {
        let steps = fake.pass();
        assert!(steps.len() == 1 && steps[0].starts_with("delete pod dev-"), "{steps:?}");
    }
    fake.kubelet();
    serve(&mut fake, STORE);
    fake.settle();
    assert_eq!(pinned(&fake).as_deref(), Some(STORE));
    assert!(template(&fake).contains("existing"));
    assert_eq!(fake.condition("Ready"), "True/AsExpected");
}

#[test]
fn store_that_was_given_up_and_came_back_is_not_given_up_again() {
    let mut fake = FakeCluster::settled(json!({}));
    let annotate = |fake: &mut FakeCluster, id: &str| {
        fake.cluster
            .annotations_mut()
            .insert(ACCEPT_STORE.to_owned(), id.to_owned());
    };
    annotate(&mut fake, STORE);
    // Its volume came back.
    fake.pass();
    fake.settle();
    assert_eq!(pinned(&fake).as_deref(), Some(STORE));
    assert!(template(&fake).contains("existing"), "{}", template(&fake));
    serve(&mut fake, OTHER);
    fake.pass();
    assert_eq!(fake.condition("Stalled"), "True/DataReplaced");
    assert!(message(&fake).contains("must be removed first"), "{}", message(&fake));
    fake.cluster.annotations_mut().remove(ACCEPT_STORE);
    fake.pass();
    annotate(&mut fake, STORE);
    fake.pass();
    assert_eq!(pinned(&fake).as_deref(), Some(OTHER));
    // The same when another store is given up.
    serve(&mut fake, "00000000000000c3");
    fake.pass();
    assert_eq!(fake.condition("Stalled"), "True/DataReplaced");
    annotate(&mut fake, OTHER);
    fake.pass();
    assert_eq!(pinned(&fake).as_deref(), Some("00000000000000c3"));
}

#[test]
fn pods_beside_the_only_member_are_neither_led_to_nor_kept() {
    for paused in [json!({"paused": true}), json!({"flags": {"no-such-flag": "1"}})] {
        let mut fake = FakeCluster::settled(json!({}));
        fake.edit(paused.clone());
        fake.pass();
        set_replicas(&mut fake, 3);
        // Each of them has a store of its own, and leads there.
        for (number, name) in (1..).zip(["dev-0", "dev-1", "dev-2"]) {
            let mut alone = answer(1, 1);
            (alone.name, alone.epoch) = (name.to_owned(), number + 2);
            alone.cluster = Some(format!("{:016x}", 0xc0 + number));
            fake.seen.probes.insert(name.to_owned(), Ok(alone));
        }
        assert_eq!(fake.plan().lead.pod(), Some("dev-0"), "{paused}");
        assert_eq!(fake.pass(), ["reset the replicas of dev to 1"], "{paused}");
        assert_eq!(written(&fake)["StatefulSet dev"]["spec"]["replicas"], 1);
        assert_eq!(role(&mut fake, "dev-0").as_deref(), Some("leader"));
    }
    let fake = FakeCluster::settled(json!({}));
    for service in ["Service dev-client", "Service dev-leader"] {
        let selector = written(&fake)[service]["spec"]["selector"].clone();
        assert_eq!(selector["statefulset.kubernetes.io/pod-name"], "dev-0", "{service}");
    }
}

#[test]
fn number_of_members_is_held_while_nothing_may_change() {
    let tikv =
        json!({"replicas": 3, "storage": {"type": "TiKV", "embedded": null, "tikv": {"pdEndpoints": ["pd:2379"]}}});
    let mut fake = FakeCluster::settled(tikv);
    fake.edit(json!({"paused": true, "replicas": 5}));
    assert_eq!(fake.pass(), Vec::<String>::new(), "a pause holds our own changes");
    for replicas in [1, 7] {
        set_replicas(&mut fake, replicas);
        assert_eq!(fake.pass()[0], "reset the replicas of dev to 3");
    }
    fake.edit(json!({"paused": false}));
    fake.pass();
    assert_eq!(written(&fake)["StatefulSet dev"]["spec"]["replicas"], 5);
}

#[test]
fn brain_that_reports_no_store_pins_none() {
    let mut fake = FakeCluster::new(json!({}));
    for _ in 0..4 {
        fake.pass();
        fake.kubelet();
        for answer in fake.seen.probes.values_mut().flatten() {
            answer.cluster = None;
        }
    }
    assert_eq!(pinned(&fake), None);
    assert_eq!(fake.condition("Ready"), "True/AsExpected");
}
