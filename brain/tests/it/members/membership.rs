//! Membership: rows of members that are down, and clusters that share a key prefix by mistake.

use std::time::Duration;

use etcd_types::pb::etcdserverpb as pb;
use pb::cluster_client::ClusterClient;
use pb::kv_client::KvClient;
use pb::maintenance_client::MaintenanceClient;
use tokio::time::{Instant, timeout};

use super::Site;
use crate::program::{Process, STEP_TIMEOUT};

/// Name, peer URLs and client URLs of all members that a member knows.
async fn list(member: &Process) -> Vec<(String, String, String)> {
    let mut cluster = ClusterClient::new(member.connect().await);
    let answer = cluster.member_list(pb::MemberListRequest::default()).await.unwrap();
    let mut members: Vec<_> = answer
        .into_inner()
        .members
        .into_iter()
        .map(|member| (member.name, member.peer_ur_ls.join(","), member.client_ur_ls.join(",")))
        .collect();
    members.sort();
    members
}

async fn status(member: &Process) -> pb::StatusResponse {
    let mut maintenance = MaintenanceClient::new(member.connect().await);
    maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner()
}

/// Waits until a member lists these.
async fn lists(member: &Process, expected: &[(String, String, String)]) {
    let begun = Instant::now();
    while list(member).await != expected {
        assert!(begun.elapsed() < STEP_TIMEOUT, "{:?}", list(member).await);
        tokio::task::yield_now().await;
    }
}

