//! The owner of a key prefix: a register with the cluster's id and token. A prefix that is being wiped or restored into has no owner.

use anyhow::Context as _;
use bytes::Bytes;

use engine::cas_register::{Cas, CasRegister};

/// The name of the register. It is part of the format.
pub const OWNER_REGISTER: &str = "owner";

/// Precedes the token while the prefix is wiped: no token begins with it, so older versions refuse the prefix, too.
const WIPING_MARK: &[u8] = b"\0wiping ";

/// The same while a snapshot is restored into the prefix.
const RESTORING_MARK: &[u8] = b"\0restoring ";

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
    #[error("the key prefix is being wiped: finish that with `kubebrain wipe`")]
    Wiping,
    /// A restore is in progress, or was interrupted.
    #[error(
        "a snapshot is being restored into the key prefix, or another store imported, or that was interrupted: continue with the same `kubebrain snapshot restore` or `kubebrain import`, or `kubebrain wipe` it"
    )]
    Restoring,
    /// A restore needs a prefix without a store.
    #[error("the key prefix holds data already: choose another --tikv-key-prefix, or `kubebrain wipe` it")]
    Occupied,
    /// The prefix holds no store, but one must exist.
    #[error(
        "the key prefix holds no store, but --initial-cluster-state=existing requires one: check that --tikv-pd-endpoints and --tikv-key-prefix refer to the data, restore a backup with `kubebrain snapshot restore`, or start an empty store with --initial-cluster-state=new"
    )]
    NoStore,
    /// The register holds something else.
    #[error("the key prefix belongs to something else")]
    Foreign,
    /// Storage cannot be reached.
    #[error("cannot read the owner of the key prefix")]
    Unreachable(#[source] anyhow::Error),
}

/// The value stored in the register: the owner of the key prefix.
struct PrefixOwner<'a> {
    id: u64,
    token: &'a [u8],
    mark: PrefixUse,
}

/// The use of the prefix.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PrefixUse {
    Serving,
    Wiping,
    Restoring,
}

