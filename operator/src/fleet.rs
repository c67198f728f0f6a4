//! Clusters that move to another default image: few at a time, and no further one while one of them is not ready with the new image.
//!
//! Such a change does not come from a spec, so a fault in it must not reach every cluster. The status of each cluster shows whether it is
//! moving, so a restarted operator can continue. Until the status shows it, this process remembers which clusters it allowed to begin.
//!
//! A turn ends when all members are ready with the new image, when the cluster is deleted, or when its spec chooses another image. Nothing
//! else ends it: if a cluster is paused, refused or failing half-way, the image may be the cause. A cluster that is paused, refused or
//! unhealthy before its turn does not get one.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crds::KubeBrainCluster;
use crds::cluster::update_strategy::UpdateStrategyType;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::Store;
use plan::{maintenance, spec};

/// The filled stores of clusters: one for each watched namespace, or one for all.
pub(crate) type ClusterStores = Arc<Mutex<Vec<Store<KubeBrainCluster>>>>;

/// The state of all moves. Clones share it.
#[derive(Clone)]
pub(crate) struct Fleet {
    default_image: String,
    /// Maximum number of clusters that move at a time.
    most: usize,
    clusters: ClusterStores,
    /// The namespace whose clusters this clone manages; empty for all.
    namespace: String,
    /// Namespaces whose clusters are not listed yet.
    unlisted: Arc<Mutex<BTreeSet<String>>>,
    /// Uids of the clusters that were allowed to begin.
    begun: Arc<Mutex<BTreeSet<String>>>,
}

impl Fleet {
    /// `namespaces` are the watched ones; empty for all.
    pub(crate) fn new(default_image: String, most: usize, namespaces: &[String], clusters: ClusterStores) -> Self {
        let mut unlisted: BTreeSet<String> = namespaces.iter().cloned().collect();
        if unlisted.is_empty() {
            unlisted.insert(String::new());
        }
        Self {
            default_image,
            most,
            clusters,
            namespace: String::new(),
            unlisted: Arc::new(Mutex::new(unlisted)),
            begun: Arc::default(),
        }
    }

    /// Returns the same state for the clusters of one namespace, or of all.
    pub(crate) fn of(&self, namespace: Option<&str>) -> Self {
        Self {
            namespace: namespace.unwrap_or_default().to_owned(),
            ..self.clone()
        }
    }

    /// Adds the store of this namespace's clusters once it is filled.
    pub(crate) fn add(&self, clusters: Store<KubeBrainCluster>) {
        lock(&self.clusters).push(clusters);
        lock(&self.unlisted).remove(&self.namespace);
    }

