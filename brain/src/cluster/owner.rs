//! The owner of a key prefix: a register with the cluster's id and token. A prefix that is being wiped has no owner.

use anyhow::Context as _;
use bytes::Bytes;

use crate::cas_register::{Cas, CasRegister};

/// The name of the register. It is part of the format.
pub const OWNER: &str = "owner";

/// Precedes the token while the prefix is wiped: no token begins with it, so older versions refuse the prefix, too.
const WIPING: &[u8] = b"\0wiping ";

/// The reason why a key prefix cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// The prefix belongs to another cluster.
    #[error(
        "the key prefix belongs to the cluster with the token {owner:?}, not {own:?}: choose another --tikv-key-prefix"
    )]
    Taken {
        /// The token of the cluster that owns the prefix.
        owner: String,
        /// The token of this cluster.
        own: String,
    },
    /// A wipe is in progress, or was interrupted.
    #[error("the key prefix is being wiped: finish that by `kubebrain wipe`")]
    Wiping,
    /// The register holds something else.
    #[error("the key prefix belongs to something else")]
    Foreign,
    /// Storage cannot be reached.
    #[error("the owner of the key prefix cannot be asked for")]
    Unreachable(#[source] anyhow::Error),
}

/// The value stored in the register: the owner of the key prefix.
struct Owner<'a> {
    id: u64,
    token: &'a [u8],
    wiping: bool,
}

impl Owner<'_> {
    fn parse(bytes: &[u8]) -> Result<Owner<'_>, OwnerError> {
        let (id, rest) = bytes.split_first_chunk().ok_or(OwnerError::Foreign)?;
        let marked = rest.strip_prefix(WIPING);
        Ok(Owner {
            id: u64::from_be_bytes(*id),
            token: marked.unwrap_or(rest),
            wiping: marked.is_some(),
        })
    }

    fn check(&self, token: &str) -> Result<(), OwnerError> {
        if self.token == token.as_bytes() {
            return Ok(());
        }
        Err(OwnerError::Taken {
            owner: String::from_utf8_lossy(self.token).into_owned(),
            own: token.to_owned(),
        })
    }
}

/// Claims the key prefix for this cluster, or verifies that it owns it. Returns the cluster's id.
pub async fn claim<C: CasRegister>(register: &C, token: &str) -> Result<u64, OwnerError> {
    loop {
        if let Some(stored) = get(register).await? {
            let owner = Owner::parse(&stored)?;
            owner.check(token)?;
            return if owner.wiping {
                Err(OwnerError::Wiping)
            } else {
                Ok(owner.id)
            };
        }
        let owner = [&rand::random::<u64>().to_be_bytes(), token.as_bytes()].concat();
        set(register, None, owner).await?;
    }
}

/// Marks the key prefix of this cluster as being wiped: no member starts on it any more.
pub async fn begin_wipe<C: CasRegister>(register: &C, token: &str) -> Result<(), OwnerError> {
    loop {
        let stored = get(register).await?;
        let id = match &stored {
            Some(stored) => {
                let owner = Owner::parse(stored)?;
                owner.check(token)?;
                if owner.wiping {
                    return Ok(());
                }
                owner.id
            }
            None => 0,
        };
        let marked = [&id.to_be_bytes(), WIPING, token.as_bytes()].concat();
        set(register, stored, marked).await?;
    }
}

async fn get<C: CasRegister>(register: &C) -> Result<Option<Bytes>, OwnerError> {
    let stored = register.get().await.context("ask whose the key prefix is");
    stored.map_err(OwnerError::Unreachable)
}

/// Sets the register unless another writer was faster: the caller reads it again.
async fn set<C: CasRegister>(register: &C, expected: Option<Bytes>, new: Vec<u8>) -> Result<(), OwnerError> {
    match register.compare_and_set(expected, Some(new.into())).await {
        Cas::Swapped | Cas::Mismatch => Ok(()),
        Cas::Unknown(error) => Err(OwnerError::Unreachable(error.context("claim the key prefix"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cas_register::mem::MemRegister;

    #[tokio::test]
    async fn prefix_belongs_to_the_first_token_until_it_is_wiped() {
        let register = MemRegister::new();
        let id = claim(&register, "a").await.unwrap();
        assert_eq!(claim(&register, "a").await.unwrap(), id);
        let taken = claim(&register, "b").await.unwrap_err();
        assert!(
            matches!(&taken, OwnerError::Taken { owner, .. } if owner == "a"),
            "{taken}"
        );
        assert!(matches!(
            begin_wipe(&register, "b").await,
            Err(OwnerError::Taken { .. })
        ));
        begin_wipe(&register, "a").await.unwrap();
        begin_wipe(&register, "a").await.unwrap();
        assert!(matches!(claim(&register, "a").await, Err(OwnerError::Wiping)));
        assert!(matches!(claim(&register, "b").await, Err(OwnerError::Taken { .. })));
    }
}
