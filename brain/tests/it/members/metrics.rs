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

/// Waits until a member has counted so many leaders.
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
