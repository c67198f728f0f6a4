//! Users, roles and permissions: who may do what, and what changes of users do to their tokens.

use pb::request_op::Request as Op;
use tonic::Request;
use wire::{authpb, etcdserverpb as pb, v3electionpb as election, v3lockpb as lock};

use super::actor::{Actor, bytes, revision, within};

const READ: i32 = 0;
const WRITE: i32 = 1;
const READWRITE: i32 = 2;

/// A request with the token of a user; with none if it is empty.
fn by<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if !token.is_empty() {
        request.metadata_mut().insert("token", token.parse().unwrap());
    }
    request
}

/// Changes users and roles with the token of a user, and notes the answers.
struct Admin<'a> {
    actor: &'a mut Actor,
    token: String,
}

impl Admin<'_> {
    async fn add_user(&mut self, name: &str, password: Option<&str>) {
        let user = pb::AuthUserAddRequest {
            name: name.to_owned(),
            password: password.unwrap_or_default().to_owned(),
            options: password
                .is_none()
                .then_some(authpb::UserAddOptions { no_password: true }),
            ..Default::default()
        };
        let answer = self.actor.auth.user_add(by(&self.token, user)).await;
        self.actor
            .note(&format!("add user {name}"), answer, |it| revision(it.header));
    }

    async fn delete_user(&mut self, name: &str) {
        let user = pb::AuthUserDeleteRequest { name: name.to_owned() };
        let answer = self.actor.auth.user_delete(by(&self.token, user)).await;
        self.actor
            .note(&format!("delete user {name}"), answer, |it| revision(it.header));
    }

    async fn change_password(&mut self, name: &str, password: &str, hashed_password: &str) {
        let change = pb::AuthUserChangePasswordRequest {
            name: name.to_owned(),
            password: password.to_owned(),
            hashed_password: hashed_password.to_owned(),
        };
        let answer = self.actor.auth.user_change_password(by(&self.token, change)).await;
        let what = format!("change password of {name} to {password:?} {hashed_password:?}");
        self.actor.note(&what, answer, |it| revision(it.header));
    }

    async fn add_role(&mut self, name: &str) {
        let role = pb::AuthRoleAddRequest { name: name.to_owned() };
        let answer = self.actor.auth.role_add(by(&self.token, role)).await;
        self.actor
            .note(&format!("add role {name}"), answer, |it| revision(it.header));
    }

    async fn delete_role(&mut self, name: &str) {
        let role = pb::AuthRoleDeleteRequest { role: name.to_owned() };
        let answer = self.actor.auth.role_delete(by(&self.token, role)).await;
        self.actor
            .note(&format!("delete role {name}"), answer, |it| revision(it.header));
    }

    async fn grant_role(&mut self, user: &str, role: &str) {
        let grant = pb::AuthUserGrantRoleRequest {
            user: user.to_owned(),
            role: role.to_owned(),
        };
        let answer = self.actor.auth.user_grant_role(by(&self.token, grant)).await;
        self.actor
            .note(&format!("grant {role} to {user}"), answer, |it| revision(it.header));
    }

    async fn revoke_role(&mut self, user: &str, role: &str) {
        let revoke = pb::AuthUserRevokeRoleRequest {
            name: user.to_owned(),
            role: role.to_owned(),
        };
        let answer = self.actor.auth.user_revoke_role(by(&self.token, revoke)).await;
        self.actor
            .note(&format!("revoke {role} from {user}"), answer, |it| revision(it.header));
    }

    async fn grant(&mut self, role: &str, perm_type: i32, key: &str, end: &str) {
        let permission = authpb::Permission {
            perm_type,
            key: bytes(key),
            range_end: bytes(end),
        };
        let grant = pb::AuthRoleGrantPermissionRequest {
            name: role.to_owned(),
            perm: Some(permission),
        };
        let answer = self.actor.auth.role_grant_permission(by(&self.token, grant)).await;
        let what = format!("grant {perm_type} on {key:?} to {end:?} to {role}");
        self.actor.note(&what, answer, |it| revision(it.header));
    }

    async fn revoke(&mut self, role: &str, key: &str, end: &str) {
        let revoke = pb::AuthRoleRevokePermissionRequest {
            role: role.to_owned(),
            key: bytes(key),
            range_end: bytes(end),
        };
        let answer = self.actor.auth.role_revoke_permission(by(&self.token, revoke)).await;
        let what = format!("revoke {key:?} to {end:?} from {role}");
        self.actor.note(&what, answer, |it| revision(it.header));
    }

    async fn switch(&mut self, on: bool) {
        let (actor, token) = (&mut *self.actor, &self.token);
        if on {
            let answer = actor.auth.auth_enable(by(token, pb::AuthEnableRequest {})).await;
            actor.note("enable", answer, |it| revision(it.header));
        } else {
            let answer = actor.auth.auth_disable(by(token, pb::AuthDisableRequest {})).await;
            actor.note("disable", answer, |it| revision(it.header));
        }
    }

    /// Everything that may be read about users and roles.
    async fn show(&mut self) {
        let (actor, token) = (&mut *self.actor, &self.token);
        let auth = &mut actor.auth.clone();
        let status = auth.auth_status(by(token, pb::AuthStatusRequest {})).await;
        actor.note("status", status, |it| {
            (revision(it.header), it.enabled, it.auth_revision)
        });
        let users = auth.user_list(by(token, pb::AuthUserListRequest {})).await;
        actor.note("users", users, |it| (revision(it.header), it.users));
        let roles = auth.role_list(by(token, pb::AuthRoleListRequest {})).await;
        actor.note("roles", roles, |it| (revision(it.header), it.roles));
        for name in ["root", "u", "n", "nobody", ""] {
            let get = pb::AuthUserGetRequest { name: name.to_owned() };
            let user = auth.user_get(by(token, get)).await;
            actor.note(&format!("user {name}"), user, |it| (revision(it.header), it.roles));
        }
        for name in ["root", "r", "s", "nothing"] {
            let get = pb::AuthRoleGetRequest { role: name.to_owned() };
            let role = auth.role_get(by(token, get)).await;
            actor.note(&format!("role {name}"), role, |it| (revision(it.header), it.perm));
        }
    }
}

