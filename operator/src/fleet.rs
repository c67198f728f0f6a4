//! Clusters that move to another default image: few at a time, and none while one of them does not become ready with it.
//!
//! Nobody asked for such a change in a spec, so one fault in it must not reach every cluster. What moves is seen in the status of all
//! clusters, so a restarted operator goes on where it was; what this process let begin is remembered until the status shows it.
//!
//! A cluster that cannot move takes no turn: one that is deleted, paused or refused never counts, and one that is not well does not begin.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    clusters: Clusters,
    /// The namespace whose clusters this clone looks after; empty for all.
    namespace: String,
    /// Namespaces whose clusters are not listed yet.
    unlisted: Arc<Mutex<BTreeSet<String>>>,
    turns: Arc<Mutex<Turns>>,
}

/// Clusters by their uids.
#[derive(Default)]
struct Turns {
    /// Those that were let begin.
    begun: BTreeSet<String>,
    /// Those whose specs cannot be acted on.
    refused: BTreeSet<String>,
}

impl Fleet {
    /// `namespaces` are those that are watched; none for all.
    pub(crate) fn new(default_image: String, most: usize, namespaces: &[String], clusters: Clusters) -> Self {
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
            turns: Arc::default(),
        }
    }

    /// The same for the clusters of one namespace, or of all.
    pub(crate) fn of(&self, namespace: Option<&str>) -> Self {
        Self {
            namespace: namespace.unwrap_or_default().to_owned(),
            ..self.clone()
        }
    }

    /// Takes the store of this namespace's clusters once it is filled.
    pub(crate) fn add(&self, clusters: Store<KubeBrainCluster>) {
        lock(&self.clusters).push(clusters);
        lock(&self.unlisted).remove(&self.namespace);
    }

    /// Lets a cluster move to the default image, or returns the reason that it must wait.
    ///
    /// # Errors
    /// The reason, in words for the status.
    pub(crate) fn admit(&self, cluster: &KubeBrainCluster) -> Result<(), String> {
        if let Some(namespace) = lock(&self.unlisted).first() {
            let which = match namespace.as_str() {
                "" => String::new(),
                namespace => format!(" of namespace {namespace}"),
            };
            return Err(format!("the clusters{which} cannot be listed yet"));
        }
        let all: Vec<_> = lock(&self.clusters).iter().flat_map(Store::state).collect();
        let mut turns = lock(&self.turns);
        turns.refused.remove(&uid(cluster));
        admit(cluster, &all, &mut turns, (&self.default_image, self.most))
    }

    /// Leaves a cluster out whose spec cannot be acted on.
    pub(crate) fn refuse(&self, cluster: &KubeBrainCluster) {
        let mut turns = lock(&self.turns);
        turns.begun.remove(&uid(cluster));
        turns.refused.insert(uid(cluster));
    }

    /// Counts a cluster again whose spec can be acted on.
    pub(crate) fn accept(&self, cluster: &KubeBrainCluster) {
        lock(&self.turns).refused.remove(&uid(cluster));
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn uid(cluster: &KubeBrainCluster) -> String {
    cluster.uid().unwrap_or_default()
}

fn admit(
    cluster: &KubeBrainCluster,
    all: &[Arc<KubeBrainCluster>],
    turns: &mut Turns,
    (default, most): (&str, usize),
) -> Result<(), String> {
    if cluster.spec.paused {
        return Err("spec.paused is true".to_owned());
    }
    if !rolls(cluster) {
        return Ok(());
    }
    turns
        .refused
        .retain(|refused| all.iter().any(|cluster| uid(cluster) == *refused));
    let moving = |cluster: &&Arc<KubeBrainCluster>| {
        let can_move = rolls(cluster)
            && !cluster.spec.paused
            && cluster.metadata.deletion_timestamp.is_none()
            && !turns.refused.contains(&uid(cluster));
        let wanted = spec::image_moves(cluster, default).filter(|_| can_move);
        let told = cluster.status.as_ref().and_then(|status| status.image.as_ref());
        wanted.is_some_and(|wanted| told == Some(&wanted.to) || turns.begun.contains(&uid(cluster)))
    };
    let moving: Vec<&Arc<KubeBrainCluster>> = all.iter().filter(moving).collect();
    turns.begun = moving.iter().map(|cluster| uid(cluster)).collect();
    if turns.begun.contains(&uid(cluster)) {
        return Ok(());
    }
    // It could not tell whether the new image is to blame.
    if is(cluster, "Stalled", "True") || is(cluster, "Degraded", "True") || !is(cluster, "Ready", "True") {
        return Err("the cluster itself is not ready".to_owned());
    }
    let named =
        |cluster: &KubeBrainCluster| format!("{}/{}", cluster.namespace().unwrap_or_default(), cluster.name_any());
    let is_unwell =
        |cluster: &&&Arc<KubeBrainCluster>| is(cluster, "Stalled", "True") || is(cluster, "Degraded", "True");
    if let Some(failed) = moving.iter().find(is_unwell) {
        return Err(format!("{} is not well with it", named(failed)));
    }
    match moving.first() {
        Some(first) if moving.len() >= most => Err(format!("{} is rolled out first", named(first))),
        _ => {
            turns.begun.insert(uid(cluster));
            Ok(())
        }
    }
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

    fn set(cluster: &mut KubeBrainCluster, type_: &str, status: &str) {
        let conditions = cluster.status.as_mut().unwrap().conditions.as_mut().unwrap();
        let mut condition = conditions[0].clone();
        conditions.retain(|condition| condition.type_ != type_);
        condition.type_ = type_.to_owned();
        condition.status = status.to_owned();
        conditions.push(condition);
    }

    /// The clusters that are let move, in a pass over all.
    fn admitted(all: &[Arc<KubeBrainCluster>], turns: &mut Turns, most: usize) -> Vec<String> {
        let admitted = all.iter().filter(|cluster| spec::image_moves(cluster, NEW).is_some());
        let admitted = admitted.filter(|cluster| admit(cluster, all, turns, (NEW, most)).is_ok());
        admitted.map(|cluster| cluster.name_any()).collect()
    }

    #[test]
    fn clusters_move_to_a_newer_default_one_after_the_other() {
        let mut all = clusters(3);
        let mut turns = Turns::default();
        for _ in 0..2 {
            assert_eq!(admitted(&all, &mut turns, 1), ["c0"]);
        }
        // The operator restarts, and only the status tells.
        change(&mut all[0], |cluster| {
            cluster.status.as_mut().unwrap().image = Some(NEW.to_owned())
        });
        turns.begun.clear();
        assert_eq!(admitted(&all, &mut turns, 1), ["c0"]);
        change(&mut all[0], |cluster| {
            let pinned = cluster.status.as_mut().unwrap().pinned_image.as_mut().unwrap();
            pinned.image = NEW.to_owned();
        });
        assert_eq!(admitted(&all, &mut turns, 1), ["c1"]);
        assert_eq!(admitted(&all, &mut Turns::default(), 2), ["c1", "c2"]);
    }

    #[test]
    fn cluster_that_is_not_well_with_a_newer_default_stops_the_others() {
        let mut all = clusters(4);
        let mut turns = Turns::default();
        assert_eq!(admitted(&all, &mut turns, 3), ["c0", "c1", "c2"]);
        let mut turns = Turns::default();
        turns.begun.insert("uid-0".to_owned());
        change(&mut all[0], |cluster| set(cluster, "Degraded", "True"));
        assert_eq!(admitted(&all, &mut turns, 3), ["c0"], "no other one begins");
        let why = admit(&all[1], &all, &mut turns, (NEW, 3)).unwrap_err();
        assert_eq!(why, "brains/c0 is not well with it");
    }

    #[test]
    fn clusters_that_cannot_move_take_no_turn() {
        let stops: [fn(&mut KubeBrainCluster); 2] = [
            |cluster| cluster.spec.paused = true,
            |cluster| {
                let now = crate::fake_cluster::BEGIN.parse().unwrap();
                cluster.metadata.deletion_timestamp = Some(Time(now));
            },
        ];
        for stop in stops {
            let mut all = clusters(2);
            let mut turns = Turns::default();
            assert_eq!(admitted(&all, &mut turns, 1), ["c0"]);
            change(&mut all[0], |cluster| {
                cluster.status.as_mut().unwrap().image = Some(NEW.to_owned())
            });
            change(&mut all[0], stop);
            assert_eq!(admitted(&all[1..], &mut Turns::default(), 1), ["c1"]);
            admit(&all[1], &all, &mut turns, (NEW, 1)).unwrap();
        }
        // The spec of one that has begun is refused.
        let mut all = clusters(2);
        change(&mut all[0], |cluster| {
            cluster.status.as_mut().unwrap().image = Some(NEW.to_owned())
        });
        let fleet = Fleet::new(NEW.to_owned(), 1, &[], Arc::default());
        fleet.refuse(&all[0]);
        admit(&all[1], &all, &mut lock(&fleet.turns), (NEW, 1)).unwrap();
        fleet.accept(&all[0]);
        lock(&fleet.turns).begun.clear();
        let why = admit(&all[1], &all, &mut lock(&fleet.turns), (NEW, 1)).unwrap_err();
        assert_eq!(why, "brains/c0 is rolled out first");
    }

    #[test]
    fn cluster_that_is_not_ready_before_does_not_begin() {
        for (type_, status) in [("Ready", "False"), ("Degraded", "True"), ("Stalled", "True")] {
            let mut all = clusters(2);
            change(&mut all[0], |cluster| set(cluster, type_, status));
            assert_eq!(admitted(&all, &mut Turns::default(), 1), ["c1"], "{type_}");
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
        assert_eq!(admitted(&all, &mut Turns::default(), 1), ["c0", "c1"]);
        change(&mut all[0], |cluster| cluster.spec.paused = true);
        assert_eq!(admitted(&all, &mut Turns::default(), 1), ["c1"]);
    }
}