    /// Allows a cluster to move to the default image, or returns the reason why it must wait.
    ///
    /// # Errors
    /// The reason, in words for the status.
    pub(crate) fn admit(&self, cluster: &KubeBrainCluster) -> Result<(), String> {
        let mut begun = lock(&self.begun);
        // For a cluster that has begun, other clusters do not matter.
        if is_moving(cluster, &self.default_image, &begun) {
            return Ok(());
        }
        if let Some(namespace) = lock(&self.unlisted).first() {
            let which = match namespace.as_str() {
                "" => String::new(),
                namespace => format!(" of namespace {namespace}"),
            };
            return Err(format!("the clusters{which} cannot be listed yet"));
        }
        let all: Vec<_> = lock(&self.clusters).iter().flat_map(Store::state).collect();
        admit(
            cluster,
            &all,
            &mut begun,
            FleetLimit {
                default_image: &self.default_image,
                most: self.most,
                now: Timestamp::now(),
            },
        )
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn uid(cluster: &KubeBrainCluster) -> String {
    cluster.uid().unwrap_or_default()
}

/// How many clusters at a time may move to the default image.
#[derive(Clone, Copy)]
struct FleetLimit<'a> {
    default_image: &'a str,
    most: usize,
    now: Timestamp,
}

fn admit(
    cluster: &KubeBrainCluster,
    all: &[Arc<KubeBrainCluster>],
    begun: &mut BTreeSet<String>,
    limit: FleetLimit<'_>,
) -> Result<(), String> {
    let FleetLimit {
        default_image: default,
        most,
        now,
    } = limit;
    if is_moving(cluster, default, begun) {
        return Ok(());
    }
    if cluster.spec.paused {
        return Err("spec.paused is true".to_owned());
    }
    if !rolls(cluster) {
        return Ok(());
    }
    // It would keep its turn until the window begins.
    if let Some(why) = maintenance::closed(cluster, now) {
        return Err(why);
    }
    // Clusters of another installation end no turn here.
    let manager = |cluster: &KubeBrainCluster| cluster.status.as_ref()?.managed_by.clone();
    let own = manager(cluster);
    let is_of_others = |other: &KubeBrainCluster| manager(other).is_some_and(|other| own.as_ref() != Some(&other));
    let takes_turn = |cluster: &&Arc<KubeBrainCluster>| {
        let is_gone = cluster.metadata.deletion_timestamp.is_some();
        !is_gone && !is_of_others(cluster) && rolls(cluster) && is_moving(cluster, default, begun)
    };
    let moving: Vec<&Arc<KubeBrainCluster>> = all.iter().filter(takes_turn).collect();
    *begun = moving.iter().map(|cluster| uid(cluster)).collect();
    // An unhealthy cluster could not show whether the new image is at fault.
    if is(cluster, "Stalled", "True") || is(cluster, "Degraded", "True") || !is(cluster, "Ready", "True") {
        return Err("the cluster itself is not ready".to_owned());
    }
    let named =
        |cluster: &KubeBrainCluster| format!("{}/{}", cluster.namespace().unwrap_or_default(), cluster.name_any());
    let is_unwell =
        |cluster: &&&Arc<KubeBrainCluster>| is(cluster, "Stalled", "True") || is(cluster, "Degraded", "True");
    if let Some(failed) = moving.iter().find(is_unwell) {
        return Err(format!("{} is not healthy with it", named(failed)));
    }
    // One that waits for a maintenance window keeps its place, but may take days.
    let waits =
        |other: &&&Arc<KubeBrainCluster>| is(other, "Ready", "True") && maintenance::closed(other, now).is_some();
    let moving: Vec<_> = moving.iter().filter(|other| !waits(other)).collect();
    match moving.first() {
        Some(first) if moving.len() >= most && first.spec.paused => {
            Err(format!("{} is paused and not all its members run it yet", named(first)))
        }
        Some(first) if moving.len() >= most => Err(format!("{} is rolled out first", named(first))),
        _ => {
            begun.insert(uid(cluster));
            Ok(())
        }
    }
}

/// Returns true if a cluster is moving to the default image: it was allowed to begin, or the status names an image other than the one that
/// all its members ran last.
fn is_moving(cluster: &KubeBrainCluster, default: &str, begun: &BTreeSet<String>) -> bool {
    let Some(wanted) = spec::image_moves(cluster, default) else {
        return false;
    };
    let status = cluster.status.as_ref();
    let told = status.and_then(|status| status.image.as_ref());
    let is_current = status.is_some_and(|status| status.observed_generation == cluster.metadata.generation);
    // It may have begun with a former default. If the status is from a former spec, its image proves nothing.
    let has_begun = |told: &String| *told == wanted.to || (is_current && *told != wanted.from);
    told.is_some_and(has_begun) || begun.contains(&uid(cluster))
}

/// Returns true if the operator replaces members of a cluster.
fn rolls(cluster: &KubeBrainCluster) -> bool {
    cluster.spec.replicas > 0 && cluster.spec.strategy().type_ != UpdateStrategyType::OnDelete
}

/// Returns true if a condition of a cluster has this status.
fn is(cluster: &KubeBrainCluster, type_: &str, status: &str) -> bool {
    let conditions = cluster.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == type_ && condition.status == status)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use plan::testing::FakeCluster;
    use serde_json::json;

    use super::*;

