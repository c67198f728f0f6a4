//! Refuses a Lease of the API server whose objects this very store holds: the election would depend on its own result.
//!
//! A tenant's cluster may have a Lease of the same name; the UID distinguishes them.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use election::LeaseLock;
use tracing::{debug, warn};

use engine::rows::RowsError;
use etcd_types::types::KeyValue;
use mvcc::op::Span;
use mvcc::view::{View, successor};
use runtime::backoff::Backoff;
use store::state::StoreState;

/// The pause before a request to an API server that does not answer is repeated.
const API_SERVER_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));

/// The pause before rows that could not be read are read again.
const ROWS_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The most keys that are read. A cluster has some hundred kinds of objects.
const MAX_SEEKS: usize = 2_000;

/// The levels of directories that are distinguished: an API server's prefix (`/registry`) and the kind of the object.
const PREFIX_LEVELS: usize = 2;

/// The Lease of the election, which must not be stored here.
#[derive(Debug, Clone)]
pub struct SelfHostedLease(LeaseLock);

/// The Lease is stored here.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the lease {namespace}/{name} is stored in this store, at {key}: its API server waits for a leader that waits for it; use a Lease of another cluster, or --election storage"
)]
pub struct SelfHosted {
    namespace: String,
    name: String,
    key: String,
}

impl SelfHostedLease {
    /// Creates the check for the Lease of this lock.
    #[must_use]
    pub fn new(lock: LeaseLock) -> Self {
        Self(lock)
    }

    /// Checks before the member competes. A stored Lease of that name is another one only if the API server confirms it: the
    /// request is repeated until it answers. Fails with [`SelfHosted`], or if the rows fail.
    pub async fn check_before(&self, state: &StoreState) -> anyhow::Result<()> {
        let (namespace, name) = self.0.place();
        let found = leases(&state.view(), namespace, name).await?;
        let Some(first) = found.first() else { return Ok(()) };
        let key = first.key.escape_ascii().to_string();
        let mut pauses = API_SERVER_BACKOFF;
        loop {
            match self.0.ask_uid().await {
                Ok(Some(uid)) => return Ok(self.compare(&found, &uid)?),
                Ok(None) => return Ok(()),
                Err(error) => {
                    let error = format!("{:#}", anyhow::Error::from(error));
                    let pause = pauses.next_delay();
                    warn!(
                    error, key, again_in = ?pause,
                    "no answer from the API server of the lease, and a lease of that name is stored here: if it is the same lease, both wait for each other"
                    );
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// Checks again while this member leads: by then the Lease that it won, and everything written before, is known. Fails with
    /// [`SelfHosted`].
    pub async fn check_leading(&self, state: &StoreState) -> Result<(), SelfHosted> {
        let (namespace, name) = self.0.place();
        // The Lease was won by an answer that contained its UID.
        let Some(uid) = self.0.uid() else { return Ok(()) };
        loop {
            match leases(&state.view(), namespace, name).await {
                Ok(found) => return self.compare(&found, &uid),
                Err(error) => {
                    debug!(error = &error as &dyn std::error::Error, "cannot search for the lease");
                    tokio::time::sleep(ROWS_RETRY_DELAY).await;
                }
            }
        }
    }

    fn compare(&self, found: &[KeyValue], uid: &str) -> Result<(), SelfHosted> {
        let holds = |kv: &&KeyValue| kv.value.windows(uid.len().max(1)).any(|part| part == uid.as_bytes());
        let (namespace, name) = self.0.place();
        match found.iter().find(holds) {
            Some(kv) => Err(SelfHosted {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                key: kv.key.escape_ascii().to_string(),
            }),
            None => Ok(()),
        }
    }
}

/// Finds the stored objects that have the name of a Lease, under any prefix of an API server. Reads one key of each directory, not
/// all keys: an API server's prefix is a directory of few levels, with one directory for each kind of object.
async fn leases(view: &View, namespace: &str, name: &str) -> Result<Vec<KeyValue>, RowsError> {
    let suffix = format!("/leases/{namespace}/{name}");
    let (mut found, mut asked) = (Vec::new(), BTreeSet::new());
    let mut from = Bytes::from_static(b"\0");
    for _ in 0..MAX_SEEKS {
        let Some(key) = first_key(view, from).await? else {
            return Ok(found);
        };
        for prefix in directories(&key) {
            if asked.insert(prefix.to_vec()) {
                let lease = [prefix, suffix.as_bytes()].concat().into();
                found.extend(view.get(&lease, view.revision).await?);
            }
        }
        from = behind_directory(&key);
    }
    debug!(
        seeks = MAX_SEEKS,
        "searched for the lease below the first prefixes only"
    );
    Ok(found)
}

/// Returns the first key from `from` on.
async fn first_key(view: &View, from: Bytes) -> Result<Option<Bytes>, RowsError> {
    let rest = Span {
        key: from,
        end: Bytes::from_static(b"\0"),
    };
    let mut cursor = view.cursor(&rest, view.revision, false);
    while let Some(page) = cursor.next(1).await? {
        if let Some(kv) = page.into_iter().next() {
            return Ok(Some(kv.key));
        }
    }
    Ok(None)
}

/// Returns the directories of a key, outermost first, without the trailing slashes.
fn directories(key: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = key.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    ends.map(|(at, _)| &key[..at])
}

/// Returns the first key that may follow the directory of [`PREFIX_LEVELS`] levels that contains a key; or that may follow the key, if no
/// such directory contains it.
fn behind_directory(key: &Bytes) -> Bytes {
    let end = key.iter().enumerate().filter(|(at, byte)| *at > 0 && **byte == b'/');
    match end.map(|(at, _)| at).nth(PREFIX_LEVELS - 1) {
        // '0' is the byte after '/'.
        Some(at) => [&key[..at], b"0"].concat().into(),
        None => successor(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_a_key_are_skipped_from_the_second_level_on() {
        let behind = |key: &'static str| behind_directory(&Bytes::from_static(key.as_bytes()));
        assert_eq!(behind("/registry/pods/ns/a"), "/registry/pods0");
        assert_eq!(behind("/registry/a"), "/registry/a\0");
        assert_eq!(behind("flat"), "flat\0");
        assert_eq!(behind("a/b/c"), "a/b0");
        let found: Vec<&[u8]> = directories(b"/any/prefix/leases").collect();
        assert_eq!(found, [&b""[..], b"/any", b"/any/prefix"]);
    }
}
