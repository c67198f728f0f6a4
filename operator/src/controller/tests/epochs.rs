//! An operator of a newer epoch with a cluster that an older one created.

use plan::objects::Epoch;

use super::*;

const SET: &str = "/apis/apps/v1/namespaces/brains/statefulsets/dev";

fn writes_of_the_set(rig: &Rig) -> Vec<RecordedRequest> {
    let writes = rig.api.writes().into_iter();
    writes.filter(|write| write.path == SET).collect()
}

#[tokio::test(start_paused = true)]
async fn newer_operator_writes_no_stateful_set_until_the_spec_changes() {
    let mut fake = FakeCluster::settled(json!({}));
    fake.edit(json!({"replicas": 0}));
    fake.settle();
    fake.made_in(Epoch::First);
    let api = FakeApi::new();
    api.load(&fake);
    let epoch = api.get(SET).unwrap()["metadata"]["annotations"]["kubebrain.io/render-epoch"].clone();
    assert!(epoch.is_null(), "made by an older operator");
    let rig = Rig::new(api).await;
    for _ in 0..3 {
        pass(&rig).await.unwrap();
        rig.sync().await;
    }
    assert_eq!(writes_of_the_set(&rig).len(), 0);

    fake.edit(json!({"logLevel": "Debug"}));
    rig.api
        .put(&format!("{CLUSTERS}/dev"), serde_json::to_value(&fake.cluster).unwrap());
    for _ in 0..3 {
        rig.sync().await;
        pass(&rig).await.unwrap();
    }
    let writes = writes_of_the_set(&rig);
    assert_eq!(writes.len(), 1, "{writes:?}");
    assert_eq!(
        writes[0].body["metadata"]["annotations"]["kubebrain.io/render-epoch"],
        "4"
    );
    let arguments = writes[0].body["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
    assert!(
        arguments.contains("--listen-client-urls=https://[::]:2379"),
        "{arguments}"
    );
}
