//! The authority's Secret on an API server that tracks the owners of fields.

use super::*;

const SECRET: &str = "/api/v1/namespaces/brains/secrets/dev-ca";

fn edit(rig: &Rig, change: impl FnOnce(&mut Value)) {
    let path = format!("{CLUSTERS}/dev");
    let mut cluster = rig.api.get(&path).unwrap();
    change(&mut cluster);
    rig.api.put(&path, cluster);
}

async fn settle(rig: &Rig) {
    for _ in 0..8 {
        rig.sync().await;
        pass(rig).await.unwrap();
    }
    rig.sync().await;
}

#[tokio::test(start_paused = true)]
async fn lost_authority_is_replaced_to_the_end() {
    let rig = Rig::new(bare(FakeApi::new())).await;
    settle(&rig).await;
    rig.api.remove(SECRET);
    edit(&rig, |cluster| {
        // This is long enough ago that the Secret must be visible.
        cluster["status"]["ca"]["since"] = json!("2026-01-01T00:00:00Z");
        cluster["spec"]["tls"]["caGeneration"] = json!(2);
    });
    for phase in ["Publishing", "Issuing", "Stable"] {
        settle(&rig).await;
        let status = stored_status(&rig);
        assert_eq!(status["ca"]["phase"], phase, "{}", status["conditions"]);
        let next = if phase == "Publishing" {
            "Issuing@2"
        } else {
            "Retiring@2"
        };
        edit(&rig, |cluster| {
            cluster["metadata"]["annotations"] = json!({"kubebrain.io/ca-advance": next});
        });
    }
    assert_eq!(rig.api.get(SECRET).unwrap()["data"]["old.crt"], "");
    assert_eq!(condition(&stored_status(&rig), "CertificatesReady")["status"], "True");
}

/// Returns the fingerprint of the recorded authority.
fn recorded(rig: &Rig) -> Value {
    stored_status(rig)["ca"]["fingerprint"].clone()
}

/// One that was paused does not know at once that it no longer leads.
#[tokio::test(start_paused = true)]
async fn two_operators_at_once_agree_on_the_authority_of_a_new_cluster() {
    let leader = Rig::new(bare(FakeApi::new())).await;
    let former = Rig::new(leader.api.clone()).await;
    pass(&leader).await.unwrap();
    let (secret, first) = (leader.api.get(SECRET).unwrap(), recorded(&leader));
    assert!(first.is_string(), "{first}");
    // Its cache has neither the Secret nor the status.
    pass(&former).await.unwrap();
    assert_eq!(recorded(&leader), first);
    for rig in [&former, &leader, &former, &leader] {
        rig.sync().await;
        pass(rig).await.unwrap();
    }
    assert_eq!(recorded(&leader), first);
    assert_eq!(
        leader.api.get(SECRET).unwrap()["metadata"]["uid"],
        secret["metadata"]["uid"]
    );
    assert_eq!(
        condition(&stored_status(&leader), "CertificatesReady")["status"],
        "True"
    );
}
