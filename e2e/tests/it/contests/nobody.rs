//! Requests about users and roles before there are any.

use wire::{authpb, etcdserverpb as pb};

use super::actor::{Actor, bytes, revision};

pub(super) async fn ask_about_nobody(actor: &mut Actor) {
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
