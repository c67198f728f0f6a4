//! Users, roles and permissions of a store that runs in this process.

use std::sync::Arc;
use std::time::Duration;

use api::auth::{AuthOptions, AuthService, Authenticator, JwtOptions, SignMethod, TokenOptions};
use api::kv::KvService;
use api::lease::LeaseService;
use bytes::Bytes;
use engine::log::MemLog;
use engine::rows::mem::MemRows;
use engine::rows::{RowChange, Rows};
use etcd_types::pb::authpb;
use etcd_types::types::Caller;
use futures::StreamExt as _;
use mvcc::keys;
use mvcc::row::{Manifest, STORED_FORMAT, STORED_FORMAT_WITH_AUTH};
use pb::auth_server::Auth as _;
use pb::kv_server::Kv as _;
use pb::lease_server::Lease as _;
use prost::Message as _;
use store::alarm::CORRUPT;
use store::sequencer::command::Command;
use tonic::{Request, Status};

use crate::engine::Engine;
use crate::wire::pb;

const NOT_PERMITTED: &str = "etcdserver: permission denied";
const EMPTY_USER_NAME: &str = "etcdserver: user name is empty";
const INVALID_TOKEN: &str = "etcdserver: invalid auth token";
const PASSWORD_TOO_LONG: &str = "bcrypt: password length exceeds 72 bytes";

/// The services of an engine. Passwords cost little.
pub(crate) struct Services {
    auth: AuthService,
    kv: KvService,
    leases: LeaseService,
}

impl Services {
    pub(crate) fn of(engine: &Engine) -> Self {
        Self::with(engine, AuthOptions::default())
    }

    fn with(engine: &Engine, options: AuthOptions) -> Self {
        let options = AuthOptions {
            bcrypt_cost: 4,
            ..options
        };
        let authenticator = Arc::new(Authenticator::new(&options).unwrap());
        let mut store = engine.kv.store.clone();
        store.guard = store.guard.with(authenticator);
        Self {
            auth: AuthService(store.clone()),
            leases: LeaseService::new(store.clone(), None),
            kv: KvService { store },
        }
    }

    async fn add_user(&self, name: &str) {
        let user = pb::AuthUserAddRequest {
            name: name.to_owned(),
            password: format!("{name}'s"),
            ..Default::default()
        };
        self.auth.user_add(Request::new(user)).await.unwrap();
    }

    /// Grants as root, if permissions are checked.
    async fn grant_role(&self, token: &str, user: &str, role: &str) -> Result<(), Status> {
        let grant = pb::AuthUserGrantRoleRequest {
            user: user.to_owned(),
            role: role.to_owned(),
        };
        self.auth.user_grant_role(by(token, grant)).await.map(drop)
    }

    async fn grant_permission(&self, role: &str, kind: authpb::permission::Type, key: &str, end: &str) {
        let grant = pb::AuthRoleGrantPermissionRequest {
            name: role.to_owned(),
            perm: Some(authpb::Permission {
                perm_type: kind.into(),
                key: Bytes::copy_from_slice(key.as_bytes()),
                range_end: Bytes::copy_from_slice(end.as_bytes()),
            }),
        };
        self.auth.role_grant_permission(Request::new(grant)).await.unwrap();
    }

    /// Adds root and the user u, who may write `u/` and read that and `shared`, and begins to check permissions.
    pub(crate) async fn enable(&self) {
        self.add_user("root").await;
        self.grant_role("", "root", "root").await.unwrap();
        self.add_user("u").await;
        let role = pb::AuthRoleAddRequest { name: "r".to_owned() };
        self.auth.role_add(Request::new(role)).await.unwrap();
        self.grant_permission("r", authpb::permission::Type::Readwrite, "u/", "u0")
            .await;
        self.grant_permission("r", authpb::permission::Type::Read, "shared", "")
            .await;
        self.grant_role("", "u", "r").await.unwrap();
        self.auth
            .auth_enable(Request::new(pb::AuthEnableRequest {}))
            .await
            .unwrap();
    }

