//! The API server's verdict on a podTemplate, and references to objects of other clusters.

use super::*;

#[tokio::test(start_paused = true)]
async fn field_that_the_api_server_does_not_know_is_named_in_the_status() {
    let api = FakeApi::scripted(|asked| {
        if !asked.writes() || !asked.path.contains("statefulsets") {
            return ScriptedReply::Pass;
        }
        let strict = asked.query.contains("fieldValidation=Strict");
        let message = "failed to create typed patch object (brains/dev; apps/v1, Kind=StatefulSet): .spec.template.spec.contianers: field not declared in schema";
        let template = &asked.body["spec"]["template"]["spec"];
        if !strict || !template["contianers"].is_array() {
            return ScriptedReply::Pass;
        }
        let (code, mut status) = failure(500, "", "dev");
        status["message"] = json!(message);
        ScriptedReply::With(code, status)
    });
    let spec = json!({"podTemplate": {"spec": {"contianers": [{"name": "x"}]}}});
    api.put(&format!("{CLUSTERS}/dev"), serde_json::to_value(cluster(spec)).unwrap());
    let rig = Rig::new(api).await;
    authority(&rig).await;
    let guarded = Arc::new(GuardedReconciler {
        context: rig.context.clone(),
        failures: FailureCounts::default(),
        refusals: Refusals::default(),
    });
    guard(rig.cluster(), guarded.clone()).await.unwrap();
    assert!(
        guarded.refusals.left(&rig.cluster()).is_some(),
        "the next pass does no better"
    );
    rig.api.forget_requests();
    guard(rig.cluster(), guarded).await.unwrap();
    assert!(rig.api.asked().is_empty(), "{:?}", rig.api.asked());
    let stalled = condition(&stored_status(&rig), "Stalled").clone();
    assert_eq!(stalled["reason"], "InvalidSpec");
    let message = stalled["message"].as_str().unwrap();
    assert!(
        message.contains(".spec.template.spec.contianers: field not declared"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn key_of_another_cluster_cannot_be_named() {
    let refers = |name: &str| {
        let tikv = json!({
            "pdEndpoints": ["pd:2379"],
            "tls": {"caSecretRef": {"name": name, "key": "ca.key"}, "clientSecretRef": {"name": "tikv"}},
        });
        let spec = json!({"storage": {"type": "TiKV", "embedded": null, "tikv": tikv}});
        serde_json::to_value(cluster(spec)).unwrap()
    };
    // One cluster has no objects but itself; of the other one only a Secret exists.
    let api = FakeApi::new();
    let mut other = serde_json::to_value(cluster(json!({}))).unwrap();
    other["metadata"]["name"] = json!("other");
    api.put(&format!("{CLUSTERS}/other"), other);
    let labels = json!({"app.kubernetes.io/managed-by": "kubebrain-operator", "kubebrain.io/cluster": "gone"});
    api.put(
        &format!("{NAMESPACE}/secrets/gone-ca"),
        json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "gone-ca", "namespace": "brains", "labels": labels}}),
    );
    for whose in ["other", "gone"] {
        api.put(&format!("{CLUSTERS}/dev"), refers(&format!("{whose}-ca")));
        let rig = Rig::new(api.clone()).await;
        assert_eq!(pass(&rig).await.unwrap().unwrap().outcome, ReconcileOutcome::Stalled);
        let stalled = condition(&stored_status(&rig), "Stalled").clone();
        let message = stalled["message"].as_str().unwrap();
        let expected = format!("storage.tikv.tls.caSecretRef: Secret {whose}-ca belongs to the cluster {whose}");
        assert!(message.contains(&expected), "{message}");
        let writes = rig.api.writes();
        assert!(
            writes.iter().all(|write| write.path.ends_with("/dev/status")),
            "{writes:?}"
        );
    }
}
