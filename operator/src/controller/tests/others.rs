//! Other writers of the same objects: admission, controllers, faster clients.

use fake_api::RecordedRequest;
use plan::objects::ObjectKind;

use super::*;

const SET: &str = "/apis/apps/v1/namespaces/brains/statefulsets/dev";

/// Returns a server with a cluster whose only member runs a former version.
fn outdated(api: FakeApi) -> FakeApi {
    let mut fake = FakeCluster::settled(json!({"tls": {"mode": "Disabled"}}));
    fake.edit(json!({"version": "0.2.0"}));
    fake.pass();
    load(api, &fake)
}

fn load(api: FakeApi, fake: &FakeCluster) -> FakeApi {
    api.load(fake);
    for pod in &fake.seen.pods {
        let mut value = serde_json::to_value(pod).unwrap();
        value["metadata"]["namespace"] = json!("brains");
        api.put(
            &format!("{NAMESPACE}/pods/{}", value["metadata"]["name"].as_str().unwrap()),
            value,
        );
    }
    api
}

fn writes_to(rig: &Rig, path: &str) -> usize {
    rig.api.writes().iter().filter(|write| write.path == path).count()
}

fn deletions(rig: &Rig) -> Vec<RecordedRequest> {
    let writes = rig.api.writes();
    writes
        .into_iter()
        .filter(|write| write.method == http::Method::DELETE)
        .collect()
}

/// Admission that takes every image from a mirror and sets a limit.
fn mirror(path: &str, object: &mut Value) {
    if !path.contains("/statefulsets/") {
        return;
    }
    for container in object
        .pointer_mut("/spec/template/spec/containers")
        .unwrap()
        .as_array_mut()
        .unwrap()
    {
        let image = container["image"].as_str().unwrap();
        let image = image.rsplit('/').next().unwrap();
        container["image"] = json!(format!("mirror.example/{image}"));
    }
}

#[tokio::test(start_paused = true)]
async fn mutated_stateful_set_holds_no_roll_out_up() {
    let mut fake = FakeCluster::settled(json!({"tls": {"mode": "Disabled"}}));
    let mut set = serde_json::to_value(fake.object(ObjectKind::StatefulSet, "dev")).unwrap();
    mirror(SET, &mut set);
    *fake.object(ObjectKind::StatefulSet, "dev") = serde_json::from_value(set).unwrap();
    fake.edit(json!({"version": "0.2.0"}));
    let rig = Rig::new(load(FakeApi::new().admitting(mirror), &fake)).await;
    for _ in 0..4 {
        pass(&rig).await.unwrap();
        rig.sync().await;
    }
    let set = rig.api.get(SET).unwrap();
    let image = &set["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(image, "mirror.example/kubebrain:0.2.0");
    let replaced: Vec<String> = deletions(&rig).into_iter().map(|asked| asked.path).collect();
    assert_eq!(replaced, [format!("{NAMESPACE}/pods/dev-0")]);
    // One apply makes the change, and one more shows that admission changes the result.
    assert_eq!(writes_to(&rig, SET), 2);
    // A status write by the controllers is no reason to try again.
    let mut set = rig.api.get(SET).unwrap();
    set["status"]["readyReplicas"] = json!(0);
    rig.api.put(SET, set);
    rig.sync().await;
    pass(&rig).await.unwrap();
    assert_eq!(writes_to(&rig, SET), 2);
    // A change of the spec is a reason.
    let path = format!("{CLUSTERS}/dev");
    let mut cluster = rig.api.get(&path).unwrap();
    cluster["spec"]["version"] = json!("0.3.0");
    rig.api.put(&path, cluster);
    rig.sync().await;
    pass(&rig).await.unwrap();
    assert_eq!(writes_to(&rig, SET), 3);
}

#[tokio::test(start_paused = true)]
async fn field_that_somebody_else_keeps_changing_is_taken_back_ever_more_seldom() {
    let path = format!("{NAMESPACE}/services/dev-client");
    let rig = Rig::new(settled(FakeApi::new())).await;
    pass(&rig).await.unwrap();
    rig.sync().await;
    rig.api.forget_requests();
    let fight = async |rounds: u64, seconds: u64| {
        for _ in 0..rounds {
            let mut service = rig.api.get(&path).unwrap();
            service["spec"]["ports"][0]["port"] = json!(1);
            rig.api.put(&path, service);
            rig.sync().await;
            pass(&rig).await.unwrap();
            tokio::time::sleep(Duration::from_secs(seconds)).await;
        }
        writes_to(&rig, &path)
    };
    assert_eq!(fight(1, 1).await, 1, "at once");
    let minute = fight(60, 1).await;
    assert!((3..=6).contains(&minute), "{minute} writes in a minute");
    let hour = fight(360, 10).await;
    assert!((minute + 6..=minute + 20).contains(&hour), "{hour} writes in an hour");
    let degraded = condition(&stored_status(&rig), "Degraded").clone();
    assert_eq!(
        (&degraded["status"], &degraded["reason"]),
        (&json!("True"), &json!("FieldConflict"))
    );
    let message = degraded["message"].as_str().unwrap();
    assert!(message.contains("Service dev-client: spec.ports"), "{message}");
    // No client changes it any more.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        pass(&rig).await.unwrap();
        rig.sync().await;
    }
    assert_ne!(rig.api.get(&path).unwrap()["spec"]["ports"][0]["port"], json!(1));
    assert_eq!(condition(&stored_status(&rig), "Degraded")["status"], "False");
    // Much later, a change is reverted at once again.
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let before = writes_to(&rig, &path);
    assert_eq!(fight(1, 1).await, before + 1);
}

