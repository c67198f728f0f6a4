//! Clusters that move to another default image: few at a time, and none while one of them does not become ready with it.
//!
//! Nobody asked for such a change in a spec, so one fault in it must not reach every cluster. What moves is seen in the status of all
//! clusters, so a restarted operator goes on where it was; what this process let begin is remembered until the status shows it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use crds::KubeBrainCluster;
use crds::cluster::update_strategy::UpdateStrategyType;
use kube::ResourceExt;
use kube::runtime::reflector::Store;

use crate::spec;

/// The stores of clusters that are filled: one for each watched namespace, or one for all.
pub(crate) type Clusters = Arc<Mutex<Vec<Store<KubeBrainCluster>>>>;

/// Clones share it.
#[derive(Clone)]
pub(crate) struct Fleet {
    default_image: String,
    /// Most clusters that move at a time.
    most: usize,
    /// Number of stores that there will be.
    stores: usize,
    clusters: Clusters,
    /// Uids of the clusters that were let begin.
    begun: Arc<Mutex<BTreeSet<String>>>,
}

impl Fleet {
    pub(crate) fn new(default_image: String, most: usize, stores: usize, clusters: Clusters) -> Self {
        Self {
            default_image,
            most,
            stores,
            clusters,
            begun: Arc::default(),
        }
    }

    /// Takes a store of clusters once it is filled.
    pub(crate) fn add(&self, clusters: Store<KubeBrainCluster>) {
        self.clusters
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(clusters);
    }

    /// Lets a cluster move to the default image, or returns the reason that it must wait.
    ///
    /// # Errors
    /// The reason, in words for the status.
    pub(crate) fn admit(&self, cluster: &KubeBrainCluster) -> Result<(), String> {
        let Some(all) = self.all() else {
            return Err("not all clusters are known yet".to_owned());
        };
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        admit(cluster, &all, &mut begun, (&self.default_image, self.most))
    }

    /// Every cluster; `None` until all stores are filled.
    fn all(&self) -> Option<Vec<Arc<KubeBrainCluster>>> {
        let stores = self.clusters.lock().unwrap_or_else(PoisonError::into_inner);
        (stores.len() >= self.stores).then(|| stores.iter().flat_map(Store::state).collect())
    }
}

fn admit(
    cluster: &KubeBrainCluster,
    all: &[Arc<KubeBrainCluster>],
    begun: &mut BTreeSet<String>,
    (default, most): (&str, usize),
) -> Result<(), String> {
    if cluster.spec.paused {
        return Err("spec.paused is true".to_owned());
    }
    if !rolls(cluster) {
        return Ok(());
    }
    let uid = |cluster: &KubeBrainCluster| cluster.uid().unwrap_or_default();
    let moving = |cluster: &&Arc<KubeBrainCluster>| {
        let wanted = spec::image_moves(cluster, default).filter(|_| rolls(cluster));
        let told = cluster.status.as_ref().and_then(|status| status.image.as_ref());
        wanted.is_some_and(|wanted| told == Some(&wanted.to) || begun.contains(&uid(cluster)))
    };
    let moving: Vec<&Arc<KubeBrainCluster>> = all.iter().filter(moving).collect();
    let uids: BTreeSet<String> = moving.iter().map(|cluster| uid(cluster)).collect();
    *begun = uids;
    if begun.contains(&uid(cluster)) {
        return Ok(());
    }
    let named =
        |cluster: &KubeBrainCluster| format!("{}/{}", cluster.namespace().unwrap_or_default(), cluster.name_any());
    if let Some(failed) = moving.iter().find(|cluster| is_degraded(cluster)) {
        return Err(format!("{} is not well with it", named(failed)));
    }
    match moving.first() {
        Some(first) if moving.len() >= most => Err(format!("{} is rolled out first", named(first))),
        _ => {
            begun.insert(uid(cluster));
            Ok(())
        }
    }
}

