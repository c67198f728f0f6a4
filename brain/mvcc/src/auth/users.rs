//! Users.

use bytes::Bytes;
use prost::Message;

use super::ROOT_ROLE;

/// A user, without its name. Stored, and part of records.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct User {
    /// The bcrypt hash of its password; empty if it has none.
    #[prost(bytes = "bytes", tag = "1")]
    pub password: Bytes,
    /// It has no password: only certificates identify it.
    #[prost(bool, tag = "2")]
    pub no_password: bool,
    /// Its roles, sorted.
    #[prost(string, repeated, tag = "3")]
    pub roles: Vec<String>,
}

impl User {
    /// Returns true if it has this role.
    #[must_use]
    pub fn has_role(&self, role: &str) -> bool {
        self.roles.iter().any(|own| own == role)
    }

    /// Returns true if everything is permitted to it.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.has_role(ROOT_ROLE)
    }

    /// Returns the same user with one more role; `None` if it has it already.
    #[must_use]
    pub fn with_role(&self, role: &str) -> Option<User> {
        let at = self.roles.binary_search_by(|own| own.as_str().cmp(role)).err()?;
        let mut user = self.clone();
        user.roles.insert(at, role.to_owned());
        Some(user)
    }

    /// Returns the same user without a role; `None` if it does not have it.
    #[must_use]
    pub fn without_role(&self, role: &str) -> Option<User> {
        self.has_role(role).then(|| {
            let mut user = self.clone();
            user.roles.retain(|own| own != role);
            user
        })
    }
}