    const OLD: &str = "kubebrain.io/kubebrain:0.1.0";
    fn limit(most: usize) -> FleetLimit<'static> {
        FleetLimit {
            default_image: NEW,
            most,
            now: plan::testing::BEGIN.parse().unwrap(),
        }
    }

    const NEW: &str = "kubebrain.io/kubebrain:0.2.0";

    /// Returns clusters that run the old image.
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

    fn set(cluster: &mut KubeBrainCluster, type_: &str, status: &str) {
        let conditions = cluster.status.as_mut().unwrap().conditions.as_mut().unwrap();
        let mut condition = conditions[0].clone();
        conditions.retain(|condition| condition.type_ != type_);
        condition.type_ = type_.to_owned();
        condition.status = status.to_owned();
        conditions.push(condition);
    }

    /// Returns the clusters that are allowed to move, in a pass over all.
    fn admitted(all: &[Arc<KubeBrainCluster>], begun: &mut BTreeSet<String>, most: usize) -> Vec<String> {
        let admitted = all.iter().filter(|cluster| spec::image_moves(cluster, NEW).is_some());
        let admitted = admitted.filter(|cluster| admit(cluster, all, begun, limit(most)).is_ok());
        admitted.map(|cluster| cluster.name_any()).collect()
    }

    #[test]
    fn clusters_move_to_a_newer_default_one_after_the_other() {
        let mut all = clusters(3);
        let mut begun = BTreeSet::new();
        for _ in 0..2 {
            assert_eq!(admitted(&all, &mut begun, 1), ["c0"]);
        }
        // The operator restarts, and only the status shows the move.
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
        let mut begun = BTreeSet::new();
        begun.insert("uid-0".to_owned());
        change(&mut all[0], |cluster| set(cluster, "Degraded", "True"));
        assert_eq!(admitted(&all, &mut begun, 3), ["c0"], "no other one begins");
        let why = admit(&all[1], &all, &mut begun, limit(3)).unwrap_err();
        assert_eq!(why, "brains/c0 is not healthy with it");
    }

    #[test]
    fn paused_cluster_begins_nothing_and_keeps_its_turn() {
        let mut all = clusters(2);
        change(&mut all[0], |cluster| cluster.spec.paused = true);
        assert_eq!(admitted(&all, &mut BTreeSet::new(), 1), ["c1"]);
        // Half-way, the image may be the reason for a pause.
        change(&mut all[0], |cluster| {
            cluster.status.as_mut().unwrap().image = Some(NEW.to_owned())
        });
        assert_eq!(admitted(&all, &mut BTreeSet::new(), 1), ["c0"]);
        let why = admit(&all[1], &all, &mut BTreeSet::new(), limit(1)).unwrap_err();
        assert_eq!(why, "brains/c0 is paused and not all its members run it yet");
    }

    #[test]
    fn cluster_that_waits_for_a_maintenance_window_takes_no_turn() {
        let mut all = clusters(2);
        let windows =
            |hour: u8| json!({"maintenanceWindows": [{"schedule": format!("0 {hour} * * *"), "duration": "1h"}]});
        change(&mut all[0], |cluster| {
            cluster.spec.update_strategy = Some(serde_json::from_value(windows(4)).unwrap());
        });
        assert_eq!(admitted(&all, &mut BTreeSet::new(), 1), ["c1"]);
        let why = admit(&all[0], &all, &mut BTreeSet::new(), limit(1)).unwrap_err();
        assert!(why.ends_with("the next one begins at 2026-11-21T04:00:00Z"), "{why}");
        change(&mut all[0], |cluster| {
            cluster.spec.update_strategy = Some(serde_json::from_value(windows(0)).unwrap());
        });
        assert_eq!(admitted(&all, &mut BTreeSet::new(), 1), ["c0"]);
        // Its window ends before it has moved.
        change(&mut all[0], |cluster| {
            cluster.status.as_mut().unwrap().image = Some(NEW.to_owned());
            cluster.spec.update_strategy = Some(serde_json::from_value(windows(4)).unwrap());
        });
        assert_eq!(admitted(&all, &mut BTreeSet::new(), 1), ["c0", "c1"]);
        change(&mut all[0], |cluster| set(cluster, "Degraded", "True"));
        let why = admit(&all[1], &all, &mut BTreeSet::new(), limit(1)).unwrap_err();
        assert_eq!(why, "brains/c0 is not healthy with it");
    }

    #[test]
    fn turn_ends_with_the_deletion_of_its_cluster() {
        let mut all = clusters(2);
        let mut begun = BTreeSet::new();
        assert_eq!(admitted(&all, &mut begun, 1), ["c0"]);
        change(&mut all[0], |cluster| {
            let now = plan::testing::BEGIN.parse().unwrap();
            cluster.metadata.deletion_timestamp = Some(Time(now));
        });
        admit(&all[1], &all, &mut begun, limit(1)).unwrap();
        assert_eq!(
            admitted(&all[1..], &mut BTreeSet::from(["uid-0".to_owned()]), 1),
            ["c1"]
        );
    }

    #[test]
    fn cluster_half_way_to_a_former_default_keeps_its_turn() {
        let mut all = clusters(2);
        change(&mut all[0], |cluster| {
            cluster.status.as_mut().unwrap().image = Some("kubebrain.io/kubebrain:0.1.9".to_owned())
        });
        all.reverse();
        assert_eq!(admitted(&all, &mut BTreeSet::new(), 1), ["c0"]);
        // The status was written for another spec.
        change(&mut all[1], |cluster| cluster.metadata.generation = Some(9));
        assert_eq!(admitted(&all, &mut BTreeSet::new(), 1), ["c1"]);
    }

    #[test]
    fn cluster_that_is_not_ready_before_does_not_begin() {
        for (type_, status) in [("Ready", "False"), ("Degraded", "True"), ("Stalled", "True")] {
            let mut all = clusters(2);
            change(&mut all[0], |cluster| set(cluster, type_, status));
            assert_eq!(admitted(&all, &mut BTreeSet::new(), 1), ["c1"], "{type_}");
        }
    }

    #[test]
    fn namespace_that_cannot_be_listed_is_named() {
        let namespaces = ["a".to_owned(), "b".to_owned()];
        let fleet = Fleet::new(NEW.to_owned(), 1, &namespaces, Arc::default());
        let store = || kube::runtime::reflector::store::Writer::default().as_reader();
        fleet.of(Some("a")).add(store());
        let cluster = clusters(1).remove(0);
        let why = fleet.admit(&cluster).unwrap_err();
        assert_eq!(why, "the clusters of namespace b cannot be listed yet");
        fleet.of(Some("b")).add(store());
        fleet.admit(&cluster).unwrap();
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