    /// Tokens of root and of the user u.
    async fn tokens(&self) -> (String, String) {
        (self.token("root").await.unwrap(), self.token("u").await.unwrap())
    }

    async fn token(&self, name: &str) -> Result<String, Status> {
        let request = pb::AuthenticateRequest {
            name: name.to_owned(),
            password: format!("{name}'s"),
        };
        let answer = self.auth.authenticate(Request::new(request)).await?;
        Ok(answer.into_inner().token)
    }

    async fn put(&self, token: &str, key: &str) -> Result<(), Status> {
        self.put_with(token, put(key)).await
    }

    async fn put_with(&self, token: &str, put: pb::PutRequest) -> Result<(), Status> {
        self.kv.put(by(token, put)).await.map(drop)
    }

    async fn range(&self, token: &str, key: &str, serializable: bool) -> Result<(), Status> {
        let range = pb::RangeRequest {
            serializable,
            ..range(key)
        };
        self.kv.range(by(token, range)).await.map(drop)
    }

    async fn txn(&self, token: &str, txn: pb::TxnRequest) -> Result<(), Status> {
        self.kv.txn(by(token, txn)).await.map(drop)
    }
}

/// A request with a token; none if it is empty.
fn by<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if !token.is_empty() {
        request.metadata_mut().insert("token", token.parse().unwrap());
    }
    request
}

fn put(key: &str) -> pb::PutRequest {
    pb::PutRequest {
        key: Bytes::copy_from_slice(key.as_bytes()),
        ..Default::default()
    }
}

fn range(key: &str) -> pb::RangeRequest {
    pb::RangeRequest {
        key: Bytes::copy_from_slice(key.as_bytes()),
        ..Default::default()
    }
}

fn op(request: pb::request_op::Request) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Status>) -> String {
    answer.unwrap_err().message().to_owned()
}

async fn stored_format(rows: &impl Rows) -> u32 {
    Manifest::decode(rows.fence().await.unwrap().unwrap()).unwrap().format
}

#[tokio::test]
async fn users_survive_restarts() {
    let (log, rows) = (MemLog::new(), MemRows::new());
    let engine = Engine::start(log.clone(), rows.clone()).await.unwrap();
    let services = Services::of(&engine);
    services.enable().await;
    // Killed: users are in the log alone.
    engine.kill().await;
    assert_eq!(stored_format(&rows).await, STORED_FORMAT);
    for _ in 0..2 {
        let engine = Engine::start(log.clone(), rows.clone()).await.unwrap();
        let services = Services::of(&engine);
        assert_eq!(refused(services.put("", "u/a").await), EMPTY_USER_NAME);
        let token = services.token("u").await.unwrap();
        services.put(&token, "u/a").await.unwrap();
        assert_eq!(refused(services.put(&token, "v/a").await), NOT_PERMITTED);
        let status = by(&services.token("root").await.unwrap(), pb::AuthStatusRequest {});
        let status = services.auth.auth_status(status).await.unwrap().into_inner();
        assert_eq!((status.enabled, status.auth_revision), (true, 8));
        drop((services, engine.stop().await.unwrap()));
        // Now they are in rows, which a brain without users must not open.
        assert_eq!(stored_format(&rows).await, STORED_FORMAT_WITH_AUTH);
    }
}

#[tokio::test]
async fn damaged_user_is_refused() {
    let (log, rows) = (MemLog::new(), MemRows::new());
    let engine = Engine::start(log.clone(), rows.clone()).await.unwrap();
    Services::of(&engine).enable().await;
    engine.stop().await.unwrap();
    let fence = rows.fence().await.unwrap().unwrap();
    let damaged = RowChange::Put(keys::user_key("u"), Bytes::from_static(b"\xff\xff"));
    rows.apply(Some(fence.clone()), fence, vec![damaged]).await.unwrap();
    let refused = format!("{:#}", Engine::start(log, rows).await.err().unwrap());
    assert!(refused.contains("the row of a user does not decode"), "{refused}");
}