/// Returns true if the operator replaces members of a cluster.
fn rolls(cluster: &KubeBrainCluster) -> bool {
    cluster.spec.replicas > 0 && cluster.spec.strategy().type_ != UpdateStrategyType::OnDelete
}

fn is_degraded(cluster: &KubeBrainCluster) -> bool {
    let conditions = cluster.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions
        .any(|condition| ["Degraded", "Stalled"].contains(&condition.type_.as_str()) && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fake_cluster::FakeCluster;

    const OLD: &str = "kubebrain.io/kubebrain:0.1.0";
    const NEW: &str = "kubebrain.io/kubebrain:0.2.0";

    /// Clusters that run the old image.
    fn clusters(count: usize) -> Vec<Arc<KubeBrainCluster>> {
        let settled = FakeCluster::settled(json!({})).cluster;
        assert_eq!(
            settled.status.as_ref().unwrap().pinned_image.as_ref().unwrap().image,
            OLD
        );
        (0..count)
            .map(|number| {
                let mut cluster = settled.clone();
                cluster.metadata.name = Some(format!("c{number}"));
                cluster.metadata.uid = Some(format!("uid-{number}"));
                Arc::new(cluster)
            })
            .collect()
    }

    fn change(cluster: &mut Arc<KubeBrainCluster>, change: impl Fn(&mut KubeBrainCluster)) {
        let mut changed = (**cluster).clone();
        change(&mut changed);
        *cluster = Arc::new(changed);
    }

    /// The clusters that are let move, in a pass over all.
    fn admitted(all: &[Arc<KubeBrainCluster>], begun: &mut BTreeSet<String>, most: usize) -> Vec<String> {
        let admitted = all.iter().filter(|cluster| spec::image_moves(cluster, NEW).is_some());
        let admitted = admitted.filter(|cluster| admit(cluster, all, begun, (NEW, most)).is_ok());
        admitted.map(|cluster| cluster.name_any()).collect()
    }

    #[test]
    fn clusters_move_to_a_newer_default_one_after_the_other() {
        let mut all = clusters(3);
        let mut begun = BTreeSet::new();
        for _ in 0..2 {
            assert_eq!(admitted(&all, &mut begun, 1), ["c0"]);
        }
        // The operator restarts, and only the status tells.
        change(&mut all[0], |cluster| {
            cluster.status.as_mut().unwrap().image = Some(NEW.to_owned())
        });
        begun.clear();
        assert_eq!(admitted(&all, &mut begun, 1), ["c0"]);
        change(&mut all[0], |cluster| {
            let pinned = cluster.status.as_mut().unwrap().pinned_image.as_mut().unwrap();
            pinned.image = NEW.to_owned();
        });
        assert_eq!(admitted(&all, &mut begun, 1), ["c1"]);
        assert_eq!(admitted(&all, &mut BTreeSet::new(), 2), ["c1", "c2"]);
    }

    #[test]
    fn cluster_that_is_not_well_with_a_newer_default_stops_the_others() {
        let mut all = clusters(4);
        let mut begun = BTreeSet::new();
        assert_eq!(admitted(&all, &mut begun, 3), ["c0", "c1", "c2"]);
        let mut begun = BTreeSet::from(["uid-0".to_owned()]);
        change(&mut all[0], |cluster| {
            let conditions = cluster.status.as_mut().unwrap().conditions.as_mut().unwrap();
            let degraded = conditions.iter_mut().find(|condition| condition.type_ == "Degraded");
            degraded.unwrap().status = "True".to_owned();
        });
        assert_eq!(admitted(&all, &mut begun, 3), ["c0"], "no other one begins");
    }

    #[test]
    fn clusters_without_members_to_replace_take_no_turn() {
        let mut all = clusters(2);
        change(&mut all[0], |cluster| cluster.spec.replicas = 0);
        assert_eq!(admitted(&all, &mut BTreeSet::new(), 1), ["c0", "c1"]);
        change(&mut all[0], |cluster| cluster.spec.paused = true);
        assert_eq!(admitted(&all, &mut BTreeSet::new(), 1), ["c1"]);
    }
}
