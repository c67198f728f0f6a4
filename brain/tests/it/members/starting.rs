//! A member that starts while PD or TiKV cannot be reached.

use std::time::Duration;

use etcd_types::pb::etcdserverpb as pb;
use mock_tikv::MockTikv;
use pb::kv_client::KvClient;
use rustix::process::Signal;
use tokio::time::{Instant, timeout};
use tonic::Code;

use super::Site;
use crate::program::Process;
use crate::self_hosted_lease::kubeconfig;

const UNREACHABLE_MESSAGE: &str = "TiKV cannot be reached";

/// Alive, not ready for a reason, and without a leader for clients.
async fn waits(member: &Process) {
    member.says(UNREACHABLE_MESSAGE).await;
    assert_eq!(member.get("/livez").await, (200, "ok\n".to_owned()));
    let (status, body) = member.get("/readyz").await;
    assert_eq!(status, 503);
    assert!(
        body.contains("[-]linearizable_read failed: TiKV cannot be reached: "),
        "{body}"
    );
    let (status, body) = member.get("/health").await;
    assert!(status == 503 && body.contains("RAFT NO LEADER"), "{status} {body}");
    assert_eq!(member.get("/version").await.0, 200);
    let mut kv = KvClient::new(member.connect().await);
    let refused = kv.put(pb::PutRequest::default()).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::Unavailable, "etcdserver: no leader")
    );
}

/// SIGTERM ends it at once.
async fn ends(mut member: Process) {
    member.signal(Signal::TERM);
    let begun = Instant::now();
    let (code, said) = member.ended().await;
    assert_eq!(code, Some(0), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_waits_for_a_pd_that_is_not_there_and_says_so_once_a_pause() {
    let site = Site::new(1).await;
    site.tikv.kill(MockTikv::PD).await.unwrap();
    let member = site.begin(0, 1, &[]);
    waits(&member).await;
    for pause in ["500ms", "1s", "2s"] {
        member.says(&format!(r#""again_in":"{pause}""#)).await;
        assert_eq!(member.said(&format!(r#""again_in":"{pause}""#)), 1);
    }
    site.tikv.revive(MockTikv::PD).await.unwrap();
    // On a connection that was made before, too.
    let channel = member.connect().await;
    member.says("ready to serve client requests").await;
    assert_eq!(member.get("/readyz").await, (200, "ok\n".to_owned()));
    let put = pb::PutRequest {
        key: b"a".to_vec().into(),
        ..pb::PutRequest::default()
    };
    KvClient::new(channel).put(put).await.unwrap();
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_waits_for_a_pd_that_hangs_ends_at_once() {
    let site = Site::new(1).await;
    site.tikv.pause(MockTikv::PD).unwrap();
    let member = site.begin(0, 1, &[]);
    waits(&member).await;
    ends(member).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_waits_for_tikv_behind_a_pd_that_answers() {
    let site = Site::new(1).await;
    for store in site.tikv.stores().into_keys() {
        site.tikv.kill(store).await.unwrap();
    }
    let member = site.begin(0, 1, &[]);
    waits(&member).await;
    ends(member).await;
    let member = site.begin(0, 1, &[]);
    waits(&member).await;
    for store in site.tikv.stores().into_keys() {
        site.tikv.revive(store).await.unwrap();
    }
    let ready = member.says("ready to serve client requests");
    timeout(Duration::from_secs(30), ready).await.unwrap();
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_waits_for_the_api_server_of_its_lease_ends_at_once() {
    let site = Site::new(1).await;
    let member = site.lone().await;
    let put = pb::PutRequest {
        key: b"/registry/leases/ns/brain".to_vec().into(),
        ..pb::PutRequest::default()
    };
    KvClient::new(member.connect().await).put(put).await.unwrap();
    // Until there is a leader, only data in rows is known.
    member.compact(2).await;
    member.stop().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let nobody = format!("http://127.0.0.1:{}", super::free_port());
    std::fs::write(file.path(), kubeconfig(&nobody).to_string()).unwrap();
    let kubeconfig = format!("--lease-kubeconfig={}", file.path().display());
    let lease = [
        "--election=lease",
        "--lease-name=brain",
        "--lease-namespace=ns",
        &kubeconfig,
    ];
    let member = site.begin(0, 1, &lease);
    member.says("no answer from the API server of the lease").await;
    ends(member).await;
}
