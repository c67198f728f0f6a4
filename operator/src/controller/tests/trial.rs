//! The trial of a template with an API server: from its pod to the StatefulSet.

use plan::names::SKIP_TRIAL;

use super::*;

const TRIAL: &str = "/api/v1/namespaces/brains/pods/dev-trial";
const SET: &str = "/apis/apps/v1/namespaces/brains/statefulsets/dev";

/// Returns a server with a settled cluster whose only member needs another version, which is tried.
fn edited(api: FakeApi, spec: Value) -> FakeApi {
    let mut fake = FakeCluster::settled(json!({"tls": {"mode": "Disabled"}}));
    fake.edit(spec);
    fake.cluster.annotations_mut().remove(SKIP_TRIAL);
    api.load(&fake);
    let mut pod = serde_json::to_value(&fake.seen.pods[0]).unwrap();
    pod["metadata"]["namespace"] = json!("brains");
    api.put(&format!("{NAMESPACE}/pods/dev-0"), pod);
    api
}

fn named(rig: &Rig) -> Vec<String> {
    let mut names = Vec::new();
    let mut stream = std::pin::pin!(rig.queue.clone().stream());
    while let Some(Some(cluster)) = stream.next().now_or_never() {
        names.push(cluster.name);
    }
    names
}

/// Puts the brain of the trial into a state.
fn end(api: &FakeApi, code: i32) {
    let mut pod = api.get(TRIAL).unwrap();
    let state = json!({"terminated": {"exitCode": code, "message": "kubebrain: no such flag"}});
    pod["status"] = json!({"phase": "Failed", "containerStatuses": [{
        "name": "brain", "ready": false, "restartCount": 0, "image": "", "imageID": "", "state": state,
    }]});
    api.put(TRIAL, pod);
}

fn image(api: &FakeApi) -> Value {
    api.get(SET).unwrap()["spec"]["template"]["spec"]["containers"][0]["image"].clone()
}

#[tokio::test(start_paused = true)]
async fn trial_is_watched_from_its_beginning_to_its_end() {
    for (code, expected) in [(0, "0.2.0"), (2, "0.1.0")] {
        let rig = Rig::new(edited(FakeApi::new(), json!({"version": "0.2.0"}))).await;
        for _ in 0..2 {
            pass(&rig).await.unwrap();
            rig.sync().await;
        }
        assert!(rig.api.get(TRIAL).is_some());
        named(&rig);
        rig.api.forget_requests();
        assert_eq!(pass(&rig).await.unwrap().unwrap().outcome, ReconcileOutcome::Done);
        let asked: Vec<RecordedRequest> = rig
            .api
            .asked()
            .into_iter()
            .filter(|asked| asked.path == TRIAL)
            .collect();
        assert!(asked.is_empty(), "{asked:?}");
        end(&rig.api, code);
        rig.sync().await;
        assert_eq!(named(&rig), ["dev"]);
        pass(&rig).await.unwrap();
        assert_eq!(image(&rig.api), format!("kubebrain.io/kubebrain:{expected}"));
        if code != 0 {
            assert_eq!(condition(&stored_status(&rig), "Stalled")["reason"], "TrialFailed");
            // The expectation of the pod was dropped long ago.
            tokio::time::sleep(Duration::from_secs(700)).await;
            rig.api.forget_requests();
            pass(&rig).await.unwrap();
            let posts = rig
                .api
                .writes()
                .into_iter()
                .filter(|write| write.method == http::Method::POST);
            assert_eq!(posts.count(), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn trial_that_an_earlier_operator_left_is_ended() {
    let api = edited(FakeApi::new(), json!({"version": "0.2.0"}));
    let first = Rig::new(api.clone()).await;
    for _ in 0..2 {
        pass(&first).await.unwrap();
        first.sync().await;
    }
    assert!(api.get(TRIAL).is_some());
    drop(first);
    let mut cluster = api.get(&format!("{CLUSTERS}/dev")).unwrap();
    cluster["spec"]["version"] = json!("0.1.0");
    cluster["metadata"]["generation"] = json!(9);
    api.put(&format!("{CLUSTERS}/dev"), cluster);
    let second = Rig::new(api.clone()).await;
    pass(&second).await.unwrap();
    assert!(api.get(TRIAL).is_none());
}

#[tokio::test(start_paused = true)]
async fn trial_that_the_namespace_forbids_fails_with_the_words_of_the_api_server() {
    let limits = json!({"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}});
    let spec = json!({"version": "0.2.0", "pod": {"resources": limits}});
    // Rules forbid small pods, or all pods.
    for least in ["1Gi", "2Gi"] {
        let api = FakeApi::scripted(move |asked| {
            let request = &asked.body["spec"]["containers"][0]["resources"]["requests"]["memory"];
            match asked.path.as_str() {
                path if path.ends_with("/pods") && asked.writes() && request != least => refuse(403, "Forbidden"),
                _ => ScriptedReply::Pass,
            }
        });
        let rig = Rig::new(edited(api, spec.clone())).await;
        for _ in 0..2 {
            pass(&rig).await.unwrap();
            rig.sync().await;
        }
        if least == "1Gi" {
            assert!(rig.api.get(TRIAL).is_some());
            continue;
        }
        let stalled = condition(&stored_status(&rig), "Stalled").clone();
        assert_eq!(stalled["reason"], "TrialFailed");
        let message = stalled["message"].as_str().unwrap();
        assert!(
            message.contains("Forbidden, said the server") && message.contains(SKIP_TRIAL),
            "{message}"
        );
        let ended = pass(&rig).await.unwrap().unwrap();
        assert!(ended.again >= Duration::from_secs(30), "{ended:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn ill_typed_field_is_named_by_the_api_server() {
    let api = FakeApi::scripted(|asked| {
        if !asked.path.ends_with("/pods") || !asked.writes() {
            return ScriptedReply::Pass;
        }
        assert_eq!(asked.body["spec"]["priority"], "high");
        let (_, mut status) = failure(400, "BadRequest", "dev-trial");
        status["message"] = json!("cannot unmarshal string into Go struct field PodSpec.spec.priority of type int32");
        ScriptedReply::With(400, status)
    });
    let spec = json!({"version": "0.2.0", "podTemplate": {"spec": {"priority": "high"}}});
    let rig = Rig::new(edited(api, spec)).await;
    for _ in 0..2 {
        drop(pass(&rig).await);
        rig.sync().await;
    }
    let message = condition(&stored_status(&rig), "Stalled")["message"].clone();
    assert!(message.as_str().unwrap().contains("PodSpec.spec.priority"), "{message}");
}