#[tokio::test(start_paused = true)]
async fn pod_is_replaced_only_if_all_is_as_planned() {
    let check = async |change: fn(&FakeApi)| {
        let rig = Rig::new(outdated(FakeApi::new())).await;
        // The stores do not show it yet.
        rig.api.hold(true);
        change(&rig.api);
        let ended = pass(&rig).await.unwrap().unwrap();
        assert_eq!(
            (ended.outcome, deletions(&rig).len()),
            (ReconcileOutcome::Behind, 0),
            "{:?}",
            deletions(&rig)
        );
    };
    fn edit(api: &FakeApi, path: &str, change: fn(&mut Value)) {
        let mut object = api.get(path).unwrap();
        change(&mut object);
        api.put(path, object);
    }
    check(|api| edit(api, SET, |set| set["status"]["readyReplicas"] = json!(0))).await;
    check(|api| edit(api, SET, |set| set["metadata"]["uid"] = json!("remade"))).await;
    check(|api| {
        edit(api, &format!("{NAMESPACE}/pods/dev-0"), |pod| {
            pod["metadata"]["labels"]["x"] = json!("y");
        });
    })
    .await;
    check(|api| api.remove(&format!("{NAMESPACE}/pods/dev-0"))).await;
    check(|api| {
        let mut another = api.get(&format!("{NAMESPACE}/pods/dev-0")).unwrap();
        another["metadata"]["name"] = json!("dev-1");
        another["metadata"]["uid"] = json!("another");
        api.put(&format!("{NAMESPACE}/pods/dev-1"), another);
    })
    .await;
    // Without the change, the pod is deleted.
    let rig = Rig::new(outdated(FakeApi::new())).await;
    rig.api.hold(true);
    for _ in 0..3 {
        pass(&rig).await.unwrap();
    }
    assert_eq!(deletions(&rig).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn pod_is_not_replaced_if_its_claim_was_deleted_meanwhile() {
    let api = FakeApi::scripted(|asked| {
        let path = format!("{NAMESPACE}/persistentvolumeclaims/data-dev-0");
        if asked.path != path || asked.writes() {
            return ScriptedReply::Pass;
        }
        let deleted = json!({"name": "data-dev-0", "namespace": "brains", "deletionTimestamp": plan::testing::BEGIN});
        ScriptedReply::With(
            200,
            json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": deleted}),
        )
    });
    let rig = Rig::new(outdated(api)).await;
    for _ in 0..3 {
        pass(&rig).await.unwrap();
        rig.sync().await;
    }
    assert!(deletions(&rig).is_empty(), "{:?}", deletions(&rig));
}
