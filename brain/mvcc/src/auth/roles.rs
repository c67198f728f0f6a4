//! Roles: permissions on ranges of keys.

use prost::Message;

use super::permissions::Permission;

/// A role, without its name. Stored, and part of records.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Role {
    /// Its permissions, sorted by key.
    #[prost(message, repeated, tag = "1")]
    pub permissions: Vec<Permission>,
}

impl Role {
    /// Returns the same role with a permission. The one on the same range is replaced if it is the first of its key, which is where
    /// etcd looks. Where a role has more than 12 permissions, etcd leaves the order of those with one key to a sort that is not stable;
    /// here the older one stays first.
    #[must_use]
    pub fn with(&self, permission: Permission) -> Role {
        let mut role = self.clone();
        let at = role.permissions.partition_point(|own| own.key < permission.key);
        match role.permissions.get_mut(at) {
            Some(own) if own.is_on(&permission.key, &permission.range_end) => own.kind = permission.kind,
            _ => {
                role.permissions.push(permission);
                role.permissions.sort_by(|a, b| a.key.cmp(&b.key));
            }
        }
        role
    }

    /// Returns the same role without the permission on a range; `None` if it has none there.
    #[must_use]
    pub fn without(&self, key: &[u8], range_end: &[u8]) -> Option<Role> {
        let mut role = self.clone();
        role.permissions.retain(|own| !own.is_on(key, range_end));
        (role.permissions.len() < self.permissions.len()).then_some(role)
    }
}