/// Returns a token, and notes whether there is one.
async fn authenticate(actor: &mut Actor, name: &str, password: &str) -> String {
    let request = pb::AuthenticateRequest {
        name: name.to_owned(),
        password: password.to_owned(),
    };
    let answer = actor.auth.authenticate(request).await;
    let token = answer.as_ref().map(|it| it.get_ref().token.clone()).unwrap_or_default();
    actor.note(&format!("authenticate {name}"), answer, |it| {
        (revision(it.header), it.token.find('.'))
    });
    token
}

fn range(key: &str, end: &str) -> pb::RangeRequest {
    pb::RangeRequest {
        key: bytes(key),
        range_end: bytes(end),
        ..Default::default()
    }
}

fn put(key: &str, prev_kv: bool, lease: i64) -> pb::PutRequest {
    pb::PutRequest {
        key: bytes(key),
        prev_kv,
        lease,
        ..Default::default()
    }
}

fn delete(key: &str, end: &str, prev_kv: bool) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest {
        key: bytes(key),
        range_end: bytes(end),
        prev_kv,
    }
}

fn txn(compared: &str, success: Vec<Op>, failure: Vec<Op>) -> pb::TxnRequest {
    let ops = |ops: Vec<Op>| ops.into_iter().map(|op| pb::RequestOp { request: Some(op) }).collect();
    let compare = pb::Compare {
        key: bytes(compared),
        ..Default::default()
    };
    pb::TxnRequest {
        compare: vec![compare],
        success: ops(success),
        failure: ops(failure),
    }
}

