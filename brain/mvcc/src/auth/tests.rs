use super::*;
use crate::op::{Compare, CompareResult, CompareTarget, DeleteOp, Op, PutOp, RangeOp, Span, TxnOp};
use bytes::Bytes;
use etcd_types::types::{Caller, Identity, LeaseId};

fn text(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn span(key: &str, end: &str) -> Span {
    Span {
        key: text(key),
        end: text(end),
    }
}

fn permission(kind: i32, key: &str, end: &str) -> Permission {
    Permission {
        kind,
        key: text(key),
        range_end: text(end),
    }
}

const READ: i32 = 0;
const WRITE: i32 = 1;
const BOTH: i32 = permissions::READWRITE;

/// Evaluates a request and applies the change.
fn ask(auth: &mut Auth, request: AuthRequest) -> Result<bool, Error> {
    let change = auth.evaluate(request)?;
    if let Some(change) = &change {
        auth.apply(change);
    }
    Ok(change.is_some())
}

fn user(auth: &Auth, name: &str) -> Caller {
    Caller::User(Arc::new(Identity {
        name: name.to_owned(),
        revision: auth.revision(),
    }))
}

fn add_user(name: &str) -> AuthRequest {
    AuthRequest::AddUser(name.to_owned(), Some(text("hash")))
}

fn grant(user: &str, role: &str) -> AuthRequest {
    AuthRequest::GrantRole {
        user: user.to_owned(),
        role: role.to_owned(),
    }
}

fn revoke(user: &str, role: &str) -> AuthRequest {
    AuthRequest::RevokeRole {
        user: user.to_owned(),
        role: role.to_owned(),
    }
}

/// Permissions are checked, and the user u has the role r with these.
fn guarded(permissions: &[Permission]) -> Auth {
    let mut auth = Auth::default();
    let role = |name: &str| AuthRequest::AddRole(name.to_owned());
    for request in [
        add_user("root"),
        grant("root", "root"),
        add_user("u"),
        role("r"),
        grant("u", "r"),
    ] {
        assert_eq!(ask(&mut auth, request), Ok(true));
    }
    for permission in permissions {
        let request = AuthRequest::GrantPermission("r".to_owned(), Some(permission.clone()));
        assert_eq!(ask(&mut auth, request), Ok(true));
    }
    assert_eq!(ask(&mut auth, AuthRequest::Enable), Ok(true));
    auth
}

fn may(auth: &Auth, access: Access, key: &str, end: &str) -> bool {
    auth.check(&user(auth, "u"), access, &span(key, end)).is_ok()
}

#[test]
fn ranges_of_several_permissions_are_one() {
    let auth = guarded(&[
        permission(READ, "a", "c"),
        permission(READ, "c", "f"),
        permission(WRITE, "e", "h"),
        permission(READ, "h", ""),
        permission(BOTH, "x", "\0"),
        permission(READ, "b", "bb"),
    ]);
    for (key, end, reads, writes) in [
        ("a", "", true, false),
        ("a", "f", true, false),
        ("bz", "d", true, false),
        ("a", "f\0", false, false),
        ("a", "g", false, false),
        ("e", "f", true, true),
        ("e", "h", false, true),
        ("f", "", false, true),
        ("h", "", true, false),
        ("h", "i", false, false),
        ("h\0", "", false, false),
        ("w", "\0", false, false),
        ("x", "\0", true, true),
        ("y", "z", true, true),
        ("zzz", "", true, true),
        ("\0", "\0", false, false),
    ] {
        assert_eq!(may(&auth, Access::Read, key, end), reads, "read {key:?} to {end:?}");
        assert_eq!(may(&auth, Access::Write, key, end), writes, "write {key:?} to {end:?}");
    }
    let root = user(&auth, "root");
    assert_eq!(auth.check(&root, Access::Write, &span("\0", "\0")), Ok(()));
}

#[test]
fn unknown_kind_of_permission_opens_nothing() {
    let auth = guarded(&[permission(7, "a", "")]);
    assert!(!may(&auth, Access::Read, "a", "") && !may(&auth, Access::Write, "a", ""));
}

#[test]
fn callers_without_the_newest_revision_are_refused() {
    let mut auth = guarded(&[permission(READ, "a", "")]);
    let (known, key) = (user(&auth, "u"), span("a", ""));
    assert_eq!(auth.check(&known, Access::Read, &key), Ok(()));
    assert_eq!(auth.check(&known, Access::Write, &key), Err(Error::PermissionDenied));
    assert_eq!(
        auth.check(&Caller::Anonymous, Access::Read, &key),
        Err(Error::UserEmpty)
    );
    assert_eq!(auth.check(&Caller::Server, Access::Write, &key), Ok(()));
    ask(&mut auth, add_user("v")).unwrap();
    assert_eq!(auth.check(&known, Access::Read, &key), Err(Error::AuthOldRevision));
    ask(&mut auth, AuthRequest::Disable).unwrap();
    assert_eq!(auth.check(&Caller::Anonymous, Access::Write, &key), Ok(()));
}

fn put(key: &str, lease: i64, prev_kv: bool) -> Op {
    Op::Put(PutOp {
        key: text(key),
        value: Bytes::new(),
        lease: LeaseId(lease),
        prev_kv,
        ignore_value: false,
        ignore_lease: false,
    })
}

fn delete(key: &str, prev_kv: bool) -> Op {
    Op::Delete(DeleteOp {
        span: span(key, ""),
        prev_kv,
    })
}

fn range(key: &str) -> Op {
    Op::Range(RangeOp::all(span(key, "")))
}

fn compare(key: &str) -> Compare {
    Compare {
        span: span(key, ""),
        target: CompareTarget::Version(0),
        result: CompareResult::Equal,
    }
}

fn txn(compares: Vec<Compare>, success: Vec<Op>, failure: Vec<Op>) -> Op {
    Op::Txn(TxnOp {
        compares,
        success,
        failure,
    })
}

#[test]
fn operations_of_both_branches_need_permission() {
    let auth = guarded(&[
        permission(READ, "r", ""),
        permission(WRITE, "w", ""),
        permission(BOTH, "b", ""),
    ]);
    let caller = user(&auth, "u");
    // A key of the user's is attached to lease 1, and one of others to lease 2.
    let mut attached = |id: LeaseId| vec![text(if id.0 == 1 { "w" } else { "others" })];
    let mut check = |op: &Op| auth.check_op(&caller, op, &mut attached).is_ok();
    for (permitted, op) in [
        (true, put("w", 0, false)),
        (false, put("r", 0, false)),
        (false, put("w", 0, true)),
        (true, put("b", 0, true)),
        (true, put("w", 1, false)),
        (false, put("w", 2, false)),
        (true, delete("w", false)),
        (false, delete("w", true)),
        (true, delete("b", true)),
        (false, delete("r", false)),
        (true, range("r")),
        (false, range("w")),
        (false, range("other")),
    ] {
        assert_eq!(check(&op), permitted, "{op:?}");
        for in_txn in [
            txn(Vec::new(), vec![op.clone()], Vec::new()),
            txn(Vec::new(), Vec::new(), vec![op.clone()]),
            txn(
                Vec::new(),
                vec![range("r")],
                vec![txn(Vec::new(), Vec::new(), vec![op.clone()])],
            ),
        ] {
            assert_eq!(check(&in_txn), permitted, "{in_txn:?}");
        }
    }
    assert!(check(&txn(vec![compare("r"), compare("b")], Vec::new(), Vec::new())));
    assert!(!check(&txn(vec![compare("r"), compare("w")], Vec::new(), Vec::new())));
    let nested = txn(vec![compare("w")], Vec::new(), Vec::new());
    assert!(!check(&txn(Vec::new(), Vec::new(), vec![nested])));
}

#[test]
fn root_stays_while_permissions_are_checked() {
    let mut auth = Auth::default();
    assert_eq!(auth.revision(), 1);
    assert_eq!(ask(&mut auth, AuthRequest::Enable), Err(Error::RootUserNotExist));
    ask(&mut auth, add_user("root")).unwrap();
    assert_eq!(ask(&mut auth, AuthRequest::Enable), Err(Error::RootRoleNotExist));
    // The role root need not exist to be granted.
    assert_eq!(ask(&mut auth, grant("root", "root")), Ok(true));
    assert_eq!(ask(&mut auth, grant("root", "root")), Ok(false));
    ask(&mut auth, AuthRequest::AddRole("root".to_owned())).unwrap();
    let before = auth.revision();
    assert_eq!(ask(&mut auth, AuthRequest::Enable), Ok(true));
    assert_eq!(ask(&mut auth, AuthRequest::Enable), Ok(false));
    assert_eq!(auth.revision(), before);
    for request in [
        AuthRequest::DeleteUser("root".to_owned()),
        AuthRequest::DeleteRole("root".to_owned()),
        revoke("root", "root"),
    ] {
        assert_eq!(ask(&mut auth, request), Err(Error::InvalidAuthMgmt));
    }
    let root = user(&auth, "root");
    assert_eq!(auth.check_admin(&root), Ok(()));
    assert_eq!(auth.check_admin(&Caller::Anonymous), Err(Error::UserEmpty));
    ask(&mut auth, AuthRequest::Disable).unwrap();
    assert_eq!(ask(&mut auth, AuthRequest::Disable), Ok(false));
    assert_eq!(auth.revision(), before + 1);
    assert_eq!(ask(&mut auth, revoke("root", "root")), Ok(true));
    assert_eq!(ask(&mut auth, AuthRequest::DeleteUser("root".to_owned())), Ok(true));
}

#[test]
fn changes_are_refused_as_by_etcd() {
    let mut auth = guarded(&[permission(READ, "a", "b")]);
    let before = auth.revision();
    let of_role = |key: &str, end: &str| AuthRequest::RevokePermission {
        role: "r".to_owned(),
        key: text(key),
        range_end: text(end),
    };
    let name = str::to_owned;
    for (request, error) in [
        (add_user(""), Error::UserEmpty),
        (add_user("u"), Error::UserAlreadyExist),
        (AuthRequest::DeleteUser(name("v")), Error::UserNotFound),
        (
            AuthRequest::ChangePassword(name("v"), Some(text("hash"))),
            Error::UserNotFound,
        ),
        (AuthRequest::ChangePassword(name("u"), None), Error::NoPasswordUser),
        (grant("v", "r"), Error::UserNotFound),
        (grant("u", "s"), Error::RoleNotFound),
        (revoke("v", "r"), Error::UserNotFound),
        (revoke("u", "s"), Error::RoleNotGranted),
        (AuthRequest::AddRole(name("")), Error::RoleEmpty),
        (AuthRequest::AddRole(name("r")), Error::RoleAlreadyExist),
        (AuthRequest::DeleteRole(name("s")), Error::RoleNotFound),
        (AuthRequest::GrantPermission(name("r"), None), Error::PermissionNotGiven),
        (
            AuthRequest::GrantPermission(name("s"), Some(permission(READ, "a", ""))),
            Error::RoleNotFound,
        ),
        (
            AuthRequest::GrantPermission(name("r"), Some(permission(READ, "", ""))),
            Error::InvalidAuthMgmt,
        ),
        (
            AuthRequest::GrantPermission(name("r"), Some(permission(READ, "b", "a"))),
            Error::InvalidAuthMgmt,
        ),
        (of_role("a", ""), Error::PermissionNotGranted),
    ] {
        assert_eq!(ask(&mut auth, request.clone()), Err(error), "{request:?}");
    }
    assert_eq!(auth.revision(), before);
    assert_eq!(ask(&mut auth, of_role("a", "b")), Ok(true));
}

#[test]
fn permissions_are_sorted_and_replaced() {
    let kept = |role: &Role| -> Vec<_> {
        let permissions = role.permissions.iter();
        permissions
            .map(|own| (own.kind, own.key.clone(), own.range_end.clone()))
            .collect()
    };
    let role = Role::default()
        .with(permission(READ, "b", ""))
        .with(permission(READ, "a", "c"));
    let role = role.with(permission(WRITE, "b", ""));
    assert_eq!(
        kept(&role),
        [(READ, text("a"), text("c")), (WRITE, text("b"), text(""))]
    );
    assert_eq!(role.without(b"b", b"c"), None);
    assert_eq!(kept(&role.without(b"b", b"").unwrap()), [(READ, text("a"), text("c"))]);
}

#[test]
fn deleted_role_is_revoked_from_all_users() {
    let mut auth = guarded(&[permission(READ, "a", "")]);
    assert!(may(&auth, Access::Read, "a", ""));
    ask(&mut auth, AuthRequest::DeleteRole("r".to_owned())).unwrap();
    assert!(!may(&auth, Access::Read, "a", ""));
    assert_eq!(auth.user("u").unwrap().roles, Vec::<String>::new());
    assert_eq!(
        (auth.users().collect::<Vec<_>>(), auth.roles().count()),
        (vec!["root", "u"], 0)
    );
}

#[test]
fn users_read_about_themselves_and_their_roles() {
    let auth = guarded(&[]);
    let caller = user(&auth, "u");
    assert_eq!(auth.check_get_user(&caller, "u"), Ok(()));
    assert_eq!(auth.check_get_user(&caller, "root"), Err(Error::PermissionDenied));
    assert_eq!(auth.check_get_role(&caller, "r"), Ok(()));
    assert_eq!(auth.check_get_role(&caller, "root"), Err(Error::PermissionDenied));
    assert_eq!(auth.check_get_role(&Caller::Anonymous, "r"), Err(Error::UserEmpty));
    assert_eq!(auth.check_admin(&user(&auth, "nobody")), Err(Error::UserNotFound));
}

#[test]
fn rows_of_changes_make_the_same_users_and_roles() {
    use crate::keys;
    let mut auth = Auth::default();
    let mut rows = BTreeMap::new();
    for request in [
        add_user("u"),
        AuthRequest::AddUser("w".to_owned(), None),
        AuthRequest::AddRole("r".to_owned()),
        grant("u", "r"),
        AuthRequest::GrantPermission("r".to_owned(), Some(permission(BOTH, "a", "\0"))),
        AuthRequest::DeleteUser("w".to_owned()),
    ] {
        let change = auth.evaluate(request).unwrap().unwrap();
        // Once more, as after a crash.
        auth.apply(&change);
        auth.apply(&change);
        rows.extend(change.rows());
    }
    let mut loaded = Auth::default();
    for (key, value) in rows.into_iter().filter_map(|(key, value)| Some((key, value?))) {
        match key[0] {
            b'u' => loaded.set_user(&keys::parse_user(&key).unwrap(), Some(User::decode(value).unwrap())),
            b'r' => loaded.set_role(&keys::parse_role(&key).unwrap(), Some(Role::decode(value).unwrap())),
            _ => loaded.set(&AuthRow::decode(value).unwrap()),
        }
    }
    assert_eq!((loaded.revision, loaded.enabled), (7, false));
    assert_eq!((loaded.users, loaded.roles), (auth.users, auth.roles));
}

#[tokio::test(start_paused = true)]
async fn tokens_end_when_they_are_not_used_and_with_their_users() {
    use std::time::Duration;
    use tokio::time::Instant;
    let mut auth = guarded(&[]);
    let (mut tokens, ttl, start) = (TokenCache::default(), Duration::from_secs(300), Instant::now());
    let at = |secs| start + Duration::from_secs(secs);
    tokens.insert([1; 32], "u", start);
    tokens.insert([2; 32], "root", start);
    assert_eq!(tokens.user(&[1; 32], ttl, at(300)).as_deref(), Some("u"));
    assert_eq!(tokens.user(&[1; 32], ttl, at(600)).as_deref(), Some("u"));
    assert_eq!(tokens.user(&[2; 32], ttl, at(600)), None);
    tokens.insert([2; 32], "root", at(600));
    // A role changes nothing, a password does.
    let password = AuthRequest::ChangePassword("u".to_owned(), Some(text("another")));
    for (request, remains) in [(revoke("u", "r"), true), (password, false)] {
        let change = auth.evaluate(request).unwrap().unwrap();
        tokens.revoke(&auth, &change);
        auth.apply(&change);
        assert_eq!(tokens.user(&[1; 32], ttl, at(600)).is_some(), remains);
    }
    assert_eq!(tokens.user(&[2; 32], ttl, at(600)).as_deref(), Some("root"));
    let change = auth.evaluate(AuthRequest::Disable).unwrap().unwrap();
    tokens.revoke(&auth, &change);
    assert_eq!(tokens.user(&[2; 32], ttl, at(600)), None);
}