#[tokio::test]
async fn requests_need_permission() {
    let engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    let services = Services::of(&engine);
    services.put("", "shared").await.unwrap();
    services.put("any", "other").await.unwrap();
    services.enable().await;
    let (root, token) = services.tokens().await;
    assert_eq!(refused(services.put("any.7", "u/a").await), INVALID_TOKEN);
    assert_eq!(refused(services.put("any.99", "u/a").await), INVALID_TOKEN);
    assert_eq!(refused(services.put("any", "u/a").await), INVALID_TOKEN);
    for serializable in [false, true] {
        services.range(&token, "shared", serializable).await.unwrap();
        assert_eq!(
            refused(services.range(&token, "other", serializable).await),
            NOT_PERMITTED
        );
        assert_eq!(
            refused(services.range("", "shared", serializable).await),
            EMPTY_USER_NAME
        );
        services.range(&root, "other", serializable).await.unwrap();
    }
    assert_eq!(refused(services.put(&token, "shared").await), NOT_PERMITTED);
    // The branch that is not taken counts, too, also of a txn that only reads.
    let reads = |key| vec![op(pb::request_op::Request::RequestRange(range(key)))];
    let writes = |key| vec![op(pb::request_op::Request::RequestPut(put(key)))];
    let txn = |success, failure| pb::TxnRequest {
        compare: Vec::new(),
        success,
        failure,
    };
    services.txn(&token, txn(writes("u/a"), reads("shared"))).await.unwrap();
    services.txn(&token, txn(reads("u/a"), reads("shared"))).await.unwrap();
    for failure in [reads("other"), writes("shared")] {
        assert_eq!(
            refused(services.txn(&token, txn(writes("u/a"), failure.clone())).await),
            NOT_PERMITTED
        );
        assert_eq!(
            refused(services.txn(&token, txn(reads("u/a"), failure)).await),
            NOT_PERMITTED
        );
    }
    let compact = || pb::CompactionRequest {
        revision: 2,
        physical: false,
    };
    assert_eq!(refused(services.kv.compact(by(&token, compact())).await), NOT_PERMITTED);
    services.kv.compact(by(&root, compact())).await.unwrap();
    drop(services);
    engine.stop().await.unwrap();
}

/// As in etcd: the CORRUPT alarm is checked before permissions, and does not affect changes of users.
#[tokio::test]
async fn corrupt_alarm_is_told_to_everybody_and_spares_users() {
    let engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    let services = Services::of(&engine);
    services.enable().await;
    let (root, token) = services.tokens().await;
    let raise = Command::Alarm(1, CORRUPT, true);
    let (sequencer, state) = (&engine.store.sequencer, &engine.store.state);
    sequencer
        .propose(state, Caller::Server, raise, 64)
        .await
        .result
        .unwrap();
    for key in ["u/a", "other"] {
        assert_eq!(refused(services.put(&token, key).await), "etcdserver: corrupt cluster");
    }
    assert_eq!(refused(services.grant_role(&token, "u", "root").await), NOT_PERMITTED);
    services.grant_role(&root, "u", "root").await.unwrap();
    services.grant_role(&token, "root", "r").await.unwrap();
    drop(services);
    engine.stop().await.unwrap();
}

/// As etcd, which hashes it first.
#[tokio::test]
async fn long_password_is_refused_whoever_asks() {
    let engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    let services = Services::of(&engine);
    services.enable().await;
    let add = |options| pb::AuthUserAddRequest {
        name: "v".to_owned(),
        password: "p".repeat(73),
        options,
        ..Default::default()
    };
    let change = pb::AuthUserChangePasswordRequest {
        name: "u".to_owned(),
        password: "p".repeat(73),
        ..Default::default()
    };
    assert_eq!(
        refused(services.auth.user_add(by("any", add(None))).await),
        PASSWORD_TOO_LONG
    );
    assert_eq!(
        refused(services.auth.user_change_password(by("", change)).await),
        PASSWORD_TOO_LONG
    );
    let options = Some(authpb::UserAddOptions { no_password: true });
    assert_eq!(
        refused(services.auth.user_add(by("any", add(options))).await),
        INVALID_TOKEN
    );
    drop(services);
    engine.stop().await.unwrap();
}