/// Reads and writes keys as a user.
async fn use_keys(actor: &mut Actor, who: &str, token: &str) {
    let kv = &mut actor.kv.clone();
    let ranges = [
        ("a", ""),
        ("a", "c"),
        ("b", "e"),
        ("a", "f"),
        ("d", "\0"),
        ("x", ""),
        ("\0", "\0"),
        ("w", ""),
    ];
    for (key, end) in ranges {
        for serializable in [false, true] {
            let asked = pb::RangeRequest {
                serializable,
                ..range(key, end)
            };
            let answer = kv.range(by(token, asked)).await;
            let what = format!("{who}: range {key:?} to {end:?}, serializable {serializable}");
            actor.note(&what, answer, |it| (revision(it.header), it.count));
        }
    }
    for key in ["a", "w", "x", "other", ""] {
        for prev_kv in [false, true] {
            let answer = kv.put(by(token, put(key, prev_kv, 0))).await;
            let what = format!("{who}: put {key:?}, {prev_kv}");
            actor.note(&what, answer, |it| (revision(it.header), it.prev_kv.is_some()));
        }
    }
    for (key, end) in [("a", ""), ("a", "c"), ("w", ""), ("x", ""), ("other", "")] {
        for prev_kv in [true, false] {
            let answer = kv.delete_range(by(token, delete(key, end, prev_kv))).await;
            let what = format!("{who}: delete {key:?} to {end:?}, {prev_kv}");
            actor.note(&what, answer, |it| (revision(it.header), it.deleted));
        }
    }
    let read = |key| Op::RequestRange(range(key, ""));
    let write = |key| Op::RequestPut(put(key, false, 0));
    let nested = |op| Op::RequestTxn(txn("a", Vec::new(), vec![op]));
    let txns = [
        txn("a", vec![read("a")], vec![read("a")]),
        txn("w", vec![read("a")], vec![read("a")]),
        txn("a", vec![read("a")], vec![read("w")]),
        txn("a", vec![write("w")], vec![read("a")]),
        txn("a", vec![write("a")], vec![write("other")]),
        txn("a", vec![nested(write("w"))], vec![nested(read("a"))]),
        txn("a", vec![nested(write("x"))], Vec::new()),
        txn("a", vec![nested(read("w"))], Vec::new()),
        txn("a", vec![Op::RequestDeleteRange(delete("w", "", true))], Vec::new()),
        txn("a", vec![Op::RequestDeleteRange(delete("w", "", false))], Vec::new()),
    ];
    for (number, txn) in txns.into_iter().enumerate() {
        let answer = kv.txn(by(token, txn)).await;
        actor.note(&format!("{who}: txn {number}"), answer, |it| {
            (revision(it.header), it.succeeded)
        });
    }
}

/// Uses leases as a user: 200 is free of keys, 201 has a key of the user's, 202 one of others, too.
async fn use_leases(actor: &mut Actor, who: &str, token: &str) {
    let leases = &mut actor.leases.clone();
    let grant = pb::LeaseGrantRequest { ttl: 600, id: 300 };
    let answer = leases.lease_grant(by(token, grant)).await;
    actor.note(&format!("{who}: grant"), answer, |it| (revision(it.header), it.ttl));
    for id in [200, 201, 202, 404] {
        let answer = actor.kv.put(by(token, put("a", false, id))).await;
        actor.note(&format!("{who}: put with lease {id}"), answer, |it| revision(it.header));
        for keys in [false, true] {
            let asked = pb::LeaseTimeToLiveRequest { id, keys };
            let answer = leases.lease_time_to_live(by(token, asked)).await;
            let what = format!("{who}: time to live of {id}, keys {keys}");
            actor.note(&what, answer, |it| (it.granted_ttl, it.keys));
        }
        let asked = tokio_stream::once(pb::LeaseKeepAliveRequest { id });
        let renewed = match leases.lease_keep_alive(by(token, asked)).await {
            Ok(mut answers) => within(answers.get_mut().message()).await,
            Err(status) => Err(status),
        };
        let answer = renewed.map(tonic::Response::new);
        actor.note(&format!("{who}: keep {id}"), answer, |it| it.map(|it| it.ttl));
    }
    // On one stream: the first one is answered although the second one may be refused.
    let asked = tokio_stream::iter([200, 202].map(|id| pb::LeaseKeepAliveRequest { id }));
    // Before its first answer, a refusal may end the call or the stream.
    let (mut answers, mut refused) = match leases.lease_keep_alive(by(token, asked)).await {
        Ok(answers) => (Some(answers.into_inner()), None),
        Err(status) => (None, Some(status)),
    };
    while let Some(stream) = &mut answers {
        match within(stream.message()).await {
            Ok(Some(it)) => actor.answers.push(format!("{who}: kept {} for {}", it.id, it.ttl)),
            Ok(None) => answers = None,
            Err(status) => (answers, refused) = (None, Some(status)),
        }
    }
    let end = refused.map_or(Ok(tonic::Response::new(())), Err);
    actor.note(&format!("{who}: keep two"), end, |()| ());
    let answer = leases.lease_leases(by(token, pb::LeaseLeasesRequest {})).await;
    actor.note(&format!("{who}: leases"), answer, |it| it.leases.len());
    for id in [300, 202, 404] {
        let answer = leases.lease_revoke(by(token, pb::LeaseRevokeRequest { id })).await;
        actor.note(&format!("{who}: revoke {id}"), answer, |it| revision(it.header));
    }
}

