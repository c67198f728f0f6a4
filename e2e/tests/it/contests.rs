//! Locks, elections and users: a brain answers a script as etcd does, and etcdctl gets along with it.

use std::fmt::Debug;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use e2e::progress::Progress;
use e2e::server::{Program, Server};
use e2e::wire::v3electionpb::election_client::ElectionClient;
use e2e::wire::v3lockpb::lock_client::LockClient;
use e2e::wire::{authpb, etcdserverpb as pb, mvccpb, v3electionpb as election, v3lockpb as lock};
use pb::auth_client::AuthClient;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::harness::deadline;

const PATIENCE: Duration = Duration::from_secs(30);
/// Leases that the script grants, by their ids.
const LEASES: [i64; 3] = [100, 101, 102];

/// One server under the script, and what it answered.
struct Actor {
    lock: LockClient<Channel>,
    election: ElectionClient<Channel>,
    auth: AuthClient<Channel>,
    kv: KvClient<Channel>,
    leases: LeaseClient<Channel>,
    answers: Vec<String>,
}

/// A call that goes on while others are made.
struct Apart<T>(JoinSet<T>);

impl<T: Send + 'static> Apart<T> {
    fn start(call: impl Future<Output = T> + Send + 'static) -> Self {
        let mut set = JoinSet::new();
        set.spawn(call);
        Self(set)
    }

    fn goes_on(&mut self) -> bool {
        self.0.try_join_next().is_none()
    }

    async fn end(mut self) -> T {
        within(self.0.join_next())
            .await
            .expect("it was not taken before")
            .unwrap()
    }
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// What a header says of the store alone.
fn revision(header: Option<pb::ResponseHeader>) -> i64 {
    header.expect("a header").revision
}

fn text(kv: Option<mvccpb::KeyValue>) -> String {
    let kv = kv.expect("a pair");
    format!("{:?}={:?} {} {}", kv.key, kv.value, kv.create_revision, kv.lease)
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("an answer in time")
}

impl Actor {
    async fn new(server: &Server) -> Self {
        let channel = server.connect().await.unwrap();
        Self {
            lock: LockClient::new(channel.clone()),
            election: ElectionClient::new(channel.clone()),
            auth: AuthClient::new(channel.clone()),
            kv: KvClient::new(channel.clone()),
            leases: LeaseClient::new(channel),
            answers: Vec::new(),
        }
    }

    fn note<T, D: Debug>(&mut self, what: &str, answer: Result<Response<T>, Status>, see: impl FnOnce(T) -> D) {
        let seen = match answer {
            Ok(answer) => format!("{:?}", see(answer.into_inner())),
            Err(status) => format!("{:?}: {}", status.code(), status.message()),
        };
        self.answers.push(format!("{what}: {seen}"));
    }

    async fn count(&mut self, key: &str) -> i64 {
        let range = pb::RangeRequest {
            key: bytes(key),
            ..pb::RangeRequest::default()
        };
        self.kv.range(range).await.unwrap().into_inner().count
    }

    /// Waits until so many keys of this name are there: none or one.
    async fn until(&mut self, key: &str, count: i64) {
        within(async { while self.count(key).await != count {} }).await;
    }

    async fn locks(&mut self, what: &str, name: &str, lease: i64) {
        let request = lock::LockRequest {
            name: bytes(name),
            lease,
        };
        let answer = within(self.lock.lock(request)).await;
        self.note(what, answer, |it| (revision(it.header), it.key));
    }

    /// Asks for a lock that others hold.
    fn waits(&self, name: &str, lease: i64) -> Apart<Result<Response<lock::LockResponse>, Status>> {
        let (mut client, name) = (self.lock.clone(), bytes(name));
        Apart::start(async move { client.lock(lock::LockRequest { name, lease }).await })
    }

    async fn unlocks(&mut self, what: &str, key: &str) {
        let answer = within(self.lock.unlock(lock::UnlockRequest { key: bytes(key) })).await;
        self.note(what, answer, |it| revision(it.header));
    }

    fn campaign(
        &self,
        name: &str,
        lease: i64,
        value: &str,
    ) -> Apart<Result<Response<election::CampaignResponse>, Status>> {
        let (mut client, name, value) = (self.election.clone(), bytes(name), bytes(value));
        Apart::start(async move {
            let request = election::CampaignRequest { name, lease, value };
            client.campaign(request).await
        })
    }

    async fn proclaims(&mut self, what: &str, leader: Option<election::LeaderKey>, value: &str) {
        let value = bytes(value);
        let answer = within(self.election.proclaim(election::ProclaimRequest { leader, value })).await;
        self.note(what, answer, |it| revision(it.header));
    }

    async fn resigns(&mut self, what: &str, leader: Option<election::LeaderKey>) {
        let answer = within(self.election.resign(election::ResignRequest { leader })).await;
        self.note(what, answer, |it| revision(it.header));
    }

    async fn leads(&mut self, what: &str, name: &str) {
        let answer = within(self.election.leader(election::LeaderRequest { name: bytes(name) })).await;
        self.note(what, answer, |it| (revision(it.header), text(it.kv)));
    }
}

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

