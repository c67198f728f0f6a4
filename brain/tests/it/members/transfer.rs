//! The lead is handed over while requests are under way.

use std::time::Duration;

use etcd_types::pb::etcdserverpb as pb;
use mock_tikv::{Action, Fault, Rpc};
use pb::kv_client::KvClient;
use pb::maintenance_client::MaintenanceClient;
use tokio::time::timeout;

use super::Site;
use crate::program::STEP_TIMEOUT;

/// Time for which an append takes: less than a leader waits for it before it hands over, and enough for a follower to leave.
const APPEND_TIME: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn target_takes_the_lead_although_it_stops_following_before_the_leader_is_done() {
    let site = Site::new(2).await;
    let leader = site.start(0, 2, &[]).await;
    let target = site.start(1, 2, &[]).await;
    let mut reads = KvClient::new(target.connect().await);
    let get = pb::RangeRequest {
        key: "k".into(),
        ..pb::RangeRequest::default()
    };
    let id = reads
        .range(get.clone())
        .await
        .unwrap()
        .into_inner()
        .header
        .unwrap()
        .member_id;
    let slow = Fault::new(Rpc::Prewrite, Action::DelayRequest { by: APPEND_TIME });
    let slow = site
        .tikv
        .faults()
        .add(slow.on_keys(Site::key(b'w', b"")).times(1))
        .unwrap();
    let mut writes = KvClient::new(leader.connect().await);
    let put = writes.put(pb::PutRequest {
        key: "k".into(),
        ..pb::PutRequest::default()
    });
    let mut maintenance = MaintenanceClient::new(leader.connect().await);
    let moved = async {
        while site.tikv.faults().happened(slow) == Some(0) {
            tokio::task::yield_now().await;
        }
        let move_leader = maintenance.move_leader(pb::MoveLeaderRequest { target_id: id });
        // A leader that waits for what is under way confirms no read of a follower, which looks for another leader then.
        let left = async {
            while target.said("the leader does not answer") == 0 {
                reads.range(get.clone()).await.unwrap();
            }
        };
        tokio::join!(move_leader, left).0
    };
    let both = timeout(STEP_TIMEOUT, async { tokio::join!(put, moved) }).await;
    let (put, moved) = both.expect("it was handed over before the follower left");
    put.unwrap();
    moved.unwrap();
    target.says("\"msg\":\"leading\"").await;
    assert_eq!(leader.said("\"msg\":\"leading\""), 1, "it does not lead once more");
    leader.stop().await;
    target.stop().await;
}
