//! Users, roles and permissions: who may read and write which keys, by etcd's rules.
//!
//! Pure state. [`Auth`] is one immutable version of it: requests are evaluated against it ([`Auth::evaluate`]), which yields a change
//! that is recorded in the log, and every member makes the next version from that ([`Auth::apply`]). A change holds the users and roles
//! as they are afterwards, not the request: if it is applied again, it changes nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use prost::Message;

use super::op::{Compare, Op, PutOp, Span, TxnOp};
use etcd_types::errors::Error;
use etcd_types::types::{Caller, LeaseId};

pub use change::{AUTH_ROW, AuthChange, AuthRow, RoleChange, UserChange};
pub use permissions::{Access, Permission, RangePermissions};
pub use request::AuthRequest;
pub use roles::Role;
pub use tokens::{TokenCache, TokenDigest};
pub use users::User;

mod change;
mod permissions;
mod request;
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

    /// Checks that the caller is known at all (etcd's `requireAuthInfo`).
    ///
    /// # Errors
    /// [`Error::UserEmpty`].
    pub fn check_known(&self, caller: &Caller) -> Result<(), Error> {
        match caller {
            Caller::Anonymous if self.enabled => Err(Error::UserEmpty),
            _ => Ok(()),
        }
    }

    /// Checks that everything is permitted to the caller.
    ///
    /// # Errors
    /// [`Error::UserEmpty`], [`Error::UserNotFound`], [`Error::PermissionDenied`].
    pub fn check_admin(&self, caller: &Caller) -> Result<(), Error> {
        if !self.enabled {
            return Ok(());
        }
        let user = match caller {
            Caller::Server => return Ok(()),
            Caller::User(user) if !user.name.is_empty() => user,
            Caller::User(_) | Caller::Anonymous => return Err(Error::UserEmpty),
        };
        if self.user(&user.name)?.is_root() {
            Ok(())
        } else {
            Err(Error::PermissionDenied)
        }
    }

    /// Checks that the caller may access all keys of a span.
    ///
    /// # Errors
    /// [`Error::UserEmpty`]; [`Error::AuthOldRevision`] if the caller was identified before the last change of users or roles;
    /// [`Error::PermissionDenied`].
    pub fn check(&self, caller: &Caller, access: Access, span: &Span) -> Result<(), Error> {
        if !self.enabled {
            return Ok(());
        }
        let caller = match caller {
            Caller::Server => return Ok(()),
            // As in etcd, whose requests without a user have revision 0.
            Caller::User(user) if user.revision > 0 => user,
            Caller::User(_) | Caller::Anonymous => return Err(Error::UserEmpty),
        };
        if caller.revision < self.revision {
            return Err(Error::AuthOldRevision);
        }
        let user = self.users.get(&caller.name).ok_or(Error::PermissionDenied)?;
        if user.is_root() || self.ranges_of(&caller.name, user).permit(access, span) {
            Ok(())
        } else {
            Err(Error::PermissionDenied)
        }
    }

    fn ranges_of(&self, name: &str, user: &User) -> Arc<RangePermissions> {
        let known = self
            .ranges
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .cloned();
        known.unwrap_or_else(|| {
            let roles = user.roles.iter().filter_map(|role| self.roles.get(role));
            let ranges = Arc::new(RangePermissions::of(roles.flat_map(|role| &role.permissions)));
            let mut known = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
            known.insert(name.to_owned(), Arc::clone(&ranges));
            ranges
        })
    }

    /// Checks a request that reads or writes keys: for a txn, both branches and everything nested. `attached` returns the keys of a lease:
    /// a user that attaches a key to a lease must be allowed to revoke the lease.
    ///
    /// # Errors
    /// As [`Auth::check`].
    pub fn check_op(&self, caller: &Caller, op: &Op, attached: &mut AttachedKeys<'_>) -> Result<(), Error> {
        if !self.enabled {
            return Ok(());
        }
        match op {
            Op::Range(range) => self.check(caller, Access::Read, &range.span),
            Op::Put(put) => self.check_put(caller, put, attached),
            Op::Delete(delete) => {
                self.check(caller, Access::Write, &delete.span)?;
                match delete.prev_kv {
                    true => self.check(caller, Access::Read, &delete.span),
                    false => Ok(()),
                }
            }
            Op::Txn(txn) => self.check_txn(caller, txn, attached),
        }
    }

    /// The same for a txn.
    ///
    /// # Errors
    /// As [`Auth::check`].
    pub fn check_txn(&self, caller: &Caller, txn: &TxnOp, attached: &mut AttachedKeys<'_>) -> Result<(), Error> {
        for Compare { span, .. } in &txn.compares {
            self.check(caller, Access::Read, span)?;
        }
        for op in txn.success.iter().chain(&txn.failure) {
            self.check_op(caller, op, attached)?;
        }
        Ok(())
    }

    fn check_put(&self, caller: &Caller, put: &PutOp, attached: &mut AttachedKeys<'_>) -> Result<(), Error> {
        let span = Span::key(put.key.clone());
        self.check(caller, Access::Write, &span)?;
        if put.lease != LeaseId::NONE {
            self.check_lease(caller, Access::Write, || attached(put.lease))?;
        }
        match put.prev_kv {
            true => self.check(caller, Access::Read, &span),
            false => Ok(()),
        }
    }

    /// Checks that the caller may access all keys of a lease.
    ///
    /// # Errors
    /// As [`Auth::check`].
    pub fn check_lease<K: IntoIterator<Item = Bytes>>(
        &self,
        caller: &Caller,
        access: Access,
        attached: impl FnOnce() -> K,
    ) -> Result<(), Error> {
        if self.check_admin(caller).is_ok() {
            return Ok(());
        }
        let mut keys = attached().into_iter().map(Span::key);
        keys.try_for_each(|span| self.check(caller, access, &span))
    }

    /// Checks that the caller may read about a user: its own, or as an administrator.
    ///
    /// # Errors
    /// As [`Auth::check_admin`].
    pub fn check_get_user(&self, caller: &Caller, name: &str) -> Result<(), Error> {
        match (self.check_admin(caller), caller) {
            (Err(_), Caller::User(user)) if user.name == name => Ok(()),
            // etcd compares the names before it looks whether there is one.
            (Err(_), Caller::Anonymous) if name.is_empty() => Ok(()),
            (checked, _) => checked,
        }
    }

    /// Checks that the caller may read about a role: one of its own, or as an administrator.
    ///
    /// # Errors
    /// As [`Auth::check_admin`].
    pub fn check_get_role(&self, caller: &Caller, role: &str) -> Result<(), Error> {
        match (self.check_admin(caller), caller) {
            (Err(_), Caller::User(user)) if self.users.get(&user.name).is_some_and(|user| user.has_role(role)) => {
                Ok(())
            }
            (checked, _) => checked,
        }
    }
}

/// Returns the keys of a lease.
pub type AttachedKeys<'a> = dyn FnMut(LeaseId) -> Vec<Bytes> + Send + 'a;

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
