//! Users, roles and permissions, and times in which they are checked.
//!
//! Invariant: the password of `root` never changes, and there is a token of `root` whenever permissions are checked, so that requests
//! that must succeed do.

use std::collections::BTreeMap;

use rand::RngExt as _;
use testkit::requests;
use wire::{authpb, etcdserverpb as pb};

use super::Script;
use crate::answer::Answer;
use crate::request::{By, Request, Step};

const ROOT: &str = "root";
const USERS: &[&str] = &["alice", "alice", "bob", "bob", "carol", "dave", "nobody", "", "root"];
const ROLES: &[&str] = &["readers", "writers", "writers", "everything", "none", "", "root"];
const PASSWORDS: &[&str] = &["secret", "secret", "other", "", "pass word\u{e9}"];
const CHECKED_FOR: u32 = 80;
/// Etcd sorts a role's permissions with Go's `sort.Sort`. Above this number, the order of permissions with the same key is undefined.
const PERMISSIONS: usize = 12;

/// The state of users and roles that the script depends on.
#[derive(Debug, Default)]
pub(super) struct Users {
    /// Requests until permissions are no longer checked, if they are.
    checked: Option<u32>,
    passwords: BTreeMap<String, String>,
    /// No role has more permissions than this.
    permissions: BTreeMap<String, usize>,
}

impl Users {
    pub(super) fn learn(&mut self, request: &Request, answer: &Answer) {
        match (request, answer) {
            (Request::AuthEnable(_), Answer::AuthEnable(_)) => {
                self.checked.get_or_insert(CHECKED_FOR);
            }
            (Request::AuthDisable(_), Answer::AuthDisable(_)) => self.checked = None,
            (Request::UserAdd(add), Answer::UserAdd(_)) => {
                self.passwords.insert(add.name.clone(), add.password.clone());
            }
            (Request::ChangePassword(change), Answer::ChangePassword(_)) => {
                self.passwords.insert(change.name.clone(), change.password.clone());
            }
            (Request::GrantPermission(grant), Answer::GrantPermission(_)) => {
                *self.permissions.entry(grant.name.clone()).or_default() += 1;
            }
            (Request::RoleGet(get), Answer::RoleGet(role)) => {
                self.permissions.insert(get.role.clone(), role.perm.len());
            }
            (Request::RoleDelete(delete), Answer::RoleDelete(_)) => {
                self.permissions.remove(&delete.role);
            }
            _ => {}
        }
    }
}

impl Script {
    /// The user root, while permissions are checked.
    pub(super) fn administrator(&self) -> Option<By> {
        self.users.checked.map(|_| By {
            user: ROOT.to_owned(),
            header: "token".to_owned(),
        })
    }

    /// Any user, or none.
    pub(super) fn anybody(&mut self) -> Option<By> {
        let checked = self.users.checked.is_some();
        let user = match self.random.rng.random_range(0..100) {
            0..=49 if checked => ROOT,
            50..=57 if checked => return None,
            // a token says nothing while permissions are not checked
            3..=100 if !checked => return None,
            _ => self.random.pick(USERS),
        };
        let header = self.random.pick(&["token", "token", "token", "authorization"]);
        Some(By {
            user: user.to_owned(),
            header: header.to_owned(),
        })
    }

    /// Returns the step that disables authentication, as soon as it has been enabled for long enough.
    pub(super) fn end_of_auth(&mut self, last: bool) -> Option<Step> {
        let left = self.users.checked?;
        if left > 0 && !last {
            self.users.checked = Some(left - 1);
            return None;
        }
        let disable = Request::AuthDisable(pb::AuthDisableRequest {});
        Some(Step::new(disable, self.administrator()))
    }

    /// Keeps the invariant after an answer.
    pub(super) fn after(&mut self, request: &Request, answer: &Answer) {
        let ends_token = match (request, answer) {
            (Request::AuthEnable(_), Answer::AuthEnable(_)) => true,
            (Request::ChangePassword(change), Answer::ChangePassword(_)) => change.name == ROOT,
            _ => false,
        };
        if ends_token && self.users.checked.is_some() {
            let root = Request::Authenticate(pb::AuthenticateRequest {
                name: ROOT.to_owned(),
                password: ROOT.to_owned(),
            });
            self.queue.push_front(Step::new(root, None));
        }
    }

    pub(super) fn change_users(&mut self) -> Request {
        match self.random.rng.random_range(0..100) {
            0..=14 => self.enable(),
            15..=24 => self.authenticate(),
            25..=36 => self.user_add(),
            37..=39 => Request::UserDelete(pb::AuthUserDeleteRequest { name: self.user() }),
            40..=44 => {
                let name = self.user();
                let password = self.password_for(&name);
                Request::ChangePassword(pb::AuthUserChangePasswordRequest {
                    name,
                    password,
                    ..pb::AuthUserChangePasswordRequest::default()
                })
            }
            45..=57 => Request::GrantRole(pb::AuthUserGrantRoleRequest {
                user: self.user(),
                role: self.role(),
            }),
            58..=60 => Request::RevokeRole(pb::AuthUserRevokeRoleRequest {
                name: self.user(),
                role: self.role(),
            }),
            61..=67 => Request::RoleAdd(pb::AuthRoleAddRequest { name: self.role() }),
            68..=69 => Request::RoleDelete(pb::AuthRoleDeleteRequest { role: self.role() }),
            70..=84 => self.grant_permission(),
            85..=88 => {
                let (key, range_end) = self.random.span();
                Request::RevokePermission(pb::AuthRoleRevokePermissionRequest {
                    role: self.role(),
                    key,
                    range_end,
                })
            }
            89..=91 => Request::UserGet(pb::AuthUserGetRequest { name: self.user() }),
            92..=94 => Request::RoleGet(pb::AuthRoleGetRequest { role: self.role() }),
            95 => Request::UserList(pb::AuthUserListRequest {}),
            96 => Request::RoleList(pb::AuthRoleListRequest {}),
            97 => Request::AuthEnable(pb::AuthEnableRequest {}),
            98 => Request::AuthDisable(pb::AuthDisableRequest {}),
            _ => Request::AuthStatus(pb::AuthStatusRequest {}),
        }
    }

