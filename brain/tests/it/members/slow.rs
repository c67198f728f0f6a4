//! PD and TiKV answer late: writes are slow, but there is a leader.

use std::time::Duration;

use etcd_types::pb::etcdserverpb as pb;
use mock_tikv::{Delay, MockTikv};
use pb::kv_client::KvClient;
use tokio::time::timeout;
use tonic::{Code, Request};

use super::Site;
use crate::program::{Process, READY_MESSAGE, STEP_TIMEOUT};

/// Longer than a write on these stores takes.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Longer than a start on the slowest of these stores takes, on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(300);

const SECOND: Duration = Duration::from_secs(1);
const HALF_SECOND: Duration = Duration::from_millis(500);

/// The log lines of a leader that loses its lead.
const LOST_LEADERSHIP_MESSAGES: [&str; 2] = ["lost leadership", "could not renew the lease in time"];

fn put(key: &str) -> Request<pb::PutRequest> {
    Request::new(pb::PutRequest {
        key: key.to_owned().into(),
        value: b"v".to_vec().into(),
        ..pb::PutRequest::default()
    })
}

/// Writes one key after the other; each write must succeed.
async fn writes(member: &Process, count: usize) {
    let mut kv = KvClient::new(member.connect().await);
    for n in 0..count {
        let done = timeout(WRITE_TIMEOUT, kv.put(put(&format!("key-{n}")))).await;
        done.expect("a write hangs")
            .unwrap_or_else(|status| panic!("write {n}: {status:?}"));
    }
}

/// Writes a key, as often as it takes: a request may time out, or come while there is no leader.
async fn writes_at_last(member: &Process, key: &str) {
    let mut kv = KvClient::new(member.connect().await);
    let written = async {
        while let Err(status) = kv.put(put(key)).await {
            assert_eq!(status.code(), Code::Unavailable, "{status:?}");
            tokio::task::yield_now().await;
        }
    };
    timeout(STEP_TIMEOUT, written).await.expect("it writes at last");
}

fn kept_its_lead(member: &Process) {
    for text in LOST_LEADERSHIP_MESSAGES {
        assert_eq!(member.said(text), 0, "{text}");
    }
}

async fn starts(site: &Site, more: &[&str]) -> Process {
    let member = site.begin(0, 1, more);
    member.says_within(READY_MESSAGE, 1, START_TIMEOUT).await;
    member
}

#[tokio::test(flavor = "multi_thread")]
async fn member_leads_when_every_answer_is_300_ms_late() {
    let site = Site::new(1).await;
    site.tikv.delays().set([Delay::of(Duration::from_millis(300))]);
    let member = starts(&site, &[]).await;
    writes(&member, 12).await;
    kept_its_lead(&member);
    site.tikv.delays().set([]);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_keeps_its_lead_on_stores_that_are_slow_in_any_way() {
    let stores = [1, 2, 3];
    let by_stores = |delay: Delay| stores.map(|store| delay.at(store)).to_vec();
    let jitter = Delay::of(Duration::from_millis(50)).with_jitter(Duration::from_millis(300));
    for delays in [
        by_stores(Delay::of(HALF_SECOND)),
        vec![jitter],
        vec![Delay::of(HALF_SECOND).at(1)],
        vec![Delay::stalls(5 * SECOND, SECOND)],
    ] {
        let site = Site::new(1).await;
        let member = site.lone().await;
        eprintln!("{delays:?}");
        site.tikv.delays().set(delays);
        writes(&member, 8).await;
        kept_its_lead(&member);
        site.tikv.delays().set([]);
        member.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes of waiting for a slow store: make test-long"]
async fn member_with_a_longer_lease_leads_when_every_answer_is_2_s_late() {
    let site = Site::new(1).await;
    site.tikv.delays().set([Delay::of(2 * SECOND)]);
    let timings = [
        "--election-lease-duration=15s",
        "--election-renew-deadline=10s",
        "--election-retry-period=2s",
    ];
    let member = starts(&site, &timings).await;
    assert!(
        member.said("continuing the start with longer timeouts") > 0,
        "it says why it waits"
    );
    // Each connection knew the lock's region before: the first renewal was one request.
    assert_eq!(member.said("the lock of the election answers slowly"), 0);
    for key in ["a", "b", "c"] {
        writes_at_last(&member, key).await;
    }
    kept_its_lead(&member);
    site.tikv.delays().set([]);
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn store_that_is_too_slow_for_a_lease_is_reported_with_the_flag() {
    let site = Site::new(1).await;
    let member = site.lone().await;
    site.tikv.delays().set([Delay::of(SECOND)]);
    member.says("the lock of the election answers slowly").await;
    let log = member.log();
    let line = log
        .iter()
        .find(|line| line.contains("the lock of the election answers slowly"));
    let line = line.expect("it was said");
    for part in [
        "\"round_trip\":",
        "--election-renew-deadline",
        "--election-lease-duration",
    ] {
        assert!(line.contains(part), "{line}");
    }
    let (_, metrics) = member.get("/metrics").await;
    assert!(
        metrics.contains("kubebrain_election_request_duration_seconds_count{op=\"write\"}"),
        "{metrics}"
    );
    site.tikv.delays().set([]);
    // It leads again as soon as that is over.
    writes_at_last(&member, "after").await;
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn member_outlives_a_change_of_the_leader_of_pd() {
    let setup = mock_tikv::Options::default().with_stores(3).with_pd_members(3);
    let site = Site::on(MockTikv::start(setup).await.unwrap(), 1);
    let mut flags = site.flags(0, 1);
    flags.retain(|flag| !flag.starts_with("--tikv-pd-endpoints"));
    flags.push(format!("--tikv-pd-endpoints={}", site.tikv.pd_members().join(",")));
    let member = Process::begin(&flags, site.client_url(0));
    member.says(READY_MESSAGE).await;
    for leader in [1, 2, 0] {
        site.tikv.lead_pd(leader);
        // One member of PD does not know of the new leader.
        site.tikv.set_pd_aware(leader, true);
        site.tikv.set_pd_aware((leader + 1) % 3, false);
        writes_at_last(&member, "key").await;
    }
    member.stop().await;
}
