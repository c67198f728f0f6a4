//! Resources that need a pass. Each is queued once, however often it is added, so the queue is never longer than their number.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crds::KubeBrainCluster;
use futures::Stream;
use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::Notify;

/// The queue. It has one reader.
#[derive(Debug)]
pub(crate) struct WorkQueue<K: Resource<DynamicType = ()> = KubeBrainCluster> {
    waiting: Mutex<HashSet<ObjectRef<K>>>,
    added: Notify,
}

impl<K: Resource<DynamicType = ()>> Default for WorkQueue<K> {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            added: Notify::default(),
        }
    }
}

impl<K: Resource<DynamicType = ()> + 'static> WorkQueue<K> {
    /// Asks for a pass over `object`.
    pub(crate) fn add(&self, object: ObjectRef<K>) {
        self.lock().insert(object);
        self.added.notify_one();
    }

    /// Returns the objects in the order in which they are added. The stream never ends.
    pub(crate) fn stream(self: Arc<Self>) -> impl Stream<Item = ObjectRef<K>> + Send {
        futures::stream::unfold(self, async |queue| Some((queue.next().await, queue)))
    }

    async fn next(&self) -> ObjectRef<K> {
        loop {
            let first = self.lock().iter().next().cloned();
            if let Some(object) = first {
                self.lock().remove(&object);
                return object;
            }
            // A permit for an object that was already taken only costs one more iteration.
            self.added.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<ObjectRef<K>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, StreamExt as _};

    use super::*;

    #[tokio::test]
    async fn cluster_is_held_once() {
        let queue = Arc::new(WorkQueue::<KubeBrainCluster>::default());
        let mut stream = std::pin::pin!(queue.clone().stream());
        let named = |name: &str| ObjectRef::<KubeBrainCluster>::new(name).within("brains");
        for name in ["a", "b", "a", "a"] {
            queue.add(named(name));
        }
        let mut taken = vec![stream.next().await.unwrap().name, stream.next().await.unwrap().name];
        taken.sort();
        assert_eq!(taken, ["a", "b"]);
        assert!(stream.next().now_or_never().is_none());
        queue.add(named("a"));
        assert_eq!(stream.next().await.unwrap().name, "a");
    }
}
