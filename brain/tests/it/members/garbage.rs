//! The owner of TiKV's garbage collection.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mock_tikv::Rpc;

use super::Site;
use crate::program::STEP_TIMEOUT;

/// Returns the age of the safe point in minutes.
fn age(site: &Site) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let safe_point = Duration::from_millis(site.tikv.safe_point() >> 18);
    (now - safe_point).as_secs() / 60
}

/// Polls a condition until it holds. The mock sends no notifications, so nothing can be awaited.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let looked = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(
        tokio::time::timeout(STEP_TIMEOUT, looked).await.is_ok(),
        "not in time: {what}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_member_that_leads_collects_garbage_and_its_successor_goes_on() {
    let site = Site::new(2).await;
    let flags = |window| ["--tikv-gc-interval=1s", window];
    let leader = site.start(0, 2, &flags("--tikv-gc-window=60m")).await;
    let _successor = site.start(1, 2, &flags("--tikv-gc-window=10m")).await;
    site.tikv.reset_requests();
    let rounds = || site.tikv.requests().get(&Rpc::UpdateGcSafePoint).copied().unwrap_or(0);
    until("the leader collects", || rounds() >= 3).await;
    assert_eq!(age(&site), 60, "minutes");
    drop(leader);
    until("the successor collects", || age(&site) == 10).await;
}