#[tokio::test]
async fn lease_with_keys_of_others_is_theirs() {
    let engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    let services = Services::of(&engine);
    services.enable().await;
    let (root, token) = services.tokens().await;
    let attached = |key, lease| pb::PutRequest { lease, ..put(key) };
    for id in [1, 2] {
        let grant = || pb::LeaseGrantRequest { id, ttl: 1_000 };
        assert_eq!(
            refused(services.leases.lease_grant(Request::new(grant())).await),
            EMPTY_USER_NAME
        );
        services.leases.lease_grant(by(&token, grant())).await.unwrap();
    }
    services.put_with(&token, attached("u/a", 1)).await.unwrap();
    services.put_with(&token, attached("u/b", 2)).await.unwrap();
    services.put_with(&root, attached("other", 2)).await.unwrap();
    assert_eq!(
        refused(services.put_with(&token, attached("u/c", 2)).await),
        NOT_PERMITTED
    );
    let ask = |id, keys| pb::LeaseTimeToLiveRequest { id, keys };
    services
        .leases
        .lease_time_to_live(by(&token, ask(2, false)))
        .await
        .unwrap();
    services
        .leases
        .lease_time_to_live(by(&token, ask(1, true)))
        .await
        .unwrap();
    assert_eq!(
        refused(services.leases.lease_time_to_live(by(&token, ask(2, true))).await),
        NOT_PERMITTED
    );
    let revoke = |id| pb::LeaseRevokeRequest { id };
    assert_eq!(
        refused(services.leases.lease_revoke(by(&token, revoke(2))).await),
        NOT_PERMITTED
    );
    services.leases.lease_revoke(by(&token, revoke(1))).await.unwrap();
    services.leases.lease_revoke(by(&root, revoke(2))).await.unwrap();
    drop(services);
    engine.stop().await.unwrap();
}

#[tokio::test]
async fn every_key_of_a_lease_is_checked() {
    let engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    let services = Services::of(&engine);
    services.enable().await;
    let (root, token) = services.tokens().await;
    let grant = pb::LeaseGrantRequest { id: 1, ttl: 1_000 };
    services.leases.lease_grant(by(&token, grant)).await.unwrap();
    let attached = |key: &str| pb::PutRequest { lease: 1, ..put(key) };
    // As many as are checked at once.
    for part in 0..10 {
        let puts = (0..100).map(|n| attached(&format!("u/{part}{n:02}")));
        let txn = pb::TxnRequest {
            success: puts.map(|put| op(pb::request_op::Request::RequestPut(put))).collect(),
            ..Default::default()
        };
        services.txn(&token, txn).await.unwrap();
    }
    let list = || services.leases.lease_leases(by(&token, pb::LeaseLeasesRequest {}));
    let listed = list().await.unwrap().into_inner().leases;
    assert_eq!(listed, [pb::LeaseStatus { id: 1 }]);
    // The last in the order of keys.
    services.put_with(&root, attached("v")).await.unwrap();
    assert_eq!(refused(list().await), NOT_PERMITTED);
    drop(services);
    engine.stop().await.unwrap();
}

