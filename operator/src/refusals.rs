//! Clusters for which the API server refused an object. Each of their passes creates the other objects and may remove fields from them; the
//! watches of these objects request the next pass at once, which would repeat without a pause.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crds::KubeBrainCluster;
use kube::runtime::reflector::ObjectRef;
use tokio::time::Instant;

/// Pause between the end of such a pass and the next one. A changed spec is handled without a pause.
const REFUSED_PASS_PAUSE: Duration = Duration::from_secs(5);

/// The end of the last pass of each cluster, and the generation of its spec.
type LastPasses = HashMap<ObjectRef<KubeBrainCluster>, (Instant, Option<i64>)>;

/// Clusters whose last pass was refused.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<LastPasses>);

impl Refusals {
    /// Records how a pass over `cluster` ended.
    pub(crate) fn record(&self, cluster: &KubeBrainCluster, is_refused: bool) {
        let object = ObjectRef::from_obj(cluster);
        if is_refused {
            let ended = (Instant::now(), cluster.metadata.generation);
            self.lock().insert(object, ended);
        } else {
            self.lock().remove(&object);
        }
    }

    /// Returns the time left until the next pass over a cluster, if it must wait.
    pub(crate) fn left(&self, cluster: &KubeBrainCluster) -> Option<Duration> {
        let (ended, generation) = self.lock().get(&ObjectRef::from_obj(cluster)).copied()?;
        let left = REFUSED_PASS_PAUSE.checked_sub(ended.elapsed())?;
        (generation == cluster.metadata.generation && !left.is_zero()).then_some(left)
    }

    fn lock(&self) -> MutexGuard<'_, LastPasses> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn next_pass_waits_unless_the_spec_changes() {
        let refusals = Refusals::default();
        let mut cluster = plan::testing::cluster(json!({}));
        cluster.metadata.generation = Some(1);
        assert_eq!(refusals.left(&cluster), None);
        refusals.record(&cluster, true);
        tokio::time::advance(REFUSED_PASS_PAUSE - Duration::from_secs(1)).await;
        assert_eq!(refusals.left(&cluster), Some(Duration::from_secs(1)));
        let mut other = cluster.clone();
        other.metadata.generation = Some(2);
        assert_eq!(refusals.left(&other), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(refusals.left(&cluster), None);
        refusals.record(&cluster, true);
        refusals.record(&cluster, false);
        assert_eq!(refusals.left(&cluster), None);
    }
}
