use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::peers::PeerAddresses;
use engine::cas_register::mem::MemRegister;
use etcd_types::url::Url;
use tls::{TlsOptions, TlsPolicy};

/// Creates the request of a member: its name, then the names and hosts of all.
fn join_request(name: &str, cluster: &str, joins_existing: bool) -> (JoinRequest, Peers) {
    let urls = cluster.split_whitespace().map(|member| {
        let (name, host) = member.split_once('@').unwrap_or((member, member));
        let url = Url::parse(&format!("http://{host}:2380")).unwrap();
        (name.to_owned(), vec![url])
    });
    let initial_cluster: BTreeMap<_, _> = urls.collect();
    let member = ConfiguredMember {
        name: name.to_owned(),
        discovery: None,
        initial_advertise_peer_urls: initial_cluster[name].clone(),
        initial_cluster,
        advertise_client_urls: vec![Url::parse(&format!("http://client-{name}:2379")).unwrap()],
        joins_existing,
    };
    let peers = Peers::new(
        PeerAddresses::Fixed(member.initial_cluster.clone()),
        (TlsOptions::default(), TlsPolicy::default()),
        "etcd-cluster".to_owned(),
    );
    (JoinRequest::new(&member), peers)
}

/// Starts members one after the other, `name: cluster` each, and checks the names that remain; or the refusal of the last one,
/// which must change nothing.
async fn check(starts: &[&str], expected: &str) {
    let register = MemRegister::new();
    for (n, start) in starts.iter().enumerate() {
        let (name, cluster) = start.split_once(": ").unwrap();
        let (cluster, joins_existing) = match cluster.strip_suffix(" --existing") {
            Some(cluster) => (cluster, true),
            None => (cluster, false),
        };
        let (request, _) = join_request(name, cluster, joins_existing);
        let before = register.get().await.unwrap();
        if let Err(refused) = enter(&register, &request).await {
            assert_eq!(n + 1, starts.len(), "{start}: {refused}");
            assert!(refused.to_string().contains(expected), "{start}: {refused}");
            assert_eq!(register.get().await.unwrap(), before, "a refusal changes nothing");
            return;
        }
    }
    let table = MemberTable::decode(register.get().await.unwrap().as_ref()).unwrap();
    let names: Vec<&str> = table.rows().map(|(name, _)| name).collect();
    assert_eq!(names.join(" "), expected, "{starts:?}");
}

#[tokio::test]
async fn members_of_one_cluster_enter_whatever_happened_to_them() {
    check(&["a: a b c", "b: a b c", "c: a b c"], "a b c").await;
    check(&["a: a b c", "b: a b c", "a: a b c"], "a b").await;
    // The members move, one after the other.
    check(&["a: a b", "b: a b", "a: a@z b", "b: a@z b@y"], "a b").await;
    // A member is added, with a longer list, before the others have it.
    check(&["a: a b", "b: a b", "c: a b c"], "a b c").await;
    check(&["a: a", "b: a b"], "a b").await;
    // A member is replaced by one with another name.
    check(&["a: a b", "b: a b", "c: a c", "a: a c"], "a c").await;
    // All addresses change at once.
    check(&["a: a b", "b: a b", "a: a@x b@y --existing"], "a b").await;
}

#[tokio::test]
async fn members_of_another_cluster_are_refused_and_change_nothing() {
    let other = "belongs to a cluster of other members (a at http://a:2380, b at http://b:2380)";
    check(&["a: a b", "b: a b", "x: x y"], other).await;
    check(&["a: a b", "b: a b", "a: a@x b@y"], other).await;
    check(
        &["a: a", "a: a@x"],
        "--initial-cluster names none of them at its address",
    )
    .await;
}

#[tokio::test]
async fn a_member_leaves_when_all_others_have_left_it_out() {
    check(&["a: a b c", "b: a b c", "c: a b c", "a: a b"], "a b c").await;
    check(&["a: a b c", "b: a b c", "c: a b c", "a: a b", "b: a b"], "a b").await;
    // A new member is not removed by members that do not know it yet.
    check(&["a: a b", "b: a b", "c: a b c", "a: a b"], "a b c").await;
}

#[tokio::test]
async fn a_start_without_news_writes_nothing() {
    let register = MemRegister::new();
    let (request, _) = join_request("a", "a b", false);
    enter(&register, &request).await.unwrap();
    let before = register.get().await.unwrap();
    enter(&register, &request).await.unwrap();
    assert_eq!(register.get().await.unwrap(), before);
}

