//! Requests that change users and roles, evaluated by etcd's rules.

use super::change::{AuthChange, RoleChange, UserChange};
use super::{Auth, Permission, ROOT_ROLE, ROOT_USER, Role, User};
use bytes::Bytes;
use etcd_types::errors::Error;

/// A change that a client requests. Passwords are hashed before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthRequest {
    /// Begin to check permissions.
    Enable,
    /// Check them no longer.
    Disable,
    /// Add a user, by the hash of its password; `None` if it has no password.
    AddUser(String, Option<Bytes>),
    /// Delete a user.
    DeleteUser(String),
    /// Give a user another password, by its hash; `None` if the client sent a hash that is none.
    ChangePassword(String, Option<Bytes>),
    /// Grant a role to a user.
    GrantRole {
        /// The user.
        user: String,
        /// The role.
        role: String,
    },
    /// Revoke a role from a user.
    RevokeRole {
        /// The user.
        user: String,
        /// The role.
        role: String,
    },
    /// Add a role.
    AddRole(String),
    /// Delete a role, and revoke it from all users.
    DeleteRole(String),
    /// Grant a permission to a role; the request may lack it.
    GrantPermission(String, Option<Permission>),
    /// Revoke the permission of a role on a range.
    RevokePermission {
        /// The role.
        role: String,
        /// The key, or the first one of the range.
        key: Bytes,
        /// The end of the range.
        range_end: Bytes,
    },
}

impl AuthRequest {
    /// Returns its name in etcd's messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            AuthRequest::Enable => "auth_enable",
            AuthRequest::Disable => "auth_disable",
            AuthRequest::AddUser(..) => "auth_user_add",
            AuthRequest::DeleteUser(_) => "auth_user_delete",
            AuthRequest::ChangePassword(..) => "auth_user_change_password",
            AuthRequest::GrantRole { .. } => "auth_user_grant_role",
            AuthRequest::RevokeRole { .. } => "auth_user_revoke_role",
            AuthRequest::AddRole(_) => "auth_role_add",
            AuthRequest::DeleteRole(_) => "auth_role_delete",
            AuthRequest::GrantPermission(..) => "auth_role_grant_permission",
            AuthRequest::RevokePermission { .. } => "auth_role_revoke_permission",
        }
    }
}

impl Auth {
    /// Evaluates a request; `None` if there is nothing to change.
    ///
    /// # Errors
    /// etcd's for this request.
    pub fn evaluate(&self, request: AuthRequest) -> Result<Option<AuthChange>, Error> {
        let changed = match request {
            AuthRequest::Enable if self.enabled => return Ok(None),
            AuthRequest::Enable => return self.enable().map(Some),
            AuthRequest::Disable if !self.enabled => return Ok(None),
            AuthRequest::Disable => AuthChange {
                enabled: false,
                ..self.next()
            },
            AuthRequest::AddUser(name, _) if name.is_empty() => return Err(Error::UserEmpty),
            AuthRequest::AddUser(name, _) if self.users.contains_key(&name) => return Err(Error::UserAlreadyExist),
            AuthRequest::AddUser(name, password) => {
                let user = User {
                    no_password: password.is_none(),
                    password: password.unwrap_or_default(),
                    roles: Vec::new(),
                };
                self.with_user(name, Some(user))
            }
            AuthRequest::DeleteUser(name) if self.enabled && name == ROOT_USER => {
                return Err(Error::InvalidAuthMgmt);
            }
            AuthRequest::DeleteUser(name) => {
                self.user(&name)?;
                self.with_user(name, None)
            }
            AuthRequest::ChangePassword(name, password) => {
                let user = User::clone(self.user(&name)?);
                let password = if user.no_password {
                    Bytes::new()
                } else {
                    password.ok_or(Error::NoPasswordUser)?
                };
                self.with_user(name, Some(User { password, ..user }))
            }
            AuthRequest::GrantRole { user: name, role } => {
                let user = self.user(&name)?;
                if role != ROOT_ROLE {
                    self.role(&role)?;
                }
                match user.with_role(&role) {
                    Some(user) => self.with_user(name, Some(user)),
                    None => return Ok(None),
                }
            }
            AuthRequest::RevokeRole { user: name, role } => {
                if self.enabled && name == ROOT_USER && role == ROOT_ROLE {
                    return Err(Error::InvalidAuthMgmt);
                }
                let user = self.user(&name)?.without_role(&role);
                self.with_user(name, Some(user.ok_or(Error::RoleNotGranted)?))
            }
            AuthRequest::AddRole(name) if name.is_empty() => return Err(Error::RoleEmpty),
            AuthRequest::AddRole(name) if self.roles.contains_key(&name) => return Err(Error::RoleAlreadyExist),
            AuthRequest::AddRole(name) => self.with_role(name, Some(Role::default())),
            AuthRequest::DeleteRole(name) if self.enabled && name == ROOT_ROLE => {
                return Err(Error::InvalidAuthMgmt);
            }
            AuthRequest::DeleteRole(name) => {
                self.role(&name)?;
                let without = self.users.iter().filter_map(|(user, held)| {
                    held.without_role(&name).map(|without| UserChange {
                        name: user.clone(),
                        user: Some(without),
                    })
                });
                let users = without.collect();
                AuthChange {
                    users,
                    ..self.with_role(name, None)
                }
            }
            AuthRequest::GrantPermission(name, permission) => {
                let permission = permission.ok_or(Error::PermissionNotGiven)?;
                if !permission.is_valid() {
                    return Err(Error::InvalidAuthMgmt);
                }
                let role = self.role(&name)?.with(permission);
                self.with_role(name, Some(role))
            }
            AuthRequest::RevokePermission {
                role: name,
                key,
                range_end,
            } => {
                let role = self.role(&name)?.without(&key, &range_end);
                self.with_role(name, Some(role.ok_or(Error::PermissionNotGranted)?))
            }
        };
        Ok(Some(changed))
    }

    /// As in etcd, this is no change of the revision.
    fn enable(&self) -> Result<AuthChange, Error> {
        let root = self.user(ROOT_USER).map_err(|_| Error::RootUserNotExist)?;
        if !root.is_root() {
            return Err(Error::RootRoleNotExist);
        }
        Ok(AuthChange {
            enabled: true,
            revision: self.revision,
            ..AuthChange::default()
        })
    }

    fn next(&self) -> AuthChange {
        AuthChange {
            revision: self.revision + 1,
            enabled: self.enabled,
            users: Vec::new(),
            roles: Vec::new(),
        }
    }

    fn with_user(&self, name: String, user: Option<User>) -> AuthChange {
        AuthChange {
            users: vec![UserChange { name, user }],
            ..self.next()
        }
    }

    fn with_role(&self, name: String, role: Option<Role>) -> AuthChange {
        AuthChange {
            roles: vec![RoleChange { name, role }],
            ..self.next()
        }
    }
}