    /// Makes sure that permissions can be checked, and has them checked; then users sign in.
    fn enable(&mut self) -> Request {
        if self.users.checked.is_some() {
            return self.authenticate();
        }
        self.push(Request::UserAdd(user(ROOT, ROOT)));
        self.push(Request::RoleAdd(pb::AuthRoleAddRequest { name: ROOT.to_owned() }));
        self.push(Request::GrantRole(pb::AuthUserGrantRoleRequest {
            user: ROOT.to_owned(),
            role: ROOT.to_owned(),
        }));
        self.push(Request::AuthEnable(pb::AuthEnableRequest {}));
        for name in ["alice", "bob", "carol"] {
            let password = self.known_password(name);
            self.push(Request::Authenticate(pb::AuthenticateRequest {
                name: name.to_owned(),
                password,
            }));
        }
        Request::AuthStatus(pb::AuthStatusRequest {})
    }

    fn authenticate(&mut self) -> Request {
        let name = self.user();
        let password = if self.random.chance(75) {
            self.known_password(&name)
        } else {
            self.random.pick(PASSWORDS).to_owned()
        };
        Request::Authenticate(pb::AuthenticateRequest { name, password })
    }

    fn known_password(&self, name: &str) -> String {
        self.users.passwords.get(name).cloned().unwrap_or_default()
    }

    fn user_add(&mut self) -> Request {
        let name = self.user();
        let password = self.password_for(&name);
        let no_password = name != ROOT && self.random.chance(10);
        let options = (no_password || self.random.chance(50)).then_some(authpb::UserAddOptions { no_password });
        Request::UserAdd(pb::AuthUserAddRequest {
            options,
            ..user(&name, &password)
        })
    }

    fn user(&mut self) -> String {
        self.random.pick(USERS).to_owned()
    }

    fn role(&mut self) -> String {
        self.random.pick(ROLES).to_owned()
    }

    fn password_for(&mut self, name: &str) -> String {
        if name == ROOT {
            ROOT.to_owned()
        } else if self.random.chance(2) {
            "p".repeat(73)
        } else {
            self.random.pick(PASSWORDS).to_owned()
        }
    }

    /// A permission for a role; one that may have enough of them is read or deleted.
    fn grant_permission(&mut self) -> Request {
        let name = self.role();
        if self
            .users
            .permissions
            .get(&name)
            .is_some_and(|many| *many >= PERMISSIONS)
        {
            return if self.random.chance(50) {
                Request::RoleGet(pb::AuthRoleGetRequest { role: name })
            } else {
                Request::RoleDelete(pb::AuthRoleDeleteRequest { role: name })
            };
        }
        let (key, range_end) = if self.random.chance(8) {
            (requests::ZERO, requests::ZERO)
        } else {
            self.random.span()
        };
        let perm_type = self.random.pick(&[0, 1, 2, 2, 0, 1, 2, 2, 7]);
        let perm = self.random.chance(97).then_some(authpb::Permission {
            perm_type,
            key,
            range_end,
        });
        Request::GrantPermission(pb::AuthRoleGrantPermissionRequest { name, perm })
    }
}

fn user(name: &str, password: &str) -> pb::AuthUserAddRequest {
    pb::AuthUserAddRequest {
        name: name.to_owned(),
        password: password.to_owned(),
        ..pb::AuthUserAddRequest::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_keep_to_as_many_permissions_as_etcd_sorts_in_a_defined_order() {
        let mut script = Script::new(1);
        let (mut permissions, mut most) = (BTreeMap::<String, usize>::new(), 0);
        for _ in 0..2_000 {
            let request = script.grant_permission();
            let answer = match &request {
                Request::GrantPermission(grant) => {
                    let many = permissions.entry(grant.name.clone()).or_default();
                    *many += 1;
                    most = most.max(*many);
                    Answer::GrantPermission(pb::AuthRoleGrantPermissionResponse::default())
                }
                Request::RoleGet(get) => {
                    // Etcd has one permission for each key: some of the grants changed one.
                    let many = permissions.entry(get.role.clone()).or_default();
                    *many = many.saturating_sub(1);
                    Answer::RoleGet(pb::AuthRoleGetResponse {
                        perm: vec![authpb::Permission::default(); *many],
                        ..pb::AuthRoleGetResponse::default()
                    })
                }
                Request::RoleDelete(delete) => {
                    permissions.remove(&delete.role);
                    Answer::RoleDelete(pb::AuthRoleDeleteResponse::default())
                }
                other => panic!("{other:?}"),
            };
            script.learn(&request, &answer);
        }
        assert_eq!(most, PERMISSIONS);
    }
}