/// Watches, locks and administers as a user.
async fn use_the_rest(actor: &mut Actor, who: &str, token: &str) {
    for (key, end) in [("a", ""), ("w", ""), ("b", "e"), ("", "\0")] {
        let create = pb::WatchCreateRequest {
            key: bytes(key),
            range_end: bytes(end),
            ..Default::default()
        };
        let create = pb::WatchRequest {
            request_union: Some(pb::watch_request::RequestUnion::CreateRequest(create)),
        };
        let requests = futures::StreamExt::chain(tokio_stream::once(create), futures::stream::pending());
        let created = match actor.watch.watch(by(token, requests)).await {
            Ok(mut stream) => within(stream.get_mut().message()).await,
            Err(status) => Err(status),
        };
        let answer = created.map(tonic::Response::new);
        actor.note(&format!("{who}: watch {key:?} to {end:?}"), answer, |it| {
            let it = it.expect("an answer");
            (it.created, it.canceled, it.watch_id, it.cancel_reason)
        });
    }
    for name in ["a", "w"] {
        let asked = lock::LockRequest {
            name: bytes(name),
            lease: 200,
        };
        let answer = within(actor.lock.lock(by(token, asked))).await;
        actor.note(&format!("{who}: lock {name}"), answer, |it| it.key);
        let asked = lock::UnlockRequest {
            key: bytes(&format!("{name}/c8")),
        };
        let answer = within(actor.lock.unlock(by(token, asked))).await;
        actor.note(&format!("{who}: unlock {name}"), answer, |_| ());
        let asked = election::LeaderRequest { name: bytes(name) };
        let answer = within(actor.election.leader(by(token, asked))).await;
        actor.note(&format!("{who}: leader of {name}"), answer, |it| it.kv.is_some());
    }
    let compact = pb::CompactionRequest {
        revision: 1,
        physical: false,
    };
    let answer = actor.kv.compact(by(token, compact)).await;
    actor.note(&format!("{who}: compact"), answer, |_| ());
    let maintenance = &mut actor.maintenance.clone();
    // Asked about, and cleared.
    for action in [0, 2] {
        let alarm = pb::AlarmRequest {
            action,
            member_id: 0,
            alarm: 1,
        };
        let answer = maintenance.alarm(by(token, alarm)).await;
        actor.note(&format!("{who}: alarm {action}"), answer, |it| it.alarms.len());
    }
    let answer = maintenance.status(by(token, pb::StatusRequest {})).await;
    actor.note(&format!("{who}: status"), answer, |it| revision(it.header));
    let answer = maintenance.hash(by(token, pb::HashRequest {})).await;
    actor.note(&format!("{who}: hash"), answer, |_| ());
    let answer = maintenance.hash_kv(by(token, pb::HashKvRequest::default())).await;
    actor.note(&format!("{who}: hash of keys"), answer, |_| ());
    let answer = maintenance.defragment(by(token, pb::DefragmentRequest {})).await;
    actor.note(&format!("{who}: defragment"), answer, |_| ());
    let answer = maintenance
        .move_leader(by(token, pb::MoveLeaderRequest { target_id: 7 }))
        .await;
    actor.note(&format!("{who}: move leader"), answer, |_| ());
    let list = pb::MemberListRequest { linearizable: true };
    let answer = actor.cluster.member_list(by(token, list)).await;
    actor.note(&format!("{who}: members"), answer, |it| it.members.len());
    let answer = actor
        .cluster
        .member_remove(by(token, pb::MemberRemoveRequest { id: 7 }))
        .await;
    actor.note(&format!("{who}: remove a member"), answer, |_| ());
}