#[tokio::test]
async fn unreadable_table_is_refused_and_stays() {
    let newer = Bytes::from_static(&[8, 99]);
    for (bytes, reason) in [(newer, "format 99"), (Bytes::from_static(b"\xff"), "are damaged")] {
        let register = MemRegister::new();
        assert!(matches!(
            register.compare_and_set(None, Some(bytes.clone())).await,
            Cas::Swapped
        ));
        let refused = enter(&register, &join_request("a", "a", false).0).await.unwrap_err();
        assert!(refused.to_string().contains(reason), "{refused}");
        assert_eq!(register.get().await.unwrap(), Some(bytes));
    }
}

#[tokio::test(start_paused = true)]
async fn everybody_is_listed_and_what_others_write_shows() {
    let register = MemRegister::new();
    let (first, peers) = join_request("a", "a b", false);
    let table = enter(&register, &first).await.unwrap();
    let known = members(&first, &table, &peers);
    let told = |members: &Members| -> Vec<String> {
        let mut told: Vec<String> = members
            .list()
            .iter()
            .map(|member| {
                format!(
                    "{}|{}|{}",
                    member.name,
                    member.peer_ur_ls.join(","),
                    member.client_ur_ls.join(",")
                )
            })
            .collect();
        told.sort();
        told
    };
    let begun = ["a|http://a:2380|http://client-a:2379", "|http://b:2380|"];
    assert_eq!(told(&known), begun);
    let stop = CancellationToken::new();
    let following = follow(Arc::new(register.clone()), (first, peers), known.clone(), stop.clone());
    let others = async {
        enter(&register, &join_request("b", "a b", false).0).await.unwrap();
        enter(&register, &join_request("c", "a b c", false).0).await.unwrap();
        let mut seen = known.watch();
        seen.wait_for(|members| members.len() == 3).await.unwrap();
        stop.cancel();
    };
    let (followed, ()) = tokio::join!(following, others);
    followed.unwrap();
    assert_eq!(
        told(&known),
        [
            "a|http://a:2380|http://client-a:2379",
            "b|http://b:2380|http://client-b:2379",
            "c|http://c:2380|http://client-c:2379"
        ]
    );
}

async fn names(register: &MemRegister) -> String {
    let table = MemberTable::decode(register.get().await.unwrap().as_ref()).unwrap();
    table.rows().map(|(name, _)| name).collect::<Vec<_>>().join(" ")
}

/// Writes the rows of two members; the first member's configuration does not name the second one.
async fn two(register: &MemRegister) -> (MemberRemoval, JoinRequest) {
    let (first, peers) = join_request("a", "a", false);
    let table = enter(register, &first).await.unwrap();
    let other = join_request("b", "a b", false).0;
    enter(register, &other).await.unwrap();
    let members = members(&first, &table, &peers);
    let removal = MemberRemoval {
        register: Arc::new(register.clone()),
        request: first,
        peers,
        members,
    };
    (removal, other)
}

#[tokio::test]
async fn only_rows_of_others_that_no_configuration_names_are_removed() {
    let register = MemRegister::new();
    let (removal, _) = two(&register).await;
    let (own, other) = (removal.peers.id("a"), removal.peers.id("b"));
    assert!(matches!(removal.remove(own).await, Err(RemoveError::Configured)));
    let unknown = removal.remove(removal.peers.id("c")).await;
    assert!(matches!(unknown, Err(RemoveError::Unknown)));
    assert_eq!(names(&register).await, "a b");
    removal.remove(other).await.unwrap();
    assert_eq!(names(&register).await, "a");
    assert!(matches!(removal.remove(other).await, Err(RemoveError::Unknown)));
}

#[tokio::test(start_paused = true)]
async fn removed_member_that_runs_enters_again_once() {
    let register = MemRegister::new();
    let (removal, other) = two(&register).await;
    removal.remove(removal.peers.id("b")).await.unwrap();
    let stop = CancellationToken::new();
    let (_, peers) = join_request("b", "a b", false);
    let known = members(&other, &MemberTable::default(), &peers);
    let following = follow(Arc::new(register.clone()), (other, peers), known.clone(), stop.clone());
    let looked = async {
        let mut seen = known.watch();
        seen.wait_for(|members| members.values().any(|member| member.name == "a"))
            .await
            .unwrap();
        stop.cancel();
    };
    let (followed, ()) = tokio::join!(following, looked);
    followed.unwrap();
    assert_eq!(names(&register).await, "a b");
    let table = MemberTable::decode(register.get().await.unwrap().as_ref()).unwrap();
    assert!(!table.is_removed("b"));
}
