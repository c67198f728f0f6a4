//! One command at a time per key, from its decision until it is applied.
//!
//! Invariant: a key is in the table exactly while one [`Latched`] holds it. There are at most as many waiters as
//! requests in flight, whose number clients limit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use tokio::sync::oneshot;

const WHOLE: &str = "nothing panics while it holds the latches";

/// Which keys are held, and who waits for each.
#[derive(Debug, Default)]
pub(crate) struct Latches {
    held: Mutex<HashMap<Bytes, Vec<oneshot::Sender<()>>>>,
}

/// Keys that are held until this is dropped.
#[derive(Debug)]
pub(crate) struct Latched {
    latches: Arc<Latches>,
    keys: Vec<Bytes>,
}

impl Latches {
    /// Waits until all of `keys` are free at once, then holds them.
    pub(crate) async fn acquire(self: &Arc<Self>, mut keys: Vec<Bytes>) -> Latched {
        keys.sort_unstable();
        keys.dedup();
        while let Some(freed) = self.try_acquire(&keys) {
            // An error is the holder's side dropped, which is how a key gets free.
            freed.await.unwrap_or_default();
        }
        Latched {
            latches: Arc::clone(self),
            keys,
        }
    }

    /// Holds the keys, or answers what to wait for.
    fn try_acquire(&self, keys: &[Bytes]) -> Option<oneshot::Receiver<()>> {
        let mut held = self.lock();
        if let Some(waiters) = keys
            .iter()
            .find(|key| held.contains_key(*key))
            .and_then(|key| held.get_mut(key))
        {
            let (waiter, freed) = oneshot::channel();
            waiters.push(waiter);
            return Some(freed);
        }
        held.extend(keys.iter().map(|key| (key.clone(), Vec::new())));
        None
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Bytes, Vec<oneshot::Sender<()>>>> {
        self.held.lock().expect(WHOLE)
    }
}

impl Drop for Latched {
    fn drop(&mut self) {
        let mut held = self.latches.lock();
        for key in &self.keys {
            held.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn keys(names: &[&'static str]) -> Vec<Bytes> {
        names.iter().map(|name| Bytes::from_static(name.as_bytes())).collect()
    }

    #[tokio::test]
    async fn a_held_key_is_waited_for_and_others_are_not() {
        let latches = Arc::new(Latches::default());
        let first = latches.acquire(keys(&["a", "b", "b"])).await;
        let other = latches.acquire(keys(&["c"])).now_or_never().expect("nobody holds c");
        let mut waiting = Box::pin(latches.acquire(keys(&["b", "c"])));
        assert!((&mut waiting).now_or_never().is_none());
        drop(first);
        assert!((&mut waiting).now_or_never().is_none(), "c is still held");
        drop(other);
        drop(waiting.await);
        assert!(latches.lock().is_empty());
    }
}
