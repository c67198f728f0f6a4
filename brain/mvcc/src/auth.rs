//! Users, roles and permissions: who may read and write which keys, by etcd's rules.
//!
//! Pure state. [`Auth`] is one immutable version of it: requests are evaluated against it ([`Auth::evaluate`]), which yields a change
//! that is recorded in the log, and every member makes the next version from that ([`Auth::apply`]). A change holds the users and roles
//! as they are afterwards, not the request: if it is applied again, it changes nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, RwLock};

use prost::Message;

use etcd_types::errors::Error;

pub use change::{AUTH_ROW, AuthChange, AuthRow, RoleChange, UserChange};
pub use change_request::AuthRequest;
pub use check::AttachedKeys;
pub use permissions::{Access, Permission, RangePermissions};
pub use roles::Role;
pub use tokens::{TokenCache, TokenDigest};
pub use users::User;

mod change;
mod change_request;
mod check;
mod permissions;
mod roles;
mod tokens;
mod users;

/// The user that is needed to check permissions at all.
pub const ROOT_USER: &str = "root";

/// The role to which everything is permitted.
pub const ROOT_ROLE: &str = "root";

/// The bytes of all users and roles together beyond which they do not grow: each member has several versions of them in memory.
const MAX_AUTH_BYTES: usize = 16 << 20;

/// Memory that a user or role takes beside its name and content.
const ENTRY_OVERHEAD_BYTES: usize = 200;

/// The revision of a store whose users were never changed.
const FIRST_AUTH_REVISION: u64 = 1;

/// One version of users and roles. Cheap to clone, as long as there are few of them.
#[derive(Debug, Clone)]
pub struct Auth {
    enabled: bool,
    revision: u64,
    users: BTreeMap<String, Arc<User>>,
    roles: BTreeMap<String, Arc<Role>>,
    /// Memory that users and roles take, roughly.
    bytes: usize,
    /// The ranges that the roles of a user open, where they were needed already.
    ranges: Arc<RwLock<HashMap<String, Arc<RangePermissions>>>>,
}

impl Default for Auth {
    fn default() -> Self {
        Self {
            enabled: false,
            revision: FIRST_AUTH_REVISION,
            users: BTreeMap::new(),
            roles: BTreeMap::new(),
            bytes: 0,
            ranges: Arc::default(),
        }
    }
}

impl Auth {
    /// Returns true if permissions are checked.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// The number of changes, starting at 1.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns true if users or roles were ever changed: then they are stored.
    #[must_use]
    pub fn was_changed(&self) -> bool {
        self.revision > FIRST_AUTH_REVISION
    }

    /// Returns true if users and roles take more than they may after a change that makes them larger.
    #[must_use]
    pub fn is_too_large(&self, change: &AuthChange) -> bool {
        let users = change.users.iter().map(|UserChange { name, user }| {
            (
                memory(name, user.as_ref()),
                memory(name, self.users.get(name).map(Arc::as_ref)),
            )
        });
        let roles = change.roles.iter().map(|RoleChange { name, role }| {
            (
                memory(name, role.as_ref()),
                memory(name, self.roles.get(name).map(Arc::as_ref)),
            )
        });
        let (more, less) = users
            .chain(roles)
            .fold((0, 0), |sum, (after, before)| (sum.0 + after, sum.1 + before));
        more > less && self.bytes - less + more > MAX_AUTH_BYTES
    }

    /// The number of users and roles.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.users.len() + self.roles.len()
    }

    /// Names of all users, sorted.
    pub fn users(&self) -> impl Iterator<Item = &str> {
        self.users.keys().map(String::as_str)
    }

    /// Names of all roles, sorted.
    pub fn roles(&self) -> impl Iterator<Item = &str> {
        self.roles.keys().map(String::as_str)
    }

    /// A user.
    ///
    /// # Errors
    /// [`Error::UserNotFound`].
    pub fn user(&self, name: &str) -> Result<&Arc<User>, Error> {
        self.users.get(name).ok_or(Error::UserNotFound)
    }

    /// A role.
    ///
    /// # Errors
    /// [`Error::RoleNotFound`].
    pub fn role(&self, name: &str) -> Result<&Arc<Role>, Error> {
        self.roles.get(name).ok_or(Error::RoleNotFound)
    }

    /// Makes the version after a change.
    pub fn apply(&mut self, change: &AuthChange) {
        self.set(&change.row());
        for change in &change.users {
            self.set_user(&change.name, change.user.clone());
        }
        for change in &change.roles {
            self.set_role(&change.name, change.role.clone());
        }
        self.ranges = Arc::default();
    }

    /// Returns the change that makes this version of one without users and roles.
    #[must_use]
    pub fn to_change(&self) -> AuthChange {
        let users = self.users.iter().map(|(name, user)| UserChange {
            name: name.clone(),
            user: Some(User::clone(user)),
        });
        let roles = self.roles.iter().map(|(name, role)| RoleChange {
            name: name.clone(),
            role: Some(Role::clone(role)),
        });
        AuthChange {
            revision: self.revision,
            enabled: self.enabled,
            users: users.collect(),
            roles: roles.collect(),
        }
    }

    /// Adds what one stored row holds: see [`AuthChange::rows`].
    pub fn set(&mut self, row: &AuthRow) {
        (self.enabled, self.revision) = (row.enabled, row.revision);
    }

    /// Sets or removes a user.
    pub fn set_user(&mut self, name: &str, user: Option<User>) {
        set(&mut self.users, &mut self.bytes, name, user);
    }

    /// Sets or removes a role.
    pub fn set_role(&mut self, name: &str, role: Option<Role>) {
        set(&mut self.roles, &mut self.bytes, name, role);
    }
}

fn set<T: Message>(map: &mut BTreeMap<String, Arc<T>>, bytes: &mut usize, name: &str, value: Option<T>) {
    *bytes += memory(name, value.as_ref());
    let before = match value {
        Some(value) => map.insert(name.to_owned(), Arc::new(value)),
        None => map.remove(name),
    };
    *bytes -= memory(name, before.as_deref());
}

/// Memory that a user or role takes, in bytes, roughly.
fn memory<T: Message>(name: &str, value: Option<&T>) -> usize {
    value.map_or(0, |value| name.len() + value.encoded_len() + ENTRY_OVERHEAD_BYTES)
}

/// Bytes of the longest value among the rows of a change.
#[must_use]
pub fn longest_value(change: &AuthChange) -> usize {
    let users = change
        .users
        .iter()
        .flat_map(|change| &change.user)
        .map(User::encoded_len);
    let roles = change
        .roles
        .iter()
        .flat_map(|change| &change.role)
        .map(Role::encoded_len);
    users.chain(roles).max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
