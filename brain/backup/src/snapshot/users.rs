//! Users and roles as etcd stores them.

use std::fs::File;
use std::io::{Seek, Write};

use bytes::Bytes;
use prost::Message;

use super::FileError;
use super::schema::{self, content};
use bbolt::{Reader, Writer};
use etcd_types::pb::authpb;
use mvcc::auth::{AuthChange, Permission, Role, RoleChange, User, UserChange};

/// Bytes of all users, and of all roles: they are read into memory together.
const MAX_USERS_BYTES: usize = 64 << 20;

/// The value of a user.
#[derive(Clone, PartialEq, Message)]
struct UserValue {
    #[prost(bytes = "bytes", tag = "1")]
    name: Bytes,
    /// The bcrypt hash of the password.
    #[prost(bytes = "bytes", tag = "2")]
    password: Bytes,
    #[prost(string, repeated, tag = "3")]
    roles: Vec<String>,
    #[prost(message, optional, tag = "4")]
    options: Option<authpb::UserAddOptions>,
}

/// The value of a role.
#[derive(Clone, PartialEq, Message)]
struct RoleValue {
    #[prost(bytes = "bytes", tag = "1")]
    name: Bytes,
    #[prost(message, repeated, tag = "2")]
    permissions: Vec<authpb::Permission>,
}

/// Writes the buckets of users and roles; they are empty if there never were any.
pub(super) fn write<W: Write + Seek>(file: &mut Writer<W>, auth: &AuthChange) -> std::io::Result<()> {
    file.begin_bucket(schema::AUTH)?;
    if !auth.users.is_empty() || !auth.roles.is_empty() {
        file.put(schema::AUTH_ENABLED, &[u8::from(auth.enabled)])?;
        file.put(schema::AUTH_REVISION, &auth.revision.to_be_bytes())?;
    }
    file.begin_bucket(schema::AUTH_ROLES)?;
    for RoleChange { name, role } in &auth.roles {
        let Some(role) = role else { continue };
        let permissions = role.permissions.iter().map(|permission| authpb::Permission {
            perm_type: permission.kind,
            key: permission.key.clone(),
            range_end: permission.range_end.clone(),
        });
        let value = RoleValue {
            name: Bytes::copy_from_slice(name.as_bytes()),
            permissions: permissions.collect(),
        };
        file.put(name.as_bytes(), &value.encode_to_vec())?;
    }
    file.begin_bucket(schema::AUTH_USERS)?;
    for UserChange { name, user } in &auth.users {
        let Some(user) = user else { continue };
        let value = UserValue {
            name: Bytes::copy_from_slice(name.as_bytes()),
            password: user.password.clone(),
            roles: user.roles.clone(),
            options: Some(authpb::UserAddOptions {
                no_password: user.no_password,
            }),
        };
        file.put(name.as_bytes(), &value.encode_to_vec())?;
    }
    Ok(())
}

/// Reads users and roles; `None` if there are none.
pub(super) fn read(database: &Reader<'_, File>) -> anyhow::Result<Option<AuthChange>> {
    let mut auth = AuthChange::default();
    for (key, value) in pairs(database, schema::AUTH_USERS)? {
        let stored = UserValue::decode(value).map_err(|error| content(format!("a user does not decode: {error}")))?;
        let mut roles = stored.roles;
        roles.sort_unstable();
        roles.dedup();
        let user = User {
            password: stored.password,
            no_password: stored.options.is_some_and(|options| options.no_password),
            roles,
        };
        auth.users.push(UserChange {
            name: name(&key, &stored.name)?,
            user: Some(user),
        });
    }
    for (key, value) in pairs(database, schema::AUTH_ROLES)? {
        let stored = RoleValue::decode(value).map_err(|error| content(format!("a role does not decode: {error}")))?;
        let permissions = stored.permissions.into_iter().map(|permission| Permission {
            kind: permission.perm_type,
            key: permission.key,
            range_end: permission.range_end,
        });
        let role = Role {
            permissions: permissions.collect(),
        };
        auth.roles.push(RoleChange {
            name: name(&key, &stored.name)?,
            role: Some(role),
        });
    }
    auth.enabled = match database.get(schema::AUTH, schema::AUTH_ENABLED)?.as_deref() {
        None | Some([] | [0]) => false,
        Some([1]) => true,
        Some(_) => return Err(content("it does not record whether auth is enabled").into()),
    };
    let revision = database.get(schema::AUTH, schema::AUTH_REVISION)?;
    let revision = revision.map(|bytes| <[u8; 8]>::try_from(&bytes[..]).map(u64::from_be_bytes));
    let malformed = |_| content("the revision of users and roles is malformed");
    // A change is what makes the first revision the second.
    auth.revision = revision.transpose().map_err(malformed)?.unwrap_or(0).max(2);
    if auth.revision > schema::MAX_REVISION.unsigned_abs() {
        return Err(content("the revision of users and roles is too large").into());
    }
    Ok(Some(auth).filter(|auth| auth.enabled || !auth.users.is_empty() || !auth.roles.is_empty()))
}

fn pairs(database: &Reader<'_, File>, bucket: &[u8]) -> anyhow::Result<Vec<(Bytes, Bytes)>> {
    let Some(mut pairs) = database.bucket(bucket)? else {
        return Ok(Vec::new());
    };
    let (mut all, mut bytes) = (Vec::new(), 0);
    while let Some((key, value)) = pairs.next()? {
        bytes += key.len() + value.len();
        if bytes > MAX_USERS_BYTES {
            return Err(content(format!("users or roles of more than {MAX_USERS_BYTES} bytes")).into());
        }
        // A slice of it would keep all of its page.
        all.push((Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value)));
    }
    Ok(all)
}

/// The name of a user or a role, which is its key.
fn name(key: &Bytes, stored: &Bytes) -> Result<String, FileError> {
    let name = String::from_utf8(key.to_vec())
        .ok()
        .filter(|name| !name.is_empty() && key == stored);
    name.ok_or_else(|| content("a user or a role is stored under another name"))
}
