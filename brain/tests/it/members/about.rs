//! `GET /member`: the data that a member reports about itself, and requests that wait for a change of leader.

use etcd_types::pb::etcdserverpb as pb;
use pb::maintenance_client::MaintenanceClient;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::Site;
use crate::program::{Process, STEP_TIMEOUT};

async fn about(member: &Process, query: &str) -> Value {
    let (status, body) = timeout(STEP_TIMEOUT, member.get(&format!("/member{query}")))
        .await
        .unwrap();
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_tell_who_they_are_and_at_once_who_leads_now() {
    let site = Site::new(2).await;
    let (first, second) = (site.begin(0, 2, &[]), site.begin(1, 2, &[]));
    for member in [&first, &second] {
        member.says("ready to serve client requests").await;
    }
    let told = about(&first, "").await;
    let (leader, follower) = match told["role"].as_str() {
        Some("Leader") => (&first, &second),
        _ => (&second, &first),
    };
    let (leads, follows) = (about(leader, "").await, about(follower, "").await);
    assert_eq!(
        (&leads["role"], &follows["role"]),
        (&json!("Leader"), &json!("Follower"))
    );
    assert_eq!(
        follows["leader"],
        json!({"name": leads["name"], "memberID": leads["memberID"]})
    );
    assert_eq!(
        (&leads["ready"], &follows["ready"]),
        (&json!(true), &json!(true)),
        "{leads} {follows}"
    );
    assert_eq!(leads["epoch"], follows["epoch"]);
    assert_eq!(leads["storage"]["type"], "TiKV");
    assert_eq!(leads["storage"]["reachable"], true);
    let pd: u64 = leads["storage"]["clusterID"].as_str().unwrap().parse().unwrap();
    assert!(pd > 0);
    assert_eq!(leads["version"], env!("CARGO_PKG_VERSION"));

    let epoch = leads["epoch"].as_u64().unwrap();
    let query = format!("?after={epoch}");
    let target = u64::from_str_radix(follows["memberID"].as_str().unwrap(), 16).unwrap();
    let mut maintenance = MaintenanceClient::new(leader.connect().await);
    let (told, moved) = tokio::join!(
        async {
            // There may be no leader for a moment; a repeated request returns the next one.
            loop {
                let told = about(leader, &query).await;
                if told["epoch"].as_u64().unwrap() > epoch && told["leader"] != Value::Null {
                    return told;
                }
            }
        },
        maintenance.move_leader(pb::MoveLeaderRequest { target_id: target }),
    );
    moved.unwrap();
    assert_eq!(told["leader"]["memberID"], follows["memberID"]);
    first.stop().await;
    second.stop().await;
}