#[tokio::test]
async fn token_ends_with_the_password_and_the_user() {
    let engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    let services = Services::of(&engine);
    assert_eq!(
        refused(services.token("u").await),
        "etcdserver: authentication is not enabled"
    );
    services.enable().await;
    let (root, token) = services.tokens().await;
    let revoke = pb::AuthUserRevokeRoleRequest {
        name: "u".to_owned(),
        role: "r".to_owned(),
    };
    services.auth.user_revoke_role(by(&root, revoke)).await.unwrap();
    assert_eq!(refused(services.put(&token, "u/a").await), NOT_PERMITTED);
    services.grant_role(&root, "u", "r").await.unwrap();
    services.put(&token, "u/a").await.unwrap();
    assert_eq!(refused(services.grant_role(&token, "u", "root").await), NOT_PERMITTED);
    let change = |password: &str| pb::AuthUserChangePasswordRequest {
        name: "u".to_owned(),
        password: password.to_owned(),
        ..Default::default()
    };
    services
        .auth
        .user_change_password(by(&root, change("another")))
        .await
        .unwrap();
    assert_eq!(refused(services.put(&token, "u/a").await), INVALID_TOKEN);
    assert_eq!(
        refused(services.token("u").await),
        "etcdserver: authentication failed, invalid user ID or password"
    );
    let long = "x".repeat(73);
    assert_eq!(
        refused(services.auth.user_change_password(by(&root, change(&long))).await),
        "bcrypt: password length exceeds 72 bytes"
    );
    services
        .auth
        .user_change_password(by(&root, change("u's")))
        .await
        .unwrap();
    let token = services.token("u").await.unwrap();
    services.put(&token, "u/a").await.unwrap();
    let delete = pb::AuthUserDeleteRequest { name: "u".to_owned() };
    services.auth.user_delete(by(&root, delete)).await.unwrap();
    assert_eq!(refused(services.put(&token, "u/a").await), INVALID_TOKEN);
    services
        .auth
        .auth_disable(by(&root, pb::AuthDisableRequest {}))
        .await
        .unwrap();
    services.put(&token, "anything").await.unwrap();
    drop(services);
    engine.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn token_expires_when_it_is_not_used() {
    let engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    let services = Services::of(&engine);
    services.enable().await;
    let token = services.token("u").await.unwrap();
    for _ in 0..3 {
        tokio::time::advance(Duration::from_secs(299)).await;
        services.range(&token, "shared", true).await.unwrap();
    }
    tokio::time::advance(Duration::from_secs(301)).await;
    assert_eq!(refused(services.range(&token, "shared", true).await), INVALID_TOKEN);
    drop(services);
    engine.stop().await.unwrap();
}

#[tokio::test]
async fn range_stream_ends_when_users_change() {
    let engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    let services = Services::of(&engine);
    services.enable().await;
    let (root, token) = services.tokens().await;
    for n in 0..30 {
        services.put(&token, &format!("u/{n}")).await.unwrap();
    }
    let all = pb::RangeRequest {
        range_end: "u0".into(),
        ..range("u/")
    };
    let (kept, changed) = (by(&token, all.clone()), by(&token, all));
    let messages: Vec<_> = services
        .kv
        .range_stream(kept)
        .await
        .unwrap()
        .into_inner()
        .collect()
        .await;
    assert!(messages.len() > 1 && messages.iter().all(Result::is_ok), "{messages:?}");
    let mut stream = services.kv.range_stream(changed).await.unwrap().into_inner();
    stream.next().await.unwrap().unwrap();
    services.grant_role(&root, "u", "root").await.unwrap();
    let ended = refused(stream.next().await.unwrap());
    assert_eq!(ended, "etcdserver: revision of auth store is old");
    drop((stream, services));
    engine.stop().await.unwrap();
}

#[tokio::test]
async fn json_web_token_is_of_the_revision_that_it_was_signed_at() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "the members' own").unwrap();
    let options = AuthOptions {
        token: TokenOptions::Jwt(JwtOptions {
            method: Some(SignMethod::Hs256),
            public_key: None,
            private_key: Some(secret),
            ttl: Duration::from_secs(600),
        }),
        ..AuthOptions::default()
    };
    let engine = Engine::start(MemLog::new(), MemRows::new()).await.unwrap();
    let services = Services::with(&engine, options);
    services.enable().await;
    let (root, token) = services.tokens().await;
    services.put(&token, "u/a").await.unwrap();
    services.range(&token, "shared", false).await.unwrap();
    assert_eq!(refused(services.put("simple.1", "u/a").await), INVALID_TOKEN);
    services.grant_role(&root, "u", "root").await.unwrap();
    let old = "etcdserver: revision of auth store is old";
    assert_eq!(refused(services.put(&token, "u/a").await), old);
    assert_eq!(refused(services.range(&token, "shared", true).await), old);
    services
        .put(&services.token("u").await.unwrap(), "anything")
        .await
        .unwrap();
    drop(services);
    engine.stop().await.unwrap();
}
