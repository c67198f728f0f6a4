//! Metrics of a change of leader.

use rustix::process::Signal;
use tokio::time::timeout;

use super::Site;
use crate::program::{Process, STEP_TIMEOUT};

/// Returns the value of one series in the metrics of a member.
async fn shown(member: &Process, series: &str) -> u64 {
    let (status, page) = member.get("/metrics").await;
    assert_eq!(status, 200);
    let value = page
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {series}")).parse().unwrap()
}

/// Waits until a member has counted this number of leaders.
async fn has_seen(member: &Process, leaders: u64) {
    let seen = async { while shown(member, "etcd_server_leader_changes_seen_total").await < leaders {} };
    timeout(STEP_TIMEOUT, seen).await.expect("it saw too few");
}

#[tokio::test]
async fn remaining_member_counts_leader_changes_and_appends() {
    let appends = "etcd_disk_wal_fsync_duration_seconds_count";
    let site = Site::new(2).await;
    let (old, next) = (site.start(0, 2, &[]).await, site.start(1, 2, &[]).await);
    has_seen(&old, 1).await;
    has_seen(&next, 1).await;
    assert!(shown(&old, appends).await > 0);
    old.signal(Signal::KILL);
    has_seen(&next, 2).await;
    assert!(shown(&next, appends).await > 0);
    next.stop().await;
}

/// The id of a member in labels of metrics.
async fn id_of(member: &Process) -> String {
    let (_, page) = member.get("/metrics").await;
    let id = page
        .lines()
        .find_map(|line| line.strip_prefix("etcd_server_id{server_id=\""));
    id.unwrap().split('"').next().unwrap().to_owned()
}

/// Waits until a series of a member exists and fits.
async fn until(member: &Process, series: &str, fits: impl Fn(f64) -> bool) {
    let fitting = async {
        loop {
            let (_, page) = member.get("/metrics").await;
            let value = page
                .lines()
                .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
            if value.is_some_and(|value| fits(value.parse().unwrap())) {
                return;
            }
        }
    };
    let met = timeout(STEP_TIMEOUT, fitting).await;
    assert!(met.is_ok(), "{series} of {}", member.url);
}

#[tokio::test]
async fn leader_and_follower_measure_their_traffic() {
    let site = Site::new(2).await;
    let leader = site.start(0, 2, &[]).await;
    let follower = site.start(1, 2, &[]).await;
    let (to, from) = (id_of(&leader).await, id_of(&follower).await);
    let is_some = |value| value > 0.0;
    for (member, this, other) in [(&leader, &to, &from), (&follower, &from, &to)] {
        let pair = format!("etcd_network_active_peers{{Local=\"{this}\",Remote=\"{other}\"}}");
        until(member, &pair, |open| (open - 1.0).abs() < f64::EPSILON).await;
        for bytes in [
            format!("etcd_network_peer_sent_bytes_total{{To=\"{other}\"}}"),
            format!("etcd_network_peer_received_bytes_total{{From=\"{other}\"}}"),
        ] {
            until(member, &bytes, is_some).await;
        }
    }
    let trips = format!("etcd_network_peer_round_trip_time_seconds_count{{To=\"{to}\"}}");
    until(&follower, &trips, is_some).await;
    // Members are no clients: only these tests' requests for pages are counted there.
    let put = etcd_types::pb::etcdserverpb::PutRequest {
        value: vec![0; 1 << 20].into(),
        key: "k".into(),
        ..Default::default()
    };
    let mut kv = etcd_types::pb::etcdserverpb::kv_client::KvClient::new(follower.connect().await);
    kv.put(put).await.unwrap();
    let received = "etcd_network_client_grpc_received_bytes_total";
    until(&follower, received, |bytes| bytes > f64::from(1 << 20)).await;
    let from_follower = format!("etcd_network_peer_received_bytes_total{{From=\"{from}\"}}");
    until(&leader, &from_follower, |bytes| bytes > f64::from(1 << 20)).await;
    assert!(shown(&leader, received).await < 1 << 20);
    leader.signal(Signal::KILL);
    let gone = format!("etcd_network_disconnected_peers_total{{Local=\"{from}\",Remote=\"{to}\"}}");
    until(&follower, &gone, is_some).await;
    let closed = format!("etcd_network_active_peers{{Local=\"{from}\",Remote=\"{to}\"}}");
    until(&follower, &closed, |open| open.abs() < f64::EPSILON).await;
    // Until it leads itself, it dials the one that is gone.
    let unsent = format!("etcd_network_peer_sent_failures_total{{To=\"{to}\"}}");
    until(&follower, &unsent, is_some).await;
    follower.stop().await;
}
