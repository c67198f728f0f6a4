//! The checks of a caller's permissions, before a request is evaluated.

use std::sync::{Arc, PoisonError};

use bytes::Bytes;

use super::{Access, Auth, RangePermissions, User};
use crate::op::{Compare, Op, PutOp, Span, TxnOp};
use etcd_types::errors::Error;
use etcd_types::types::{Caller, LeaseId};

/// Returns the keys of a lease.
pub type AttachedKeys<'a> = dyn FnMut(LeaseId) -> Vec<Bytes> + Send + 'a;

impl Auth {
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
