//! A process that can be stopped in its tracks, as by SIGSTOP: requests reach it, answers leave it, only while it is open.

use std::collections::BTreeSet;

use bytes::Bytes;
use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct Gate {
    open: watch::Sender<bool>,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            open: watch::Sender::new(true),
        }
    }
}

impl Gate {
    pub(crate) fn set_open(&self, open: bool) {
        self.open.send_replace(open);
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    /// Waits until the gate is open.
    pub(crate) async fn pass(&self) {
        if self.is_open() {
            return;
        }
        // The sender lives as long as `self`, so the wait cannot fail.
        if self.open.subscribe().wait_for(|open| *open).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Regions that answer nothing, whatever store leads them: as when a majority of their peers hangs. Each is named by a key in it.
#[derive(Debug)]
pub(crate) struct SilentRegions {
    keys: watch::Sender<BTreeSet<Bytes>>,
}

impl Default for SilentRegions {
    fn default() -> Self {
        Self {
            keys: watch::Sender::new(BTreeSet::new()),
        }
    }
}

impl SilentRegions {
    pub(crate) fn set(&self, key: &[u8], silent: bool) {
        self.keys.send_modify(|keys| match silent {
            true => drop(keys.insert(Bytes::copy_from_slice(key))),
            false => drop(keys.remove(key)),
        });
    }

    /// Waits until none of the keys is in the region that `contains` is of.
    pub(crate) async fn pass(&self, contains: impl Fn(&[u8]) -> bool) {
        let silent = |keys: &BTreeSet<Bytes>| keys.iter().any(|key| contains(key));
        if !silent(&self.keys.borrow()) {
            return;
        }
        // The sender lives as long as `self`, so the wait cannot fail.
        if self.keys.subscribe().wait_for(|keys| !silent(keys)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