/// Adds users and roles, and begins to check permissions.
async fn begin(admin: &mut Admin<'_>) {
    admin.add_user("root", Some("root's")).await;
    admin.switch(true).await;
    admin.add_user("u", Some("u's")).await;
    admin.add_user("u", Some("u's")).await;
    admin.add_user("n", None).await;
    admin.add_user("long", Some(&"x".repeat(73))).await;
    for role in ["r", "r", "s", "root"] {
        admin.add_role(role).await;
    }
    for (role, kind, key, end) in [
        ("r", READWRITE, "a", "c"),
        ("r", READ, "c", "d"),
        ("s", READ, "d", "e"),
        ("s", WRITE, "w", ""),
        ("s", READ, "w", ""),
        ("s", WRITE, "w", ""),
        ("r", READ, "z", "\0"),
        ("r", READ, "a", ""),
        ("r", 7, "x", ""),
        ("r", READ, "b", "a"),
        ("none", READ, "a", ""),
    ] {
        admin.grant(role, kind, key, end).await;
    }
    for (user, role) in [
        ("u", "s"),
        ("u", "r"),
        ("u", "r"),
        ("root", "root"),
        ("u", "none"),
        ("none", "r"),
    ] {
        admin.grant_role(user, role).await;
    }
    admin.show().await;
    admin.switch(true).await;
    admin.switch(true).await;
    admin.show().await;
}

pub(super) async fn manage_users(actor: &mut Actor) {
    for id in [200, 201, 202] {
        let grant = pb::LeaseGrantRequest { ttl: 600, id };
        actor.leases.lease_grant(grant).await.unwrap();
    }
    for request in [
        put("a", false, 201),
        put("b", false, 202),
        put("w", false, 202),
        put("other", false, 0),
    ] {
        actor.kv.put(request).await.unwrap();
    }
    let mut admin = Admin {
        actor,
        token: String::new(),
    };
    begin(&mut admin).await;
    let root = authenticate(admin.actor, "root", "root's").await;
    let u = authenticate(admin.actor, "u", "u's").await;
    for (name, password) in [("u", "wrong"), ("none", "x"), ("n", "x"), ("", "")] {
        authenticate(admin.actor, name, password).await;
    }
    for (who, token) in [
        ("nobody", ""),
        ("a liar", "lie.1"),
        ("another", "lie"),
        ("u", &u),
        ("root", &root),
    ] {
        use_keys(admin.actor, who, token).await;
        use_leases(admin.actor, who, token).await;
        use_the_rest(admin.actor, who, token).await;
    }
    admin.token = u;
    admin.show().await;
    admin.add_user("v", Some("v's")).await;
    admin.delete_user("root").await;
    admin.change_password("u", "mine", "").await;
    admin.grant_role("u", "root").await;
    admin.switch(false).await;
    admin.token = root;
    admin.show().await;
    admin.delete_user("root").await;
    admin.delete_role("root").await;
    admin.revoke_role("root", "root").await;
    admin.revoke_role("u", "root").await;
    admin.revoke_role("none", "r").await;
    admin.revoke("r", "c", "").await;
    admin.revoke("r", "c", "d").await;
    admin.revoke("none", "c", "d").await;
    admin.change_password("n", "n's", "").await;
    admin.change_password("none", "x", "").await;
    admin.change_password("u", "", "no base64").await;
    admin.change_password("u", "new", "").await;
    authenticate(admin.actor, "n", "n's").await;
    authenticate(admin.actor, "u", "u's").await;
    let u = authenticate(admin.actor, "u", "new").await;
    use_keys(admin.actor, "u again", &u).await;
    admin.delete_role("r").await;
    admin.delete_role("r").await;
    use_keys(admin.actor, "u without a role", &u).await;
    admin.delete_user("u").await;
    admin.delete_user("u").await;
    use_keys(admin.actor, "u no more", &u).await;
    admin.show().await;
    admin.switch(false).await;
    admin.switch(false).await;
    use_keys(admin.actor, "anybody", &u).await;
    authenticate(admin.actor, "root", "root's").await;
    admin.revoke_role("root", "root").await;
    admin.switch(true).await;
    admin.delete_user("root").await;
    admin.show().await;
}
