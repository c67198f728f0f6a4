//! The requests to TiKV of a cluster that gets no requests itself.

use std::collections::BTreeMap;
use std::time::Duration;

use mock_tikv::Rpc;

use super::Site;
use crate::program::STEP_TIMEOUT;

/// Renewals over which requests are counted.
const COUNTED_RENEWALS: u64 = 40;

/// Interval at which the test checks whether the lock was renewed.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The lease is so long that followers on a busy machine do not try to take the lock; renewals are frequent.
const ELECTION_FLAGS: [&str; 3] = [
    "--election-lease-duration=60s",
    "--election-renew-deadline=45s",
    "--election-retry-period=100ms",
];

fn count(requests: &BTreeMap<Rpc, u64>, rpc: Rpc) -> u64 {
    requests.get(&rpc).copied().unwrap_or_default()
}

/// Waits until the lock was renewed so often.
async fn renewals(site: &Site, times: u64) {
    let begun = count(&site.tikv.requests(), Rpc::Prewrite);
    let mut look = tokio::time::interval(LOCK_POLL_INTERVAL);
    let renewed = async {
        while count(&site.tikv.requests(), Rpc::Prewrite) < begun + times {
            look.tick().await;
        }
    };
    tokio::time::timeout(STEP_TIMEOUT, renewed)
        .await
        .expect("the lock is renewed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_costs_three_requests_and_followers_ask_nothing() {
    let site = Site::new(3).await;
    let mut members = Vec::new();
    for member in 0..3 {
        members.push(site.begin(member, 3, &ELECTION_FLAGS));
    }
    for member in &members {
        member.says("ready to serve client requests").await;
    }
    // A follower that has received no renewal yet reads the lock once more.
    renewals(&site, 5).await;
    site.tikv.reset_requests();
    renewals(&site, COUNTED_RENEWALS).await;
    let asked = site.tikv.requests();
    eprintln!("{COUNTED_RENEWALS} renewals: {asked:?}");
    // A timestamp, the record, its successor. Now and then each member looks who there is.
    let looks = 3 * 2;
    assert_eq!(count(&asked, Rpc::Scan), 0, "{asked:?}");
    for rpc in [Rpc::Tso, Rpc::Get] {
        assert!(count(&asked, rpc) <= COUNTED_RENEWALS + 1 + looks, "{asked:?}");
    }
    let all: u64 = asked.values().sum();
    assert!(all <= 3 * (COUNTED_RENEWALS + 1) + 2 * looks, "{asked:?}");
    for member in members {
        member.stop().await;
    }
}
