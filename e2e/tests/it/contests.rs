//! Locks, elections and users: a brain answers a script as etcd does.

use bytes::Bytes;
use programs::progress::Progress;
use programs::server::{Program, Server};
use wire::{etcdserverpb as pb, v3electionpb as election, v3lockpb as lock};

use crate::harness::deadline;
use actor::{Actor, Apart, bytes, revision, text, within};
use nobody::ask_about_nobody;
use users::manage_users;

mod actor;
mod nobody;
mod users;

/// Leases that the script grants, by their ids.
const LEASES: [i64; 3] = [100, 101, 102];

async fn contend_for_locks(actor: &mut Actor) {
    for id in LEASES {
        let grant = pb::LeaseGrantRequest { ttl: 600, id };
        actor.leases.lease_grant(grant).await.unwrap();
    }
    actor.locks("a free lock", "l", 100).await;
    actor.locks("the same lease again", "l", 100).await;
    let mut second = actor.waits("l", 101);
    actor.until("l/65", 1).await;
    let mut third = actor.waits("l", 102);
    actor.until("l/66", 1).await;
    assert!(second.goes_on() && third.goes_on(), "two hold one lock");
    actor.unlocks("release", "l/64").await;
    let answer = second.end().await;
    actor.note("the second one's turn", answer, |it| (revision(it.header), it.key));
    // the third one's lease ends while it waits
    actor
        .leases
        .lease_revoke(pb::LeaseRevokeRequest { id: 102 })
        .await
        .unwrap();
    actor.unlocks("release again", "l/65").await;
    let answer = third.end().await;
    actor.note("a turn without a lease", answer, |it| (revision(it.header), it.key));

    actor.locks("a lock for one who leaves", "l", 100).await;
    let leaves = actor.waits("l", 101);
    actor.until("l/65", 1).await;
    drop(leaves);
    actor.until("l/65", 0).await;
    actor.locks("an unknown lease", "l", 404).await;
    actor.locks("no name", "", 100).await;
    actor.unlocks("no key", "").await;
    actor.unlocks("a key that is not there", "nothing").await;
    let own = actor.lock.lock(lock::LockRequest {
        name: bytes("own"),
        lease: 0,
    });
    let key = within(own).await.unwrap().into_inner().key;
    let lease = std::str::from_utf8(&key).unwrap().strip_prefix("own/").unwrap();
    let id = i64::from_str_radix(lease, 16).unwrap();
    let asked = pb::LeaseTimeToLiveRequest { id, keys: true };
    let answer = actor.leases.lease_time_to_live(asked).await;
    actor.note("the lease of a lock without one", answer, |it| {
        (it.granted_ttl, it.keys == [key])
    });
}

async fn hold_elections(actor: &mut Actor) {
    actor.leads("nobody leads", "e").await;
    actor.proclaims("nobody proclaims", None, "x").await;
    actor.resigns("nobody resigns", None).await;
    // etcd answers only when there is something to see
    let mut client = actor.election.clone();
    let request = election::LeaderRequest { name: bytes("e") };
    let observed = Apart::start(async move { client.observe(request).await });
    let first = actor.campaign("e", 100, "one").end().await;
    let leader = first.as_ref().ok().and_then(|answer| answer.get_ref().leader.clone());
    actor.note("a campaign without a rival", first, |it| {
        (revision(it.header), it.leader)
    });
    let mut observed = observed.end().await.unwrap().into_inner();
    let mut next = async |actor: &mut Actor, what: &str| {
        let answer = within(observed.message()).await.unwrap().expect("a leader");
        actor.answers.push(format!("observed {what}: {}", text(answer.kv)));
    };
    next(actor, "the first leader").await;
    actor.leads("one leads", "e").await;
    actor.proclaims("another word of one", leader.clone(), "one more").await;
    next(actor, "another word").await;
    let mut rival = actor.campaign("e", 101, "two");
    actor.until("e/65", 1).await;
    assert!(rival.goes_on(), "two lead");
    actor.resigns("one resigns", leader.clone()).await;
    let second = rival.end().await;
    let other = second.as_ref().ok().and_then(|answer| answer.get_ref().leader.clone());
    actor.note("the rival's turn", second, |it| (revision(it.header), it.leader));
    next(actor, "the second leader").await;
    actor.proclaims("a leader of old", leader.clone(), "late").await;
    actor.resigns("a leader of old resigns", leader).await;
    let again = actor.campaign("e", 101, "two again").end().await;
    actor.note("the same campaign with another value", again, |it| {
        (revision(it.header), it.leader)
    });
    next(actor, "the same leader").await;
    let leaves = actor.campaign("e", 100, "gone");
    actor.until("e/64", 1).await;
    drop(leaves);
    actor.until("e/64", 0).await;
    let unknown = actor.campaign("e", 404, "x").end().await;
    actor.note("a campaign with an unknown lease", unknown, |it| it.leader);
    let nobody = other.map(|leader| election::LeaderKey {
        key: Bytes::new(),
        ..leader
    });
    actor.proclaims("a leader without a key", nobody, "x").await;
}

async fn script(server: &Server) -> Vec<String> {
    let mut actor = Actor::new(server).await;
    contend_for_locks(&mut actor).await;
    hold_elections(&mut actor).await;
    ask_about_nobody(&mut actor).await;
    manage_users(&mut actor).await;
    actor.answers
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_elections_and_users_are_as_etcds() {
    let _deadline = deadline();
    let cheap = ["--bcrypt-cost=4"];
    let etcd = Server::start(&Program::etcd(&Progress::stderr()).unwrap(), &cheap).unwrap();
    let brain = Server::start(&Program::kubebrain().unwrap(), &cheap).unwrap();
    let (expected, found) = tokio::join!(script(&etcd), script(&brain));
    let differing: Vec<_> = expected
        .iter()
        .zip(&found)
        .filter(|(expected, found)| expected != found)
        .collect();
    assert!(differing.is_empty(), "etcd's answer, and the brain's: {differing:#?}");
    assert_eq!(found.len(), expected.len());
    etcd.stop().unwrap();
    brain.stop().unwrap();
}
