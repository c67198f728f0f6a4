//! Changes of users and roles as they are recorded in the log, and their rows.
//!
//! | row | key | value |
//! |---|---|---|
//! | auth | `m` auth | enabled, revision |
//! | user | `u` name | [`User`] |
//! | role | `r` name | [`Role`] |

use bytes::Bytes;
use prost::Message;

use super::{Role, User};
use crate::keys;

/// The name of the row that holds an [`AuthRow`].
pub const AUTH_ROW: &str = "auth";

/// A change of users or roles, or of whether permissions are checked.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AuthChange {
    /// The auth revision after the change.
    #[prost(uint64, tag = "1")]
    pub revision: u64,
    /// True if permissions are checked after the change.
    #[prost(bool, tag = "2")]
    pub enabled: bool,
    /// Users that changed.
    #[prost(message, repeated, tag = "3")]
    pub users: Vec<UserChange>,
    /// Roles that changed.
    #[prost(message, repeated, tag = "4")]
    pub roles: Vec<RoleChange>,
}

/// A user that changed.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct UserChange {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The user after the change; `None` if it was deleted.
    #[prost(message, optional, tag = "2")]
    pub user: Option<User>,
}

/// A role that changed.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RoleChange {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The role after the change; `None` if it was deleted.
    #[prost(message, optional, tag = "2")]
    pub role: Option<Role>,
}

/// The value of the row for all that belongs to no user and no role.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct AuthRow {
    /// The auth revision.
    #[prost(uint64, tag = "1")]
    pub revision: u64,
    /// Permissions are checked.
    #[prost(bool, tag = "2")]
    pub enabled: bool,
}

impl AuthChange {
    /// The part that belongs to no user and no role.
    #[must_use]
    pub fn row(&self) -> AuthRow {
        AuthRow {
            revision: self.revision,
            enabled: self.enabled,
        }
    }

    /// Returns the rows after the change; `None` is a deleted row.
    #[must_use]
    pub fn rows(&self) -> Vec<(Bytes, Option<Bytes>)> {
        let mut rows = vec![(keys::meta_key(AUTH_ROW), Some(self.row().encode_to_vec().into()))];
        for change in &self.users {
            let value = change.user.as_ref().map(|user| user.encode_to_vec().into());
            rows.push((keys::user_key(&change.name), value));
        }
        for change in &self.roles {
            let value = change.role.as_ref().map(|role| role.encode_to_vec().into());
            rows.push((keys::role_key(&change.name), value));
        }
        rows
    }
}