impl PrefixOwner<'_> {
    fn parse(bytes: &[u8]) -> Result<PrefixOwner<'_>, OwnerError> {
        let (id, rest) = bytes.split_first_chunk().ok_or(OwnerError::Foreign)?;
        let (token, mark) = match (rest.strip_prefix(WIPING_MARK), rest.strip_prefix(RESTORING_MARK)) {
            (Some(token), _) => (token, PrefixUse::Wiping),
            (_, Some(token)) => (token, PrefixUse::Restoring),
            (None, None) => (rest, PrefixUse::Serving),
        };
        Ok(PrefixOwner {
            id: u64::from_be_bytes(*id),
            token,
            mark,
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

/// Returns true if the key prefix has an owner, no matter which.
pub async fn is_owned(register: &dyn CasRegister) -> Result<bool, OwnerError> {
    Ok(get(register).await?.is_some())
}

/// Claims the key prefix for this cluster, or verifies that it owns it. Returns the cluster's id.
pub async fn claim(register: &dyn CasRegister, token: &str) -> Result<u64, OwnerError> {
    loop {
        if let Some(stored) = get(register).await? {
            let owner = PrefixOwner::parse(&stored)?;
            owner.check(token)?;
            return match owner.mark {
                PrefixUse::Serving => Ok(owner.id),
                PrefixUse::Wiping => Err(OwnerError::Wiping),
                PrefixUse::Restoring => Err(OwnerError::Restoring),
            };
        }
        let owner = [&rand::random::<u64>().to_be_bytes(), token.as_bytes()].concat();
        set(register, None, owner).await?;
    }
}

/// Marks the key prefix of this cluster as being wiped: no member starts on it any more.
pub async fn begin_wipe(register: &dyn CasRegister, token: &str) -> Result<(), OwnerError> {
    loop {
        let stored = get(register).await?;
        let id = match &stored {
            Some(stored) => {
                let owner = PrefixOwner::parse(stored)?;
                owner.check(token)?;
                if owner.mark == PrefixUse::Wiping {
                    return Ok(());
                }
                owner.id
            }
            None => 0,
        };
        let marked = [&id.to_be_bytes(), WIPING_MARK, token.as_bytes()].concat();
        set(register, stored, marked).await?;
    }
}

/// Marks a key prefix without an owner as being restored into: no member starts on it before [`end_restore`].
pub async fn begin_restore(register: &dyn CasRegister, token: &str) -> Result<(), OwnerError> {
    let marked = Bytes::from([&rand::random::<u64>().to_be_bytes(), RESTORING_MARK, token.as_bytes()].concat());
    loop {
        match get(register).await? {
            None => set(register, None, marked.to_vec()).await?,
            Some(stored) if stored == marked => return Ok(()),
            Some(stored) if PrefixOwner::parse(&stored)?.mark == PrefixUse::Restoring => {
                return Err(OwnerError::Restoring);
            }
            Some(_) => return Err(OwnerError::Occupied),
        }
    }
}

/// Marks a key prefix whose wipe has ended, except for this mark, as being restored into. Fails if this cluster did not wipe it.
pub async fn restore_after_wipe(register: &dyn CasRegister, token: &str) -> Result<(), OwnerError> {
    let marked = Bytes::from([&rand::random::<u64>().to_be_bytes(), RESTORING_MARK, token.as_bytes()].concat());
    loop {
        let stored = get(register).await?.ok_or(OwnerError::Foreign)?;
        if stored == marked {
            return Ok(());
        }
        check_wiping(&stored, token)?;
        set(register, Some(stored), marked.to_vec()).await?;
    }
}

/// Deletes the mark of a wipe that has deleted everything else. Fails if another command uses the prefix by now.
pub async fn end_wipe(register: &dyn CasRegister, token: &str) -> Result<(), OwnerError> {
    loop {
        let Some(stored) = get(register).await? else {
            return Ok(());
        };
        check_wiping(&stored, token)?;
        if let Cas::Unknown(error) = register.compare_and_set(Some(stored), None).await {
            return Err(OwnerError::Unreachable(error.context("release the key prefix")));
        }
    }
}

/// Fails unless this is the mark of a wipe by this cluster.
fn check_wiping(stored: &[u8], token: &str) -> Result<(), OwnerError> {
    let owner = PrefixOwner::parse(stored)?;
    owner.check(token)?;
    match owner.mark {
        PrefixUse::Wiping => Ok(()),
        PrefixUse::Restoring => Err(OwnerError::Restoring),
        PrefixUse::Serving => Err(OwnerError::Occupied),
    }
}

/// Takes the mark of a restore back that has not written anything: the prefix has no owner again.
pub async fn abandon_restore(register: &dyn CasRegister, token: &str) -> Result<(), OwnerError> {
    loop {
        let Some(stored) = get(register).await? else {
            return Ok(());
        };
        let owner = PrefixOwner::parse(&stored)?;
        owner.check(token)?;
        if owner.mark != PrefixUse::Restoring {
            return Ok(());
        }
        if let Cas::Unknown(error) = register.compare_and_set(Some(stored), None).await {
            return Err(OwnerError::Unreachable(error.context("release the key prefix")));
        }
    }
}

/// Says why a key prefix that is not empty cannot be restored into. Writes nothing: it may be of another program.
pub async fn occupied(register: &dyn CasRegister) -> Result<OwnerError, OwnerError> {
    let stored = get(register).await?;
    let mark = stored.and_then(|stored| Some(PrefixOwner::parse(&stored).ok()?.mark));
    Ok(match mark {
        Some(PrefixUse::Restoring) => OwnerError::Restoring,
        _ => OwnerError::Occupied,
    })
}

/// Returns true if a key prefix of this cluster is marked as being restored into.
pub async fn is_restoring(register: &dyn CasRegister, token: &str) -> Result<bool, OwnerError> {
    is_marked(register, token, PrefixUse::Restoring).await
}

/// Returns the id of this cluster if its members may start on the key prefix; `None` if it has no owner, or is being wiped or restored
/// into.
pub async fn serving(register: &dyn CasRegister, token: &str) -> Result<Option<u64>, OwnerError> {
    let Some(stored) = get(register).await? else {
        return Ok(None);
    };
    let owner = PrefixOwner::parse(&stored)?;
    owner.check(token)?;
    Ok((owner.mark == PrefixUse::Serving).then_some(owner.id))
}

/// Returns true if a key prefix of this cluster is marked as being wiped.
pub async fn is_wiping(register: &dyn CasRegister, token: &str) -> Result<bool, OwnerError> {
    is_marked(register, token, PrefixUse::Wiping).await
}

async fn is_marked(register: &dyn CasRegister, token: &str, mark: PrefixUse) -> Result<bool, OwnerError> {
    let Some(stored) = get(register).await? else {
        return Ok(false);
    };
    let owner = PrefixOwner::parse(&stored)?;
    owner.check(token)?;
    Ok(owner.mark == mark)
}

/// Hands a key prefix over to the members of this cluster, whose id becomes `id`, if there is one. Returns the id. Fails if the prefix is not
/// marked as being restored into.
pub async fn end_restore(register: &dyn CasRegister, token: &str, id: Option<u64>) -> Result<u64, OwnerError> {
    loop {
        let stored = get(register).await?.ok_or(OwnerError::Foreign)?;
        let owner = PrefixOwner::parse(&stored)?;
        owner.check(token)?;
        match owner.mark {
            PrefixUse::Serving => return Ok(owner.id),
            PrefixUse::Wiping => return Err(OwnerError::Wiping),
            PrefixUse::Restoring => {}
        }
        let id = id.unwrap_or(owner.id);
        let plain = [&id.to_be_bytes(), token.as_bytes()].concat();
        set(register, Some(stored), plain).await?;
    }
}

async fn get(register: &dyn CasRegister) -> Result<Option<Bytes>, OwnerError> {
    let stored = register.get().await.context("read the owner of the key prefix");
    stored.map_err(OwnerError::Unreachable)
}

/// Sets the register unless another writer won the race: the caller reads it again.
async fn set(register: &dyn CasRegister, expected: Option<Bytes>, new: Vec<u8>) -> Result<(), OwnerError> {
    match register.compare_and_set(expected, Some(new.into())).await {
        Cas::Swapped | Cas::Mismatch => Ok(()),
        Cas::Unknown(error) => Err(OwnerError::Unreachable(error.context("claim the key prefix"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::cas_register::mem::MemRegister;

    #[tokio::test]
    async fn prefix_has_no_owner_until_a_restore_ends() {
        let register = MemRegister::new();
        begin_restore(&register, "a").await.unwrap();
        assert!(matches!(claim(&register, "a").await, Err(OwnerError::Restoring)));
        let again = begin_restore(&register, "a").await;
        assert!(matches!(again, Err(OwnerError::Restoring)));
        assert!(is_restoring(&register, "a").await.unwrap());
        assert!(matches!(
            is_restoring(&register, "b").await,
            Err(OwnerError::Taken { .. })
        ));
        assert_eq!(serving(&register, "a").await.unwrap(), None);
        assert_eq!(end_restore(&register, "a", Some(9)).await.unwrap(), 9);
        let id = claim(&register, "a").await.unwrap();
        assert_eq!((serving(&register, "a").await.unwrap(), id), (Some(9), 9));
        assert!(matches!(serving(&register, "b").await, Err(OwnerError::Taken { .. })));
        assert!(!is_restoring(&register, "a").await.unwrap());
        let again = begin_restore(&register, "a").await;
        assert!(matches!(again, Err(OwnerError::Occupied)));

        let foreign = MemRegister::new();
        assert!(matches!(occupied(&foreign).await, Ok(OwnerError::Occupied)));
        assert!(get(&foreign).await.unwrap().is_none(), "nothing is written");
        let interrupted = MemRegister::new();
        begin_restore(&interrupted, "a").await.unwrap();
        assert!(matches!(occupied(&interrupted).await, Ok(OwnerError::Restoring)));
        assert!(!is_wiping(&interrupted, "a").await.unwrap());
        begin_wipe(&interrupted, "a").await.unwrap();
        assert_eq!(serving(&interrupted, "a").await.unwrap(), None);
        assert!(is_wiping(&interrupted, "a").await.unwrap());
        assert!(matches!(claim(&interrupted, "a").await, Err(OwnerError::Wiping)));
        assert!(matches!(
            end_restore(&interrupted, "a", None).await,
            Err(OwnerError::Wiping)
        ));
        // Begun again, without a moment in which the prefix has no owner.
        let other = restore_after_wipe(&interrupted, "b").await;
        assert!(matches!(other, Err(OwnerError::Taken { .. })));
        restore_after_wipe(&interrupted, "a").await.unwrap();
        assert!(is_restoring(&interrupted, "a").await.unwrap());
        let again = restore_after_wipe(&interrupted, "a").await;
        assert!(matches!(again, Err(OwnerError::Restoring)));
        let wiped = end_wipe(&interrupted, "a").await;
        assert!(
            matches!(wiped, Err(OwnerError::Restoring)),
            "what is restored keeps its mark"
        );
        begin_wipe(&interrupted, "a").await.unwrap();
        end_wipe(&interrupted, "a").await.unwrap();
        assert!(!is_owned(&interrupted).await.unwrap());
        end_wipe(&interrupted, "a").await.unwrap();
    }

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