async fn manage_users(actor: &mut Actor) {
    let auth = &mut actor.auth.clone();
    let name = String::new;
    let some = || "some".to_owned();
    actor.note("status", auth.auth_status(pb::AuthStatusRequest {}).await, |it| {
        (revision(it.header), it.enabled, it.auth_revision)
    });
    actor.note("enable", auth.auth_enable(pb::AuthEnableRequest {}).await, |_| ());
    let disabled = auth.auth_disable(pb::AuthDisableRequest {}).await;
    actor.note("disable", disabled, |it| revision(it.header));
    let authenticate = pb::AuthenticateRequest {
        name: some(),
        password: some(),
    };
    actor.note("authenticate", auth.authenticate(authenticate).await, |_| ());
    let nameless = pb::AuthUserAddRequest::default();
    actor.note("a user without a name", auth.user_add(nameless).await, |_| ());
    let get = pb::AuthUserGetRequest { name: some() };
    actor.note("get user", auth.user_get(get).await, |_| ());
    let users = auth.user_list(pb::AuthUserListRequest {}).await;
    actor.note("users", users, |it| (revision(it.header), it.users));
    let delete = pb::AuthUserDeleteRequest { name: some() };
    actor.note("delete user", auth.user_delete(delete).await, |_| ());
    let change = pb::AuthUserChangePasswordRequest {
        name: some(),
        ..Default::default()
    };
    actor.note("password", auth.user_change_password(change).await, |_| ());
    let grant = pb::AuthUserGrantRoleRequest {
        user: some(),
        role: some(),
    };
    actor.note("grant role", auth.user_grant_role(grant).await, |_| ());
    let revoke = pb::AuthUserRevokeRoleRequest {
        name: some(),
        role: some(),
    };
    actor.note("revoke role", auth.user_revoke_role(revoke).await, |_| ());
    let nameless = pb::AuthRoleAddRequest { name: name() };
    actor.note("a role without a name", auth.role_add(nameless).await, |_| ());
    let get = pb::AuthRoleGetRequest { role: some() };
    actor.note("get role", auth.role_get(get).await, |_| ());
    let roles = auth.role_list(pb::AuthRoleListRequest {}).await;
    actor.note("roles", roles, |it| (revision(it.header), it.roles));
    let delete = pb::AuthRoleDeleteRequest { role: some() };
    actor.note("delete role", auth.role_delete(delete).await, |_| ());
    for (key, end) in [("", ""), ("b", "a"), ("a", "a"), ("a", "\0"), ("a", "b"), ("a", "")] {
        let perm = authpb::Permission {
            perm_type: 0,
            key: bytes(key),
            range_end: bytes(end),
        };
        let grant = pb::AuthRoleGrantPermissionRequest {
            name: some(),
            perm: Some(perm),
        };
        let what = format!("grant {key:?} to {end:?}");
        actor.note(&what, auth.role_grant_permission(grant).await, |_| ());
    }
    let nothing = pb::AuthRoleGrantPermissionRequest {
        name: some(),
        perm: None,
    };
    actor.note("grant nothing", auth.role_grant_permission(nothing).await, |_| ());
    let revoke = pb::AuthRoleRevokePermissionRequest {
        role: some(),
        ..Default::default()
    };
    actor.note("revoke", auth.role_revoke_permission(revoke).await, |_| ());
}

async fn script(server: &Server) -> Vec<String> {
    let mut actor = Actor::new(server).await;
    contend_for_locks(&mut actor).await;
    hold_elections(&mut actor).await;
    manage_users(&mut actor).await;
    actor.answers
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_elections_and_users_are_as_etcds() {
    let _deadline = deadline();
    let etcd = Server::start(&Program::etcd(&Progress::stderr()).unwrap(), &[]).unwrap();
    let brain = Server::start(&Program::kubebrain().unwrap(), &[]).unwrap();
    let (expected, found) = tokio::join!(script(&etcd), script(&brain));
    for (expected, found) in expected.iter().zip(&found) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
    let mut auth = AuthClient::new(brain.connect().await.unwrap());
    let user = pb::AuthUserAddRequest {
        name: "root".to_owned(),
        ..Default::default()
    };
    let status = auth.user_add(user).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unimplemented, "{status}");
    assert!(status.message().contains("certificates"), "{status}");
    etcd.stop().unwrap();
    brain.stop().unwrap();
}

/// etcdctl on a server, ended by its end.
struct Etcdctl(Child);

impl Etcdctl {
    fn start(server: &Server, args: &[&str]) -> Self {
        let etcd = Program::etcd(&Progress::stderr()).unwrap().path;
        let mut command = Command::new(etcd.with_file_name("etcdctl"));
        command.args(["--endpoints", server.endpoint()]).args(args);
        Self(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    /// The next lines that it says.
    fn says(&mut self, lines: usize) -> Vec<String> {
        let output = BufReader::new(self.0.stdout.as_mut().unwrap());
        output.lines().take(lines).map(Result::unwrap).collect()
    }

    fn interrupt(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::INT).unwrap();
        self.0.wait().unwrap();
    }

    fn ends_well(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Etcdctl {
    fn drop(&mut self) {
        // both fail only if it has ended already
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn etcdctl_locks_and_elects() {
    let _deadline = deadline();
    let server = Server::start(&Program::kubebrain().unwrap(), &[]).unwrap();
    let mut holder = Etcdctl::start(&server, &["lock", "l"]);
    let key = holder.says(1);
    assert!(key[0].starts_with("l/"), "{key:?}");
    let mut next = Etcdctl::start(&server, &["lock", "l", "echo", "mine"]);
    let mut leader = Etcdctl::start(&server, &["elect", "e", "value"]);
    let elected = leader.says(2);
    assert!(elected[0].starts_with("e/") && elected[1] == "value", "{elected:?}");
    let mut listener = Etcdctl::start(&server, &["elect", "--listen", "e"]);
    assert_eq!(listener.says(2), elected);
    assert!(next.0.try_wait().unwrap().is_none(), "two hold one lock");
    holder.interrupt();
    assert_eq!(next.says(1), ["mine"]);
    next.ends_well();
    leader.interrupt();
    listener.interrupt();
    server.stop().unwrap();
}