/// Returns the expected entry of a started member in the member list.
fn started(site: &Site, member: usize) -> (String, String, String) {
    (format!("b{member}"), site.peer_url(member), site.client_url(member))
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_are_down_are_listed_by_all_and_unstarted_ones_without_a_name() {
    let site = Site::new(3).await;
    let first = site.start(0, 3, &[]).await;
    let unstarted = |member: usize| (String::new(), site.peer_url(member), String::new());
    let mut expected = vec![started(&site, 0), unstarted(1), unstarted(2)];
    expected.sort();
    assert_eq!(list(&first).await, expected);
    let second = site.start(1, 3, &[]).await;
    site.start(2, 3, &[]).await.kill().await;
    let all: Vec<_> = (0..3).map(|member| started(&site, member)).collect();
    lists(&first, &all).await;
    lists(&second, &all).await;
    // A member that knows only what is stored.
    first.stop().await;
    second.stop().await;
    let again = site.start(1, 3, &[]).await;
    assert_eq!(list(&again).await, all);
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_cluster_on_the_same_prefix_is_refused_and_touches_nothing() {
    let site = Site::new(1).await;
    site.lone().await.stop().await;
    let before = site.tikv.contents();
    // The same token, and members of their own: of other names, and of the same name elsewhere.
    let other = Site::on(site.tikv, 2);
    for (member, name) in [(0, "b0"), (1, "b1")] {
        let mut flags = other.flags(member, 2);
        let cluster = format!("--initial-cluster={name}={}", other.peer_url(member));
        flags.push(cluster);
        let mut refused = Process::begin(&flags, other.client_url(member));
        let (code, said) = refused.ended().await;
        let last = said.lines().last().unwrap();
        assert_eq!(code, Some(1), "{said}");
        assert!(
            last.contains("belongs to a cluster of other members (b0 at http://127.0.0.1:"),
            "{last}"
        );
        assert!(last.contains("choose another --tikv-key-prefix"), "{last}");
        assert!(other.tikv.contents() == before, "a refused member wrote something");
    }
    // The same cluster with new addresses: a flag must confirm that.
    other
        .start(0, 1, &["--initial-cluster-state=existing"])
        .await
        .stop()
        .await;
    other.lone().await.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_of_one_name_ends_and_the_first_goes_on() {
    let site = Site::new(1).await;
    let first = site.lone().await;
    // The same addresses on another machine: here only the flags say so.
    let (client, peer) = (super::free_port(), super::free_port());
    let mut flags = site.flags(0, 1);
    flags.push(format!("--listen-client-urls=http://127.0.0.1:{client}"));
    flags.push(format!("--listen-peer-urls=http://127.0.0.1:{peer}"));
    let mut second = Process::begin(&flags, format!("http://127.0.0.1:{client}"));
    let (code, said) = timeout(Duration::from_secs(30), second.ended()).await.unwrap();
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.lines()
            .last()
            .unwrap()
            .contains(r#"another process leads as member "b0""#),
        "{said}"
    );
    let put = pb::PutRequest {
        key: b"a".to_vec().into(),
        ..pb::PutRequest::default()
    };
    KvClient::new(first.connect().await).put(put).await.unwrap();
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_are_added_and_moved_one_by_one_start_and_follow() {
    let mut site = Site::new(3).await;
    let first = site.start(0, 2, &[]).await;
    site.start(1, 2, &[]).await.stop().await;
    // With a longer list than the others have.
    let third = site.start(2, 3, &[]).await;
    site.ports[1] = (super::free_port(), super::free_port());
    let second = site.start(1, 3, &[]).await;
    let all: Vec<_> = (0..3).map(|member| started(&site, member)).collect();
    lists(&first, &all).await;
    lists(&third, &all).await;
    // The first one's flags know neither the third nor where the second is now.
    for target in [&second, &third] {
        let target = status(target).await.header.unwrap().member_id;
        let leader = [&first, &second, &third];
        let mut moved = None;
        for member in leader {
            let status = status(member).await;
            if status.leader == status.header.unwrap().member_id {
                let mut maintenance = MaintenanceClient::new(member.connect().await);
                let request = pb::MoveLeaderRequest { target_id: target };
                moved = Some(
                    timeout(STEP_TIMEOUT, maintenance.move_leader(request))
                        .await
                        .unwrap()
                        .unwrap(),
                );
                break;
            }
        }
        assert!(moved.is_some(), "nobody leads");
        let put = pb::PutRequest {
            key: b"a".to_vec().into(),
            ..pb::PutRequest::default()
        };
        let mut kv = KvClient::new(first.connect().await);
        timeout(STEP_TIMEOUT, kv.put(put)).await.unwrap().unwrap();
        assert_eq!(status(&first).await.leader, target);
    }
    first.stop().await;
    third.stop().await;
    second.stop().await;
}

/// The id under which a member lists another one.
async fn id_of(member: &Process, peer_url: &str) -> u64 {
    let mut cluster = ClusterClient::new(member.connect().await);
    let answer = cluster.member_list(pb::MemberListRequest::default()).await.unwrap();
    let mut members = answer.into_inner().members.into_iter();
    members.find(|member| member.peer_ur_ls == [peer_url]).unwrap().id
}

async fn remove(member: &Process, id: u64) -> Result<Vec<String>, tonic::Status> {
    let mut cluster = ClusterClient::new(member.connect().await);
    let removed = cluster.member_remove(pb::MemberRemoveRequest { id }).await?;
    Ok(removed
        .into_inner()
        .members
        .into_iter()
        .map(|member| member.name)
        .collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn member_that_is_gone_is_removed_by_request_and_no_other_is() {
    let site = Site::new(3).await;
    let first = site.start(0, 2, &[]).await;
    let second = site.start(1, 2, &[]).await;
    let third = site.start(2, 3, &[]).await;
    let all: Vec<_> = (0..3).map(|member| started(&site, member)).collect();
    lists(&first, &all).await;
    lists(&second, &all).await;
    let gone = id_of(&first, &site.peer_url(2)).await;
    let text = |removed: Result<Vec<String>, tonic::Status>| removed.unwrap_err().message().to_owned();
    for member in [&first, &second] {
        let runs = "etcdserver: the member is running: stop it, then remove it";
        assert_eq!(text(remove(member, gone).await), runs);
    }
    assert_eq!(text(remove(&first, 1).await), "etcdserver: member not found");
    let configured = id_of(&first, &site.peer_url(1)).await;
    assert!(text(remove(&first, configured).await).contains("remove it there"));
    assert_eq!(list(&first).await, all);

    third.kill().await;
    let mut left = remove(&second, gone).await.unwrap();
    left.sort();
    assert_eq!(left, ["b0", "b1"]);
    lists(&second, &all[..2]).await;
    lists(&first, &all[..2]).await;
    assert_eq!(text(remove(&second, gone).await), "etcdserver: member not found");
    second.stop().await;
    let second = site.start(1, 2, &[]).await;
    assert_eq!(list(&second).await, all[..2]);
    // One that comes back is a member again.
    let third = site.start(2, 3, &[]).await;
    lists(&second, &all).await;
    first.stop().await;
    second.stop().await;
    third.stop().await;
}
